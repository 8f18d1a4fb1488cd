//! What each tensor of a sweep is worth: what making it again costs, and when it is needed next.

use super::{Eviction, SHORT};
use crate::remat::table::NONE;

/// Missing calls counted in a tensor's cost, at most.
const CHAIN: usize = 192;
/// Dropped tensors looked through to find a later use, at most: with more, there is taken to be one at the end.
const VISITS: usize = 192;
/// And to find an earlier use than one found.
const NEAR: usize = 4;

impl Eviction<'_> {
    /// Marks what can no longer be made once a tensor is gone for good.
    pub(super) fn lose(&mut self, tensor: u32) {
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
    pub(super) fn is_needed(&mut self, tensor: u32, from: usize) -> bool {
        let table = self.table;
        self.pass += 1;
        let mut stack = self.start(tensor);
        let mut needed = false;
        while let Some(tensor) = stack.pop() {
            let readers = table.readers.row(tensor as usize);
            self.looks += 1 + readers.len() as u64;
            let prefetch_distance = readers.last().is_some_and(|&r| r as usize >= from);
            if prefetch_distance || table.kept[tensor as usize] {
                needed = true;
                break;
            }
            for &reader in readers.iter().filter(|&&r| (r as usize) < self.now) {
                for &result in table.outputs.row(reader as usize) {
                    if self.seen[result as usize] < self.pass {
                        self.seen[result as usize] = self.pass;
                        stack.push(result);
                    }
                }
            }
        }
        self.stack = stack;
        needed
    }

    /// An empty list but for one entry, in room that was used before.
    fn start(&mut self, first: u32) -> Vec<u32> {
        let mut list = std::mem::take(&mut self.stack);
        list.clear();
        list.push(first);
        list
    }

    /// Works out anew what making a tensor again costs and when it is next needed.
    pub(super) fn look(&mut self, tensor: u32) {
        self.next[tensor as usize] = if self.stuck[tensor as usize] {
            if self.is_needed(tensor, self.now) { self.now } else { usize::MAX }
        } else {
            self.use_from(tensor, self.now)
        };
        let cost = (self.cost_of(tensor) as f64 + 1.0) / self.table.bytes[tensor as usize].max(1) as f64;
        self.cost[tensor as usize] = match self.policy.distance {
            0.5 => cost.powi(2),
            0.25 => cost.powi(4),
            _ => cost,
        };
        if self.list.len() > SHORT && self.resident[tensor as usize] && !self.in_short[tensor as usize] {
            self.in_short[tensor as usize] = true;
            self.short.push(tensor);
        }
    }

    /// The same for resident results of a tensor's readers, and its maker's inputs.
    pub(super) fn look_around(&mut self, tensor: u32) {
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
    pub(super) fn use_from(&mut self, tensor: u32, from: usize) -> usize {
        let table = self.table;
        self.pass += 1;
        let mut next = usize::MAX;
        let mut visited = self.start(tensor);
        let mut at = 0;
        while let Some(&tensor) = visited.get(at) {
            at += 1;
            let readers = table.readers.row(tensor as usize);
            self.looks += 1 + readers.len() as u64;
            let passed = &mut self.passed[tensor as usize];
            while readers.get(*passed as usize).is_some_and(|&r| (r as usize) < self.now) {
                *passed += 1;
            }
            let behind = *passed as usize;
            let real = readers[behind..].iter().map(|&r| r as usize).find(|&r| r >= from);
            next =
                next.min(real.unwrap_or(if table.kept[tensor as usize] { table.calls } else { usize::MAX }));
            if next <= from {
                break;
            }
            if at > VISITS || (at > NEAR && next < usize::MAX) {
                next = next.min(table.calls);
                break;
            }
            let (seen, pass, idle) = (&mut self.seen[..], self.pass, &self.idle[..]);
            for &result in readers[..behind].iter().flat_map(|&r| table.outputs.row(r as usize)) {
                let last = &mut seen[result as usize];
                if *last < pass && !idle[result as usize] {
                    *last = pass;
                    visited.push(result);
                }
            }
        }
        if next == usize::MAX && from == self.now {
            visited[1..].iter().for_each(|&t| self.idle[t as usize] = true);
        }
        self.stack = visited;
        next
    }

    /// Marks what a tensor is made from as of use, since the tensor is dropped and will be needed.
    pub(super) fn wake(&mut self, tensor: u32) {
        let table = self.table;
        let mut stack = vec![tensor];
        while let Some(tensor) = stack.pop() {
            for &input in table.inputs.row(table.maker[tensor as usize] as usize) {
                if std::mem::replace(&mut self.idle[input as usize], false) {
                    stack.push(input);
                }
            }
        }
    }

    /// The time of making a tensor again.
    fn cost_of(&mut self, tensor: u32) -> u64 {
        let table = self.table;
        let own = table.maker[tensor as usize];
        if own == NONE || !self.policy.chain {
            return if own == NONE { 0 } else { table.nanoseconds[own as usize] };
        }
        self.pass += 1;
        let mut sum = 0_u64;
        let mut count = 0;
        let (seen, pass, walk) = (&mut self.seen[..], self.pass, &mut self.walk[..]);
        let mut left = 1;
        walk[0] = own;
        while left > 0 {
            left -= 1;
            let call = walk[left] as usize;
            sum = sum.saturating_add(table.nanoseconds[call]);
            count += 1;
            if count >= CHAIN {
                break;
            }
            // This is most of a sweep's time, and no one could guess which inputs are missing: so nothing is asked.
            for &input in table.inputs.row(call) {
                let last = &mut seen[input as usize];
                walk[left] = table.maker[input as usize];
                left += usize::from(*last < pass);
                *last = (*last).max(pass);
            }
        }
        self.looks += 2 * count as u64;
        if self.policy.around && count < CHAIN {
            sum.saturating_add(self.cost_after(tensor, CHAIN - count))
        } else {
            sum
        }
    }

    /// The time of calls that have run, whose results are dropped and needed, and that read a tensor or such a result.
    fn cost_after(&mut self, tensor: u32, most: usize) -> u64 {
        let table = self.table;
        let mut sum = 0_u64;
        let mut count = 0;
        let mut stack = self.start(tensor);
        let (seen, pass, done, idle) = (&mut self.seen[..], self.pass, &self.done[..], &self.idle[..]);
        while let Some(tensor) = stack.pop() {
            for &reader in table.readers.row(tensor as usize).iter().take_while(|&&r| done[r as usize]) {
                self.looks += 2;
                let before = stack.len();
                for &result in table.outputs.row(reader as usize) {
                    let last = &mut seen[result as usize];
                    if *last < pass && !idle[result as usize] {
                        *last = pass;
                        stack.push(result);
                    }
                }
                if stack.len() > before {
                    sum = sum.saturating_add(table.nanoseconds[reader as usize]);
                    count += 1;
                }
            }
            if count >= most {
                break;
            }
        }
        self.stack = stack;
        sum
    }
}
