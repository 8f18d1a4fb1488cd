//! The search for recomputation: which calls of a step run twice so that its peak stays under a line.
//!
//! A schedule is the recorded order with repeats put in between. Every such list of runs is a valid schedule: what a run
//! reads was made earlier, by a first run or by a repeat, and stays from its latest making to its last reading. So only
//! the peak decides, and the search is over lists alone:
//!
//! - `evict.rs` goes through the step once and evicts, whenever the next call does not fit, what is cheapest to make
//!   again for its bytes and for how long it is not needed;
//! - `insert_runs.rs` starts from any list and puts in repeats where the list is over the line, those first that take away
//!   the most excess for their time;
//! - `local_search.rs` takes repeats out again, alone and in groups, shaves what then is too high, and keeps what is faster.
//!
//! `incremental.rs` measures each such change only where it changes something. Budgets count work, never time.
//!
//! The lines of a fixed ladder are solved from the lowest up, each starting from the one below, so that more memory
//! never means more time.

mod bound;
mod check;
mod evict;
mod exact;
mod frontier;
mod graph_bound;
mod incremental_peak;
mod insert;
mod lagrangian;
mod legality;
mod local_search;
mod peak;
mod run_index;
mod table;
mod translate;

pub use check::{CheckError, Figures, check};
pub use frontier::Frontier;
pub use graph_bound::least_rematerialization;
pub(crate) use legality::illegal_runs;
pub use table::ProblemError;
pub(crate) use translate::Rematerialization;

use peak::PeakSimulator;
use table::Table;
use thiserror::Error;

/// One step as the search sees it: calls in program order, tensors with sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Bytes of every tensor.
    pub tensors: Vec<u64>,
    /// Tensors that exist before the first call and always stay.
    pub pinned: Vec<usize>,
    /// Tensors that must be resident at the end.
    pub keep: Vec<usize>,
    /// The calls.
    pub calls: Vec<Call>,
}

/// One call of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Call {
    /// How long it takes.
    pub nanoseconds: u64,
    /// Tensors read.
    pub inputs: Vec<usize>,
    /// Tensors written; no other call writes them.
    pub outputs: Vec<usize>,
    /// Inputs that an output of the same size may take over.
    pub in_place: Vec<usize>,
    /// Scratch bytes while it runs.
    pub workspace: u64,
    /// Whether it must not run again, as what changes a state must not: its outputs stay until their last reading.
    pub once: bool,
}

/// Which calls run in which order, repeats included, and what is dropped when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The runs.
    pub runs: Vec<Run>,
    /// The largest sum of resident bytes at any moment.
    pub peak_bytes: u64,
    /// The time of all runs.
    pub nanoseconds: u64,
}

/// One run of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the call.
    pub call: usize,
    /// Pairs (output, input): the output takes over the bytes of an input that is gone afterwards.
    pub takes_over: Vec<(usize, usize)>,
    /// Tensors dropped after it, those taken over aside.
    pub drops: Vec<usize>,
}

impl Problem {
    /// Whether every index and sum is in range, everything read was written before, and nothing is written twice.
    pub fn check(&self) -> Result<(), ProblemError> {
        Table::new(self).map(|_| ())
    }
}

impl Schedule {
    /// Runs beyond the first of every call.
    pub fn repeats(&self, problem: &Problem) -> usize {
        self.runs.len().saturating_sub(problem.calls.len())
    }
}

/// No schedule under the line was found.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "no schedule under {line_bytes} bytes: the smallest line found is {smallest_line_bytes}, the largest call alone \
     needs {largest_call_bytes}"
)]
pub struct LineTooLow {
    /// The line asked for.
    pub line_bytes: u64,
    /// The smallest line for which a schedule was found.
    pub smallest_line_bytes: u64,
    /// What the largest single call needs.
    pub largest_call_bytes: u64,
}

/// Why there is no schedule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SearchError {
    /// The step contradicts itself.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// It does not fit.
    #[error(transparent)]
    LineTooLow(#[from] LineTooLow),
}

