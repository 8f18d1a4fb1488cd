//! A lower bound of the peak of every schedule, whatever runs it rematerializes and in which order.
//!
//! While a call runs, all its inputs are resident. One of the runs that produced them was the last: the other inputs were
//! resident during that run, beside its own inputs and outputs. Which run was the last is not known, so the smallest need of
//! all choices counts. The tensors that were resident then had a last producer, too, and so on, a few levels deep.

use super::bound::{call_bytes, largest_call};
use super::in_place::match_in_place;
use super::table::{NO_PRODUCER, Table};

/// Levels of producers at most.
const LEVELS: usize = 12;
/// Tensors visited for all calls together.
const VISITS: usize = 60_000_000;

/// No schedule has a lower peak.
pub(super) fn least_peak(table: &Table) -> u64 {
    let mut bound = LeastPeak { table, left: 0, pairs: Vec::new() };
    let mut calls: Vec<usize> = (0..table.calls).collect();
    calls.sort_by_key(|&call| (std::cmp::Reverse(call_bytes(table, call)), call));
    let each = VISITS / (table.calls + 1);
    let sets = calls.iter().map(|&call| table.inputs.row(call)).chain([&table.keep[..]]);
    sets.fold(largest_call(table), |least, set| {
        bound.left = each;
        least.max(bound.of(set, LEVELS, least, u64::MAX))
    })
}

struct LeastPeak<'a> {
    table: &'a Table,
    /// Tensors that may still be visited.
    left: usize,
    pairs: Vec<(u32, u32)>,
}

impl LeastPeak<'_> {
    /// The peak, at least, of every list of runs after which all tensors of a set are resident. Exact between the two limits:
    /// any result up to `low` stands for all of these, and any from `high` on for all of those.
    fn of(&mut self, set: &[u32], levels: usize, low: u64, high: u64) -> u64 {
        let table = self.table;
        let held = table.pinned_bytes + set.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
        self.left = self.left.saturating_sub(set.len());
        if levels == 0 || self.left == 0 || held >= high {
            return held;
        }
        let mut least = high;
        let mut producers: Vec<u32> = set.iter().map(|&t| table.producer[t as usize]).collect();
        producers.retain(|&call| call != NO_PRODUCER);
        producers.sort_unstable();
        producers.dedup();
        if producers.is_empty() {
            return held;
        }
        for call in producers {
            if least <= low.max(held) {
                break;
            }
            least = least.min(self.made_last(set, call as usize, levels, low, least));
        }
        least.max(held)
    }

    /// The same, if a call's run was the last of those that produced the set.
    fn made_last(&mut self, set: &[u32], call: usize, levels: usize, low: u64, high: u64) -> u64 {
        let table = self.table;
        let (inputs, outputs) = (table.inputs.row(call), table.outputs.row(call));
        let mut before: Vec<u32> = set.iter().copied().filter(|t| !outputs.contains(t)).collect();
        // What is needed afterwards is not overwritten.
        let free = table.in_place.row(call).iter().copied().filter(|t| !before.contains(t));
        let reused = match_in_place(table, call, free.collect::<Vec<_>>(), |_| true, &mut self.pairs);
        before.extend(inputs);
        before.sort_unstable();
        before.dedup();
        let resident: u64 = before.iter().chain(outputs).map(|&t| table.bytes[t as usize]).sum();
        let running = table.pinned_bytes + resident + table.workspace[call] - reused;
        if running >= high {
            return running;
        }
        running.max(self.of(&before, levels - 1, low, high))
    }
}
