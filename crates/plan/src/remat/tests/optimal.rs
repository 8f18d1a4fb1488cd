//! The search against exhaustive search, on small steps.

use super::generate::{add, random_step, random_step_with_once};
use crate::remat::{
    Problem, check, largest_call, least_peak, lower_bound, recorded_peak, smallest_line, solve,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// All states of a step with the first runs in recorded order: the next first run, and the resident tensors.
struct Exhaustive<'a> {
    problem: &'a Problem,
    /// Bytes of every set of tensors.
    bytes: Vec<u64>,
    pinned: usize,
    keep: usize,
    calls: Vec<(usize, usize)>,
}

impl<'a> Exhaustive<'a> {
    fn new(problem: &'a Problem) -> Self {
        let set = |list: &[usize]| list.iter().fold(0_usize, |mask, t| mask | 1 << t);
        let mut bytes = vec![0; 1 << problem.tensors.len()];
        for mask in 1..bytes.len() {
            bytes[mask] = bytes[mask & (mask - 1)] + problem.tensors[mask.trailing_zeros() as usize];
        }
        let calls = problem.calls.iter().map(|c| (set(&c.inputs), set(&c.outputs))).collect();
        Self { problem, bytes, pinned: set(&problem.pinned), keep: set(&problem.keep), calls }
    }

    /// The least time under a line, with any rematerialized runs anywhere.
    fn least_time(&self, line: u64) -> Option<u64> {
        self.least(|time, nanoseconds, live_bytes| (live_bytes <= line).then_some(time + nanoseconds))
    }

    /// The smallest line under which there is a schedule.
    fn least_line(&self) -> u64 {
        self.least(|peak, _, live_bytes| Some(peak.max(live_bytes))).unwrap()
    }

    /// The least cost of a path to the end; `cost` adds a run's time and live bytes to the cost so far.
    fn least(&self, cost: impl Fn(u64, u64, u64) -> Option<u64>) -> Option<u64> {
        let (tensors, calls) = (self.problem.tensors.len(), &self.problem.calls);
        let mut best = vec![u64::MAX; (calls.len() + 1) << tensors];
        let mut queue = BinaryHeap::from([(Reverse(0_u64), 0_usize, self.pinned)]);
        while let Some((Reverse(so_far), next, mask)) = queue.pop() {
            if best[next << tensors | mask] < so_far {
                continue;
            }
            if next == calls.len() && mask & self.keep == self.keep {
                return Some(so_far);
            }
            let mut reach = |cost: u64, next: usize, mask: usize| {
                let known = &mut best[next << tensors | mask];
                if cost < *known {
                    *known = cost;
                    queue.push((Reverse(cost), next, mask));
                }
            };
            for tensor in (0..tensors).filter(|t| mask & !self.pinned & (1 << t) != 0) {
                reach(so_far, next, mask & !(1 << tensor));
            }
            for (index, call) in calls.iter().enumerate().take(next + 1) {
                let (inputs, outputs) = self.calls[index];
                if mask & inputs != inputs || (call.once && index < next) {
                    continue;
                }
                let then = next.max(index + 1);
                let live_bytes = self.bytes[mask | outputs] + call.workspace;
                if let Some(cost) = cost(so_far, call.nanoseconds, live_bytes) {
                    reach(cost, then, mask | outputs);
                }
                for &input in call.in_place.iter().filter(|&&t| self.pinned & (1 << t) == 0) {
                    let size = self.problem.tensors[input];
                    let free = |&o: &usize| mask & (1 << o) == 0 && self.problem.tensors[o] == size;
                    if let Some(cost) = cost(so_far, call.nanoseconds, live_bytes - size)
                        .filter(|_| call.outputs.iter().any(free))
                    {
                        reach(cost, then, (mask | outputs) & !(1 << input));
                    }
                }
            }
        }
        None
    }
}

#[test]
fn schedules_of_small_steps_are_nearly_optimal() {
    let steps = (0..2_000).map(|seed| (seed, random_step(seed, 4 + (seed % 6) as usize)));
    nearly_optimal(steps, 2_000);
}

#[test]
fn schedules_of_small_steps_with_calls_that_run_once_are_nearly_optimal() {
    let steps = (0..1_000).map(|seed| (seed, random_step_with_once(seed, 4 + (seed % 5) as usize)));
    nearly_optimal(steps, 500);
}

