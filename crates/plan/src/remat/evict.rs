//! One pass through a step that evicts with knowledge of the future.
//!
//! Whenever the next call does not fit, the tensor goes that is cheapest to make again for its bytes and for how long it
//! is not needed. Missing inputs are made again when they are read, and so on down. What a dropped tensor will be made
//! from counts as needed when it is. What cannot be made again (its call must run once, or reads what is gone for good)
//! goes only when nothing needs it.

mod worth;

use super::table::Table;

/// How a sweep weighs.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionPolicy {
    /// Power of the distance to the next use: 0, a quarter, a half, or 1.
    pub distance: f64,
    /// Whether the cost of making a tensor again includes its missing inputs.
    pub chain: bool,
    /// Whether it includes the dropped results that are made from it.
    pub around: bool,
    /// Whether what is to be kept stays from its making: often the last calls make it, and all before them would be
    /// needed to make it again.
    pub kept: bool,
}

/// Runs of a schedule, at most: so many for each call, and more for small steps: this by calls, and at most twice the calls squared.
const RUNS: usize = 3;
const RUNS_OF_SMALL: usize = 5_000_000;
/// Runs that make one call possible, at most: as many as there are calls, and for small steps this.
const RUNS_FOR_ONE: usize = 4_000;
/// Tensors looked at, at most: so many for each call, and some for small steps.
const LOOKS: u64 = 1_000;
const LOOKS_OF_SMALL: u64 = 8_000_000;
/// Resident tensors up to which all are looked at to evict one; of more, so many are listed for so many calls.
const SHORT: usize = 128;
const LISTED: usize = 32;
const AGE: usize = 16;
/// Tensors looked at again before one goes, at most.
const LOOKS_AGAIN: usize = 24;
/// Inputs within inputs that are made again for one call.
const NESTING: usize = 2_000;

/// The runs of a step under a line that take at most so long, or, if this taste finds none, how many calls it got to.
pub(super) fn evict(
    table: &Table,
    line: u64,
    policy: EvictionPolicy,
    longest: u64,
) -> Result<Vec<u32>, usize> {
    let mut evict = Eviction::new(table, line, policy, longest);
    evict.whole().ok_or(evict.now)?;
    Ok(evict.runs)
}

/// Bytes that making each call's outputs from nothing takes, if the neediest input is made first.
fn needs(table: &Table) -> Vec<u64> {
    let mut needs = vec![0; table.calls];
    for call in 0..table.calls {
        let mut held = 0;
        let mut most = 0_u64;
        for tensor in by_need(table, &needs, call) {
            most = most.max(held + needs[table.maker[tensor as usize] as usize]);
            held += table.bytes[tensor as usize];
        }
        let outputs: u64 = table.outputs.row(call).iter().map(|&t| table.bytes[t as usize]).sum();
        needs[call] = most.max(held + outputs + table.workspace[call]);
    }
    needs
}

fn by_need(table: &Table, needs: &[u64], call: usize) -> Vec<u32> {
    let mut inputs = table.inputs.row(call).to_vec();
    let need = |t: u32| needs[table.maker[t as usize] as usize].saturating_sub(table.bytes[t as usize]);
    inputs.sort_by_key(|&t| (std::cmp::Reverse(need(t)), t));
    inputs
}

struct Eviction<'a> {
    table: &'a Table,
    line: u64,
    policy: EvictionPolicy,
    needs: Vec<u64>,
    /// The call of the recorded order that is being made possible.
    now: usize,
    /// Runs at which to give up: in all, and for one call of the recorded order, which began at so many.
    most: usize,
    most_for_one: usize,
    begun: usize,
    /// Tensors looked at so far, and at which to give up.
    looks: u64,
    most_looks: u64,
    /// The time of the runs so far, and at which to give up.
    nanoseconds: u64,
    longest: u64,
    runs: Vec<u32>,
    resident: Vec<bool>,
    /// What is resident, and where each is in the list.
    list: Vec<u32>,
    slots: Vec<u32>,
    /// Of a long list, those that are likely to go next, and when they were listed.
    short: Vec<u32>,
    in_short: Vec<bool>,
    listed: usize,
    /// Runs under way that hold each tensor.
    locks: Vec<u32>,
    used: u64,
    /// Calls that have run once.
    done: Vec<bool>,
    /// By tensor: how many of its readers are behind.
    passed: Vec<u32>,
    /// By tensor: cost of making it again for its bytes, to the power that distances need not be raised to, and next
    /// use, as last worked out.
    cost: Vec<f64>,
    next: Vec<usize>,
    /// Dropped tensors that nothing needs, as far as was seen.
    idle: Vec<bool>,
    /// Tensors that cannot be made again.
    stuck: Vec<bool>,
    /// By tensor: the last walk that saw it. Walks go through what is dropped; what is resident counts as seen by all.
    seen: Vec<u32>,
    pass: u32,
    /// Room for what a walk has yet to visit.
    stack: Vec<u32>,
    /// And for a walk that may see every tensor.
    walk: Vec<u32>,
}

