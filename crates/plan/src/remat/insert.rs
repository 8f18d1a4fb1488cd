//! Puts repeats into a list of runs until it is under the line.
//!
//! At the fullest run, every tensor that stays over it without being used could instead be made again just before its
//! next reading. What that saves and costs is measured; the repeat that takes away the most excess for its time goes in,
//! until that run is under the line.

use super::incremental_peak::{Change, Effect, IncrementalPeak};
use super::run_index::Index;
use super::table::Table;
use plimsoll_tensor::random::Lcg;

/// Runs put in for one tensor, at most.
const CHAIN: usize = 96;

/// What a shave may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Tensors measured for each repeat.
    pub tries: usize,
    /// Share by which scores are made to differ at random.
    pub noise: f64,
    /// Work at which to give up.
    pub until: u64,
}

/// Brings a list under its line, if it can.
pub(super) fn insert_runs(
    incremental: &mut IncrementalPeak,
    table: &Table,
    random: &mut Lcg,
    effort: Effort,
) -> bool {
    let mut across = Vec::new();
    while let Some(full) = incremental.fullest() {
        incremental.across(full, &mut across);
        let mut candidates = rank(incremental, table, full, &across, random, effort.noise);
        while incremental.heights[full] > incremental.line as i64 {
            if incremental.task_graph > effort.until
                || !put_in_best(incremental, table, &mut candidates, full, random, effort)
            {
                return false;
            }
        }
    }
    true
}

/// Tensors that stay over a run, from the one most worth making again.
fn rank(
    incremental: &IncrementalPeak,
    table: &Table,
    full: usize,
    across: &[(u32, usize)],
    random: &mut Lcg,
    noise: f64,
) -> Vec<u32> {
    let sums = excess_sums(&incremental.heights, incremental.line as i64);
    let mut ranked: Vec<(f64, u32)> = Vec::new();
    for &(tensor, next) in across {
        let maker = table.maker[tensor as usize];
        if table.once[maker as usize] {
            continue;
        }
        let readers = table.readers.row(tensor as usize).iter().chain([&maker]);
        let last = readers.filter_map(|&r| incremental.index.before(r, full)).max().unwrap_or(0);
        let bytes = table.bytes[tensor as usize] as f64;
        let saved = (sums[next].0 - sums[last + 1].0).min(bytes * (sums[next].1 - sums[last + 1].1));
        let cost = (table.nanoseconds[maker as usize] + 1) as f64 * (1.0 + noise * random.unit());
        ranked.push((cost / saved.max(1.0), tensor));
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ranked.into_iter().map(|r| r.1).collect()
}

/// Makes the best change among those of the first candidates that lower the excess, if any does. What is made again is
/// then no candidate, nor what lowers nothing.
fn put_in_best(
    incremental: &mut IncrementalPeak,
    table: &Table,
    candidates: &mut Vec<u32>,
    full: usize,
    random: &mut Lcg,
    effort: Effort,
) -> bool {
    let mut best: Option<(f64, Change, u32)> = None;
    let mut at = 0;
    while at < effort.tries && at < candidates.len() {
        let tensor = candidates[at];
        let next = incremental.index.next_read(table, tensor, full + 1).min(incremental.runs.len());
        let mut lowers = false;
        for change in changes(table, incremental, tensor, next) {
            let Effect { excess, nanoseconds, .. } = incremental.effect(&change);
            if excess >= 0 {
                continue;
            }
            lowers = true;
            let (gain, time) = (-excess as f64, nanoseconds as f64);
            let noise = 1.0 + effort.noise * random.unit();
            let score = if time > 0.0 { time * noise / gain } else { time * gain };
            if best.as_ref().is_none_or(|b| score < b.0) {
                best = Some((score, change, tensor));
            }
        }
        if lowers {
            at += 1;
        } else {
            candidates.remove(at);
        }
    }
    let Some((_, change, tensor)) = best else { return false };
    incremental.apply(&change);
    candidates.retain(|&t| t != tensor);
    true
}

/// Excess bytes, and runs with any, before each position.
fn excess_sums(heights: &[i64], line: i64) -> Vec<(f64, f64)> {
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
fn changes(table: &Table, incremental: &IncrementalPeak, tensor: u32, position: usize) -> Vec<Change> {
    let (index, runs) = (&incremental.index, &incremental.runs);
    let maker = table.maker[tensor as usize];
    let mut changes = vec![Change { position, insert: vec![maker], remove: Vec::new() }];
    let mut insert = Vec::new();
    missing(table, index, maker, position, &mut insert);
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
fn missing(table: &Table, index: &Index, call: u32, position: usize, into: &mut Vec<u32>) {
    if into.len() > CHAIN {
        return;
    }
    for &input in table.inputs.row(call as usize) {
        let maker = table.maker[input as usize];
        if !into.contains(&maker)
            && !table.once[maker as usize]
            && table.bytes[input as usize] > 0
            && !index.stays(table, input, position)
        {
            missing(table, index, maker, position, into);
        }
    }
    into.push(call);
}
