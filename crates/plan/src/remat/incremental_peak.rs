//! Incremental evaluation: a run list with the live bytes of each run, in which a change is measured only where it
//! changes something.

mod diff;

use super::peak::PeakSimulator;
use super::run_index::RunIndex;
use super::table::Table;
use diff::Diff;
use std::ops::Range;

/// A change to a run list: calls inserted at a position, and positions of the list that are removed, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub position: usize,
    pub insert: Vec<u32>,
    pub remove: Vec<usize>,
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Effect {
    /// Growth of the bytes over the line, summed over the runs.
    pub excess: i64,
    /// Growth of the time.
    pub nanoseconds: i64,
}

/// Runs of a block, whose least and most live bytes are known.
const BLOCK: usize = 32;

/// A part of a list that a change affects alike.
enum Part {
    /// An inserted run, with its live bytes.
    Inserted(i64),
    /// Runs of the list, by position, and the growth of their live bytes.
    Kept(Range<usize>, i64),
}

/// A run list and its live bytes.
#[derive(Debug)]
pub(super) struct IncrementalPeak<'a> {
    table: &'a Table,
    pub line: u64,
    pub runs: Vec<u32>,
    pub index: RunIndex,
    /// Live bytes while each run runs.
    pub live_bytes: Vec<i64>,
    /// The least and the most of them in each block of [`BLOCK`] runs.
    blocks: Vec<(i64, i64)>,
    /// Live bytes before each run, and at the end.
    live_before: Vec<i64>,
    /// Bytes of dead inputs that outputs of each run reuse in place.
    reused: Vec<i64>,
    pub nanoseconds: u64,
    /// Excess is summed in bytes shifted right by this.
    shift: u32,
    /// Work done so far, roughly in nanoseconds.
    pub work: u64,
    diff: Diff,
}

impl Clone for IncrementalPeak<'_> {
    fn clone(&self) -> Self {
        Self {
            runs: self.runs.clone(),
            index: self.index.clone(),
            live_bytes: self.live_bytes.clone(),
            blocks: self.blocks.clone(),
            live_before: self.live_before.clone(),
            reused: self.reused.clone(),
            diff: Diff::default(),
            ..*self
        }
    }

    fn clone_from(&mut self, other: &Self) {
        self.runs.clone_from(&other.runs);
        self.index.clone_from(&other.index);
        self.live_bytes.clone_from(&other.live_bytes);
        self.blocks.clone_from(&other.blocks);
        self.live_before.clone_from(&other.live_before);
        self.reused.clone_from(&other.reused);
        self.line = other.line;
        self.work += 2 * other.runs.len() as u64;
        self.nanoseconds = other.nanoseconds;
    }
}

impl<'a> IncrementalPeak<'a> {
    pub fn new(table: &'a Table, runs: &[u32], line: u64) -> Self {
        let total = table.pinned_bytes.saturating_add(table.bytes.iter().sum());
        // The excess of up to 2^24 runs does not overflow; with large tensors it is rounded for that.
        let shift = 24_u32.saturating_sub(total.leading_zeros().saturating_sub(2));
        let count = runs.len();
        let (mut live_bytes, mut live_before, mut reused) =
            (vec![0; count], vec![0; count + 1], vec![0; count]);
        live_before[count] = table.bytes_at_end() as i64;
        PeakSimulator::new(table).backward(runs, |run| {
            live_bytes[run.position] = run.live_bytes as i64;
            live_before[run.position] = run.live_before as i64;
            reused[run.position] = run.reused_bytes as i64;
        });
        Self {
            table,
            line,
            runs: runs.to_vec(),
            index: RunIndex::new(table, runs),
            blocks: live_bytes.chunks(BLOCK).map(least_and_most).collect(),
            live_bytes,
            live_before,
            reused,
            nanoseconds: runs.iter().map(|&c| table.nanoseconds[c as usize]).sum(),
            shift,
            work: 0,
            diff: Diff::default(),
        }
    }

    /// The first of the runs at the peak, if the peak is over the line.
    pub fn peak_over_line(&self) -> Option<usize> {
        let peak = self.blocks.iter().map(|block| block.1).max().filter(|&peak| peak > self.line as i64)?;
        let first = self.blocks.iter().position(|block| block.1 == peak)? * BLOCK;
        self.live_bytes[first..].iter().position(|&live| live == peak).map(|at| first + at)
    }

