//! What each tensor of an eviction sweep is worth: the time to rematerialize it, and its next use.

use super::Eviction;
use super::victim::SCANNED;
use crate::remat::table::NO_PRODUCER;

/// Calls counted in a tensor's cost, at most.
const MAX_COST_CALLS: usize = 192;
/// Evicted tensors visited to find a next use, at most: beyond, the end of the step is taken for one.
const MAX_USE_VISITS: usize = 192;
/// And to find an earlier use than one found.
const MAX_EARLIER_VISITS: usize = 4;

impl Eviction<'_> {
    /// Marks the tensors that can no longer be rematerialized once a tensor is gone for good.
    pub(super) fn mark_unrecoverable(&mut self, tensor: u32) {
        let table = self.table;
        let mut gone = vec![tensor];
        while let Some(tensor) = gone.pop() {
            for &reader in table.readers.row(tensor as usize) {
                for &result in table.outputs.row(reader as usize) {
                    if !std::mem::replace(&mut self.unrecoverable[result as usize], true)
                        && !self.resident[result as usize]
                    {
                        gone.push(result);
                    }
                }
            }
        }
    }

    /// Whether any call from `from` on needs a tensor, be it to rematerialize an evicted one.
    pub(super) fn is_needed(&mut self, tensor: u32, from: usize) -> bool {
        let table = self.table;
        self.traversal += 1;
        let mut stack = self.take_stack(tensor);
        let mut needed = false;
        while let Some(tensor) = stack.pop() {
            let readers = table.readers.row(tensor as usize);
            self.visits += 1 + readers.len() as u64;
            let read_later = readers.last().is_some_and(|&r| r as usize >= from);
            if read_later || table.kept[tensor as usize] {
                needed = true;
                break;
            }
            for &reader in readers.iter().filter(|&&r| (r as usize) < self.current) {
                for &result in table.outputs.row(reader as usize) {
                    if self.visited[result as usize] < self.traversal {
                        self.visited[result as usize] = self.traversal;
                        stack.push(result);
                    }
                }
            }
        }
        self.stack = stack;
        needed
    }

    /// The scratch stack with one entry.
    fn take_stack(&mut self, first: u32) -> Vec<u32> {
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.push(first);
        stack
    }

    /// Evaluates a tensor's cost and next use anew.
    pub(super) fn evaluate(&mut self, tensor: u32) {
        let unrecoverable = self.unrecoverable[tensor as usize];
        let next_use = if unrecoverable {
            if self.is_needed(tensor, self.current) { self.current } else { usize::MAX }
        } else {
            self.next_use_from(tensor, self.current)
        };
        self.next_use[tensor as usize] = next_use;
        // The score of other tensors does not depend on their cost.
        if !unrecoverable && next_use != usize::MAX {
            let cost = (self.rematerialization_cost(tensor) as f64 + 1.0)
                / self.table.bytes[tensor as usize].max(1) as f64;
            self.cost[tensor as usize] = match self.policy.distance {
                0.5 => cost.powi(2),
                0.25 => cost.powi(4),
                _ => cost,
            };
        }
        if self.residents.len() > SCANNED
            && self.resident[tensor as usize]
            && !self.in_shortlist[tensor as usize]
        {
            self.in_shortlist[tensor as usize] = true;
            self.shortlist.push(tensor);
        }
    }

    /// Evaluates the resident results of a tensor's readers, and its producer's resident inputs.
    pub(super) fn evaluate_around(&mut self, tensor: u32) {
        let table = self.table;
        for &reader in table.readers.row(tensor as usize) {
            if !self.ran[reader as usize] {
                break;
            }
            for &result in table.outputs.row(reader as usize) {
                if self.resident[result as usize] {
                    self.evaluate(result);
                }
            }
        }
        for &input in table.inputs.row(table.producer[tensor as usize] as usize) {
            if self.resident[input as usize] {
                self.evaluate(input);
            }
        }
    }

    /// The first call from `from` on that uses a tensor, by reading it or by needing an evicted tensor produced from
    /// it.
    pub(super) fn next_use_from(&mut self, tensor: u32, from: usize) -> usize {
        let table = self.table;
        self.traversal += 1;
        let mut next = usize::MAX;
        let mut queue = self.take_stack(tensor);
        let mut at = 0;
        while let Some(&tensor) = queue.get(at) {
            at += 1;
            let readers = table.readers.row(tensor as usize);
            self.visits += 1 + readers.len() as u64;
            let passed = &mut self.readers_passed[tensor as usize];
            while readers.get(*passed as usize).is_some_and(|&r| (r as usize) < self.current) {
                *passed += 1;
            }
            let passed = *passed as usize;
            let read = readers[passed..].iter().map(|&r| r as usize).find(|&r| r >= from);
            let at_end = if table.kept[tensor as usize] { table.calls } else { usize::MAX };
            next = next.min(read.unwrap_or(at_end));
            if next <= from {
                break;
            }
            if at > MAX_USE_VISITS || (at > MAX_EARLIER_VISITS && next < usize::MAX) {
                next = next.min(table.calls);
                break;
            }
            let (visited, traversal, unneeded) = (&mut self.visited[..], self.traversal, &self.unneeded[..]);
            for &result in readers[..passed].iter().flat_map(|&r| table.outputs.row(r as usize)) {
                let last = &mut visited[result as usize];
                if *last < traversal && !unneeded[result as usize] {
                    *last = traversal;
                    queue.push(result);
                }
            }
        }
        if next == usize::MAX && from == self.current {
            queue[1..].iter().for_each(|&t| self.unneeded[t as usize] = true);
        }
        self.stack = queue;
        next
    }

    /// Marks the tensors that an evicted tensor is produced from as needed, since it will be rematerialized.
    pub(super) fn mark_needed(&mut self, tensor: u32) {
        let table = self.table;
        let mut stack = vec![tensor];
        while let Some(tensor) = stack.pop() {
            for &input in table.inputs.row(table.producer[tensor as usize] as usize) {
                if std::mem::replace(&mut self.unneeded[input as usize], false) {
                    stack.push(input);
                }
            }
        }
    }

    /// The time to rematerialize a tensor, as the policy counts it.
    fn rematerialization_cost(&mut self, tensor: u32) -> u64 {
        let table = self.table;
        let producer = table.producer[tensor as usize];
        if producer == NO_PRODUCER || !self.policy.missing_inputs {
            return if producer == NO_PRODUCER { 0 } else { table.nanoseconds[producer as usize] };
        }
        self.traversal += 1;
        let mut sum = 0_u64;
        let mut count = 0;
        let (visited, traversal, walk) = (&mut self.visited[..], self.traversal, &mut self.walk[..]);
        let mut left = 1;
        walk[0] = producer;
        while left > 0 {
            left -= 1;
            let call = walk[left] as usize;
            sum = sum.saturating_add(table.nanoseconds[call]);
            count += 1;
            if count >= MAX_COST_CALLS {
                break;
            }
            // Most of a sweep's time is spent here, and which inputs are missing is unpredictable: so without a branch.
            for &input in table.inputs.row(call) {
                let last = &mut visited[input as usize];
                walk[left] = table.producer[input as usize];
                left += usize::from(*last < traversal);
                *last = (*last).max(traversal);
            }
        }
        self.visits += 2 * count as u64;
        if self.policy.evicted_results && count < MAX_COST_CALLS {
            sum.saturating_add(self.cost_of_results(tensor, MAX_COST_CALLS - count))
        } else {
            sum
        }
    }

    /// The time of calls that have run, whose results are evicted and needed, and that read a tensor or such a result.
    fn cost_of_results(&mut self, tensor: u32, max_calls: usize) -> u64 {
        let table = self.table;
        let mut sum = 0_u64;
        let mut count = 0;
        let mut stack = self.take_stack(tensor);
        let (visited, traversal) = (&mut self.visited[..], self.traversal);
        let (ran, unneeded) = (&self.ran[..], &self.unneeded[..]);
        while let Some(tensor) = stack.pop() {
            for &reader in table.readers.row(tensor as usize).iter().take_while(|&&r| ran[r as usize]) {
                self.visits += 2;
                let before = stack.len();
                for &result in table.outputs.row(reader as usize) {
                    let last = &mut visited[result as usize];
                    if *last < traversal && !unneeded[result as usize] {
                        *last = traversal;
                        stack.push(result);
                    }
                }
                if stack.len() > before {
                    sum = sum.saturating_add(table.nanoseconds[reader as usize]);
                    count += 1;
                }
            }
            if count >= max_calls {
                break;
            }
        }
        self.stack = stack;
        sum
    }
}
