//! Schedules corrupted on purpose: `check` must name what is wrong.

use super::generate::random_step;
use crate::remat::{Call, CheckError, Problem, Schedule, check, recorded_peak, solve};

fn tight() -> (Problem, Schedule) {
    let problem = random_step(5, 30);
    let line = recorded_peak(&problem).unwrap() * 3 / 4;
    let schedule = solve(&problem, line).unwrap();
    assert!(schedule.rematerialized_runs(&problem) > 0);
    check(&problem, &schedule).unwrap();
    (problem, schedule)
}

#[test]
fn reports_an_input_that_is_not_resident() {
    let (problem, mut schedule) = tight();
    let first =
        schedule.runs.iter().position(|r| problem.calls[r.call].inputs.iter().any(|&t| t > 1)).unwrap();
    let reader = schedule.runs.remove(first);
    schedule.runs.insert(0, reader);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Missing { run: 0, .. })));
}

#[test]
fn reports_a_call_that_never_runs() {
    let (problem, mut schedule) = tight();
    let last = schedule.runs.iter().rposition(|r| r.call + 1 == problem.calls.len()).unwrap();
    schedule.runs.remove(last);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Never { .. })));
}

#[test]
fn reports_rematerialization_of_a_call_that_must_run_once() {
    let (mut problem, schedule) = tight();
    let mut ran = vec![false; problem.calls.len()];
    let rematerialized = |r: &crate::remat::Run| std::mem::replace(&mut ran[r.call], true);
    let run = schedule.runs.iter().position(rematerialized).unwrap();
    let call = schedule.runs[run].call;
    problem.calls[call].once = true;
    assert_eq!(check(&problem, &schedule), Err(CheckError::Rematerialized { run, call }));
}

#[test]
fn reports_a_peak_above_the_stated_one() {
    let (problem, mut schedule) = tight();
    schedule.peak_bytes -= 1;
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Figures { what: "bytes", .. })));
    let (problem, mut schedule) = tight();
    schedule.runs.iter_mut().for_each(|r| r.drops.clear());
    assert!(check(&problem, &schedule).is_err());
}

#[test]
fn reports_a_kept_tensor_that_is_dropped() {
    let (problem, mut schedule) = tight();
    let tensor = *problem.keep.last().unwrap();
    let end = schedule.runs.last_mut().unwrap();
    end.drops.push(tensor);
    assert_eq!(check(&problem, &schedule), Err(CheckError::Gone { tensor }));
    schedule.runs[0].drops.push(0);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Drop { run: 0, tensor: 0 })));
}

#[test]
fn reports_in_place_outputs_that_are_not_allowed() {
    let call = |inputs: &[usize], output, in_place: &[usize]| Call {
        nanoseconds: 1,
        inputs: inputs.to_vec(),
        outputs: vec![output],
        in_place: in_place.to_vec(),
        ..Call::default()
    };
    let mut problem = Problem {
        tensors: vec![8; 4],
        pinned: vec![0],
        keep: vec![3],
        calls: vec![call(&[0], 1, &[]), call(&[1], 2, &[1]), call(&[2], 3, &[])],
    };
    let schedule = solve(&problem, u64::MAX).unwrap();
    assert_eq!(schedule.runs[1].in_place, [(2, 1)]);
    let is_reported =
        |problem: &Problem| matches!(check(problem, &schedule), Err(CheckError::InPlace { run: 1, .. }));
    assert!(!is_reported(&problem));
    problem.tensors[2] = 9;
    assert!(is_reported(&problem), "another size");
    problem.tensors[2] = 8;
    problem.calls[1].in_place.clear();
    assert!(is_reported(&problem), "not allowed");
    problem.calls[1].in_place.push(1);
    problem.calls[2].inputs.push(1);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Missing { run: 2, .. })), "read later");
}
