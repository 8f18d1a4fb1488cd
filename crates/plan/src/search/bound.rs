//! What no schedule can beat.

use super::gauge::Gauge;
use super::moment::best_at;
use super::table::Table;

/// What the largest single call needs beside what is pinned.
pub(super) fn floor(table: &Table) -> u64 {
    let end = table.base + table.keep.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
    (0..table.calls).map(|call| alone(table, call)).max().unwrap_or(0).max(end)
}

/// What a call needs: its inputs and outputs, those taken over once, its workspace, and what is pinned.
pub(super) fn alone(table: &Table, call: usize) -> u64 {
    let sum = |list: &[u32]| list.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
    let mut bytes = sum(table.inputs.row(call)) + sum(table.outputs.row(call)) + table.workspace[call];
    let mut free: Vec<u64> = table.outputs.row(call).iter().map(|&t| table.bytes[t as usize]).collect();
    for &input in table.in_place.row(call) {
        let size = table.bytes[input as usize];
        if let Some(at) = free.iter().position(|&b| b == size) {
            free.swap_remove(at);
            bytes -= size;
        }
    }
    table.base + bytes
}

/// Moments at which the smallest cut is sought.
const CUTS: usize = 3;
/// Tensors looked at in all: of very large steps, not every moment is.
const LOOKS: usize = 40_000_000;

/// Time that repeats take at least, if the first runs keep the recorded order: at some moment the excess must be
/// evicted, and the call of everything evicted must run again. A fractional knapsack over the calls whose results stay
/// over a moment; and at the moments where it says most, what [`best_at`] says, which also counts what those calls read.
pub(super) fn lower_bound(table: &Table, line: u64) -> u64 {
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    let mut gauge = Gauge::new(table);
    if gauge.measure(&runs).peak <= line {
        return 0;
    }
    let heights = gauge.heights.clone();
    let full: Vec<usize> = (0..runs.len()).filter(|&at| heights[at] > line).collect();
    let mut across = Vec::new();
    let stride = (full.len() * table.tensors).div_ceil(LOOKS).max(1);
    let mut moments = Vec::new();
    for &at in full.iter().step_by(stride) {
        gauge.across(&runs, at, &mut across);
        let held: u64 = across.iter().map(|&t| table.bytes[t as usize]).sum();
        let excess = (held + alone(table, at)).saturating_sub(line);
        moments.push((knapsack(table, &across, excess), at));
    }
    moments.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let cuts = moments.iter().take(CUTS).map(|&(_, at)| best_at(table, at, line).bound);
    let most = moments.first().map_or(0.0, |m| m.0);
    cuts.fold(most, f64::max).floor() as u64
}

/// The least time of calls whose results over a moment hold some bytes, if calls could run in part.
fn knapsack(table: &Table, across: &[u32], bytes: u64) -> f64 {
    let may_go = across.iter().filter(|&&t| !table.once[table.maker[t as usize] as usize]);
    let mut by_call: Vec<(u32, u64)> =
        may_go.map(|&t| (table.maker[t as usize], table.bytes[t as usize])).collect();
    by_call.sort_unstable();
    let mut calls: Vec<(f64, f64)> = Vec::new();
    let mut at = 0;
    while at < by_call.len() {
        let call = by_call[at].0;
        let end = at + by_call[at..].partition_point(|c| c.0 == call);
        let held: u64 = by_call[at..end].iter().map(|c| c.1).sum();
        calls.push((table.nanoseconds[call as usize] as f64, held as f64));
        at = end;
    }
    calls.sort_by(|a, b| (a.0 * b.1).total_cmp(&(b.0 * a.1)));
    let (mut left, mut time) = (bytes as f64, 0.0);
    for (nanoseconds, held) in calls {
        if held >= left {
            return time + nanoseconds * left / held;
        }
        left -= held;
        time += nanoseconds;
    }
    time
}
