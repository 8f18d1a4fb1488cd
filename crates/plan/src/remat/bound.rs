//! What no schedule can beat.

use super::lagrangian::{best_at, reading};
use super::peak::PeakSimulator;
use super::table::Table;

/// What the largest single call needs beside what is pinned.
pub(super) fn largest_call(table: &Table) -> u64 {
    let end = table.base + table.keep.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
    (0..table.calls).map(|call| call_bytes(table, call)).max().unwrap_or(0).max(end)
}

/// What a call needs: its inputs and outputs, those taken over once, its workspace, and what is pinned.
pub(super) fn call_bytes(table: &Table, call: usize) -> u64 {
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

/// Moments, and stretches between moments, at which the smallest cut is sought.
const CUTS: usize = 3;
/// Tensors looked at in all: of very large steps, not every moment is.
const LOOKS: usize = 40_000_000;
/// Moments between which stretches lie.
const MOMENTS: usize = 48;

/// Time that repeats take at least, if the first runs keep the recorded order.
///
/// While a call runs for the first time, the excess must be evicted, and the call of everything evicted that is read
/// later must run again: a fractional knapsack over the calls whose results stay over that moment. Where it says most,
/// [`best_at`] says what the least is if what those calls read counts too. And since what is read between two first runs
/// must be made again between them, the bounds of stretches that follow each other add up.
pub(super) fn lower_bound(table: &Table, line: u64) -> u64 {
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    let mut simulator = PeakSimulator::new(table);
    if simulator.measure(&runs).peak <= line {
        return 0;
    }
    let heights = simulator.heights.clone();
    let full: Vec<usize> = (0..runs.len()).filter(|&at| heights[at] > line).collect();
    let mut across = Vec::new();
    let stride = (full.len() * table.tensors).div_ceil(LOOKS).max(1);
    let mut moments = Vec::new();
    for &at in full.iter().step_by(stride) {
        simulator.across(&runs, at, &mut across);
        moments.push((knapsack(table, &across, excess(table, at, &across, line)), at));
    }
    let some = windows(&moments);
    moments.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let cuts = moments.iter().take(CUTS).map(|&(_, at)| best_at(table, at, None, line).bound);
    let most = cuts.fold(moments.first().map_or(0.0, |m| m.0), f64::max);
    let over: Vec<Vec<u32>> = some
        .iter()
        .map(|&at| {
            simulator.across(&runs, at, &mut across);
            across.clone()
        })
        .collect();
    most.max(stretches(table, line, &some, &over)).floor() as u64
}

/// Bytes that do not fit while a call runs, if everything over it stays.
fn excess(table: &Table, at: usize, across: &[u32], line: u64) -> u64 {
    let held: u64 = across.iter().map(|&t| table.bytes[t as usize]).sum();
    (held + call_bytes(table, at)).saturating_sub(line)
}

/// The moments with the largest figures, one of each of some windows, in order.
fn windows(moments: &[(f64, usize)]) -> Vec<usize> {
    let size = moments.len().div_ceil(MOMENTS).max(1);
    let largest = |w: &[(f64, usize)]| w.iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|m| m.1);
    moments.chunks(size).filter_map(largest).collect()
}

/// The largest sum over stretches between moments, one after the other, of what is made again in each.
fn stretches(table: &Table, line: u64, moments: &[usize], over: &[Vec<u32>]) -> f64 {
    let end = moments.len();
    // By moment, and the end: the largest sum before it, and the last stretch of that sum (where it begins, its figure).
    let mut sums = vec![0.0; end + 1];
    let mut last: Vec<Option<(usize, f64)>> = vec![None; end + 1];
    for from in 0..end {
        let next: Vec<(usize, u32)> =
            over[from].iter().filter_map(|&t| Some((reading(table, t, moments[from])?, t))).collect();
        for to in from + 1..=end {
            let until = moments.get(to).copied().unwrap_or(table.calls);
            let read: Vec<u32> = next.iter().filter(|n| n.0 <= until).map(|n| n.1).collect();
            let figure = knapsack(table, &read, excess(table, moments[from], &read, line));
            if sums[from] + figure > sums[to] {
                sums[to] = sums[from] + figure;
                last[to] = Some((from, figure));
            }
        }
    }
    let mut chosen = Vec::new();
    let mut to = end;
    while let Some((from, figure)) = last[to] {
        chosen.push((figure, moments[from], moments.get(to).copied()));
        to = from;
    }
    chosen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let cut = |&(figure, from, until): &(f64, usize, Option<usize>)| {
        best_at(table, from, until, line).bound.max(figure) - figure
    };
    sums[end] + chosen.iter().take(CUTS).map(cut).sum::<f64>()
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
