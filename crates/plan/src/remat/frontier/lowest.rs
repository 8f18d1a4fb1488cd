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

impl Frontier {
    /// The list with the lowest peak that eviction sweeps find, by bisection; of very small steps, the lowest there is.
    pub(super) fn find_lowest(&self) -> Found {
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
        // Where no policy succeeds, those that reached the most calls are tried first from then on.
        let mut policies: Vec<(usize, EvictionPolicy)> = self.policies().map(|policy| (0, policy)).collect();
        while low < best.peak {
            let try_one = |(reached, policy): &mut (usize, EvictionPolicy)| {
                evict(table, line, *policy, u64::MAX).map_err(|calls| *reached = calls).ok()
            };
            match policies.iter_mut().find_map(try_one) {
                Some(runs) => {
                    best = Found::new(IncrementalPeak::new(table, &runs, line));
                    debug_assert!(best.peak <= line, "a sweep stays under its line");
                }
                None => {
                    low = line + 1 + line / PRECISION;
                    policies.sort_by_key(|policy| std::cmp::Reverse(policy.0));
                    if low > best.peak / 2 && table.calls > FAST_SWEEPS {
                        let large = table.calls > LARGE;
                        policies.truncate(if large { BEST_POLICIES_OF_LARGE } else { BEST_POLICIES });
                    }
                }
            }
            line = low + best.peak.saturating_sub(low) / 2;
        }
        let mut incremental = IncrementalPeak::new(table, &best.runs, best.peak);
        prune(&mut incremental, table, PRUNE_WORK);
        Found::new(incremental)
    }
}
