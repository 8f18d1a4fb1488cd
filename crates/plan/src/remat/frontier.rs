//! The lines of a fixed ladder, each solved from the one below.

use super::bound;
use super::evict::{EvictionPolicy, evict};
use super::incremental_peak::IncrementalPeak;
use super::insert::{Effort, insert_runs};
use super::local_search::{local_search, prune};
use super::table::Table;
use super::{LineTooLow, Problem, ProblemError, Schedule, exact, lagrangian, to_schedule};
use plimsoll_tensor::random::Lcg;
use std::collections::BTreeMap;

/// Work spent on each rung: to bring first lists without sweeps under the line (so much for each call, within limits),
/// to prune each list, and to refine the best.
const SHAVE: u64 = 30_000;
const SHAVE_LIMITS: (u64, u64) = (60_000_000, 150_000_000);
const PRUNE: u64 = 40_000_000;
const REFINE: u64 = 100_000_000;

/// First lists that are pruned, beside that of the rung below: the fastest.
const PRUNED: usize = 3;

/// Where random choices begin.
const SEED: u64 = 7;

/// Sweeps give up at so many times the repeats of the rung below.
const SLOWER: u64 = 4;

/// Refining ends when no schedule can take less time by more than this share of the repeats, or of the step.
const NEAR_REPEATS: f64 = 0.01;
const NEAR_STEP: f64 = 0.000_1;

/// Calls from which problems are large.
const LARGE: usize = 3_000;

/// The smallest line is found to within itself over this.
const NEARNESS: u64 = 150;

/// Tastes that look for the smallest line once it is known to within half.
const FURTHEST: usize = 4;

/// Calls of a step whose sweeps take no time.
const SHORT: usize = 600;

const TASTES: [EvictionPolicy; 9] = [
    EvictionPolicy { distance: 0.5, chain: true, around: false, kept: true },
    EvictionPolicy { distance: 0.5, chain: true, around: true, kept: true },
    EvictionPolicy { distance: 1.0, chain: true, around: false, kept: true },
    EvictionPolicy { distance: 0.5, chain: true, around: false, kept: false },
    EvictionPolicy { distance: 0.25, chain: true, around: true, kept: true },
    EvictionPolicy { distance: 1.0, chain: true, around: true, kept: true },
    EvictionPolicy { distance: 0.25, chain: true, around: false, kept: true },
    EvictionPolicy { distance: 0.0, chain: true, around: false, kept: true },
    EvictionPolicy { distance: 0.0, chain: false, around: false, kept: false },
];

/// A list of runs and what it costs.
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

/// First lists under a line.
struct Start {
    lists: Vec<Found>,
    /// Nanoseconds that repeats take at least.
    bound: f64,
}

/// The schedules of one step under any line. What is found for one line is used for the next.
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
    recorded: Found,
    /// The fullest call of the recorded order.
    full: usize,
    lowest: Option<Found>,
    /// The rungs climbed so far, from the lowest line.
    climbed: Vec<(u64, Found)>,
    /// What was found for lines between rungs.
    between: BTreeMap<u64, Found>,
}

impl Frontier {
    /// A ladder for a step.
    pub fn new(problem: &Problem) -> Result<Self, ProblemError> {
        let table = Table::new(problem)?;
        let runs: Vec<u32> = (0..table.calls as u32).collect();
        let incremental = IncrementalPeak::new(&table, &runs, 0);
        let (full, recorded) = (incremental.fullest().unwrap_or(0), Found::new(incremental));
        Ok(Self { table, full, recorded, lowest: None, climbed: Vec::new(), between: BTreeMap::new() })
    }

    /// The fastest schedule found whose peak is at most a line: that of the highest rung under it, refined.
    pub fn solve(&mut self, line_bytes: u64) -> Result<Schedule, LineTooLow> {
        self.find(line_bytes).map(|found| to_schedule(&self.table, &found.runs))
    }

    /// The schedule with the lowest peak found.
    pub fn lowest(&mut self) -> Schedule {
        let runs = self.lowest_found().runs;
        to_schedule(&self.table, &runs)
    }

    /// The schedules of the rungs that are not over a line, from the highest. They are the same for every line.
    pub(crate) fn points_under(&mut self, line: u64) -> Vec<Schedule> {
        if self.lowest_found().peak > line {
            return Vec::new();
        }
        self.climb(line);
        let under = self.climbed.iter().filter(|(point, _)| *point <= line);
        under.rev().map(|(_, found)| to_schedule(&self.table, &found.runs)).collect()
    }

    /// Every rung and its time, from the smallest line found.
    pub(super) fn frontier(&mut self) -> Vec<(u64, u64)> {
        let peak = self.recorded.peak;
        self.climb(u64::MAX);
        let mut points: Vec<(u64, u64)> = self.climbed.iter().map(|(l, f)| (*l, f.nanoseconds)).collect();
        if points.last().is_none_or(|last| last.0 < peak) {
            points.push((peak, self.recorded.nanoseconds));
        }
        points
    }

