//! Lower bounds that hold for every schedule with the first runs in recorded order.

use super::in_place::match_in_place;
use super::lagrangian::{next_read, relax_at};
use super::peak::PeakSimulator;
use super::table::Table;

/// The largest need of a single call, or of the end of the step: no schedule has a lower peak.
pub(super) fn largest_call(table: &Table) -> u64 {
    (0..table.calls).map(|call| call_bytes(table, call)).max().unwrap_or(0).max(table.bytes_at_end())
}

/// What a call needs: pinned tensors, its inputs and outputs, in-place pairs counted once, and its workspace.
pub(super) fn call_bytes(table: &Table, call: usize) -> u64 {
    let sum = |list: &[u32]| list.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
    let in_place = table.in_place.row(call).iter().copied();
    let matched = match_in_place(table, call, in_place, |_| true, &mut Vec::new());
    let tensors = sum(table.inputs.row(call)) + sum(table.outputs.row(call)) - matched;
    table.pinned_bytes + tensors + table.workspace[call]
}

/// Positions, and segments between positions, whose knapsack bound is tightened by minimum cuts.
const CUTS: usize = 3;
/// Tensors visited in all: of very large steps, only every so many-th position is bounded.
const MAX_VISITS: usize = 3_000_000;
/// Positions at which segments may begin and end.
const SEGMENT_POSITIONS: usize = 48;

/// Time that rematerialized runs take at least under a line.
///
/// While a call runs for the first time, the bytes over the line must be evicted, and the producer of each evicted
/// tensor that is read later must be rematerialized: a fractional knapsack over the producers of the tensors live
/// across that position. Where this bound is largest, [`relax_at`] tightens it by what those producers read. Tensors
/// read between two first runs must be rematerialized between them, so the bounds of disjoint segments add up.
pub(super) fn lower_bound(table: &Table, line: u64) -> u64 {
    let runs: Vec<u32> = (0..table.calls as u32).collect();
    let recorded = PeakSimulator::new(table).measure(&runs);
    if recorded.peak <= line {
        return 0;
    }
    let over_line: Vec<usize> = (0..runs.len()).filter(|&at| recorded.live_bytes[at] > line).collect();
    let mut visits = 0;
    live_across(table, &over_line, |_, across| visits += across.len());
    let stride = visits.div_ceil(MAX_VISITS).max(1);
    let over_line: Vec<usize> = over_line.into_iter().step_by(stride).collect();
    let mut bounds = Vec::new();
    live_across(table, &over_line, |position, across| {
        bounds.push((knapsack(table, across, excess(table, position, across, line)), position));
    });
    let positions = largest_per_window(&bounds);
    bounds.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let cuts = bounds.iter().take(CUTS).map(|&(_, position)| relax_at(table, position, None, line).bound);
    let at_one_position = cuts.fold(bounds.first().map_or(0.0, |b| b.0), f64::max);
    let mut across = Vec::new();
    live_across(table, &positions, |_, tensors| across.push(tensors.to_vec()));
    at_one_position.max(segments(table, line, &positions, &across)).floor() as u64
}

/// Visits positions of the recorded order, in order, with the tensors that are live across each: produced before it, read after
/// it, and not by it.
fn live_across(table: &Table, positions: &[usize], mut visit: impl FnMut(usize, &[u32])) {
    let end = |t: u32| {
        let last = table.readers.row(t as usize).last().map_or(0, |&reader| reader as usize);
        if table.kept[t as usize] { table.calls } else { last }
    };
    let (mut live, mut across): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut next = 0;
    for &position in positions {
        let new = (next..position).flat_map(|call| table.outputs.row(call)).copied();
        live.extend(new.filter(|&t| table.bytes[t as usize] > 0));
        next = position;
        live.retain(|&t| end(t) > position);
        across.clear();
        across.extend(live.iter().filter(|t| !table.inputs.row(position).contains(t)));
        visit(position, &across);
    }
}

/// Bytes over the line while a call runs, if some tensors are live across it.
fn excess(table: &Table, call: usize, across: &[u32], line: u64) -> u64 {
    let bytes: u64 = across.iter().map(|&t| table.bytes[t as usize]).sum();
    (bytes + call_bytes(table, call)).saturating_sub(line)
}

/// The position with the largest bound of each of [`SEGMENT_POSITIONS`] windows, in order.
fn largest_per_window(bounds: &[(f64, usize)]) -> Vec<usize> {
    let size = bounds.len().div_ceil(SEGMENT_POSITIONS).max(1);
    let largest = |w: &[(f64, usize)]| w.iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|b| b.1);
    bounds.chunks(size).filter_map(largest).collect()
}

/// The largest sum of bounds over disjoint segments between positions, by dynamic programming; the largest terms are
/// then tightened by minimum cuts.
fn segments(table: &Table, line: u64, positions: &[usize], live_across: &[Vec<u32>]) -> f64 {
    let end = positions.len();
    // For each position, and the end: the largest sum before it, and the last segment of that sum (start, bound).
    let mut sums = vec![0.0; end + 1];
    let mut last: Vec<Option<(usize, f64)>> = vec![None; end + 1];
    for from in 0..end {
        let reads =
            live_across[from].iter().filter_map(|&t| Some((next_read(table, t, positions[from])?, t)));
        let reads: Vec<(usize, u32)> = reads.collect();
        for to in from + 1..=end {
            let until = positions.get(to).copied().unwrap_or(table.calls);
            let read: Vec<u32> = reads.iter().filter(|r| r.0 <= until).map(|r| r.1).collect();
            let bound = knapsack(table, &read, excess(table, positions[from], &read, line));
            if sums[from] + bound > sums[to] {
                sums[to] = sums[from] + bound;
                last[to] = Some((from, bound));
            }
        }
    }
    let mut chosen = Vec::new();
    let mut to = end;
    while let Some((from, bound)) = last[to] {
        chosen.push((bound, positions[from], positions.get(to).copied()));
        to = from;
    }
    chosen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let tightened = |&(bound, from, until): &(f64, usize, Option<usize>)| {
        relax_at(table, from, until, line).bound.max(bound) - bound
    };
    sums[end] + chosen.iter().take(CUTS).map(tightened).sum::<f64>()
}

/// The least time of producers whose outputs among some tensors hold so many bytes, if producers could run in part.
fn knapsack(table: &Table, tensors: &[u32], bytes: u64) -> f64 {
    let evictable = tensors.iter().filter(|&&t| !table.once[table.producer[t as usize] as usize]);
    let mut by_producer: Vec<(u32, u64)> =
        evictable.map(|&t| (table.producer[t as usize], table.bytes[t as usize])).collect();
    by_producer.sort_unstable();
    let time_and_bytes = |outputs: &[(u32, u64)]| {
        let bytes: u64 = outputs.iter().map(|output| output.1).sum();
        (table.nanoseconds[outputs[0].0 as usize] as f64, bytes as f64)
    };
    let mut producers: Vec<(f64, f64)> =
        by_producer.chunk_by(|a, b| a.0 == b.0).map(time_and_bytes).collect();
    producers.sort_by(|a, b| (a.0 * b.1).total_cmp(&(b.0 * a.1)));
    let (mut left, mut time) = (bytes as f64, 0.0);
    for (nanoseconds, bytes) in producers {
        if bytes >= left {
            return time + nanoseconds * left / bytes;
        }
        left -= bytes;
        time += nanoseconds;
    }
    time
}