impl<'a> Eviction<'a> {
    fn new(table: &'a Table, line: u64, policy: EvictionPolicy, longest: u64) -> Self {
        let tensors = table.tensors;
        Self {
            table,
            line,
            policy,
            needs: needs(table),
            now: 0,
            most: RUNS * table.calls
                + (RUNS_OF_SMALL / table.calls.max(1)).min(2 * table.calls * table.calls),
            most_for_one: table.calls.max(RUNS_FOR_ONE),
            begun: 0,
            looks: 0,
            most_looks: LOOKS * table.calls as u64 + LOOKS_OF_SMALL,
            nanoseconds: 0,
            longest,
            runs: Vec::with_capacity(2 * table.calls),
            resident: vec![false; tensors],
            list: Vec::new(),
            slots: vec![0; tensors],
            short: Vec::new(),
            in_short: vec![false; tensors],
            listed: 0,
            locks: vec![0; tensors],
            used: table.base,
            done: vec![false; table.calls],
            passed: vec![0; tensors],
            cost: vec![0.0; tensors],
            next: vec![0; tensors],
            idle: vec![false; tensors],
            stuck: (0..tensors)
                .map(|t| {
                    (policy.kept && table.kept[t]) || table.once.get(table.maker[t] as usize) == Some(&true)
                })
                .collect(),
            seen: vec![0; tensors],
            pass: 0,
            stack: Vec::new(),
            walk: vec![0; tensors + 2],
        }
    }

    /// Runs every call, and makes again what is to be kept and is gone by then.
    fn whole(&mut self) -> Option<()> {
        let table = self.table;
        for call in 0..table.calls {
            self.begun = self.runs.len();
            self.run(call, 0)?;
            self.done[call] = true;
            self.now = call + 1;
            table.inputs.row(call).iter().for_each(|&t| self.look(t));
        }
        let mut keep = table.keep.clone();
        keep.sort_by_key(|&t| std::cmp::Reverse(self.needs[table.maker[t as usize] as usize]));
        self.begun = self.runs.len();
        keep.into_iter().try_for_each(|tensor| self.hold(tensor, 0))
    }

    /// Makes a tensor resident and holds it.
    fn hold(&mut self, tensor: u32, depth: usize) -> Option<()> {
        if !self.resident[tensor as usize] {
            self.run(self.table.maker[tensor as usize] as usize, depth + 1)?;
        }
        self.locks[tensor as usize] += 1;
        Some(())
    }

    /// Runs a call once all its inputs are there.
    fn run(&mut self, call: usize, depth: usize) -> Option<()> {
        let table = self.table;
        let again = table.once[call] && self.done[call];
        let long = self.runs.len() > self.most || self.runs.len() > self.begun + self.most_for_one;
        let too_long = long || self.nanoseconds > self.longest;
        if again || depth > NESTING || too_long || self.looks > self.most_looks {
            return None;
        }
        for tensor in by_need(table, &self.needs, call) {
            self.hold(tensor, depth)?;
        }
        // Results that are still there are written where they lie: they must not go to make room.
        table.outputs.row(call).iter().for_each(|&t| self.locks[t as usize] += 1);
        let new = |s: &Self, t: u32| if s.resident[t as usize] { 0 } else { table.bytes[t as usize] };
        let made: u64 = table.outputs.row(call).iter().map(|&t| new(self, t)).sum();
        let mut room = made + table.workspace[call];
        let mut over = self.taken_over(call, depth, false);
        room -= over.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
        if !self.make_room(room) {
            over = self.taken_over(call, depth, true);
            room = made + table.workspace[call];
            room -= over.iter().map(|&t| table.bytes[t as usize]).sum::<u64>();
            if !self.make_room(room) {
                return None;
            }
        }
        self.runs.push(call as u32);
        self.nanoseconds += table.nanoseconds[call];
        let held = table.inputs.row(call).iter().chain(table.outputs.row(call));
        held.for_each(|&t| self.locks[t as usize] -= 1);
        for &tensor in table.outputs.row(call) {
            if !self.resident[tensor as usize] {
                self.resident[tensor as usize] = true;
                self.seen[tensor as usize] = u32::MAX;
                self.slots[tensor as usize] = self.list.len() as u32;
                self.list.push(tensor);
                self.used += table.bytes[tensor as usize];
            }
        }
        over.into_iter().for_each(|t| self.evict(t));
        for &tensor in table.outputs.row(call) {
            self.look(tensor);
            self.look_around(tensor);
        }
        Some(())
    }