fn nearly_optimal(steps: impl Iterator<Item = (u64, Problem)>, least: u32) {
    let (mut count, mut ratio) = (0, 0.0);
    let (mut above_largest_call, mut exact) = (0, 0);
    for (seed, problem) in steps {
        let exhaustive = Exhaustive::new(&problem);
        let (low, high) = (exhaustive.least_line(), recorded_peak(&problem).unwrap());
        let base: u64 = problem.calls.iter().map(|c| c.nanoseconds).sum();
        assert!(solve(&problem, low - 1).is_err(), "seed {seed}: under the smallest line");
        let (bound, largest) = (least_peak(&problem).unwrap(), largest_call(&problem).unwrap());
        assert!(largest <= bound && bound <= low, "seed {seed}: {largest}, {bound}, {low}");
        above_largest_call += usize::from(bound > largest);
        exact += usize::from(bound == low && low > largest);
        for line in (low..high).step_by(((high - low) as usize / 3).max(5)) {
            let best = exhaustive.least_time(line).unwrap();
            let bound = lower_bound(&problem, line).unwrap();
            assert!(base + bound <= best, "seed {seed} line {line}: bound {bound}, best {best}, once {base}");
            let schedule = solve(&problem, line).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            check(&problem, &schedule).unwrap();
            assert!(schedule.peak_bytes <= line, "seed {seed} line {line}: {}", schedule.peak_bytes);
            assert!(schedule.nanoseconds >= best, "seed {seed} line {line}: faster than possible");
            ratio += schedule.nanoseconds as f64 / best as f64;
            count += 1;
        }
    }
    // Of the steps whose bound is more than the largest call's need.
    assert!(
        above_largest_call > 50 && exact > above_largest_call / 2,
        "{exact} of {above_largest_call} bounds are exact"
    );
    let mean = ratio / f64::from(count);
    assert!(count > least && mean < 1.01, "{count} schedules take {mean} of the least time");
}

/// Three residual blocks and their backward calls, every tensor of one byte.
fn residual_blocks() -> Problem {
    let mut problem = Problem::default();
    let mut call = |inputs: &[usize]| add(&mut problem, 1, inputs);
    let stem = [call(&[]), call(&[0])];
    let mut x = call(&[stem[1]]);
    let mut blocks = Vec::new();
    for _ in 0..3 {
        let conv = call(&[x]);
        let norm = call(&[conv]);
        let relu = call(&[norm]);
        let second = call(&[relu]);
        let normed = call(&[second]);
        let sum = call(&[x, normed]);
        blocks.push([x, conv, norm, relu, second, sum]);
        x = call(&[sum]);
    }
    let mut gradient = call(&[x]);
    for [x, conv, norm, relu, second, sum] in blocks.into_iter().rev() {
        let skip = call(&[sum, gradient]);
        let through = [second, relu, norm, conv, x].iter().fold(skip, |g, &value| call(&[value, g]));
        gradient = call(&[skip, through]);
    }
    let last = call(&[stem[1], gradient]);
    let end = call(&[stem[0], last]);
    problem.keep.push(end);
    problem
}

/// Whether the kept tensors can be produced, in any order, with so many resident tensors of one byte.
fn can_be_produced(problem: &Problem, max_resident: u32) -> bool {
    let set = |list: &[usize]| list.iter().fold(0_u64, |mask, t| mask | 1 << t);
    let calls: Vec<(u64, u64)> = problem.calls.iter().map(|c| (set(&c.inputs), set(&c.outputs))).collect();
    let mut seen = HashSet::from([0_u64]);
    let mut stack = vec![0_u64];
    while let Some(mask) = stack.pop() {
        if mask & set(&problem.keep) != 0 {
            return true;
        }
        let produced = calls.iter().filter(|c| mask & c.0 == c.0).map(|c| mask | c.1);
        let dropped = (0..problem.tensors.len()).map(|t| mask & !(1 << t));
        for next in produced.filter(|m| m.count_ones() <= max_resident).chain(dropped) {
            if seen.insert(next) {
                stack.push(next);
            }
        }
    }
    false
}

#[test]
fn the_smallest_line_of_residual_blocks_is_optimal() {
    let problem = residual_blocks();
    assert_eq!(largest_call(&problem).unwrap(), 3);
    assert!(!can_be_produced(&problem, 4) && can_be_produced(&problem, 5));
    assert_eq!(smallest_line(&problem).unwrap(), 5);
    assert_eq!(least_peak(&problem).unwrap(), 5);
}