    /// The largest sum of live bytes.
    pub fn peak(&self) -> u64 {
        let of_runs = self.blocks.iter().map(|block| block.1).max().map_or(0, |peak| peak as u64);
        of_runs.max(self.table.pinned_bytes)
    }

    /// Live bytes over the line, as they are summed.
    fn excess(&self, live_bytes: i64) -> i64 {
        (live_bytes - self.line as i64).max(0) >> self.shift
    }

    /// Tensors that are live while a run runs and that it neither reads nor writes, each with its next read.
    pub fn live_across(&mut self, position: usize, into: &mut Vec<(u32, usize)>) {
        let table = self.table;
        let call = self.runs[position] as usize;
        self.work += 4 * table.tensors as u64;
        into.clear();
        for (producer, outputs) in (0..table.calls).map(|c| (c as u32, table.outputs.row(c))) {
            if producer as usize == call || self.index.of(producer)[0] as usize > position {
                continue;
            }
            for &tensor in outputs.iter().filter(|&&t| table.bytes[t as usize] > 0) {
                if self.index.is_live_before(table, tensor, position + 1)
                    && !table.inputs.row(call).contains(&tensor)
                {
                    let next_read = self.index.next_read(table, tensor, position + 1);
                    into.push((tensor, next_read.min(self.runs.len())));
                }
            }
        }
    }

    /// What a change would do.
    pub fn effect(&mut self, change: &Change) -> Effect {
        self.compare(change);
        let table = self.table;
        let mut excess = 0;
        let mut visited = 0;
        self.parts(change, |incremental, part| {
            excess += match part {
                Part::Inserted(live) => incremental.excess(live),
                Part::Kept(runs, delta) => {
                    visited += runs.len() as u64;
                    incremental.growth_of_excess(runs, delta)
                }
            };
        });
        self.work += visited;
        let mut nanoseconds = 0;
        for &at in &change.remove {
            excess -= self.excess(self.live_bytes[at]);
            nanoseconds -= table.nanoseconds[self.runs[at] as usize] as i64;
        }
        nanoseconds += change.insert.iter().map(|&c| table.nanoseconds[c as usize] as i64).sum::<i64>();
        Effect { excess, nanoseconds }
    }

    /// Whether the runs that a change affects would be under the line.
    pub fn fits(&mut self, change: &Change) -> bool {
        self.compare(change);
        let mut fits = true;
        let mut visited = 0;
        self.parts(change, |incremental, part| {
            let most = match part {
                Part::Inserted(live) => live,
                Part::Kept(runs, delta) => {
                    visited += runs.len() as u64;
                    incremental.most(runs) + delta
                }
            };
            fits &= most <= incremental.line as i64;
        });
        self.work += visited;
        fits
    }

    /// Visits the parts of the list that the change last compared affects.
    fn parts(&mut self, change: &Change, mut visit: impl FnMut(&Self, Part)) {
        let (position, count) = (change.position, change.insert.len());
        let total = self.runs.len() + count;
        // Differences of live bytes from one run to the next, in positions of the merged list.
        let mut deltas = std::mem::take(&mut self.diff.deltas);
        deltas.clear();
        for &(from, to, bytes) in &self.diff.intervals {
            deltas.push((from, bytes));
            deltas.push(((to + 1).min(total as u32), -bytes));
        }
        for &(at, reused) in &self.diff.reused {
            let before = self.reused_before(at as usize, change);
            deltas.push((at, before - reused));
            deltas.push((at + 1, reused - before));
        }
        deltas.extend([(position as u32, 0), ((position + count) as u32, 0)]);
        deltas.sort_unstable_by_key(|d| d.0);
        self.visit_parts(change, &deltas, &mut visit);
        self.diff.deltas = deltas;
    }

    fn visit_parts(&self, change: &Change, deltas: &[(u32, i64)], visit: &mut impl FnMut(&Self, Part)) {
        let (position, count) = (change.position, change.insert.len());
        let total = self.runs.len() + count;
        let mut delta = 0;
        let mut removed = change.remove.iter().peekable();
        for at in 0..deltas.len() {
            delta += deltas[at].1;
            let from = deltas[at].0 as usize;
            let until = deltas.get(at + 1).map_or(total, |d| d.0 as usize);
            if from >= until {
                continue;
            }
            if from >= position && from < position + count {
                for at in from..until {
                    let workspace = self.table.workspace[change.insert[at - position] as usize] as i64;
                    visit(self, Part::Inserted(self.live_before[position] + delta + workspace));
                }
                continue;
            }
            let inserted = if from >= position + count { count } else { 0 };
            let (from, until) = (from - inserted, until - inserted);
            while removed.next_if(|&&at| at < from).is_some() {}
            if delta == 0 {
                continue;
            }
            let mut start = from;
            while start < until {
                let end = removed.next_if(|&&at| at < until).map_or(until, |&at| at);
                visit(self, Part::Kept(start..end, delta));
                start = end + 1;
            }
        }
    }

