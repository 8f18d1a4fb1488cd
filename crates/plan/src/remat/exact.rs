//! The lowest peak of very small steps, by looking at every state.

use super::table::Table;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Steps larger than this are left to sweeps.
const CALLS: usize = 12;
const TENSORS: usize = 20;
/// States looked at.
const STATES: usize = 100_000;

/// The next first run, and what is resident.
type State = (usize, u32);

/// The runs with the lowest peak, if the step is small enough to be sure.
pub(super) fn lowest(table: &Table) -> Option<Vec<u32>> {
    let made: Vec<u32> = (0..table.calls).flat_map(|call| table.outputs.row(call)).copied().collect();
    if table.calls > CALLS || made.len() > TENSORS {
        return None;
    }
    let bit = |t: u32| made.iter().position(|&m| m == t).map_or(0, |i| 1_u32 << i);
    let set = |list: &[u32]| list.iter().fold(0, |mask, &t| mask | bit(t));
    let bytes = |mask: u32| -> u64 {
        let there = made.iter().enumerate().filter(|(i, _)| mask & (1 << i) != 0);
        there.map(|(_, &t)| table.bytes[t as usize]).sum()
    };
    // By state: the lowest peak on a way to it, where that way came from, and the call it ran.
    let mut best: BTreeMap<State, (u64, State, Option<u32>)> = BTreeMap::new();
    let mut queue = BinaryHeap::from([(Reverse(0_u64), 0_usize, 0_u32)]);
    best.insert((0, 0), (0, (0, 0), None));
    while let Some((Reverse(peak), next, mask)) = queue.pop() {
        if best.len() > STATES {
            return None;
        }
        if best[&(next, mask)].0 < peak {
            continue;
        }
        let keep = set(&table.keep);
        if next == table.calls && mask & keep == keep {
            return Some(way(&best, (next, mask)));
        }
        let mut reach = |peak: u64, state: State, call: Option<u32>| {
            if best.get(&state).is_none_or(|known| peak < known.0) {
                best.insert(state, (peak, (next, mask), call));
                queue.push((Reverse(peak), state.0, state.1));
            }
        };
        for index in (0..made.len()).filter(|i| mask & (1 << i) != 0) {
            reach(peak, (next, mask & !(1 << index)), None);
        }
        for call in 0..table.calls.min(next + 1) {
            let (inputs, outputs) = (set(table.inputs.row(call)), set(table.outputs.row(call)));
            if mask & inputs != inputs || (table.once[call] && call < next) {
                continue;
            }
            let then = next.max(call + 1);
            let high = bytes(mask | outputs) + table.workspace[call];
            reach(peak.max(high), (then, mask | outputs), Some(call as u32));
            let mut free: Vec<u32> = table.outputs.row(call).to_vec();
            free.retain(|&o| mask & bit(o) == 0);
            let (mut high, mut after) = (high, mask | outputs);
            for &input in table.in_place.row(call) {
                let size = table.bytes[input as usize];
                if let Some(at) = free.iter().position(|&o| table.bytes[o as usize] == size) {
                    free.swap_remove(at);
                    (high, after) = (high - size, after & !bit(input));
                }
            }
            reach(peak.max(high), (then, after), Some(call as u32));
        }
    }
    None
}

/// The runs on the way to a state.
fn way(best: &BTreeMap<State, (u64, State, Option<u32>)>, mut state: State) -> Vec<u32> {
    let mut runs = Vec::new();
    while state != (0, 0) {
        let (_, from, call) = best[&state];
        runs.extend(call);
        state = from;
    }
    runs.reverse();
    runs
}
