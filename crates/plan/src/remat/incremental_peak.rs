//! Incremental evaluation: a run list with the live bytes of each run, in which a change is measured only where it
//! changes something.

mod diff;

use super::peak::PeakSimulator;
use super::run_index::RunIndex;
use super::table::Table;
use diff::Diff;

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
    /// The peak among the runs that it changes.
    pub peak: u64,
    /// Growth of the time.
    pub nanoseconds: i64,
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
        PeakSimulator::new(table).backward(runs, 0, |run| {
            live_bytes[run.position] = run.live_bytes as i64;
            live_before[run.position] = run.live_before as i64;
            reused[run.position] = run.reused_bytes as i64;
        });
        Self {
            table,
            line,
            runs: runs.to_vec(),
            index: RunIndex::new(table, runs),
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
        let peak = self.live_bytes.iter().copied().max().filter(|&peak| peak > self.line as i64)?;
        self.live_bytes.iter().position(|&live| live == peak)
    }

    /// The largest sum of live bytes.
    pub fn peak(&self) -> u64 {
        let of_runs = self.live_bytes.iter().copied().max().map_or(0, |peak| peak as u64);
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
        let mut excess = 0;
        let mut peak = 0;
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
                    let workspace = table.workspace[change.insert[at - position] as usize] as i64;
                    let live = self.live_before[position] + delta + workspace;
                    excess += self.excess(live);
                    peak = peak.max(live);
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
                self.work += (end - start) as u64;
                for &live in &self.live_bytes[start..end] {
                    excess += self.excess(live + delta) - self.excess(live);
                    peak = peak.max(live + delta);
                }
                start = end + 1;
            }
        }
        let mut nanoseconds = 0;
        for &at in &change.remove {
            excess -= self.excess(self.live_bytes[at]);
            nanoseconds -= table.nanoseconds[self.runs[at] as usize] as i64;
        }
        nanoseconds += change.insert.iter().map(|&c| table.nanoseconds[c as usize] as i64).sum::<i64>();
        self.diff.deltas = deltas;
        Effect { excess, peak: peak as u64, nanoseconds }
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
    }
}