    /// Growth of the bytes over the line of some runs if the live bytes of each grow by `delta`.
    fn growth_of_excess(&self, runs: Range<usize>, delta: i64) -> i64 {
        let line = self.line as i64;
        let mut growth = 0;
        self.by_block(runs, |runs, block| match block {
            Some((_, most)) if most.max(most + delta) <= line => {}
            Some((least, _)) if self.shift == 0 && least.min(least + delta) >= line => {
                growth += delta * runs.len() as i64;
            }
            _ => {
                let each = |&live: &i64| self.excess(live + delta) - self.excess(live);
                growth += self.live_bytes[runs].iter().map(each).sum::<i64>();
            }
        });
        growth
    }

    /// The most live bytes of some runs.
    fn most(&self, runs: Range<usize>) -> i64 {
        let mut most = 0;
        self.by_block(runs, |runs, block| {
            most = most.max(match block {
                Some(block) => block.1,
                None => least_and_most(&self.live_bytes[runs]).1,
            });
        });
        most
    }

    /// Visits runs block by block; of whole blocks, with the least and the most live bytes.
    fn by_block(&self, runs: Range<usize>, mut visit: impl FnMut(Range<usize>, Option<(i64, i64)>)) {
        let mut start = runs.start;
        while start < runs.end {
            let block = start / BLOCK;
            let end = ((block + 1) * BLOCK).min(runs.end);
            let whole = end - start == BLOCK;
            visit(start..end, whole.then(|| self.blocks[block]));
            start = end;
        }
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        self.compare(change);
        self.work += ((change.insert.len() + change.remove.len()) * self.runs.len()) as u64;
        let table = self.table;
        let (position, count) = (change.position, change.insert.len());
        let before = self.live_before[position];
        let with_workspace = |&c: &u32| before + table.workspace[c as usize] as i64;
        self.live_bytes.splice(position..position, change.insert.iter().map(with_workspace));
        self.live_before.splice(position..position, std::iter::repeat_n(before, count));
        self.reused.splice(position..position, std::iter::repeat_n(0, count));
        self.runs.splice(position..position, change.insert.iter().copied());
        change.insert.iter().enumerate().for_each(|(i, &c)| self.index.insert(c, position + i));
        for &(from, to, bytes) in &self.diff.intervals {
            let (from, to) = (from as usize, to as usize);
            let end = (to + 1).min(self.runs.len());
            self.live_bytes[from..end].iter_mut().for_each(|live| *live += bytes);
            self.live_before[from + 1..=to].iter_mut().for_each(|live| *live += bytes);
        }
        for &(at, reused) in &self.diff.reused {
            self.live_bytes[at as usize] += self.reused[at as usize] - reused;
            self.reused[at as usize] = reused;
        }
        self.nanoseconds += change.insert.iter().map(|&c| table.nanoseconds[c as usize]).sum::<u64>();
        for &at in change.remove.iter().rev() {
            let at = if at >= position { at + count } else { at };
            let call = self.runs.remove(at);
            self.live_bytes.remove(at);
            self.live_before.remove(at);
            self.reused.remove(at);
            self.index.remove(call, at);
            self.nanoseconds -= table.nanoseconds[call as usize];
        }
        self.update_blocks(change);
    }

    /// Follows a change from the first run on that it affects.
    fn update_blocks(&mut self, change: &Change) {
        let intervals = self.diff.intervals.iter().map(|interval| interval.0);
        let affected = intervals.chain(self.diff.reused.iter().map(|reused| reused.0)).map(|at| at as usize);
        let first = affected.chain(change.remove.iter().copied()).fold(change.position, usize::min) / BLOCK;
        self.blocks.truncate(first);
        self.blocks.extend(self.live_bytes[first * BLOCK..].chunks(BLOCK).map(least_and_most));
    }
}

/// The least and the most of some live bytes.
fn least_and_most(live_bytes: &[i64]) -> (i64, i64) {
    live_bytes.iter().fold((i64::MAX, 0), |(least, most), &live| (least.min(live), most.max(live)))
}
