//! Properties of schedules of steps too large for exhaustive search.

use super::generate::{add, random_step, random_step_with_once};
use crate::remat::{
    Call, Frontier, LineTooLow, Problem, SearchError, check, frontier, largest_call, least_peak, lower_bound,
    recorded_peak, smallest_line, solve,
};

/// A chain of forward calls and their backward calls.
fn chain(length: usize) -> Problem {
    let mut problem = Problem { tensors: vec![100; 2 * length], pinned: vec![0], ..Problem::default() };
    let call = |inputs: Vec<usize>, output| Call {
        nanoseconds: 10,
        inputs,
        outputs: vec![output],
        ..Call::default()
    };
    (1..length).for_each(|i| problem.calls.push(call(vec![i - 1], i)));
    for i in 0..length {
        let gradient = if i == 0 { vec![length - 1] } else { vec![length - 1 - i, length + i - 1] };
        problem.calls.push(call(gradient, length + i));
    }
    problem.keep.push(2 * length - 1);
    problem
}

#[test]
fn schedules_stay_under_their_line_and_more_memory_is_never_slower() {
    for seed in 0..24 {
        let step = if seed % 2 == 0 { random_step } else { random_step_with_once };
        let problem = step(seed / 2, 20 + 5 * (seed / 2) as usize);
        let mut before = u64::MAX;
        let mut found = Frontier::new(&problem).unwrap();
        for (line, nanoseconds) in frontier(&problem).unwrap() {
            let schedule = found.solve(line).unwrap();
            let figures = check(&problem, &schedule).unwrap();
            assert!(figures.peak_bytes <= line, "seed {seed}: {} over {line}", figures.peak_bytes);
            assert!(figures.nanoseconds <= before, "seed {seed}: slower with {line}");
            assert!(figures.nanoseconds <= nanoseconds, "seed {seed}: the frontier promises more");
            before = figures.nanoseconds;
        }
    }
}

#[test]
fn the_search_is_deterministic() {
    let problem = random_step(3, 40);
    let line = recorded_peak(&problem).unwrap() * 2 / 3;
    assert_eq!(solve(&problem, line), solve(&problem, line));
}

#[test]
fn chains_need_little_memory_and_time() {
    let problem = chain(40);
    let low = smallest_line(&problem).unwrap();
    assert!(low <= 600, "{low} bytes for a chain that five tensors do");
    // A third of the memory for less than one more forward pass.
    let line = recorded_peak(&problem).unwrap() / 3;
    let schedule = solve(&problem, line).unwrap();
    let extra = schedule.nanoseconds - 790;
    let bound = lower_bound(&problem, line).unwrap();
    assert!(extra >= bound && extra <= 390, "{extra} over {bound}");
}

#[test]
fn large_steps_take_little_more_than_their_bound() {
    let problem = chain(1_600);
    let mut found = Frontier::new(&problem).unwrap();
    let lowest = found.lowest().peak_bytes;
    assert!(lowest <= 1_000, "{lowest} bytes for a chain that ten tensors do");
    let mut before = u64::MAX;
    for part in [8, 4, 2] {
        let line = recorded_peak(&problem).unwrap() / part;
        let figures = check(&problem, &found.solve(line).unwrap()).unwrap();
        assert!(figures.peak_bytes <= line && figures.nanoseconds <= before);
        let extra = figures.nanoseconds - 31_990;
        let bound = lower_bound(&problem, line).unwrap();
        // One run more than the bound: it counts runs in part.
        assert!(extra >= bound && extra <= bound + 10, "{extra} over {bound} under {line}");
        before = figures.nanoseconds;
    }
}

/// Training steps of one network in one step: each reads the parameters that the one before it wrote.
fn unrolled_updates(layers: usize, steps: usize) -> Problem {
    let mut problem =
        Problem { tensors: vec![2], pinned: (0..=layers).collect::<Vec<_>>(), ..Problem::default() };
    problem.tensors.extend(vec![4; layers]);
    let mut parameters: Vec<usize> = (1..=layers).collect();
    for _ in 0..steps {
        let mut activations = vec![0];
        for &parameter in &parameters {
            activations.push(add(&mut problem, 2, &[activations[activations.len() - 1], parameter]));
        }
        let mut gradient = add(&mut problem, 2, &[activations[layers]]);
        for layer in (0..layers).rev() {
            let of_parameter = add(&mut problem, 4, &[gradient, activations[layer]]);
            gradient = add(&mut problem, 2, &[gradient, parameters[layer]]);
            parameters[layer] = add(&mut problem, 4, &[parameters[layer], of_parameter]);
            problem.calls.last_mut().unwrap().in_place.push(of_parameter);
        }
    }
    problem.keep = parameters;
    problem
}

#[test]
fn many_unrolled_updates_need_little_more_than_the_largest_call() {
    for steps in [1, 4, 16] {
        let problem = unrolled_updates(8, steps);
        let [largest, least] = [largest_call(&problem).unwrap(), least_peak(&problem).unwrap()];
        let smallest = smallest_line(&problem).unwrap();
        assert!(2 * smallest <= 3 * largest, "{steps} steps: {smallest} bytes, {largest} of a call");
        assert_eq!(smallest, least, "{steps} steps: no schedule needs less");
        let Err(SearchError::LineTooLow(refused)) = solve(&problem, least - 1) else {
            panic!("under the bound")
        };
        assert_eq!((refused.least_peak_bytes, refused.smallest_line_bytes), (least, smallest));
    }
}

