//! An eviction sweep: one pass through the step that evicts with knowledge of the future.
//!
//! Belady's rule, weighted: whenever the next call does not fit, the tensor is evicted that takes the least time to
//! rematerialize for its bytes and for the distance to its next use. Evicted inputs are rematerialized when they are
//! read, recursively. An input of an evicted tensor's producer counts as used when that tensor is. A tensor that cannot
//! be rematerialized (its producer must run once, or reads a tensor that is gone for good) is evicted only when nothing
//! needs it any more.

mod cost;
mod victim;

use super::in_place::match_in_place;
use super::table::Table;

/// How a sweep scores tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionPolicy {
    /// Power of the distance to the next use: 0, a quarter, a half, or 1.
    pub distance: f64,
    /// Whether a tensor's cost includes its producer's missing inputs.
    pub missing_inputs: bool,
    /// Whether it includes evicted tensors that are produced from it.
    pub evicted_results: bool,
    /// Whether kept tensors stay resident once produced: the last calls often produce them, and rematerializing them
    /// would take everything before.
    pub hold_kept: bool,
}

/// Runs of a schedule, at most: `RUNS_PER_CALL` for each call, and for small steps `RUNS_OF_SMALL` over the number of
/// calls more, but no more than twice the number of calls squared.
const RUNS_PER_CALL: usize = 3;
const RUNS_OF_SMALL: usize = 5_000_000;
/// Runs that prepare one call of the recorded order, at most: as many as there are calls, or this if it is more.
const RUNS_FOR_ONE: usize = 4_000;
/// Tensors visited, at most: so many for each call, and a number for small steps.
const VISITS_PER_CALL: u64 = 1_000;
const VISITS_OF_SMALL: u64 = 8_000_000;
/// Nested rematerialization for one call, at most.
const MAX_DEPTH: usize = 2_000;

/// The runs of a step under a line that take at most so long. If the policy finds none, the number of calls that it
/// reached.
pub(super) fn evict(
    table: &Table,
    line: u64,
    policy: EvictionPolicy,
    time_limit: u64,
) -> Result<Vec<u32>, usize> {
    let mut eviction = Eviction::new(table, line, policy, time_limit);
    eviction.sweep().ok_or(eviction.current)?;
    Ok(eviction.runs)
}

/// Bytes that producing each call's outputs from nothing takes, if the input with the largest need is produced first.
fn needs(table: &Table) -> Vec<u64> {
    let mut needs = vec![0; table.calls];
    for call in 0..table.calls {
        let mut held = 0;
        let mut most = 0_u64;
        for tensor in inputs_by_need(table, &needs, call) {
            most = most.max(held + needs[table.producer[tensor as usize] as usize]);
            held += table.bytes[tensor as usize];
        }
        let outputs: u64 = table.outputs.row(call).iter().map(|&t| table.bytes[t as usize]).sum();
        needs[call] = most.max(held + outputs + table.workspace[call]);
    }
    needs
}

fn inputs_by_need(table: &Table, needs: &[u64], call: usize) -> Vec<u32> {
    let mut inputs = table.inputs.row(call).to_vec();
    let need = |t: u32| needs[table.producer[t as usize] as usize].saturating_sub(table.bytes[t as usize]);
    inputs.sort_by_key(|&t| (std::cmp::Reverse(need(t)), t));
    inputs
}

