//! The frontier of time over memory: fixed lines, each solved from the one below.

mod lowest;
mod solve_line;

use super::evict::EvictionPolicy;
use super::incremental_peak::IncrementalPeak;
use super::least_peak::least_peak;
use super::peak::PeakSimulator;
use super::table::Table;
use super::{LineTooLow, Problem, ProblemError, Schedule, bound};
use std::collections::BTreeMap;

/// Steps with more calls are large: fewer lines and policies are tried. In a quick search, one of many of the same step, those
/// with more calls than `LARGE_IF_QUICK` are, too.
const LARGE: usize = 3_000;
const LARGE_IF_QUICK: usize = 600;
const POINTS: u128 = 10;
const POINTS_OF_LARGE: u128 = 5;
const POLICIES_OF_LARGE: usize = 4;

/// Work spent on pruning one run list.
const PRUNE_WORK: u64 = 40_000_000;

/// The policies of eviction sweeps, those first that find most.
const POLICIES: [EvictionPolicy; 9] = [
    policy(0.5, true, false, true),
    policy(0.5, true, true, true),
    policy(1.0, true, false, true),
    policy(0.5, true, false, false),
    policy(0.25, true, true, true),
    policy(1.0, true, true, true),
    policy(0.25, true, false, true),
    policy(0.0, true, false, true),
    policy(0.0, false, false, false),
];

const fn policy(
    distance: f64,
    missing_inputs: bool,
    evicted_results: bool,
    hold_kept: bool,
) -> EvictionPolicy {
    EvictionPolicy { distance, missing_inputs, evicted_results, hold_kept }
}

/// A run list with its peak and time.
#[derive(Clone, Debug)]
struct Found {
    runs: Vec<u32>,
    peak: u64,
    nanoseconds: u64,
}

impl Found {
    fn new(incremental: IncrementalPeak) -> Self {
        Self { peak: incremental.peak(), nanoseconds: incremental.nanoseconds, runs: incremental.runs }
    }
}

/// The schedules of one step under any line. What is found for one line is used for the next.
///
/// The points of the frontier are fixed lines from the lowest feasible one to the recorded peak. Each is solved from
/// the schedule of the point below, so more memory never takes more time, and a schedule does not depend on the lines
/// solved before.
///
/// ```
/// use plimsoll_plan::remat::{Call, Frontier, Problem, solve};
/// let call = |inputs: &[usize], output| Call {
///     nanoseconds: 10,
///     inputs: inputs.to_vec(),
///     outputs: vec![output],
///     ..Call::default()
/// };
/// let calls = vec![call(&[0], 1), call(&[1], 2), call(&[2], 3), call(&[1, 3], 4)];
/// let problem = Problem { tensors: vec![100; 5], pinned: vec![0], keep: vec![4], calls };
/// let mut frontier = Frontier::new(&problem)?;
/// let lowest = frontier.lowest().peak_bytes;
/// assert_eq!(frontier.solve(lowest)?, solve(&problem, lowest)?);
/// assert!(frontier.solve(lowest - 1).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Frontier {
    table: Table,
    quick: bool,
    /// The recorded order, and the position of its peak.
    recorded: Found,
    recorded_peak_at: usize,
    /// The run list with the lowest peak, once it is searched.
    lowest: Option<Found>,
    /// The points solved so far, from the lowest line.
    solved: Vec<(u64, Found)>,
    /// Solutions for lines between points.
    between: BTreeMap<u64, Found>,
}

impl Frontier {
    /// The frontier of a step, with no line solved yet.
    pub fn new(problem: &Problem) -> Result<Self, ProblemError> {
        Self::searched(problem, false)
    }

    /// Whether a quick search of a problem is another than a thorough one.
    pub(crate) fn is_worth_hurrying(problem: &Problem) -> bool {
        problem.calls.len() > LARGE_IF_QUICK
    }

    /// As [`Frontier::new`], searched quickly or not.
    pub(crate) fn searched(problem: &Problem, quick: bool) -> Result<Self, ProblemError> {
        let table = Table::new(problem)?;
        let quick = quick && Self::is_worth_hurrying(problem);
        let runs: Vec<u32> = (0..table.calls as u32).collect();
        let incremental = IncrementalPeak::new(&table, &runs, 0);
        let recorded_peak_at = incremental.peak_over_line().unwrap_or(0);
        let recorded = Found::new(incremental);
        let (solved, between) = (Vec::new(), BTreeMap::new());
        Ok(Self { table, quick, recorded, recorded_peak_at, lowest: None, solved, between })
    }