    fn find(&mut self, line: u64) -> Result<Found, LineTooLow> {
        if self.recorded.peak <= line {
            return Ok(self.recorded.clone());
        }
        let smallest_line_bytes = self.lowest_found().peak;
        if smallest_line_bytes > line {
            let largest_call_bytes = bound::largest_call(&self.table);
            let short = LineTooLow { line_bytes: line, smallest_line_bytes, largest_call_bytes };
            return self.begin(line, None).map(|start| self.local_search(line, &start)).ok_or(short);
        }
        if let Some(found) = self.between.get(&line) {
            return Ok(found.clone());
        }
        Ok(match self.climb(line) {
            (point, found) if point == line => found,
            (_, found) => {
                let found = self.step(line, found);
                self.between.entry(line).or_insert(found).clone()
            }
        })
    }

    /// Climbs to the highest rung that is not over a line.
    fn climb(&mut self, line: u64) -> (u64, Found) {
        let lowest = self.lowest_found();
        let mut below = (lowest.peak, lowest);
        for (at, point) in self.points(below.0).into_iter().take_while(|&r| r <= line).enumerate() {
            if at == self.climbed.len() {
                let found = self.step(point, below.1);
                self.climbed.push((point, found));
            }
            below = self.climbed[at].clone();
        }
        below
    }

    /// The lowest line, and those above it at even distances, fewer for large problems.
    fn points(&self, lowest: u64) -> Vec<u64> {
        let count = match self.table.calls {
            0..=LARGE => 10,
            _ => 5,
        };
        let peak = self.recorded.peak;
        let even = (1..count).map(|k| (u128::from(peak) * k / count) as u64);
        [lowest].into_iter().chain(even.filter(|&point| point > lowest)).collect()
    }

    /// The tastes to try, fewer for large problems.
    fn tastes(&self) -> impl Iterator<Item = EvictionPolicy> + use<> {
        let count = if self.table.calls <= LARGE { TASTES.len() } else { 4 };
        TASTES.into_iter().take(count)
    }

    fn lowest_found(&mut self) -> Found {
        let found = self.lowest.take().unwrap_or_else(|| self.find_lowest());
        self.lowest.insert(found).clone()
    }

    /// The list with the lowest peak that sweeps find; of very small steps, the lowest there is.
    fn find_lowest(&self) -> Found {
        let table = &self.table;
        if let Some(runs) = exact::lowest(table) {
            let mut incremental = IncrementalPeak::new(table, &runs, 0);
            incremental.line = incremental.peak();
            prune(&mut incremental, table, u64::MAX);
            return Found::new(incremental);
        }
        let mut best = self.recorded.clone();
        let mut low = bound::largest_call(table);
        let mut line = low;
        // Those first that got furthest where none got to the end, and in the end, where sweeps take long, only so many of
        // them.
        let mut tastes: Vec<(usize, EvictionPolicy)> = self.tastes().map(|policy| (0, policy)).collect();
        while low < best.peak {
            let try_one = |(got, policy): &mut (usize, EvictionPolicy)| {
                evict(table, line, *policy, u64::MAX).map_err(|to| *got = to).ok()
            };
            match tastes.iter_mut().find_map(try_one) {
                Some(runs) => {
                    best = Found::new(IncrementalPeak::new(table, &runs, line));
                    debug_assert!(best.peak <= line, "a sweep stays under its line");
                }
                None => {
                    low = line + 1 + line / NEARNESS;
                    tastes.sort_by_key(|policy| std::cmp::Reverse(policy.0));
                    if low > best.peak / 2 && table.calls > SHORT {
                        tastes.truncate(FURTHEST);
                    }
                }
            }
            line = low + best.peak.saturating_sub(low) / 2;
        }
        let mut incremental = IncrementalPeak::new(table, &best.runs, best.peak);
        prune(&mut incremental, table, PRUNE);
        Found::new(incremental)
    }

    /// One rung: the best of what is carried up and what is found anew, refined.
    fn step(&self, line: u64, carried: Found) -> Found {
        match self.begin(line, Some(carried)) {
            Some(start) => self.local_search(line, &start),
            None => self.recorded.clone(),
        }
    }

