//! One pass through a step that evicts with knowledge of the future.
//!
//! Whenever the next call does not fit, the tensor goes that is cheapest to make again for its bytes and for how long it
//! is not needed. Missing inputs are made again when they are read, and so on down. What a dropped tensor will be made
//! from counts as needed when it is. What cannot be made again (its call must run once, or reads what is gone for good)
//! goes only when nothing needs it.

use super::table::{NONE, Table};

/// How a sweep weighs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taste {
    /// Power of the distance to the next use.
    pub distance: f64,
    /// Whether the cost of making a tensor again includes its missing inputs.
    pub chain: bool,
}

/// Missing inputs counted in a tensor's cost, at most.
const CHAIN: usize = 48;
/// Dropped tensors looked through to find a later use.
const DEPTH: usize = 3;
/// Runs of a schedule, at most: so many for each call, and more for small steps: this by calls, and at most twice the calls squared.
const RUNS: usize = 3;
const RUNS_OF_SMALL: usize = 5_000_000;
/// Tensors looked at, at most: so many for each call, and some for small steps.
const LOOKS: u64 = 2_000;
const LOOKS_OF_SMALL: u64 = 20_000_000;
/// Inputs within inputs that are made again for one call.
const NESTING: usize = 2_000;

/// The runs of a step under a line, or nothing if this taste finds none.
pub(super) fn sweep(table: &Table, line: u64, taste: Taste) -> Option<Vec<u32>> {
    let mut sweep = Sweep::new(table, line, taste);
    for call in 0..table.calls {
        sweep.run(call, 0)?;
        sweep.done[call] = true;
        sweep.now = call + 1;
        table.inputs.row(call).iter().for_each(|&t| sweep.look(t));
    }
    let mut keep = table.keep.clone();
    keep.sort_by_key(|&t| std::cmp::Reverse(sweep.needs[table.maker[t as usize] as usize]));
    for tensor in keep {
        sweep.hold(tensor, 0)?;
    }
    Some(sweep.runs)
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

struct Sweep<'a> {
    table: &'a Table,
    line: u64,
    taste: Taste,
    needs: Vec<u64>,
    /// The call of the recorded order that is being made possible.
    now: usize,
    /// Runs at which to give up.
    most: usize,
    /// Tensors looked at so far, and at which to give up.
    looks: u64,
    most_looks: u64,
    runs: Vec<u32>,
    resident: Vec<bool>,
    /// What is resident.
    list: Vec<u32>,
    /// Runs under way that hold each tensor.
    locks: Vec<u32>,
    used: u64,
    /// Calls that have run once.
    done: Vec<bool>,
    /// By tensor: how many of its readers are behind.
    passed: Vec<u32>,
    /// By tensor: cost of making it again and next use, as last worked out.
    cost: Vec<f64>,
    next: Vec<usize>,
    /// Tensors that cannot be made again.
    stuck: Vec<bool>,
    seen: Vec<u32>,
    pass: u32,
}

impl<'a> Sweep<'a> {
    fn new(table: &'a Table, line: u64, taste: Taste) -> Self {
        let tensors = table.tensors;
        Self {
            table,
            line,
            taste,
            needs: needs(table),
            now: 0,
            most: RUNS * table.calls
                + (RUNS_OF_SMALL / table.calls.max(1)).min(2 * table.calls * table.calls),
            looks: 0,
            most_looks: LOOKS * table.calls as u64 + LOOKS_OF_SMALL,
            runs: Vec::with_capacity(2 * table.calls),
            resident: vec![false; tensors],
            list: Vec::new(),
            locks: vec![0; tensors],
            used: table.base,
            done: vec![false; table.calls],
            passed: vec![0; tensors],
            cost: vec![0.0; tensors],
            next: vec![0; tensors],
            stuck: (0..tensors).map(|t| table.once.get(table.maker[t] as usize) == Some(&true)).collect(),
            seen: vec![0; tensors],
            pass: 0,
        }
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
        if again || depth > NESTING || self.runs.len() > self.most || self.looks > self.most_looks {
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
        let held = table.inputs.row(call).iter().chain(table.outputs.row(call));
        held.for_each(|&t| self.locks[t as usize] -= 1);
        for &tensor in table.outputs.row(call) {
            if !self.resident[tensor as usize] {
                self.resident[tensor as usize] = true;
                self.list.push(tensor);
                self.used += table.bytes[tensor as usize];
            }
        }
        for tensor in over {
            let at = self.list.iter().position(|&t| t == tensor)?;
            self.evict(at);
        }
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
                || (!any && self.use_from(input, after, 0) < usize::MAX)
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
            let Some(at) = self.victim() else { return false };
            self.evict(at);
        }
        true
    }

    fn evict(&mut self, at: usize) {
        let tensor = self.list.swap_remove(at);
        self.resident[tensor as usize] = false;
        self.used -= self.table.bytes[tensor as usize];
        if self.stuck[tensor as usize] {
            self.lose(tensor);
        }
        self.look_around(tensor);
    }

