//! The search for one line: initial run lists, and local search from the best of them.

use super::{Found, Frontier, PRUNE_WORK};
use crate::remat::evict::evict;
use crate::remat::incremental_peak::IncrementalPeak;
use crate::remat::insert::{Effort, insert_runs};
use crate::remat::lagrangian::relax_at;
use crate::remat::local_search::{local_search, prune};
use plimsoll_tensor::random::Lcg;

/// Work spent on each line: to insert runs into initial lists until they are under it (so much for each call, within
/// limits), and to improve the best.
const INSERT_WORK_PER_CALL: u64 = 30_000;
const INSERT_WORK: (u64, u64) = (60_000_000, 150_000_000);
const LOCAL_SEARCH_WORK: u64 = 100_000_000;
const QUICK_LOCAL_SEARCH_WORK: u64 = 25_000_000;

/// Initial lists that are pruned, the fastest, beside that of the line below.
const PRUNED: usize = 3;

/// Seed of the local search.
const SEED: u64 = 7;

/// Eviction sweeps give up at so many times the rematerialization of the best list known.
const SLOWER: u64 = 4;

/// Local search ends when the lower bound is within this share of the rematerialization, plus this share of the step.
const NEAR_BOUND: f64 = 0.01;
const NEAR_STEP: f64 = 0.000_1;

/// Run lists under a line to start from.
struct Start {
    lists: Vec<Found>,
    /// Nanoseconds of a list that is not worth improving, by the lower bound.
    good_enough: u64,
}

/// Run lists into which runs were inserted until they were under a line.
pub(super) struct Inserted {
    pub lists: Vec<Found>,
    good_enough: u64,
}

impl Inserted {
    fn is_good_enough(&self) -> bool {
        self.lists.iter().any(|found| found.nanoseconds <= self.good_enough)
    }
}

impl Frontier {
    /// The best list found under a line, from initial lists and that of a lower line.
    pub(super) fn solve_line(&self, line: u64, below: Option<Found>) -> Option<Found> {
        self.start(line, below).map(|start| self.improve(line, &start))
    }

    /// Improves each initial list for a share of the work, and the best of them for the rest.
    fn improve(&self, line: u64, start: &Start) -> Found {
        let table = &self.table;
        let good_enough = start.good_enough;
        // Under the lowest line there is little to choose.
        let work = if self.quick { QUICK_LOCAL_SEARCH_WORK } else { LOCAL_SEARCH_WORK };
        let work = if self.is_lowest(line) { work / 2 } else { work };
        let share = work / (1 + start.lists.len() as u64);
        let mut best: Option<IncrementalPeak> = None;
        for found in &start.lists {
            if best.as_ref().is_some_and(|b| b.nanoseconds <= good_enough) {
                break;
            }
            let mut incremental = IncrementalPeak::new(table, &found.runs, line);
            local_search(&mut incremental, table, &mut Lcg::new(SEED), share, good_enough);
            if best.as_ref().is_none_or(|b| incremental.nanoseconds < b.nanoseconds) {
                best = Some(incremental);
            }
        }
        let Some(mut best) = best else { return self.recorded.clone() };
        let work_limit = best.work + work - share * start.lists.len() as u64;
        local_search(&mut best, table, &mut Lcg::new(SEED + 1), work_limit, good_enough);
        Found::new(best)
    }

    fn is_lowest(&self, line: u64) -> bool {
        self.lowest.as_ref().is_some_and(|lowest| lowest.peak == line)
    }

    /// Initial lists: the best found for this line, and that of the line below, or, if that is much slower, the second
    /// best.
    fn start(&self, line: u64, below: Option<Found>) -> Option<Start> {
        let table = &self.table;
        if table.calls == 0 {
            return None;
        }
        let once = self.recorded.nanoseconds;
        let work_limit = (INSERT_WORK_PER_CALL * table.calls as u64).clamp(INSERT_WORK.0, INSERT_WORK.1);
        let mut inserted = self.insert_into_cuts(line, work_limit);
        // The lowest line is where sweeps ended: of large steps, they are not tried again there.
        let swept = self.is_large() && self.is_lowest(line);
        if !swept && !inserted.is_good_enough() {
            self.add_sweeps(line, below.as_ref(), &mut inserted.lists);
        }
        let Inserted { mut lists, good_enough } = inserted;
        lists.sort_by_key(|found| found.nanoseconds);
        lists.dedup_by(|a, b| a.runs == b.runs);
        lists.truncate(PRUNED);
        let pruned = |found: Found| {
            let mut incremental = IncrementalPeak::new(table, &found.runs, line);
            prune(&mut incremental, table, PRUNE_WORK);
            Found::new(incremental)
        };
        let mut lists: Vec<Found> = lists.into_iter().map(pruned).collect();
        lists.sort_by_key(|found| found.nanoseconds);
        let near_best = |found: &Found| {
            let extra = |f: &Found| f.nanoseconds - once;
            lists.first().is_none_or(|best| extra(found) / 3 * 2 <= extra(best))
        };
        match below.map(pruned).filter(near_best) {
            Some(found) => lists.splice(1.min(lists.len()).., [found]).for_each(drop),
            None => lists.truncate(2),
        }
        (!lists.is_empty()).then_some(Start { lists, good_enough })
    }

