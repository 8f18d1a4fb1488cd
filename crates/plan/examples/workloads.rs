//! How close to the least time schedules come, and how long planning takes.
//!
//!     cargo run --release -p plimsoll-plan --example workloads -- FILE...
//!     cargo run --release -p plimsoll-plan --example workloads -- dense 1000 2000 4000 8000
//!
//! Takes workload files, or makes steps of a kind (chain, residual, dense, tree, recurrent, unet, random) with about so
//! many calls.
#![allow(clippy::print_stdout)]

use plimsoll_plan::search::{
    Call, Problem, SearchError, check, floor, lower_bound, recorded_peak, smallest_line, solve,
};
use plimsoll_plan::workload::Workload;
use std::error::Error;
use std::time::Instant;

/// Overheads, in percent, of the online method of Dynamic Tensor Rematerialization in its authors' simulator.
const ONLINE: [(&str, [f64; 5]); 2] =
    [("resnet32", [4.6, 10.7, 14.0, 17.9, 33.2]), ("transformer", [3.1, 5.8, 9.1, 12.4, 54.5])];
const FRACTIONS: [f64; 5] = [0.7, 0.5, 0.4, 0.3, 0.2];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(kind) = arguments.first() else {
        return Err("name workload files, or a kind and numbers".into());
    };
    if arguments.len() > 1 && arguments[1..].iter().all(|a| a.parse::<usize>().is_ok()) {
        for calls in &arguments[1..] {
            table(&format!("{kind} {calls}"), &made(kind, calls.parse()?)?, None)?;
        }
        return Ok(());
    }
    for file in &arguments {
        let workload = Workload::parse(&std::fs::read_to_string(file)?)?;
        table(&workload.name, &workload.problem, Some(workload.recorded_peak_bytes))?;
    }
    Ok(())
}

