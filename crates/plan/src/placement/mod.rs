//! Offsets for buffers whose lifetimes are known, such that no two live buffers overlap and the arena is small.
//!
//! This is dynamic storage allocation: NP-hard in general, and easy on most training steps. Buffers are placed one by one at the
//! lowest free offset; what matters is the order. Several orders compete, and each is improved by placing earlier what ends
//! highest, until the placement meets the lower bound of live bytes or the effort is used up.

mod layout;
mod occupancy;

use occupancy::Occupancy;
use plimsoll_tensor::random::Lcg;
use std::cmp::Reverse;

pub(crate) use layout::{Layout, above_states, live_range};

/// Size and lifetime of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LiveRange {
    /// Bytes, a multiple of the alignment.
    pub size: usize,
    /// First step of its lifetime.
    pub first: usize,
    /// Last step, inclusive.
    pub last: usize,
}

/// Effort, in pairs of buffers for each round: a fraction of a second. Steps of many thousand buffers get no rounds: their
/// orders differ little.
const COMPARISONS: usize = 150_000_000;

/// Rounds of improvement at most.
const ROUNDS: usize = 2_000;

/// The largest sum of sizes live at one step, and the first step that reaches it. No placement can be lower.
pub(crate) fn lower_bound(live_ranges: &[LiveRange]) -> (usize, usize) {
    let end = live_ranges.iter().map(|b| b.last + 2).max().unwrap_or(1);
    let mut change = vec![(0_usize, 0_usize); end];
    for live_range in live_ranges {
        change[live_range.first].0 += live_range.size;
        change[live_range.last + 1].1 += live_range.size;
    }
    let mut live = 0;
    let mut peak = (0, 0);
    for (step, (born, dead)) in change.into_iter().enumerate() {
        live = live + born - dead;
        if live > peak.0 {
            peak = (live, step);
        }
    }
    peak
}

/// An offset for each buffer; empty ones are at 0. A placement that ends below `target_end` is not improved; `None` if it ends above
/// `limit`, which is no less.
pub(crate) fn place(live_ranges: &[LiveRange], target_end: usize, limit: usize) -> Option<Vec<usize>> {
    let (bound, peak_step) = lower_bound(live_ranges);
    if bound > limit {
        return None;
    }
    let bound = bound.max(target_end);
    let steps = live_ranges.iter().map(|b| b.last + 1).max().unwrap_or(1);
    let mut packing = Packing { live_ranges, taken: Occupancy::new(steps) };
    let orders = orders(live_ranges, peak_step);
    // One of many attempts gets less effort than the plan that is kept.
    let allowed = if target_end > 0 { COMPARISONS / 8 } else { COMPARISONS };
    let rounds =
        (allowed / (live_ranges.len() * live_ranges.len() / 2 + 1)).min(ROUNDS) / orders.len().max(1);
    let mut starts: Vec<Packed> = Vec::new();
    // A placement that is not improved is of no use if it is too high, or higher than another.
    let mut limit = if rounds == 0 { limit } else { usize::MAX };
    for order in orders {
        let Some(packed) = packing.pack(order, limit) else { continue };
        if packed.height <= bound {
            return Some(packed.offsets);
        }
        limit = if rounds == 0 { packed.height } else { limit };
        starts.push(packed);
    }
    starts.sort_by_key(|packed| packed.height);
    let mut best = starts.first().cloned();
    for start in starts {
        let improved = packing.improve(start, bound, rounds);
        if best.as_ref().is_none_or(|b| improved.height < b.height) {
            best = Some(improved);
        }
        if best.as_ref().is_some_and(|b| b.height <= bound) {
            break;
        }
    }
    best.filter(|b| b.height <= limit).map(|b| b.offsets)
}

/// The competing orders.
fn orders(live_ranges: &[LiveRange], peak_step: usize) -> Vec<Vec<usize>> {
    type Key = (bool, Reverse<usize>, usize, Reverse<usize>);
    let duration = |b: &LiveRange| b.last - b.first + 1;
    let rest = |b: &LiveRange| !(b.first <= peak_step && peak_step <= b.last);
    let rules: [&dyn Fn(&LiveRange) -> Key; 8] = [
        &|b| (false, Reverse(b.size), b.first, Reverse(0)),
        &|b| (false, Reverse(b.size.saturating_mul(duration(b))), 0, Reverse(0)),
        &|b| (false, Reverse(duration(b)), 0, Reverse(b.size)),
        &|b| (false, Reverse(0), b.first, Reverse(b.last)),
        &|b| (false, Reverse(b.last), b.first, Reverse(0)),
        // Buffers that are live at the peak first: then they are packed without gaps.
        &|b| (rest(b), Reverse(duration(b)), 0, Reverse(b.size)),
        &|b| (rest(b), Reverse(0), b.first, Reverse(b.last)),
        &|b| (rest(b), Reverse(b.last), 0, Reverse(0)),
    ];
    let ids: Vec<usize> = (0..live_ranges.len()).filter(|&i| live_ranges[i].size > 0).collect();
    let sorted = rules.map(|rule| {
        let mut order = ids.clone();
        order.sort_by_key(|&i| (rule(&live_ranges[i]), i));
        order
    });
    sorted.into()
}

/// A finished placement.
#[derive(Clone)]
struct Packed {
    /// The order it was made in.
    order: Vec<usize>,
    offsets: Vec<usize>,
    height: usize,
}

struct Packing<'a> {
    live_ranges: &'a [LiveRange],
    taken: Occupancy,
}

impl Packing<'_> {
    /// Places the buffers in an order, each at the lowest free offset; `None` if that ends above a limit.
    fn pack(&mut self, order: Vec<usize>, limit: usize) -> Option<Packed> {
        self.taken.clear();
        let mut offsets = vec![0; self.live_ranges.len()];
        let mut height = 0;
        for &id in &order {
            let live_range = self.live_ranges[id];
            offsets[id] = self.taken.take(live_range.size, live_range.first, live_range.last);
            height = height.max(offsets[id] + live_range.size);
            if height > limit {
                return None;
            }
        }
        Some(Packed { order, offsets, height })
    }

    /// Moves what ends highest forward in the order, each by up to a quarter of its distance from the front, and packs
    /// again. Moving it all the way destroys what the order got right.
    fn improve(&mut self, mut best: Packed, bound: usize, rounds: usize) -> Packed {
        let mut current = best.clone();
        let mut random = Lcg::new(0);
        for _ in 0..rounds {
            if best.height <= bound {
                break;
            }
            let key = |(at, &id): (usize, &usize)| {
                let is_highest = current.offsets[id] + self.live_ranges[id].size == current.height;
                let forward = if is_highest { at * random.below(256) } else { 0 };
                (at * 1024 - forward, id)
            };
            let mut order: Vec<(usize, usize)> = current.order.iter().enumerate().map(key).collect();
            order.sort_unstable();
            // Slightly worse placements are accepted to leave local minima; the best is kept aside.
            let limit = current.height + current.height / 64;
            if let Some(packed) = self.pack(order.into_iter().map(|(_, id)| id).collect(), limit) {
                current = packed;
            }
            if current.height < best.height {
                best = current.clone();
            } else if current.height > best.height + best.height / 16 {
                current = best.clone();
            }
        }
        best
    }
}
