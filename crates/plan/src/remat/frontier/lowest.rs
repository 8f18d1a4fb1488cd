//! The smallest line for which there is a schedule.

use super::{Found, Frontier, LARGE, PRUNE_WORK};
use crate::remat::evict::{EvictionPolicy, evict};
use crate::remat::incremental_peak::IncrementalPeak;
use crate::remat::local_search::prune;
use crate::remat::{bound, exact};

/// The smallest line is found to within one part in so many.
const PRECISION: u64 = 150;

/// Policies that go on once the smallest line is known to within half, for steps with more calls than these, whose
/// sweeps take time; and for large steps.
const BEST_POLICIES: usize = 4;
const FAST_SWEEPS: usize = 600;
const BEST_POLICIES_OF_LARGE: usize = 2;

/// Work spent on minimum cuts under one line while the smallest is searched.
const CUT_WORK: u64 = 20_000_000;

/// The next line to try above one that failed.
fn above(line: u64) -> u64 {
    line + 1 + line / PRECISION
}

fn middle(low: u64, high: u64) -> u64 {
    low + high.saturating_sub(low) / 2
}

impl Frontier {
    /// The list with the lowest peak that eviction sweeps and, for large steps, minimum cuts find, by bisection; of very
    /// small steps, the lowest there is.
    pub(super) fn find_lowest(&self) -> Found {
        let table = &self.table;
        if let Some(runs) = exact::lowest(table) {
            let mut incremental = IncrementalPeak::new(table, &runs, 0);
            incremental.line = incremental.peak();
            prune(&mut incremental, table, u64::MAX);
            return Found::new(incremental);
        }
        let mut best = self.recorded.clone();
        let largest_call = bound::largest_call(table);
        let large = self.is_large();
        // Few steps have a schedule under the lowest line, and sweeps that fail take the longest: of large steps it is tried
        // last, where one just above it was found.
        let mut tried = !large;
        let mut low = if large { above(largest_call) } else { largest_call };
        let mut line = if large { middle(low, best.peak) } else { low };
        // Minimum cuts with few runs inserted take less time than sweeps of the largest steps; under lower lines than this they need
        // many.
        let mut cuts_failed = if table.calls > LARGE { 0 } else { u64::MAX };
        // Where no policy succeeds, those that reached the most calls are tried first from then on.
        let mut policies: Vec<(usize, EvictionPolicy)> = self.policies().map(|policy| (0, policy)).collect();
        while low < best.peak {
            let try_one = |(reached, policy): &mut (usize, EvictionPolicy)| {
                evict(table, line, *policy, u64::MAX).map_err(|calls| *reached = calls).ok()
            };
            let cut =
                (line > cuts_failed).then(|| self.insert_into_cuts(line, CUT_WORK).lists.pop()).flatten();
            if cut.is_none() && line > cuts_failed {
                cuts_failed = line;
            }
            let by_sweep = || {
                let runs = policies.iter_mut().find_map(try_one)?;
                Some(Found::new(IncrementalPeak::new(table, &runs, line)))
            };
            match cut.or_else(by_sweep) {
                Some(found) => {
                    best = found;
                    debug_assert!(best.peak <= line, "a schedule stays under its line");
                }
                None => {
                    low = above(line);
                    policies.sort_by_key(|policy| std::cmp::Reverse(policy.0));
                    if low > best.peak / 2 && table.calls > FAST_SWEEPS {
                        policies.truncate(if large { BEST_POLICIES_OF_LARGE } else { BEST_POLICIES });
                    }
                }
            }
            line = middle(low, best.peak);
            if !tried && best.peak <= above(low) && low == above(largest_call) {
                (low, line, tried) = (largest_call, largest_call, true);
            }
        }
        let mut incremental = IncrementalPeak::new(table, &best.runs, best.peak);
        prune(&mut incremental, table, PRUNE_WORK);
        Found::new(incremental)
    }
}
