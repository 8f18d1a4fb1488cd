//! Rematerialization: which calls of a step run more than once so that its peak stays under a memory line.
//!
//! This is the problem that Checkmate and Rockmate solve with integer programs, and XLA's and PyTorch's
//! rematerialization passes with heuristics and minimum cuts: find the fastest schedule whose live bytes never exceed a
//! limit. Here the first runs of all calls keep the recorded order, and rematerialized runs may be inserted anywhere
//! after them.
//!
//! A candidate is a *run list*: the calls in the order they run. It needs no other decisions. A tensor is live from the
//! run that produces it to the last run that reads it before it is produced again, so every list in which producers
//! precede readers is a valid schedule, and its peak and time follow from the list (`peak.rs`, `in_place.rs`). The
//! search is over lists:
//!
//! 1. `evict.rs` constructs them by eviction sweeps: whenever the next call does not fit, evict by Belady's rule,
//!    weighted by bytes and rematerialization time. Several policies weigh these differently.
//! 2. `insert.rs` inserts rematerialized runs into a given list wherever it is over the line, those first that remove
//!    the most excess for their time. It starts from the recorded order, and from minimum cuts at the recorded peak.
//! 3. `local_search.rs` removes runs, alone and in groups, inserts others where the list is then over the line, and
//!    keeps what is faster.
//!
//! `incremental_peak.rs` evaluates the changes of 2 and 3 only in the live intervals that they affect. `frontier.rs`
//! solves fixed lines from the lowest up, each from the solution below, so that more memory never takes more time. The
//! lowest line is found by bisection over eviction sweeps, and, for large steps, over minimum cuts, which are faster to
//! try; for very small steps `exact.rs` finds it by exhaustive search.
//!
//! `bound.rs` has lower bounds for every schedule with the first runs in recorded order: fractional knapsacks over the
//! tensors live across a position, tightened in `lagrangian.rs` (a precedence-constrained knapsack, its Lagrangian
//! relaxation solved by minimum cuts). `check.rs` simulates a schedule without sharing code with the search.
//!
//! The search sees abstract steps ([`Problem`]), so it plans recorded workloads and task graphs alike. `translate.rs`
//! turns a task graph into a problem and schedules back into tasks; `legality.rs` finds runs in them that the problem
//! cannot forbid. Limits on effort count work, never time: the search is a pure function.

mod bound;
mod check;
mod evict;
mod exact;
mod frontier;
mod graph_bound;
mod in_place;
mod incremental_peak;
mod insert;
mod lagrangian;
mod least_peak;
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

/// One step as the search sees it: calls in recorded order, tensors with sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Bytes of every tensor.
    pub tensors: Vec<u64>,
    /// Tensors that are resident from beginning to end.
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
    /// Inputs that an output of the same size may be written over, once nothing needs them.
    pub in_place: Vec<usize>,
    /// Scratch bytes while it runs.
    pub workspace: u64,
    /// Whether it must not be rematerialized, because it updates a state: its outputs stay live until their last read.
    pub once: bool,
}

/// Which calls run in which order, and when tensors are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The runs.
    pub runs: Vec<Run>,
    /// The largest sum of resident bytes.
    pub peak_bytes: u64,
    /// The time of all runs.
    pub nanoseconds: u64,
}

/// One run of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the call.
    pub call: usize,
    /// Pairs (output, input): the output is written over the input, which is gone afterwards.
    pub in_place: Vec<(usize, usize)>,
    /// Tensors dropped after it, in-place inputs aside.
    pub drops: Vec<usize>,
}

impl Problem {
    /// Checks that indices and sums are in range, that calls read only what earlier ones wrote, and that no tensor is
    /// written twice.
    pub fn check(&self) -> Result<(), ProblemError> {
        Table::new(self).map(|_| ())
    }
}

impl Schedule {
    /// Number of rematerialized runs: those beyond the first of every call.
    pub fn rematerialized_runs(&self, problem: &Problem) -> usize {
        self.runs.len().saturating_sub(problem.calls.len())
    }
}

/// No schedule under the line was found.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "no schedule under {line_bytes} bytes: the smallest line found is {smallest_line_bytes}, none is below \
     {least_peak_bytes}, the largest call alone needs {largest_call_bytes}"
)]
pub struct LineTooLow {
    /// The line asked for.
    pub line_bytes: u64,
    /// The smallest line for which a schedule was found.
    pub smallest_line_bytes: u64,
    /// A lower bound of every schedule's peak.
    pub least_peak_bytes: u64,
    /// What the largest call alone needs.
    pub largest_call_bytes: u64,
}

/// Why there is no schedule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SearchError {
    /// The step is inconsistent.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// No schedule fits.
    #[error(transparent)]
    LineTooLow(#[from] LineTooLow),
}

/// The fastest schedule found whose peak is at most a line.
///
/// ```
/// use plimsoll_plan::remat::{Call, Problem, check, solve};
/// // Four forward calls and their backward calls, each of which reads a forward result.
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
    Ok(Frontier::new(problem)?.times())
}

/// The smallest line for which a schedule is found.
pub fn smallest_line(problem: &Problem) -> Result<u64, ProblemError> {
    Ok(lowest(problem)?.peak_bytes)
}

/// The schedule with the lowest peak found.
pub fn lowest(problem: &Problem) -> Result<Schedule, ProblemError> {
    Ok(Frontier::new(problem)?.lowest())
}

/// Time that every schedule under a line with the first runs in recorded order spends on rematerialized runs, at least.
pub fn lower_bound(problem: &Problem, line_bytes: u64) -> Result<u64, ProblemError> {
    Ok(bound::lower_bound(&Table::new(problem)?, line_bytes))
}

/// What the largest call alone needs: pinned tensors, its inputs, outputs and workspace. No schedule has a lower peak.
pub fn largest_call(problem: &Problem) -> Result<u64, ProblemError> {
    Ok(bound::largest_call(&Table::new(problem)?))
}

/// A lower bound of every schedule's peak, at least [`largest_call`]: what producing each call's inputs takes counts, too.
pub fn least_peak(problem: &Problem) -> Result<u64, ProblemError> {
    Ok(least_peak::least_peak(&Table::new(problem)?))
}

/// The peak of the recorded order without rematerialization.
pub fn recorded_peak(problem: &Problem) -> Result<u64, ProblemError> {
    let table = Table::new(problem)?;
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    Ok(PeakSimulator::new(&table).measure(&runs).peak)
}

#[cfg(test)]
mod tests;