    /// The fastest schedule found whose peak is at most a line.
    pub fn solve(&mut self, line_bytes: u64) -> Result<Schedule, LineTooLow> {
        self.under(line_bytes).ok_or_else(|| LineTooLow {
            line_bytes,
            smallest_line_bytes: self.lowest_found().peak,
            least_peak_bytes: least_peak(&self.table),
            largest_call_bytes: bound::largest_call(&self.table),
        })
    }

    /// As [`Frontier::solve`], without the bounds where there is none.
    pub(crate) fn under(&mut self, line_bytes: u64) -> Option<Schedule> {
        self.find(line_bytes).map(|found| self.schedule(&found))
    }

    /// The schedule with the lowest peak found.
    pub fn lowest(&mut self) -> Schedule {
        let found = self.lowest_found();
        self.schedule(&found)
    }

    /// The schedules of the points that are not over a line, from the highest. They are the same for every line.
    pub(crate) fn points_under(&mut self, line: u64) -> Vec<Schedule> {
        if self.lowest_found().peak > line {
            return Vec::new();
        }
        self.solve_points(line);
        let under = self.solved.iter().filter(|(point, _)| *point <= line);
        under.rev().map(|(_, found)| self.schedule(found)).collect()
    }

    /// Lines and times of all points, from the smallest line found, and of the recorded order.
    pub(super) fn times(&mut self) -> Vec<(u64, u64)> {
        let peak = self.recorded.peak;
        self.solve_points(u64::MAX);
        let mut points: Vec<(u64, u64)> = self.solved.iter().map(|(l, f)| (*l, f.nanoseconds)).collect();
        if points.last().is_none_or(|last| last.0 < peak) {
            points.push((peak, self.recorded.nanoseconds));
        }
        points
    }

    fn schedule(&self, found: &Found) -> Schedule {
        PeakSimulator::new(&self.table).schedule(&found.runs)
    }

    fn find(&mut self, line: u64) -> Option<Found> {
        if self.recorded.peak <= line {
            return Some(self.recorded.clone());
        }
        if self.lowest_found().peak > line {
            return self.solve_line(line, None);
        }
        if let Some(found) = self.between.get(&line) {
            return Some(found.clone());
        }
        Some(match self.solve_points(line) {
            (point, found) if point == line => found,
            (_, below) => {
                let found = self.solve_from(line, below);
                self.between.entry(line).or_insert(found).clone()
            }
        })
    }

    /// Solves the points up to a line, and returns the highest of them.
    fn solve_points(&mut self, line: u64) -> (u64, Found) {
        let lowest = self.lowest_found();
        let mut below = (lowest.peak, lowest);
        for (at, point) in self.lines(below.0).into_iter().take_while(|&point| point <= line).enumerate() {
            if at == self.solved.len() {
                let found = self.solve_from(point, below.1);
                self.solved.push((point, found));
            }
            below = self.solved[at].clone();
        }
        below
    }

    /// The lowest line, and those above it at even distances below the recorded peak.
    fn lines(&self, lowest: u64) -> Vec<u64> {
        let count = if self.is_large() { POINTS_OF_LARGE } else { POINTS };
        let peak = u128::from(self.recorded.peak);
        let even = (1..count).map(|k| (peak * k / count) as u64);
        [lowest].into_iter().chain(even.filter(|&point| point > lowest)).collect()
    }

    fn is_large(&self) -> bool {
        self.quick || self.table.calls > LARGE
    }

    /// The policies to try.
    fn policies(&self) -> impl Iterator<Item = EvictionPolicy> + use<> {
        let count = if self.is_large() { POLICIES_OF_LARGE } else { POLICIES.len() };
        POLICIES.into_iter().take(count)
    }

    fn lowest_found(&mut self) -> Found {
        let found = self.lowest.take().unwrap_or_else(|| self.find_lowest());
        self.lowest.insert(found).clone()
    }

    /// A solution for a line from that of a lower one.
    fn solve_from(&self, line: u64, below: Found) -> Found {
        self.solve_line(line, Some(below)).unwrap_or_else(|| self.recorded.clone())
    }
}
