//! The lines of a fixed ladder, each solved from the one below.

use super::bound;
use super::gauge::{Gauge, Level};
use super::random::Random;
use super::refine::{prune, refine};
use super::shave::{Effort, shave};
use super::sweep::{Taste, sweep};
use super::table::Table;
use super::{Short, moment, tiny};

/// Work spent on each rung, in runs measured: to bring a first list under the line, to prune it, and to refine the best.
const SHAVE: u64 = 3_000_000;
const PRUNE: u64 = 1_000_000;
const REFINE: u64 = 15_000_000;

/// The smallest line is found to within the recorded peak over this.
const NEARNESS: u64 = 1_000;

const TASTES: [Taste; 4] = [
    Taste { distance: 0.5, chain: true },
    Taste { distance: 0.0, chain: true },
    Taste { distance: 1.0, chain: true },
    Taste { distance: 0.0, chain: false },
];

/// A list of runs and what it costs.
#[derive(Clone)]
struct Found {
    runs: Vec<u32>,
    level: Level,
}

/// The best list of runs under a line: that of the ladder's highest rung under it, refined.
pub(super) fn solve(table: &Table, line: u64) -> Result<Vec<u32>, Short> {
    let mut climb = Climb::new(table);
    if climb.recorded.level.peak <= line {
        return Ok(climb.recorded.runs);
    }
    let mut best = climb.lowest();
    if best.level.peak > line {
        let (floor_bytes, smallest_line_bytes) = (bound::floor(table), best.level.peak);
        let short = Short { line_bytes: line, smallest_line_bytes, floor_bytes };
        return climb.begin(line, None).map(|found| climb.refine(line, found).runs).ok_or(short);
    }
    for rung in climb.rungs(best.level.peak).into_iter().filter(|&r| r < line).chain([line]) {
        best = climb.step(rung, best);
    }
    Ok(best.runs)
}

/// The lowest peak found.
pub(super) fn smallest_line(table: &Table) -> u64 {
    Climb::new(table).lowest().level.peak
}

/// Every rung and its time, from the smallest line found.
pub(super) fn frontier(table: &Table) -> Vec<(u64, u64)> {
    let mut climb = Climb::new(table);
    let peak = climb.recorded.level.peak;
    let mut best = climb.lowest();
    let mut points = Vec::new();
    for rung in climb.rungs(best.level.peak) {
        best = climb.step(rung, best);
        points.push((rung, best.level.nanoseconds));
    }
    if points.last().is_none_or(|last| last.0 < peak) {
        points.push((peak, climb.recorded.level.nanoseconds));
    }
    points
}

struct Climb<'a> {
    table: &'a Table,
    gauge: Gauge<'a>,
    recorded: Found,
    /// The fullest call of the recorded order.
    full: usize,
}

impl<'a> Climb<'a> {
    fn new(table: &'a Table) -> Self {
        let mut gauge = Gauge::new(table);
        let runs: Vec<u32> = (0..table.calls as u32).collect();
        let level = gauge.measure(&runs, u64::MAX);
        Self { table, gauge, recorded: Found { runs, level }, full: level.at }
    }

    /// The lowest line, and those above it at even distances, fewer for large problems.
    fn rungs(&self, lowest: u64) -> Vec<u64> {
        let count = match self.table.calls {
            0..=3000 => 10,
            _ => 5,
        };
        let peak = self.recorded.level.peak;
        let even = (1..count).map(|k| (u128::from(peak) * k / count) as u64);
        [lowest].into_iter().chain(even.filter(|&rung| rung > lowest)).collect()
    }

    /// The list with the lowest peak that sweeps find; of very small steps, the lowest there is.
    fn lowest(&mut self) -> Found {
        if let Some(mut runs) = tiny::lowest(self.table) {
            let peak = self.gauge.measure(&runs, u64::MAX).peak;
            let level = prune(&mut self.gauge, self.table, &mut runs, peak, u64::MAX);
            return Found { runs, level };
        }
        let mut best = self.recorded.clone();
        let mut low = bound::floor(self.table);
        let mut line = low;
        while low < best.level.peak {
            match TASTES.iter().find_map(|&taste| sweep(self.table, line, taste)) {
                Some(runs) => {
                    let level = self.gauge.measure(&runs, line);
                    debug_assert!(level.peak <= line, "a sweep stays under its line");
                    best = Found { runs, level };
                }
                None => low = line + 1 + (self.recorded.level.peak - line) / NEARNESS,
            }
            line = low + best.level.peak.saturating_sub(low) / 2;
        }
        let until = self.gauge.work + PRUNE;
        best.level = prune(&mut self.gauge, self.table, &mut best.runs, best.level.peak, until);
        best
    }

    /// One rung: the best of what is carried up and what is found anew, refined.
    fn step(&mut self, line: u64, carried: Found) -> Found {
        match self.begin(line, Some(carried)) {
            Some(found) => self.refine(line, found),
            None => self.recorded.clone(),
        }
    }

    fn refine(&mut self, line: u64, mut found: Found) -> Found {
        let until = self.gauge.work + REFINE;
        found.level = refine(&mut self.gauge, self.table, &mut found.runs, line, until, 7);
        found
    }

    /// The best first list under a line.
    fn begin(&mut self, line: u64, carried: Option<Found>) -> Option<Found> {
        let table = self.table;
        let mut lists: Vec<Vec<u32>> =
            moment::best_at(table, self.full, line).again.iter().map(|a| self.after_cut(a)).collect();
        lists.push(self.recorded.runs.clone());
        lists.extend(TASTES.iter().filter_map(|&taste| sweep(table, line, taste)));
        lists.extend(carried.iter().map(|found| found.runs.clone()));
        let mut best = carried;
        for mut runs in lists {
            let effort = Effort { tries: 6, noise: 0.0, until: self.gauge.work + SHAVE };
            let mut random = Random::new(1);
            if shave(&mut self.gauge, table, &mut runs, line, &mut random, effort).is_none() {
                continue;
            }
            let until = self.gauge.work + PRUNE;
            let level = prune(&mut self.gauge, table, &mut runs, line, until);
            if best.as_ref().is_none_or(|b| level.nanoseconds < b.level.nanoseconds) {
                best = Some(Found { runs, level });
            }
        }
        best
    }

    /// The recorded order in which some calls before its fullest moment run again after it, each when it is first
    /// needed.
    fn after_cut(&self, again: &[bool]) -> Vec<u32> {
        let table = self.table;
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