/// The fastest schedule found whose peak is at most a line.
///
/// ```
/// use plimsoll_plan::remat::{Call, Problem, check, solve};
/// // A chain of four and its way back: every backward call reads a forward result.
/// let call = |inputs: &[usize], output| Call {
///     nanoseconds: 10,
///     inputs: inputs.to_vec(),
///     outputs: vec![output],
///     ..Call::default()
/// };
/// let problem = Problem {
///     tensors: vec![100; 8],
///     pinned: vec![0],
///     keep: vec![7],
///     calls: vec![
///         call(&[0], 1), call(&[1], 2), call(&[2], 3), call(&[3], 4),
///         call(&[3, 4], 5), call(&[2, 5], 6), call(&[1, 6], 7),
///     ],
/// };
/// let all = solve(&problem, u64::MAX)?;
/// assert_eq!((all.peak_bytes, all.nanoseconds), (600, 70));
/// let tight = solve(&problem, 500)?;
/// assert_eq!((tight.peak_bytes, tight.nanoseconds), (500, 80));
/// check(&problem, &tight)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn solve(problem: &Problem, line_bytes: u64) -> Result<Schedule, SearchError> {
    Frontier::new(problem)?.solve(line_bytes).map_err(SearchError::from)
}

/// Lines and the time of the schedule found for each, from the smallest feasible line to the recorded peak. More memory
/// never takes more time.
pub fn frontier(problem: &Problem) -> Result<Vec<(u64, u64)>, ProblemError> {
    Ok(Frontier::new(problem)?.frontier())
}

/// The smallest line for which sweeps find a schedule.
pub fn smallest_line(problem: &Problem) -> Result<u64, ProblemError> {
    Ok(lowest(problem)?.peak_bytes)
}

/// The schedule with the lowest peak that sweeps find.
pub fn lowest(problem: &Problem) -> Result<Schedule, ProblemError> {
    Ok(Frontier::new(problem)?.lowest())
}

/// Time that any schedule that keeps the recorded order spends on repeats under a line, at least.
pub fn lower_bound(problem: &Problem, line_bytes: u64) -> Result<u64, ProblemError> {
    Ok(bound::lower_bound(&Table::new(problem)?, line_bytes))
}

/// What the largest single call needs: its inputs, outputs and workspace, beside what is pinned. No schedule can peak
/// lower.
pub fn largest_call(problem: &Problem) -> Result<u64, ProblemError> {
    Ok(bound::largest_call(&Table::new(problem)?))
}

/// The peak of the recorded order without repeats.
pub fn recorded_peak(problem: &Problem) -> Result<u64, ProblemError> {
    let table = Table::new(problem)?;
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    Ok(PeakSimulator::new(&table).measure(&runs).peak)
}

/// Writes out what a list of runs means: everything is dropped after its last reading before it is made again.
fn to_schedule(table: &Table, list: &[u32]) -> Schedule {
    let mut needed = vec![false; table.tensors];
    table.keep.iter().for_each(|&t| needed[t as usize] = true);
    let mut runs = Vec::with_capacity(list.len());
    for &call in list.iter().rev() {
        let c = call as usize;
        let mut run = Run { call: c, takes_over: Vec::new(), drops: Vec::new() };
        let outputs = table.outputs.row(c);
        for &output in outputs {
            if !std::mem::replace(&mut needed[output as usize], false) {
                run.drops.push(output as usize);
            }
        }
        for &input in table.inputs.row(c) {
            if std::mem::replace(&mut needed[input as usize], true) {
                continue;
            }
            let free = |o: &&u32| {
                table.bytes[**o as usize] == table.bytes[input as usize]
                    && !run.takes_over.iter().any(|pair| pair.0 == **o as usize)
            };
            let over = table.in_place.row(c).contains(&input).then(|| outputs.iter().find(free)).flatten();
            match over {
                Some(&output) => run.takes_over.push((output as usize, input as usize)),
                None => run.drops.push(input as usize),
            }
        }
        runs.push(run);
    }
    runs.reverse();
    let level = PeakSimulator::new(table).measure(list);
    Schedule { runs, peak_bytes: level.peak, nanoseconds: level.nanoseconds }
}

#[cfg(test)]
mod tests;
