//! Puts repeats into a list of runs until it is under the line.
//!
//! At the fullest run, every tensor that stays over it without being used could instead be made again just before its
//! next reading. What that saves and costs is measured on the whole list; the repeat that takes away the most excess for
//! its time goes in.

use super::gauge::{Gauge, Level};
use super::random::Random;
use super::table::Table;

/// Runs put in for one tensor, at most.
const CHAIN: usize = 96;

/// What a shave may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Tensors measured at each moment.
    pub tries: usize,
    /// Share by which scores are made to differ at random.
    pub noise: f64,
    /// Work at which to give up.
    pub until: u64,
}

/// Where the runs of each call are in a list.
struct Index {
    starts: Vec<u32>,
    positions: Vec<u32>,
}

impl Index {
    fn new(table: &Table, runs: &[u32]) -> Self {
        let mut starts = vec![0_u32; table.calls + 1];
        runs.iter().for_each(|&c| starts[c as usize + 1] += 1);
        for call in 0..table.calls {
            starts[call + 1] += starts[call];
        }
        let mut next = starts.clone();
        let mut positions = vec![0; runs.len()];
        for (at, &call) in runs.iter().enumerate() {
            positions[next[call as usize] as usize] = at as u32;
            next[call as usize] += 1;
        }
        Self { starts, positions }
    }

    fn of(&self, call: u32) -> &[u32] {
        &self.positions[self.starts[call as usize] as usize..self.starts[call as usize + 1] as usize]
    }

    /// The first run of a call at or after a position.
    fn from(&self, call: u32, position: usize) -> usize {
        let runs = self.of(call);
        runs.get(runs.partition_point(|&p| (p as usize) < position)).map_or(usize::MAX, |&p| p as usize)
    }

    /// The last run of a call before a position.
    fn before(&self, call: u32, position: usize) -> Option<usize> {
        let runs = self.of(call);
        runs.partition_point(|&p| (p as usize) < position).checked_sub(1).map(|i| runs[i] as usize)
    }

    /// The first reading of a tensor at or after a position.
    fn reading(&self, table: &Table, tensor: u32, position: usize) -> usize {
        let readers = table.readers.row(tensor as usize).iter();
        readers.map(|&r| self.from(r, position)).min().unwrap_or(usize::MAX)
    }

    /// Whether a tensor stays resident up to a position in any case.
    fn stays(&self, table: &Table, tensor: u32, position: usize, end: usize, kept: bool) -> bool {
        let reading = self.reading(table, tensor, position);
        let reading = if reading == usize::MAX && kept { end } else { reading };
        reading < usize::MAX && reading <= self.from(table.maker[tensor as usize], position)
    }
}

/// A change to a list: runs that go in at a position, and runs further on that go out.
struct Change {
    position: usize,
    insert: Vec<u32>,
    remove: Vec<usize>,
}

impl Change {
    fn apply(&self, runs: &[u32], into: &mut Vec<u32>) {
        into.clear();
        into.extend_from_slice(&runs[..self.position]);
        into.extend_from_slice(&self.insert);
        let mut from = self.position;
        for &at in &self.remove {
            into.extend_from_slice(&runs[from..at]);
            from = at + 1;
        }
        into.extend_from_slice(&runs[from..]);
    }
}

