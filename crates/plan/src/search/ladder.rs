//! The lines of a fixed ladder, each solved from the one below.

use super::bound;
use super::ledger::Ledger;
use super::random::Random;
use super::refine::{prune, refine};
use super::shave::{Effort, shave};
use super::sweep::{Taste, sweep};
use super::table::Table;
use super::{Short, moment, tiny};

/// Work spent on each rung: to bring a first list under the line, to prune it, and to refine the best.
const SHAVE: u64 = 60_000_000;
const PRUNE: u64 = 40_000_000;
const REFINE: u64 = 100_000_000;

/// Calls from which problems are large.
const LARGE: usize = 3_000;

/// The smallest line is found to within itself over this.
const NEARNESS: u64 = 150;

const TASTES: [Taste; 7] = [
    Taste { distance: 0.5, chain: true, kept: true },
    Taste { distance: 1.0, chain: true, kept: true },
    Taste { distance: 0.5, chain: true, kept: false },
    Taste { distance: 0.0, chain: false, kept: false },
    Taste { distance: 0.5, chain: false, kept: true },
    Taste { distance: 0.0, chain: true, kept: true },
    Taste { distance: 1.0, chain: false, kept: true },
];

/// A list of runs and what it costs.
#[derive(Clone)]
struct Found {
    runs: Vec<u32>,
    peak: u64,
    nanoseconds: u64,
}

impl Found {
    fn new(ledger: Ledger) -> Self {
        Self { peak: ledger.peak(), nanoseconds: ledger.nanoseconds, runs: ledger.runs }
    }
}

/// The best list of runs under a line: that of the ladder's highest rung under it, refined.
pub(super) fn solve(table: &Table, line: u64) -> Result<Vec<u32>, Short> {
    let climb = Climb::new(table);
    if climb.recorded.peak <= line {
        return Ok(climb.recorded.runs);
    }
    let mut best = climb.lowest();
    if best.peak > line {
        let (floor_bytes, smallest_line_bytes) = (bound::floor(table), best.peak);
        let short = Short { line_bytes: line, smallest_line_bytes, floor_bytes };
        return climb.begin(line, None).map(|found| climb.refine(line, &found).runs).ok_or(short);
    }
    for rung in climb.rungs(best.peak).into_iter().filter(|&r| r < line).chain([line]) {
        best = climb.step(rung, best);
    }
    Ok(best.runs)
}

/// The list with the lowest peak found.
pub(super) fn lowest(table: &Table) -> Vec<u32> {
    Climb::new(table).lowest().runs
}

/// Every rung and its time, from the smallest line found.
pub(super) fn frontier(table: &Table) -> Vec<(u64, u64)> {
    let climb = Climb::new(table);
    let peak = climb.recorded.peak;
    let mut best = climb.lowest();
    let mut points = Vec::new();
    for rung in climb.rungs(best.peak) {
        best = climb.step(rung, best);
        points.push((rung, best.nanoseconds));
    }
    if points.last().is_none_or(|last| last.0 < peak) {
        points.push((peak, climb.recorded.nanoseconds));
    }
    points
}

struct Climb<'a> {
    table: &'a Table,
    recorded: Found,
    /// The fullest call of the recorded order.
    full: usize,
}

impl<'a> Climb<'a> {
    fn new(table: &'a Table) -> Self {
        let runs: Vec<u32> = (0..table.calls as u32).collect();
        let ledger = Ledger::new(table, &runs, 0);
        Self { table, full: ledger.fullest().unwrap_or(0), recorded: Found::new(ledger) }
    }

    /// The lowest line, and those above it at even distances, fewer for large problems.
    fn rungs(&self, lowest: u64) -> Vec<u64> {
        let count = match self.table.calls {
            0..=LARGE => 10,
            _ => 5,
        };
        let peak = self.recorded.peak;
        let even = (1..count).map(|k| (u128::from(peak) * k / count) as u64);
        [lowest].into_iter().chain(even.filter(|&rung| rung > lowest)).collect()
    }

    /// The tastes to try, fewer for large problems.
    fn tastes(&self) -> impl Iterator<Item = Taste> + use<> {
        let count = if self.table.calls <= LARGE { TASTES.len() } else { 3 };
        TASTES.into_iter().take(count)
    }

    /// The list with the lowest peak that sweeps find; of very small steps, the lowest there is.
    fn lowest(&self) -> Found {
        if let Some(runs) = tiny::lowest(self.table) {
            let mut ledger = Ledger::new(self.table, &runs, 0);
            ledger.line = ledger.peak();
            prune(&mut ledger, self.table, u64::MAX);
            return Found::new(ledger);
        }
        let mut best = self.recorded.clone();
        let mut low = bound::floor(self.table);
        let mut line = low;
        while low < best.peak {
            match self.tastes().find_map(|taste| sweep(self.table, line, taste)) {
                Some(runs) => {
                    best = Found::new(Ledger::new(self.table, &runs, line));
                    debug_assert!(best.peak <= line, "a sweep stays under its line");
                }
                None => low = line + 1 + line / NEARNESS,
            }
            line = low + best.peak.saturating_sub(low) / 2;
        }
        let mut ledger = Ledger::new(self.table, &best.runs, best.peak);
        prune(&mut ledger, self.table, PRUNE);
        Found::new(ledger)
    }

    /// One rung: the best of what is carried up and what is found anew, refined.
    fn step(&self, line: u64, carried: Found) -> Found {
        match self.begin(line, Some(carried)) {
            Some(found) => self.refine(line, &found),
            None => self.recorded.clone(),
        }
    }

    fn refine(&self, line: u64, found: &Found) -> Found {
        let mut ledger = Ledger::new(self.table, &found.runs, line);
        refine(&mut ledger, self.table, REFINE, 7);
        Found::new(ledger)
    }

    /// The best first list under a line.
    fn begin(&self, line: u64, carried: Option<Found>) -> Option<Found> {
        let table = self.table;
        let mut lists: Vec<Vec<u32>> =
            moment::best_at(table, self.full, line).again.iter().map(|a| self.after_cut(a)).collect();
        lists.push(self.recorded.runs.clone());
        lists.extend(self.tastes().filter_map(|taste| sweep(table, line, taste)));
        lists.extend(carried.iter().map(|found| found.runs.clone()));
        let mut best = carried;
        for runs in lists {
            let mut ledger = Ledger::new(table, &runs, line);
            let effort = Effort { tries: 6, noise: 0.0, until: SHAVE };
            if !shave(&mut ledger, table, &mut Random::new(1), effort) {
                continue;
            }
            let until = ledger.work + PRUNE;
            prune(&mut ledger, table, until);
            if best.as_ref().is_none_or(|b| ledger.nanoseconds < b.nanoseconds) {
                best = Some(Found::new(ledger));
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
