//! Which live intervals a change ends, and which it creates.

use super::{Change, IncrementalPeak};
use crate::remat::in_place::match_in_place;

/// The difference that the change last compared makes. Positions are those of the merged list: inserted runs are in it,
/// and removed runs still are.
#[derive(Clone, Debug, Default)]
pub(super) struct Diff {
    /// Live intervals that begin to exist (with their bytes) and that cease to (with their negative).
    pub intervals: Vec<(u32, u32, i64)>,
    /// Runs with another number of bytes reused in place, and that number.
    pub reused: Vec<(u32, i64)>,
    /// Space for differences of live bytes.
    pub deltas: Vec<(u32, i64)>,
    /// The tensors that inserted and removed runs read and write.
    tensors: Vec<u32>,
    /// Their live intervals in the new list, and for each tensor where those begin.
    new: Vec<(u32, u32)>,
    starts: Vec<usize>,
    /// The live intervals of one tensor in the old list.
    old: Vec<(u32, u32)>,
    events: Vec<Event>,
    /// Where changed intervals end.
    ends: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

/// A tensor is produced or read: the position, and in the lowest bits whether it is produced, and whether the run is in
/// the old and the new list. One number, since sorting events is most of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u64);

const OLD: u64 = 1;
const NEW: u64 = 2;
const PRODUCES: u64 = 4;

impl Event {
    fn new(position: u32, produces: bool, lists: u64) -> Self {
        Self(u64::from(position) << 3 | if produces { PRODUCES } else { 0 } | lists)
    }

    fn position(self) -> u32 {
        (self.0 >> 3) as u32
    }

    fn is(self, bit: u64) -> bool {
        self.0 & bit != 0
    }
}

impl IncrementalPeak<'_> {
    /// Fills the difference that a change makes.
    pub(super) fn compare(&mut self, change: &Change) {
        self.compare_intervals(change);
        self.compare_reused(change);
    }

    fn compare_intervals(&mut self, change: &Change) {
        let table = self.table;
        let diff = &mut self.diff;
        diff.tensors.clear();
        let removed = change.remove.iter().map(|&at| self.runs[at]);
        for call in change.insert.iter().copied().chain(removed) {
            let rows = table.inputs.row(call as usize).iter().chain(table.outputs.row(call as usize));
            diff.tensors.extend(rows.filter(|&&t| table.bytes[t as usize] > 0));
        }
        diff.tensors.sort_unstable();
        diff.tensors.dedup();
        diff.starts.clear();
        diff.new.clear();
        diff.intervals.clear();
        diff.ends.clear();
        for i in 0..self.diff.tensors.len() {
            let tensor = self.diff.tensors[i];
            self.collect_events(tensor, change);
            let diff = &mut self.diff;
            self.work += 60 + 20 * diff.events.len() as u64;
            diff.old.clear();
            add_intervals(&diff.events, OLD, &mut diff.old);
            let start = diff.new.len();
            diff.starts.push(start);
            add_intervals(&diff.events, NEW, &mut diff.new);
            let bytes = table.bytes[tensor as usize] as i64;
            let (mut a, mut b) = (0, start);
            while a < diff.old.len() || b < diff.new.len() {
                let (old, new) = (diff.old.get(a).copied(), diff.new.get(b).copied());
                if old == new {
                    (a, b) = (a + 1, b + 1);
                } else if new.is_none_or(|n| old.is_some_and(|o| o.0 <= n.0)) {
                    let (from, to) = old.unwrap_or_default();
                    diff.intervals.push((from, to, -bytes));
                    diff.ends.push(to);
                    a += 1;
                } else {
                    let (from, to) = new.unwrap_or_default();
                    diff.intervals.push((from, to, bytes));
                    diff.ends.push(to);
                    b += 1;
                }
            }
        }
    }

    /// An input dies where its interval ends: only there, and in inserted runs, can in-place outputs change.
    fn compare_reused(&mut self, change: &Change) {
        let table = self.table;
        let (position, count) = (change.position, change.insert.len());
        let total = self.runs.len() + count;
        let mut diff = std::mem::take(&mut self.diff);
        diff.reused.clear();
        diff.ends.extend((position..position + count).map(|at| at as u32));
        diff.ends.sort_unstable();
        diff.ends.dedup();
        for &end in diff.ends.iter().filter(|&&end| (end as usize) < total) {
            let at = end as usize;
            let inserted = at >= position && at < position + count;
            let old = if at >= position + count { at - count } else { at };
            let call = if inserted { change.insert[at - position] } else { self.runs[old] };
            if table.in_place.row(call as usize).is_empty() || (!inserted && change.remove.contains(&old)) {
                continue;
            }
            let dead = |t: u32| match diff.tensors.binary_search(&t) {
                Ok(i) => {
                    let until = diff.starts.get(i + 1).copied().unwrap_or(diff.new.len());
                    diff.new[diff.starts[i]..until].iter().any(|interval| interval.1 == end)
                }
                Err(_) => !self.index.is_live_before(table, t, old + 1),
            };
            let inputs = table.in_place.row(call as usize).iter().copied().filter(|&input| dead(input));
            let reused = match_in_place(table, call as usize, inputs, |_| true, &mut diff.pairs) as i64;
            if reused != self.reused_before(at, change) {
                diff.reused.push((end, reused));
            }
        }
        self.diff = diff;
    }

    /// Bytes that a run of the merged list reuses in place before the change.
    pub(super) fn reused_before(&self, position: usize, change: &Change) -> i64 {
        let (start, count) = (change.position, change.insert.len());
        match position {
            _ if position < start => self.reused[position],
            _ if position < start + count => 0,
            _ => self.reused[position - count],
        }
    }

    /// The runs that produce and read a tensor before and after a change, in order.
    fn collect_events(&mut self, tensor: u32, change: &Change) {
        let table = self.table;
        let (position, count) = (change.position as u32, change.insert.len() as u32);
        let producer = table.producer[tensor as usize];
        let readers = table.readers.row(tensor as usize);
        let events = &mut self.diff.events;
        events.clear();
        for (i, &call) in [producer].iter().chain(readers).enumerate() {
            for &at in self.index.of(call) {
                let removed = change.remove.contains(&(at as usize));
                let at = if at >= position { at + count } else { at };
                events.push(Event::new(at, i == 0, if removed { OLD } else { OLD | NEW }));
            }
        }
        for (i, &call) in change.insert.iter().enumerate() {
            let produces = call == producer;
            if produces || readers.binary_search(&call).is_ok() {
                events.push(Event::new(position + i as u32, produces, NEW));
            }
        }
        if table.kept[tensor as usize] {
            let end = self.runs.len() as u32 + count;
            events.push(Event::new(end, false, OLD | NEW));
        }
        events.sort_unstable();
    }
}

/// Adds the intervals from each producing run to the last read before the next, in one of the lists.
fn add_intervals(events: &[Event], list: u64, into: &mut Vec<(u32, u32)>) {
    for event in events.iter().filter(|e| e.is(list)) {
        match into.last_mut() {
            _ if event.is(PRODUCES) => into.push((event.position(), event.position())),
            Some(interval) => interval.1 = event.position(),
            None => {}
        }
    }
}