/// Brings a list under the line, if it can.
pub(super) fn shave(
    gauge: &mut Gauge,
    table: &Table,
    runs: &mut Vec<u32>,
    line: u64,
    random: &mut Random,
    effort: Effort,
) -> Option<Level> {
    let mut across = Vec::new();
    let mut trial = Vec::new();
    let mut best_runs = Vec::new();
    let mut level = gauge.measure(runs, line);
    while level.peak > line {
        if gauge.work > effort.until {
            return None;
        }
        let index = Index::new(table, runs);
        let full = level.at;
        let sums = excess_sums(&gauge.heights, line);
        gauge.across(runs, full, &mut across);
        let mut candidates: Vec<(f64, u32, usize)> = Vec::new();
        for &tensor in &across {
            let maker = table.maker[tensor as usize];
            if table.once[maker as usize] {
                continue;
            }
            let next = index.reading(table, tensor, full + 1).min(runs.len());
            let readers = table.readers.row(tensor as usize).iter().chain([&maker]);
            let last = readers.filter_map(|&r| index.before(r, full)).max().unwrap_or(0);
            let bytes = table.bytes[tensor as usize] as f64;
            let saved = (sums[next].0 - sums[last + 1].0).min(bytes * (sums[next].1 - sums[last + 1].1));
            let noise = 1.0 + effort.noise * random.unit();
            let cost = (table.nanoseconds[maker as usize] + 1) as f64 * noise;
            candidates.push((cost / saved.max(1.0), tensor, next));
        }
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut best: Option<(f64, Level)> = None;
        let mut left = effort.tries;
        for &(_, tensor, next) in &candidates {
            if left == 0 {
                break;
            }
            left -= 1;
            for change in changes(table, &index, runs, tensor, next) {
                change.apply(runs, &mut trial);
                let new = gauge.measure_to(&trial, line, level.excess);
                let gain = level.excess - new.excess;
                if gain <= 0.0 {
                    continue;
                }
                let time = new.nanoseconds as f64 - level.nanoseconds as f64;
                let noise = 1.0 + effort.noise * random.unit();
                let score = if time > 0.0 { time * noise / gain } else { time * gain };
                if best.as_ref().is_none_or(|b| score < b.0) {
                    best = Some((score, new));
                    std::mem::swap(&mut best_runs, &mut trial);
                }
            }
        }
        best?;
        std::mem::swap(runs, &mut best_runs);
        level = gauge.measure(runs, line);
    }
    Some(level)
}

/// Excess bytes, and runs with any, before each position.
fn excess_sums(heights: &[u64], line: u64) -> Vec<(f64, f64)> {
    let mut sums = Vec::with_capacity(heights.len() + 1);
    let mut sum = (0.0, 0.0);
    sums.push(sum);
    for &height in heights {
        if height > line {
            sum = (sum.0 + (height - line) as f64, sum.1 + 1.0);
        }
        sums.push(sum);
    }
    sums
}

/// Ways of making a tensor again just before a position: with its inputs kept until then; with those made again that
/// would not stay; and that with repeats further on left out, since what is made now can be kept for them.
fn changes(table: &Table, index: &Index, runs: &[u32], tensor: u32, position: usize) -> Vec<Change> {
    let maker = table.maker[tensor as usize];
    let mut changes = vec![Change { position, insert: vec![maker], remove: Vec::new() }];
    let mut insert = Vec::new();
    missing(table, index, maker, position, runs.len(), &mut insert);
    let later = |insert: &[u32]| -> Vec<usize> {
        let again = insert.iter().map(|&c| index.from(c, position)).filter(|&at| at < usize::MAX);
        let mut again: Vec<usize> = again.filter(|&at| index.of(runs[at])[0] as usize != at).collect();
        again.sort_unstable();
        again
    };
    let remove = later(&[maker]);
    if !remove.is_empty() {
        changes.push(Change { position, insert: vec![maker], remove });
    }
    if insert.len() > 1 && insert.len() <= CHAIN {
        let remove = later(&insert);
        if !remove.is_empty() {
            changes.push(Change { position, insert: insert.clone(), remove });
        }
        changes.push(Change { position, insert, remove: Vec::new() });
    }
    changes
}

/// A call after everything it reads that would not stay until a position, in order. What must run once is left out: it
/// then stays.
fn missing(table: &Table, index: &Index, call: u32, position: usize, end: usize, into: &mut Vec<u32>) {
    if into.len() > CHAIN {
        return;
    }
    for &input in table.inputs.row(call as usize) {
        let kept = table.keep.binary_search(&input).is_ok();
        let maker = table.maker[input as usize];
        if !into.contains(&maker)
            && !table.once[maker as usize]
            && table.bytes[input as usize] > 0
            && !index.stays(table, input, position, end, kept)
        {
            missing(table, index, maker, position, end, into);
        }
    }
    into.push(call);
}