    /// The first lists refined for a part of the work each, and the best of them for the rest.
    fn local_search(&self, line: u64, start: &Start) -> Found {
        let table = &self.table;
        let near = start.bound * (1.0 + NEAR_REPEATS) + self.recorded.nanoseconds as f64 * NEAR_STEP;
        let near = self.recorded.nanoseconds.saturating_add(near as u64);
        // Under the lowest line there is little to choose.
        let lowest = self.lowest.as_ref().is_some_and(|l| l.peak == line);
        let task_graph = if lowest { REFINE / 2 } else { REFINE };
        let share = task_graph / (1 + start.lists.len() as u64);
        let mut best: Option<IncrementalPeak> = None;
        for found in &start.lists {
            if best.as_ref().is_some_and(|b| b.nanoseconds <= near) {
                break;
            }
            let mut incremental = IncrementalPeak::new(table, &found.runs, line);
            local_search(&mut incremental, table, &mut Lcg::new(SEED), share, near);
            if best.as_ref().is_none_or(|b| incremental.nanoseconds < b.nanoseconds) {
                best = Some(incremental);
            }
        }
        let Some(mut best) = best else { return self.recorded.clone() };
        let until = best.task_graph + task_graph - share * start.lists.len() as u64;
        local_search(&mut best, table, &mut Lcg::new(SEED + 1), until, near);
        Found::new(best)
    }

    /// The best first list under a line, and what is carried up to it, or, if that is much slower, the second best.
    fn begin(&self, line: u64, carried: Option<Found>) -> Option<Start> {
        let table = &self.table;
        let once = self.recorded.nanoseconds;
        let moment = lagrangian::best_at(table, self.full, None, line);
        let mut lists: Vec<Found> = Vec::new();
        let mut task_graph = 0;
        let until = (SHAVE * table.calls as u64).clamp(SHAVE_LIMITS.0, SHAVE_LIMITS.1);
        for runs in moment.again.iter().map(|a| self.after_cut(a)).chain([self.recorded.runs.clone()]) {
            let mut incremental = IncrementalPeak::new(table, &runs, line);
            incremental.task_graph = task_graph;
            let effort = Effort { tries: 6, noise: 0.0, until };
            let fits = insert_runs(&mut incremental, table, &mut Lcg::new(1), effort);
            task_graph = incremental.task_graph;
            lists.extend(fits.then(|| Found::new(incremental)));
        }
        let known = carried.iter().chain(&lists).map(|found| found.nanoseconds - once).min();
        let longest = known.map_or(u64::MAX, |n| once.saturating_add(n.saturating_mul(SLOWER)));
        for policy in self.tastes() {
            // A list is not pruned that takes longer than as many others as are.
            let mut times: Vec<u64> = lists.iter().map(|found| found.nanoseconds).collect();
            times.sort_unstable();
            times.dedup();
            let longest = times.get(PRUNED - 1).map_or(longest, |&slowest| longest.min(slowest));
            let swept = evict(table, line, policy, longest).ok();
            lists.extend(swept.map(|runs| Found::new(IncrementalPeak::new(table, &runs, line))));
        }
        lists.sort_by_key(|found| found.nanoseconds);
        lists.dedup_by(|a, b| a.runs == b.runs);
        lists.truncate(PRUNED);
        let pruned = |found: Found| {
            let mut incremental = IncrementalPeak::new(table, &found.runs, line);
            prune(&mut incremental, table, PRUNE);
            Found::new(incremental)
        };
        let mut lists: Vec<Found> = lists.into_iter().map(pruned).collect();
        lists.sort_by_key(|found| found.nanoseconds);
        let near = |found: &Found| {
            let over = |f: &Found| f.nanoseconds - once;
            lists.first().is_none_or(|best| over(found) / 3 * 2 <= over(best))
        };
        match carried.map(pruned).filter(near) {
            Some(found) => lists.splice(1.min(lists.len()).., [found]).for_each(drop),
            None => lists.truncate(2),
        }
        (!lists.is_empty()).then_some(Start { lists, bound: moment.bound })
    }

    /// The recorded order in which some calls before its fullest moment run again after it, each when it is first
    /// needed.
    fn after_cut(&self, again: &[bool]) -> Vec<u32> {
        let table = &self.table;
        let mut runs: Vec<u32> = (0..=self.full as u32).collect();
        let mut pending = again.to_vec();
        let mut wanted = Vec::new();
        let mut need = |inputs: &[u32], pending: &mut Vec<bool>, runs: &mut Vec<u32>| {
            let mut stack = inputs.to_vec();
            while let Some(tensor) = stack.pop() {
                let maker = table.maker[tensor as usize];
                if pending.get(maker as usize).is_some_and(|&p| p) {
                    pending[maker as usize] = false;
                    wanted.push(maker);
                    stack.extend(table.inputs.row(maker as usize));
                }
            }
            wanted.sort_unstable();
            runs.append(&mut wanted);
        };
        for call in self.full + 1..table.calls {
            need(table.inputs.row(call), &mut pending, &mut runs);
            runs.push(call as u32);
        }
        need(&table.keep, &mut pending, &mut runs);
        runs
    }
}
