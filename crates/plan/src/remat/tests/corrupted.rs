//! Schedules with one thing wrong are found out.

use super::generate::random_step;
use crate::remat::{Call, CheckError, Problem, Schedule, check, recorded_peak, solve};

fn tight() -> (Problem, Schedule) {
    let problem = random_step(5, 30);
    let line = recorded_peak(&problem).unwrap() * 3 / 4;
    let schedule = solve(&problem, line).unwrap();
    assert!(schedule.repeats(&problem) > 0);
    check(&problem, &schedule).unwrap();
    (problem, schedule)
}

#[test]
fn a_missing_input_is_found() {
    let (problem, mut schedule) = tight();
    let first =
        schedule.runs.iter().position(|r| problem.calls[r.call].inputs.iter().any(|&t| t > 1)).unwrap();
    let reader = schedule.runs.remove(first);
    schedule.runs.insert(0, reader);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Missing { run: 0, .. })));
}

#[test]
fn a_call_that_never_runs_is_found() {
    let (problem, mut schedule) = tight();
    let last = schedule.runs.iter().rposition(|r| r.call + 1 == problem.calls.len()).unwrap();
    schedule.runs.remove(last);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Never { .. })));
}

#[test]
fn a_repeat_of_what_must_run_once_is_found() {
    let (mut problem, schedule) = tight();
    let mut ran = vec![false; problem.calls.len()];
    let again = |r: &crate::remat::Run| std::mem::replace(&mut ran[r.call], true);
    let run = schedule.runs.iter().position(again).unwrap();
    let call = schedule.runs[run].call;
    problem.calls[call].once = true;
    assert_eq!(check(&problem, &schedule), Err(CheckError::Repeated { run, call }));
}

#[test]
fn a_peak_over_what_is_said_is_found() {
    let (problem, mut schedule) = tight();
    schedule.peak_bytes -= 1;
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Figures { what: "bytes", .. })));
    let (problem, mut schedule) = tight();
    schedule.runs.iter_mut().for_each(|r| r.drops.clear());
    assert!(check(&problem, &schedule).is_err());
}

#[test]
fn something_kept_that_is_gone_is_found() {
    let (problem, mut schedule) = tight();
    let tensor = *problem.keep.last().unwrap();
    let end = schedule.runs.last_mut().unwrap();
    end.drops.push(tensor);
    assert_eq!(check(&problem, &schedule), Err(CheckError::Gone { tensor }));
    schedule.runs[0].drops.push(0);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Drop { run: 0, tensor: 0 })));
}

#[test]
fn a_wrong_take_over_is_found() {
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
    assert_eq!(schedule.runs[1].takes_over, [(2, 1)]);
    let wrong =
        |problem: &Problem| matches!(check(problem, &schedule), Err(CheckError::InPlace { run: 1, .. }));
    assert!(!wrong(&problem));
    problem.tensors[2] = 9;
    assert!(wrong(&problem), "another size");
    problem.tensors[2] = 8;
    problem.calls[1].in_place.clear();
    assert!(wrong(&problem), "not allowed");
    problem.calls[1].in_place.push(1);
    problem.calls[2].inputs.push(1);
    assert!(matches!(check(&problem, &schedule), Err(CheckError::Missing { run: 2, .. })), "read again");
}