#[test]
fn results_of_calls_that_run_once_stay_live_and_loads_are_rematerialized() {
    // The update of one state runs in the middle; its result is read at the end, beside a parameter that is loaded.
    let mut problem = chain(40);
    let (parameter, state) = (problem.tensors.len(), problem.tensors.len() + 1);
    problem.tensors.extend([100, 100]);
    let load = Call { nanoseconds: 1, outputs: vec![parameter], ..Call::default() };
    let update =
        Call { nanoseconds: 1, inputs: vec![20], outputs: vec![state], once: true, ..Call::default() };
    let store = Call { nanoseconds: 1, inputs: vec![parameter, state], once: true, ..Call::default() };
    problem.calls.last_mut().unwrap().inputs.extend([parameter, state]);
    problem.calls.insert(20, update);
    problem.calls.insert(0, load);
    problem.calls.push(store);
    let low = smallest_line(&problem).unwrap();
    assert!(low <= 700, "{low} bytes");
    let schedule = solve(&problem, low).unwrap();
    let figures = check(&problem, &schedule).unwrap();
    let runs = |call| schedule.runs.iter().filter(|r| r.call == call).count();
    assert!(figures.peak_bytes <= low && runs(0) == 2, "{} loads under {}", runs(0), figures.peak_bytes);
    assert_eq!((runs(21), runs(problem.calls.len() - 1)), (1, 1));
    // The state is live across the peak: only other tensors can be evicted there.
    assert!(lower_bound(&problem, low).unwrap() > lower_bound(&chain(40), low).unwrap());
}

#[test]
fn nothing_is_rematerialized_where_everything_fits() {
    let problem = chain(10);
    let peak = recorded_peak(&problem).unwrap();
    assert_eq!(solve(&problem, peak).unwrap().rematerialized_runs(&problem), 0);
    assert!(solve(&problem, peak - 1).unwrap().rematerialized_runs(&problem) > 0);
    assert_eq!(solve(&Problem::default(), 0).unwrap().runs.len(), 0);
}

#[test]
fn solutions_do_not_depend_on_the_lines_solved_before() {
    let problem = random_step(5, 40);
    let (low, high) = (smallest_line(&problem).unwrap(), recorded_peak(&problem).unwrap());
    let mut found = Frontier::new(&problem).unwrap();
    for line in [high - 1, low - 1, (low + high) / 2, low, high] {
        assert_eq!(found.solve(line).ok(), solve(&problem, line).ok(), "line {line}");
    }
    assert_eq!(found.lowest().peak_bytes, low);
}

/// A U-shaped network with skip connections and its backward calls: the gradients of the skip connections stay live
/// until the downward half's backward calls.
fn u_shape(depth: usize) -> Problem {
    let mut problem = Problem { tensors: vec![100], pinned: vec![0], ..Problem::default() };
    let mut call = |inputs: &[usize]| add(&mut problem, 100, inputs);
    let mut down = vec![0];
    (0..depth).for_each(|at| down.push(call(&[down[at]])));
    let mut up = vec![down[depth]];
    (0..depth - 1).for_each(|at| up.push(call(&[up[at], down[depth - 1 - at]])));
    let mut gradient = call(&[up[depth - 1]]);
    let mut waiting = Vec::new();
    for at in (0..depth - 1).rev() {
        let reads = [gradient, up[at], down[depth - 1 - at]];
        waiting.push(call(&reads));
        gradient = call(&reads);
    }
    for at in (1..depth).rev() {
        gradient = call(&[gradient, down[at]]);
        gradient = call(&[gradient, waiting[at - 1]]);
    }
    problem.keep.push(gradient);
    problem
}

#[test]
fn the_bound_adds_up_over_disjoint_segments() {
    let problem = u_shape(30);
    let line = recorded_peak(&problem).unwrap() * 7 / 10;
    let excess = recorded_peak(&problem).unwrap() - line;
    let once: u64 = problem.calls.iter().map(|c| c.nanoseconds).sum();
    let bound = lower_bound(&problem, line).unwrap();
    let extra = solve(&problem, line).unwrap().nanoseconds - once;
    // At one position, ten nanoseconds for each hundred bytes of excess; here that is due twice.
    assert!(bound * 2 > excess / 10 * 3 && bound <= extra, "{bound} for {excess} bytes, {extra} found");
    assert!(extra <= bound + bound / 4, "{extra} over {bound}");
}

#[test]
fn in_place_outputs_are_counted_however_many_there_are() {
    let (old, new): (Vec<usize>, Vec<usize>) = ((0..70).collect(), (70..140).collect());
    let produce = Call { nanoseconds: 1, outputs: old.clone(), ..Call::default() };
    let update =
        Call { nanoseconds: 1, inputs: old.clone(), outputs: new.clone(), in_place: old, ..Call::default() };
    let calls = vec![produce, update];
    let problem = Problem { tensors: vec![8; 140], keep: new, calls, ..Problem::default() };
    let schedule = solve(&problem, u64::MAX).unwrap();
    assert_eq!(check(&problem, &schedule).unwrap().peak_bytes, 70 * 8);
}

#[test]
fn a_line_below_the_pinned_tensors_of_an_empty_step_is_too_low() {
    let problem = Problem { tensors: vec![100], pinned: vec![0], ..Problem::default() };
    assert_eq!(solve(&problem, 100).unwrap().peak_bytes, 100);
    let too_low = LineTooLow {
        line_bytes: 99,
        smallest_line_bytes: 100,
        least_peak_bytes: 100,
        largest_call_bytes: 100,
    };
    assert_eq!(solve(&problem, 99), Err(SearchError::LineTooLow(too_low)));
}
