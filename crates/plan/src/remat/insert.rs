//! Inserts rematerialized runs into a list until it is under the line.
//!
//! A tensor that is live across the run at the peak could be dropped before it and rematerialized just before its next
//! read. The effect of each such change is measured; the one that removes the most excess for its time is applied,
//! until that run is under the line.

use super::incremental_peak::{Change, Effect, IncrementalPeak};
use super::run_index::RunIndex;
use super::table::Table;
use plimsoll_tensor::random::Lcg;

/// Runs inserted to rematerialize one tensor, at most.
const MAX_CHAIN: usize = 96;

/// How much an insertion tries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Tensors measured for each insertion.
    pub tries: usize,
    /// Random share by which scores are raised.
    pub noise: f64,
    /// Work at which to give up.
    pub work_limit: u64,
}

/// Brings a list under its line, if it can.
pub(super) fn insert_runs(
    incremental: &mut IncrementalPeak,
    table: &Table,
    random: &mut Lcg,
    effort: Effort,
) -> bool {
    let mut across = Vec::new();
    while let Some(peak) = incremental.peak_over_line() {
        incremental.live_across(peak, &mut across);
        let mut candidates = rank(incremental, table, peak, &across, random, effort.noise);
        while incremental.live_bytes[peak] > incremental.line as i64 {
            if incremental.work > effort.work_limit
                || !insert_best(incremental, table, &mut candidates, peak, random, effort)
            {
                return false;
            }
        }
    }
    true
}

/// Tensors live across a run, those first that promise the most excess removed for their time.
fn rank(
    incremental: &IncrementalPeak,
    table: &Table,
    peak: usize,
    across: &[(u32, usize)],
    random: &mut Lcg,
    noise: f64,
) -> Vec<u32> {
    let sums = excess_sums(&incremental.live_bytes, incremental.line as i64);
    let mut ranked: Vec<(f64, u32)> = Vec::new();
    for &(tensor, next_read) in across {
        let producer = table.producer[tensor as usize];
        if table.once[producer as usize] {
            continue;
        }
        let uses = table.readers.row(tensor as usize).iter().chain([&producer]);
        let last_use = uses.filter_map(|&call| incremental.index.last_before(call, peak)).max().unwrap_or(0);
        let bytes = table.bytes[tensor as usize] as f64;
        let (before, after) = (sums[last_use + 1], sums[next_read]);
        let saved = (after.0 - before.0).min(bytes * (after.1 - before.1));
        let cost = (table.nanoseconds[producer as usize] + 1) as f64 * (1.0 + noise * random.unit());
        ranked.push((cost / saved.max(1.0), tensor));
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ranked.into_iter().map(|r| r.1).collect()
}

/// Applies the best of the changes for the first candidates that lower the excess, if any does. Its tensor is then no
/// longer a candidate, nor are those that lower nothing.
fn insert_best(
    incremental: &mut IncrementalPeak,
    table: &Table,
    candidates: &mut Vec<u32>,
    peak: usize,
    random: &mut Lcg,
    effort: Effort,
) -> bool {
    let mut best: Option<(f64, Change, u32)> = None;
    let mut at = 0;
    while at < effort.tries && at < candidates.len() {
        let tensor = candidates[at];
        let next_read = incremental.index.next_read(table, tensor, peak + 1).min(incremental.runs.len());
        let mut lowers = false;
        for change in changes(table, incremental, tensor, next_read) {
            let Effect { excess, nanoseconds } = incremental.effect(&change);
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

/// Prefix sums over the runs: bytes over the line, and number of runs over it.
fn excess_sums(live_bytes: &[i64], line: i64) -> Vec<(f64, f64)> {
    let mut sums = Vec::with_capacity(live_bytes.len() + 1);
    let mut sum = (0.0, 0.0);
    sums.push(sum);
    for &live in live_bytes {
        if live > line {
            sum = (sum.0 + (live - line) as f64, sum.1 + 1.0);
        }
        sums.push(sum);
    }
    sums
}

/// Ways to rematerialize a tensor just before a position: its producer alone, whose inputs then stay live until there;
/// or with the producers of those inputs that would be dead; and either without later rematerialized runs of the same
/// calls, as what is produced now can be kept for their readers.
fn changes(table: &Table, incremental: &IncrementalPeak, tensor: u32, position: usize) -> Vec<Change> {
    let (index, runs) = (&incremental.index, &incremental.runs);
    let producer = table.producer[tensor as usize];
    let mut changes = vec![Change { position, insert: vec![producer], remove: Vec::new() }];
    let mut chain = Vec::new();
    add_chain(table, index, producer, position, &mut chain);
    let later = |calls: &[u32]| -> Vec<usize> {
        let next = calls.iter().map(|&c| index.first_from(c, position)).filter(|&at| at < usize::MAX);
        let mut later: Vec<usize> = next.filter(|&at| index.of(runs[at])[0] as usize != at).collect();
        later.sort_unstable();
        later
    };
    let remove = later(&[producer]);
    if !remove.is_empty() {
        changes.push(Change { position, insert: vec![producer], remove });
    }
    if chain.len() > 1 && chain.len() <= MAX_CHAIN {
        let remove = later(&chain);
        if !remove.is_empty() {
            changes.push(Change { position, insert: chain.clone(), remove });
        }
        changes.push(Change { position, insert: chain, remove: Vec::new() });
    }
    changes
}

/// Adds a call after the producers of its inputs that are dead before a position. Calls that must run once are left
/// out: their outputs stay live.
fn add_chain(table: &Table, index: &RunIndex, call: u32, position: usize, chain: &mut Vec<u32>) {
    if chain.len() > MAX_CHAIN {
        return;
    }
    for &input in table.inputs.row(call as usize) {
        let producer = table.producer[input as usize];
        if !chain.contains(&producer)
            && !table.once[producer as usize]
            && table.bytes[input as usize] > 0
            && !index.is_live_before(table, input, position)
        {
            add_chain(table, index, producer, position, chain);
        }
    }
    chain.push(call);
}