fn table(name: &str, problem: &Problem, peak: Option<u64>) -> Result<(), Box<dyn Error>> {
    let peak = peak.map_or_else(|| recorded_peak(problem), Ok)? as f64;
    let once: u64 = problem.calls.iter().map(|c| c.nanoseconds).sum();
    let percent = |nanoseconds: u64| nanoseconds as f64 / once as f64 * 100.0;
    let least = smallest_line(problem)? as f64;
    let floor = floor(problem)? as f64;
    println!(
        "{name}: {} calls, floor {:.4}, smallest line {:.4} ({:.2} × floor)",
        problem.calls.len(),
        floor / peak,
        least / peak,
        least / floor
    );
    println!("  fraction  overhead  at least    online  repeats   seconds");
    for (at, fraction) in FRACTIONS.into_iter().enumerate() {
        let line = (peak * fraction) as u64;
        let start = Instant::now();
        let solved = solve(problem, line);
        let seconds = start.elapsed().as_secs_f64();
        let bound = percent(lower_bound(problem, line)?);
        let online = ONLINE.iter().find(|o| o.0 == name).map_or(String::new(), |o| format!("{:.1}", o.1[at]));
        match solved {
            Ok(schedule) => {
                let figures = check(problem, &schedule)?;
                let overhead = percent(figures.nanoseconds - once);
                println!(
                    "  {fraction:>8}  {overhead:>8.2}  {bound:>8.2}  {online:>8}  {:>7}  {seconds:>8.2}",
                    figures.repeats
                );
            }
            Err(SearchError::Short(_)) => {
                println!("  {fraction:>8}         -  {bound:>8.2}  {online:>8}        -  {seconds:>8.2}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Forward calls as they are made; [`Step::finish`] adds their way back.
#[derive(Default)]
struct Step {
    problem: Problem,
    seed: u64,
}

impl Step {
    fn below(&mut self, limit: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 33) as usize) % limit.max(1)
    }

    fn call(&mut self, inputs: &[usize], bytes: u64) -> usize {
        let output = self.problem.tensors.len();
        self.problem.tensors.push(bytes);
        // Products take long for their bytes, elementwise calls do not.
        let nanoseconds = bytes * if self.below(3) == 0 { 20 } else { 3 } + 1_000;
        let call = Call { nanoseconds, inputs: inputs.to_vec(), outputs: vec![output], ..Call::default() };
        self.problem.calls.push(call);
        output
    }

    /// For every forward call, from the last: one call for each of its inputs that reads the gradient and the input.
    fn finish(mut self) -> Problem {
        let forward = self.problem.calls.clone();
        let mut gradients: Vec<Option<usize>> = vec![None; self.problem.tensors.len()];
        for call in forward.iter().rev() {
            let output = call.outputs[0];
            for &input in call.inputs.iter().filter(|&&t| t > 0) {
                let mut reads = vec![input, gradients[output].unwrap_or(output)];
                reads.extend(call.inputs.iter().copied().filter(|&t| t != input));
                let bytes = self.problem.tensors[input];
                let new = self.call(&reads, bytes);
                gradients[input] = Some(match gradients[input] {
                    Some(sum) => self.call(&[sum, new], bytes),
                    None => new,
                });
            }
        }
        self.problem.keep.push(self.problem.tensors.len() - 1);
        self.problem
    }
}

/// A step of a kind with about so many calls.
fn made(kind: &str, calls: usize) -> Result<Problem, String> {
    let mut step = Step { seed: 1, ..Step::default() };
    step.problem.tensors.push(1 << 20);
    step.problem.pinned.push(0);
    let size = |s: &mut Step| [1_u64 << 20, 1 << 20, 1 << 19, 1 << 18][s.below(4)];
    let mut last = step.call(&[0], 1 << 20);
    while step.problem.calls.len() * forward_share(kind) < calls {
        last = match kind {
            "chain" => {
                let bytes = size(&mut step);
                step.call(&[last], bytes)
            }
            "residual" => {
                let inner = step.call(&[last], 1 << 20);
                let inner = step.call(&[inner], 1 << 20);
                step.call(&[last, inner], 1 << 20)
            }
            "dense" => (0..6).fold(vec![last], |mut all, _| {
                let joined = step.call(&all, 1 << 18);
                all.push(step.call(&[joined], 1 << 18));
                all
            })[6],
            "tree" => {
                let mut leaves: Vec<usize> = (0..8).map(|_| step.call(&[last], 1 << 18)).collect();
                while leaves.len() > 1 {
                    leaves = leaves.chunks(2).map(|pair| step.call(pair, 1 << 18)).collect();
                }
                leaves[0]
            }
            "recurrent" => {
                let gate = step.call(&[last], 1 << 18);
                let other = step.call(&[last], 1 << 18);
                let state = step.call(&[gate, other], 1 << 18);
                step.call(&[state, last], 1 << 18)
            }
            "unet" => {
                let depth = calls / 8;
                let mut skips = vec![last];
                (0..depth).for_each(|i| {
                    let top = skips[skips.len() - 1];
                    skips.push(step.call(&[top], (1 << 20) >> (4 * i / depth.max(1))));
                });
                let bottom = skips.pop().unwrap_or(last);
                skips.into_iter().rev().fold(bottom, |x, skip| {
                    let bytes = step.problem.tensors[skip];
                    step.call(&[x, skip], bytes)
                })
            }
            "random" => {
                let count = step.problem.tensors.len();
                let old = 1 + step.below(count - 1);
                let recent = count - 1 - step.below(4.min(count - 1));
                let bytes = size(&mut step);
                let inputs = if old == recent { vec![old] } else { vec![old, recent] };
                step.call(&inputs, bytes)
            }
            _ => {
                return Err(format!(
                    "no kind `{kind}`: chain, residual, dense, tree, recurrent, unet, random"
                ));
            }
        };
    }
    Ok(step.finish())
}

/// Calls in all for each forward call, roughly.
fn forward_share(kind: &str) -> usize {
    match kind {
        "chain" => 2,
        "dense" => 6,
        "random" | "unet" | "recurrent" => 4,
        _ => 3,
    }
}