    /// Minimum cuts at the recorded peak, and, unless one of these is good enough, the recorded order, with runs inserted
    /// until they are under a line. Of large steps, the recorded order is tried only where no cut ends under the line.
    pub(super) fn insert_into_cuts(&self, line: u64, work_limit: u64) -> Inserted {
        let table = &self.table;
        let relaxed = relax_at(table, self.recorded_peak_at, None, line);
        let near = relaxed.bound * (1.0 + NEAR_BOUND) + self.recorded.nanoseconds as f64 * NEAR_STEP;
        let good_enough = self.recorded.nanoseconds.saturating_add(near as u64);
        let mut inserted = Inserted { lists: Vec::new(), good_enough };
        let mut work = 0;
        let mut insert = |runs: &[u32], lists: &mut Vec<Found>| {
            let mut incremental = IncrementalPeak::new(table, runs, line);
            incremental.work = work;
            let effort = Effort { tries: 6, noise: 0.0, work_limit };
            let fits = insert_runs(&mut incremental, table, &mut Lcg::new(1), effort);
            work = incremental.work;
            lists.extend(fits.then(|| Found::new(incremental)));
        };
        for calls in &relaxed.rematerialized {
            insert(&self.rematerialize_after_peak(calls), &mut inserted.lists);
        }
        let large = self.is_large();
        if inserted.lists.is_empty() || !(large || inserted.is_good_enough()) {
            insert(&self.recorded.runs, &mut inserted.lists);
        }
        inserted
    }

    /// Adds the lists of eviction sweeps under a line.
    fn add_sweeps(&self, line: u64, below: Option<&Found>, lists: &mut Vec<Found>) {
        let once = self.recorded.nanoseconds;
        let known = below.into_iter().chain(&*lists).map(|found| found.nanoseconds - once).min();
        let time_limit = known.map_or(u64::MAX, |n| once.saturating_add(n.saturating_mul(SLOWER)));
        for policy in self.policies() {
            // A list slower than `PRUNED` others would not be pruned.
            let mut times: Vec<u64> = lists.iter().map(|found| found.nanoseconds).collect();
            times.sort_unstable();
            times.dedup();
            let time_limit = times.get(PRUNED - 1).map_or(time_limit, |&slowest| time_limit.min(slowest));
            let runs = evict(&self.table, line, policy, time_limit).ok();
            lists.extend(runs.map(|runs| Found::new(IncrementalPeak::new(&self.table, &runs, line))));
        }
    }

    /// The recorded order in which some calls from before its peak are rematerialized after it, each when first needed.
    fn rematerialize_after_peak(&self, rematerialized: &[bool]) -> Vec<u32> {
        let table = &self.table;
        let mut runs: Vec<u32> = (0..=self.recorded_peak_at as u32).collect();
        let mut pending = rematerialized.to_vec();
        let mut insert_pending = |inputs: &[u32], runs: &mut Vec<u32>| {
            let mut stack = inputs.to_vec();
            let mut producers = Vec::new();
            while let Some(tensor) = stack.pop() {
                let producer = table.producer[tensor as usize];
                if pending.get(producer as usize).is_some_and(|&p| p) {
                    pending[producer as usize] = false;
                    producers.push(producer);
                    stack.extend(table.inputs.row(producer as usize));
                }
            }
            producers.sort_unstable();
            runs.append(&mut producers);
        };
        for call in self.recorded_peak_at + 1..table.calls {
            insert_pending(table.inputs.row(call), &mut runs);
            runs.push(call as u32);
        }
        insert_pending(&table.keep, &mut runs);
        runs
    }
}