struct Eviction<'a> {
    table: &'a Table,
    line: u64,
    policy: EvictionPolicy,
    needs: Vec<u64>,
    /// The call of the recorded order that is next, and the number of runs before its preparation.
    current: usize,
    runs_before_current: usize,
    /// Limits at which the sweep gives up: runs in all, runs for one call, tensors visited, time.
    max_runs: usize,
    max_runs_for_one: usize,
    max_visits: u64,
    time_limit: u64,
    visits: u64,
    nanoseconds: u64,
    runs: Vec<u32>,
    /// By call: whether its first run is done.
    ran: Vec<bool>,
    resident: Vec<bool>,
    /// The resident tensors, and by tensor where it is in that list.
    residents: Vec<u32>,
    slots: Vec<u32>,
    live_bytes: u64,
    /// By tensor: the runs in preparation that hold it.
    locks: Vec<u32>,
    /// Of many residents, those likely to be evicted next, and the call at which they were listed.
    shortlist: Vec<u32>,
    in_shortlist: Vec<bool>,
    listed_at: usize,
    /// By tensor, as last evaluated: rematerialization cost for its bytes, to the inverse power of the distance's, and
    /// next use.
    cost: Vec<f64>,
    next_use: Vec<usize>,
    /// By tensor: how many of its readers have run.
    readers_passed: Vec<u32>,
    /// By tensor: evicted, and nothing needs it, as far as was seen.
    unneeded: Vec<bool>,
    /// By tensor: it cannot be rematerialized.
    unrecoverable: Vec<bool>,
    /// By tensor: the number of the last traversal that visited it. Traversals visit evicted tensors; resident ones
    /// count as visited by all.
    visited: Vec<u32>,
    traversal: u32,
    /// Scratch of a traversal, of one that may visit every tensor, and of the search for a victim.
    stack: Vec<u32>,
    walk: Vec<u32>,
    scores: Vec<f64>,
}

impl<'a> Eviction<'a> {
    fn new(table: &'a Table, line: u64, policy: EvictionPolicy, time_limit: u64) -> Self {
        let (calls, tensors) = (table.calls, table.tensors);
        let unrecoverable = |t: usize| {
            (policy.hold_kept && table.kept[t]) || table.once.get(table.producer[t] as usize) == Some(&true)
        };
        Self {
            table,
            line,
            policy,
            needs: needs(table),
            current: 0,
            runs_before_current: 0,
            max_runs: RUNS_PER_CALL * calls + (RUNS_OF_SMALL / calls.max(1)).min(2 * calls * calls),
            max_runs_for_one: calls.max(RUNS_FOR_ONE),
            max_visits: VISITS_PER_CALL * calls as u64 + VISITS_OF_SMALL,
            time_limit,
            visits: 0,
            nanoseconds: 0,
            runs: Vec::with_capacity(2 * calls),
            ran: vec![false; calls],
            resident: vec![false; tensors],
            residents: Vec::new(),
            slots: vec![0; tensors],
            live_bytes: table.pinned_bytes,
            locks: vec![0; tensors],
            shortlist: Vec::new(),
            in_shortlist: vec![false; tensors],
            listed_at: 0,
            cost: vec![0.0; tensors],
            next_use: vec![0; tensors],
            readers_passed: vec![0; tensors],
            unneeded: vec![false; tensors],
            unrecoverable: (0..tensors).map(unrecoverable).collect(),
            visited: vec![0; tensors],
            traversal: 0,
            stack: Vec::new(),
            walk: vec![0; tensors + 2],
            scores: Vec::new(),
        }
    }

    /// Runs every call, and rematerializes the kept tensors that are evicted by then.
    fn sweep(&mut self) -> Option<()> {
        let table = self.table;
        for call in 0..table.calls {
            self.runs_before_current = self.runs.len();
            self.run(call, 0)?;
            self.ran[call] = true;
            self.current = call + 1;
            table.inputs.row(call).iter().for_each(|&t| self.evaluate(t));
        }
        let mut keep = table.keep.clone();
        keep.sort_by_key(|&t| std::cmp::Reverse(self.needs[table.producer[t as usize] as usize]));
        self.runs_before_current = self.runs.len();
        keep.into_iter().try_for_each(|tensor| self.hold(tensor, 0))
    }

    /// Makes a tensor resident and locks it.
    fn hold(&mut self, tensor: u32, depth: usize) -> Option<()> {
        if !self.resident[tensor as usize] {
            self.run(self.table.producer[tensor as usize] as usize, depth + 1)?;
        }
        self.locks[tensor as usize] += 1;
        Some(())
    }