    /// Marks what can no longer be made once a tensor is gone for good.
    fn lose(&mut self, tensor: u32) {
        let table = self.table;
        let mut gone = vec![tensor];
        while let Some(tensor) = gone.pop() {
            for &reader in table.readers.row(tensor as usize) {
                for &result in table.outputs.row(reader as usize) {
                    if !std::mem::replace(&mut self.stuck[result as usize], true)
                        && !self.resident[result as usize]
                    {
                        gone.push(result);
                    }
                }
            }
        }
    }

    /// Whether anything from a call on needs a tensor, be it to make something dropped again.
    fn is_needed(&mut self, tensor: u32, from: usize) -> bool {
        let table = self.table;
        self.pass += 1;
        let mut stack = vec![tensor];
        while let Some(tensor) = stack.pop() {
            let readers = table.readers.row(tensor as usize);
            self.looks += 1 + readers.len() as u64;
            let ahead = readers.last().is_some_and(|&r| r as usize >= from);
            if ahead || table.kept[tensor as usize] {
                return true;
            }
            for &reader in readers.iter().filter(|&&r| (r as usize) < self.now) {
                for &result in table.outputs.row(reader as usize) {
                    if !self.resident[result as usize] && self.seen[result as usize] != self.pass {
                        self.seen[result as usize] = self.pass;
                        stack.push(result);
                    }
                }
            }
        }
        false
    }

    /// The tensor to evict, as an index into the list.
    fn victim(&mut self) -> Option<usize> {
        let mut best = None;
        for _ in 0..8 {
            self.looks += self.list.len() as u64;
            best = None;
            let mut low = f64::INFINITY;
            for (at, &tensor) in self.list.iter().enumerate() {
                let t = tensor as usize;
                if self.locks[t] > 0 || self.table.bytes[t] == 0 {
                    continue;
                }
                let score = self.score(t);
                if score < low {
                    (best, low) = (Some(at), score);
                }
            }
            let at = best?;
            let tensor = self.list[at];
            self.look(tensor);
            if self.score(tensor as usize) <= low * 1.000_1 {
                break;
            }
        }
        best.filter(|&at| self.score(self.list[at] as usize) < f64::INFINITY)
    }

    fn score(&self, t: usize) -> f64 {
        if self.next[t] == usize::MAX {
            return 0.0;
        }
        if self.stuck[t] {
            return f64::INFINITY;
        }
        let distance = (self.next[t].saturating_sub(self.now)) as f64 + 0.5;
        let weight = match self.taste.distance {
            0.0 => 1.0,
            1.0 => distance,
            power => distance.powf(power),
        };
        (self.cost[t] + 1.0) / (self.table.bytes[t] as f64 * weight)
    }

    /// Works out anew what making a tensor again costs and when it is next needed.
    fn look(&mut self, tensor: u32) {
        self.next[tensor as usize] = if self.stuck[tensor as usize] {
            if self.is_needed(tensor, self.now) { self.now } else { usize::MAX }
        } else {
            self.use_from(tensor, self.now, 0)
        };
        self.cost[tensor as usize] = self.cost_of(tensor);
    }

    /// The same for resident results of a tensor's readers, and its maker's inputs.
    fn look_around(&mut self, tensor: u32) {
        let table = self.table;
        for &reader in table.readers.row(tensor as usize) {
            if !self.done[reader as usize] {
                break;
            }
            for &result in table.outputs.row(reader as usize) {
                if self.resident[result as usize] {
                    self.look(result);
                }
            }
        }
        for &input in table.inputs.row(table.maker[tensor as usize] as usize) {
            if self.resident[input as usize] {
                self.look(input);
            }
        }
    }

    /// The next use of a tensor from a call on, real or to make something dropped again.
    fn use_from(&mut self, tensor: u32, from: usize, depth: usize) -> usize {
        let table = self.table;
        let readers = table.readers.row(tensor as usize);
        self.looks += 1 + readers.len() as u64;
        let passed = &mut self.passed[tensor as usize];
        while readers.get(*passed as usize).is_some_and(|&r| (r as usize) < self.now) {
            *passed += 1;
        }
        let behind = *passed as usize;
        let real = readers[behind..].iter().map(|&r| r as usize).find(|&r| r >= from);
        let mut next = real.unwrap_or(if table.kept[tensor as usize] { table.calls } else { usize::MAX });
        if depth < DEPTH {
            for &reader in &readers[..behind] {
                for &result in table.outputs.row(reader as usize) {
                    if !self.resident[result as usize] {
                        next = next.min(self.use_from(result, from, depth + 1));
                    }
                }
            }
        }
        next
    }

    fn cost_of(&mut self, tensor: u32) -> f64 {
        let table = self.table;
        let own = table.maker[tensor as usize];
        if own == NONE || !self.taste.chain {
            return if own == NONE { 0.0 } else { table.nanoseconds[own as usize] as f64 };
        }
        self.pass += 1;
        let mut sum = 0.0;
        let mut count = 0;
        let mut stack = vec![own];
        while let Some(call) = stack.pop() {
            self.looks += 2;
            sum += table.nanoseconds[call as usize] as f64;
            count += 1;
            if count >= CHAIN {
                break;
            }
            for &input in table.inputs.row(call as usize) {
                if !self.resident[input as usize] && self.seen[input as usize] != self.pass {
                    self.seen[input as usize] = self.pass;
                    stack.push(table.maker[input as usize]);
                }
            }
        }
        sum
    }
}
