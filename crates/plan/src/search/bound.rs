//! What no schedule can beat.

use super::gauge::Gauge;
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

/// Time that repeats take at least, if the first runs keep the recorded order: at some moment the excess must be
/// evicted, and the call of everything evicted must run again. A fractional knapsack over the calls whose results stay
/// over that moment, largest over all moments.
pub(super) fn lower_bound(table: &Table, line: u64) -> u64 {
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    let mut gauge = Gauge::new(table);
    if gauge.measure(&runs, line).peak <= line {
        return 0;
    }
    let heights = gauge.heights.clone();
    let mut moments: Vec<usize> = (0..runs.len()).filter(|&at| heights[at] > line).collect();
    moments.sort_by_key(|&at| (std::cmp::Reverse(heights[at]), at));
    let mut across = Vec::new();
    let mut best = 0.0_f64;
    // Moments of lower excess rarely bind; every moment is looked at in small steps, a spread of them in large ones.
    let stride = (moments.len() * table.tensors).div_ceil(40_000_000).max(1);
    for &at in moments.iter().step_by(stride) {
        gauge.across(&runs, at, &mut across);
        best = best.max(knapsack(table, &across, heights[at] - line));
    }
    for &at in moments.iter().step_by((moments.len() / 6).max(1)) {
        let c = super::moment::best_at(table, at, line);
        if std::env::var("DBG").is_ok() { eprintln!("moment {at} {:.2} vs {:.2}", c.bound / table.nanoseconds.iter().sum::<u64>() as f64 * 100.0, best / table.nanoseconds.iter().sum::<u64>() as f64 * 100.0); }
    }
    best.floor() as u64
}

/// The least time of calls whose results over a moment hold some bytes, if calls could run in part.
fn knapsack(table: &Table, across: &[u32], bytes: u64) -> f64 {
    let mut by_call: Vec<(u32, u64)> = across.iter().map(|&t| (table.maker[t as usize], table.bytes[t as usize])).collect();
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