    /// Inputs that outputs of a call take over: those without another use, or, when it must be, any.
    fn taken_over(&mut self, call: usize, depth: usize, any: bool) -> Vec<u32> {
        let table = self.table;
        let mut over: Vec<(u32, u32)> = Vec::new();
        for &input in table.in_place.row(call) {
            let bytes = table.bytes[input as usize];
            let after = if depth == 0 { self.now + 1 } else { self.now };
            if bytes == 0
                || self.locks[input as usize] > 1
                || (self.stuck[input as usize] && self.is_needed(input, after))
                || (!any && self.use_from(input, after) < usize::MAX)
            {
                continue;
            }
            let free = |o: &&u32| {
                table.bytes[**o as usize] == bytes
                    && !self.resident[**o as usize]
                    && !over.iter().any(|p| p.0 == **o)
            };
            if let Some(&output) = table.outputs.row(call).iter().find(free) {
                over.push((output, input));
            }
        }
        over.into_iter().map(|p| p.1).collect()
    }

    /// Evicts until some bytes fit.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.used + bytes > self.line {
            let Some(tensor) = self.victim() else { return false };
            self.evict(tensor);
        }
        true
    }

    fn evict(&mut self, tensor: u32) {
        let at = self.slots[tensor as usize] as usize;
        self.list.swap_remove(at);
        if let Some(&moved) = self.list.get(at) {
            self.slots[moved as usize] = at as u32;
        }
        self.resident[tensor as usize] = false;
        self.seen[tensor as usize] = 0;
        self.used -= self.table.bytes[tensor as usize];
        if self.stuck[tensor as usize] {
            self.lose(tensor);
        }
        self.idle[tensor as usize] = self.next[tensor as usize] == usize::MAX;
        if !self.idle[tensor as usize] {
            self.wake(tensor);
        }
        // What is made from it and what it is made from is now worth more: that is worked out when one of them is to go.
    }

    /// The tensor to evict.
    fn victim(&mut self) -> Option<u32> {
        if self.list.len() > SHORT && self.now >= self.listed + AGE {
            self.list_short();
        }
        let mut best = self.lowest();
        if best.is_none() && self.list.len() > SHORT {
            self.list_short();
            best = self.lowest();
        }
        best
    }

    /// Lists the tensors with the lowest scores anew.
    fn list_short(&mut self) {
        self.looks += self.list.len() as u64;
        let mut scored: Vec<(f64, u32)> = self.list.iter().map(|&t| (self.score(t as usize), t)).collect();
        if scored.len() > LISTED {
            scored.select_nth_unstable_by(LISTED, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            scored.truncate(LISTED);
        }
        self.short.iter().for_each(|&t| self.in_short[t as usize] = false);
        self.short.clear();
        self.short.extend(scored.into_iter().map(|s| s.1));
        self.short.iter().for_each(|&t| self.in_short[t as usize] = true);
        self.listed = self.now;
    }

    /// The tensor with the lowest score: of all in a short list, else of those listed and those looked at since.
    fn lowest(&mut self) -> Option<u32> {
        let all = self.list.len() <= SHORT;
        if !all {
            let (resident, in_short) = (&self.resident, &mut self.in_short);
            self.short.retain(|&t| {
                in_short[t as usize] = resident[t as usize];
                resident[t as usize]
            });
        }
        let mut best = None;
        for _ in 0..LOOKS_AGAIN {
            let list = if all { &self.list } else { &self.short };
            self.looks += list.len() as u64;
            best = None;
            let mut low = f64::INFINITY;
            for &tensor in list {
                let t = tensor as usize;
                if self.locks[t] > 0 || self.table.bytes[t] == 0 {
                    continue;
                }
                let score = self.score(t);
                if score < low {
                    (best, low) = (Some(tensor), score);
                }
            }
            let tensor = best?;
            self.look(tensor);
            if self.score(tensor as usize) <= low * 1.000_1 {
                break;
            }
        }
        best.filter(|&t| self.score(t as usize) < f64::INFINITY)
    }

    fn score(&self, t: usize) -> f64 {
        if self.next[t] == usize::MAX {
            return 0.0;
        }
        if self.stuck[t] {
            return f64::INFINITY;
        }
        match self.policy.distance {
            0.0 => self.cost[t],
            _ => self.cost[t] / (self.next[t].saturating_sub(self.now) as f64 + 0.5),
        }
    }
}
