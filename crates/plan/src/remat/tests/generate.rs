//! Small random steps.

use crate::remat::{Call, Problem};
use plimsoll_tensor::random::Lcg;

/// Adds a call of ten nanoseconds that writes one tensor of some bytes, and returns the tensor.
pub fn add(problem: &mut Problem, bytes: u64, inputs: &[usize]) -> usize {
    let output = problem.tensors.len();
    problem.tensors.push(bytes);
    let (inputs, outputs) = (inputs.to_vec(), vec![output]);
    problem.calls.push(Call { nanoseconds: 10, inputs, outputs, ..Call::default() });
    output
}

/// A step of random calls: some read recent tensors, some old ones, as backward calls do.
pub fn random_step(seed: u64, calls: usize) -> Problem {
    let mut random = Lcg::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let sizes = [10, 10, 10, 20, 40, 5, 15];
    let mut problem = Problem { tensors: vec![7, 3], pinned: vec![0, 1], ..Problem::default() };
    for at in 0..calls {
        let produced: Vec<usize> = (2..problem.tensors.len()).collect();
        let mut inputs = Vec::new();
        for _ in 0..1 + random.below(3) {
            if produced.is_empty() || random.below(12) == 0 {
                inputs.push(random.below(2));
            } else if random.below(2) == 0 {
                inputs.push(produced[produced.len() - 1 - random.below(produced.len().min(2))]);
            } else {
                inputs.push(produced[random.below(produced.len())]);
            }
        }
        inputs.sort_unstable();
        inputs.dedup();
        let mut outputs = Vec::new();
        for _ in 0..if random.below(6) == 0 { 2 } else { 1 } {
            outputs.push(problem.tensors.len());
            problem.tensors.push(sizes[random.below(sizes.len())]);
        }
        let mut in_place = Vec::new();
        if random.below(4) == 0 {
            in_place.extend(inputs.iter().copied().filter(|&t| t > 1).take(1));
        }
        let workspace = if random.below(8) == 0 { 10 } else { 0 };
        let nanoseconds = 1 + random.below(20) as u64;
        if at + 1 == calls || random.below(8) == 0 {
            problem.keep.push(outputs[0]);
        }
        problem.calls.push(Call { nanoseconds, inputs, outputs, in_place, workspace, once: false });
    }
    problem
}

/// A random step in which some calls must run once, some read nothing (loads) and some write nothing (stores).
pub fn random_step_with_once(seed: u64, calls: usize) -> Problem {
    let mut problem = random_step(seed, calls);
    let mut random = Lcg::new(seed);
    for call in &mut problem.calls {
        match random.below(5) {
            0 => call.once = true,
            1 => {
                call.inputs.clear();
                call.in_place.clear();
            }
            _ => {}
        }
    }
    let stored = problem.calls[calls / 2].outputs.clone();
    let store = Call { nanoseconds: 3, inputs: stored, once: true, ..Call::default() };
    problem.calls.insert(calls / 2 + 1 + random.below(calls / 2), store);
    problem
}