    /// Runs a call once all its inputs are resident.
    fn run(&mut self, call: usize, depth: usize) -> Option<()> {
        let table = self.table;
        let not_again = table.once[call] && self.ran[call];
        let too_many = self.runs.len() > self.max_runs
            || self.runs.len() > self.runs_before_current + self.max_runs_for_one;
        let too_long = self.nanoseconds > self.time_limit || self.visits > self.max_visits;
        if not_again || depth > MAX_DEPTH || too_many || too_long {
            return None;
        }
        for tensor in inputs_by_need(table, &self.needs, call) {
            self.hold(tensor, depth)?;
        }
        // Outputs that are still resident are written where they are: they must not be evicted for this run.
        table.outputs.row(call).iter().for_each(|&t| self.locks[t as usize] += 1);
        let new = table.outputs.row(call).iter().filter(|&&t| !self.resident[t as usize]);
        let bytes = new.map(|&t| table.bytes[t as usize]).sum::<u64>() + table.workspace[call];
        let mut in_place = self.in_place_inputs(call, depth, false);
        if !self.evict_until_fits(bytes - in_place.1) {
            in_place = self.in_place_inputs(call, depth, true);
            if !self.evict_until_fits(bytes - in_place.1) {
                return None;
            }
        }
        self.runs.push(call as u32);
        self.nanoseconds += table.nanoseconds[call];
        let locked = table.inputs.row(call).iter().chain(table.outputs.row(call));
        locked.for_each(|&t| self.locks[t as usize] -= 1);
        for &tensor in table.outputs.row(call) {
            if !self.resident[tensor as usize] {
                self.resident[tensor as usize] = true;
                self.visited[tensor as usize] = u32::MAX;
                self.slots[tensor as usize] = self.residents.len() as u32;
                self.residents.push(tensor);
                self.live_bytes += table.bytes[tensor as usize];
            }
        }
        in_place.0.into_iter().for_each(|t| self.evict(t));
        for &tensor in table.outputs.row(call) {
            self.evaluate(tensor);
            self.evaluate_around(tensor);
        }
        Some(())
    }

    /// Inputs that outputs of a call are written over, and their bytes: inputs without another use, or, if `any`, also
    /// those that can be rematerialized for it.
    fn in_place_inputs(&mut self, call: usize, depth: usize, any: bool) -> (Vec<u32>, u64) {
        let table = self.table;
        let after = if depth == 0 { self.current + 1 } else { self.current };
        let mut inputs = table.in_place.row(call).to_vec();
        inputs.retain(|&input| {
            table.bytes[input as usize] > 0
                && self.locks[input as usize] <= 1
                && !(self.unrecoverable[input as usize] && self.is_needed(input, after))
                && (any || self.next_use_from(input, after) == usize::MAX)
        });
        let mut pairs = Vec::new();
        let free = |output: u32| !self.resident[output as usize];
        let bytes = match_in_place(table, call, inputs, free, &mut pairs);
        (pairs.into_iter().map(|pair| pair.1).collect(), bytes)
    }

    /// Evicts until so many bytes fit.
    fn evict_until_fits(&mut self, bytes: u64) -> bool {
        while self.live_bytes + bytes > self.line {
            let Some(tensor) = self.victim() else { return false };
            self.evict(tensor);
        }
        true
    }

    /// Evicts a tensor. The tensors around it gain in value; they are evaluated anew when one of them is to be evicted.
    fn evict(&mut self, tensor: u32) {
        let slot = self.slots[tensor as usize] as usize;
        self.residents.swap_remove(slot);
        if let Some(&moved) = self.residents.get(slot) {
            self.slots[moved as usize] = slot as u32;
        }
        self.resident[tensor as usize] = false;
        self.visited[tensor as usize] = 0;
        self.live_bytes -= self.table.bytes[tensor as usize];
        if self.unrecoverable[tensor as usize] {
            self.mark_unrecoverable(tensor);
        }
        self.unneeded[tensor as usize] = self.next_use[tensor as usize] == usize::MAX;
        if !self.unneeded[tensor as usize] {
            self.mark_needed(tensor);
        }
    }
}
