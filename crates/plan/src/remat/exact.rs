//! The lowest peak of very small steps, by Dijkstra's algorithm over all residency states.

use super::in_place::match_in_place;
use super::table::Table;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Larger steps are left to eviction sweeps.
const MAX_CALLS: usize = 12;
const MAX_TENSORS: usize = 20;
/// States reached, at most.
const MAX_STATES: usize = 100_000;

/// The next call to run for the first time, and the set of resident tensors.
type State = (usize, u32);

/// By state: the lowest peak on a path to it, the state before it on that path, and the call run in between.
type Paths = BTreeMap<State, (u64, State, Option<u32>)>;

/// The runs with the lowest peak, if the step is small enough.
pub(super) fn lowest(table: &Table) -> Option<Vec<u32>> {
    let tensors: Vec<u32> = (0..table.calls).flat_map(|call| table.outputs.row(call)).copied().collect();
    if table.calls > MAX_CALLS || tensors.len() > MAX_TENSORS {
        return None;
    }
    let bit = |t: u32| tensors.iter().position(|&other| other == t).map_or(0, |i| 1_u32 << i);
    let set = |list: &[u32]| list.iter().fold(0, |mask, &t| mask | bit(t));
    let bytes = |mask: u32| -> u64 {
        let resident = tensors.iter().enumerate().filter(|(i, _)| mask & (1 << i) != 0);
        resident.map(|(_, &t)| table.bytes[t as usize]).sum()
    };
    let keep = set(&table.keep);
    let mut pairs = Vec::new();
    let mut paths = Paths::new();
    let mut queue = BinaryHeap::from([(Reverse(0_u64), 0_usize, 0_u32)]);
    paths.insert((0, 0), (0, (0, 0), None));
    while let Some((Reverse(peak), next, mask)) = queue.pop() {
        if paths.len() > MAX_STATES {
            return None;
        }
        if paths[&(next, mask)].0 < peak {
            continue;
        }
        if next == table.calls && mask & keep == keep {
            return Some(runs_to(&paths, (next, mask)));
        }
        let mut reach = |peak: u64, state: State, call: Option<u32>| {
            if paths.get(&state).is_none_or(|known| peak < known.0) {
                paths.insert(state, (peak, (next, mask), call));
                queue.push((Reverse(peak), state.0, state.1));
            }
        };
        for index in (0..tensors.len()).filter(|i| mask & (1 << i) != 0) {
            reach(peak, (next, mask & !(1 << index)), None);
        }
        for call in 0..table.calls.min(next + 1) {
            let (inputs, outputs) = (set(table.inputs.row(call)), set(table.outputs.row(call)));
            if mask & inputs != inputs || (table.once[call] && call < next) {
                continue;
            }
            let then = next.max(call + 1);
            let (after, live_bytes) = (mask | outputs, bytes(mask | outputs) + table.workspace[call]);
            reach(peak.max(live_bytes), (then, after), Some(call as u32));
            // In place, the inputs are gone afterwards.
            let in_place = table.in_place.row(call).iter().copied();
            let matched = match_in_place(table, call, in_place, |o| mask & bit(o) == 0, &mut pairs);
            let after = pairs.iter().fold(after, |after, &(_, input)| after & !bit(input));
            reach(peak.max(live_bytes - matched), (then, after), Some(call as u32));
        }
    }
    None
}

/// The runs on the path to a state.
fn runs_to(paths: &Paths, mut state: State) -> Vec<u32> {
    let mut runs = Vec::new();
    while state != (0, 0) {
        let (_, before, call) = paths[&state];
        runs.extend(call);
        state = before;
    }
    runs.reverse();
    runs
}
