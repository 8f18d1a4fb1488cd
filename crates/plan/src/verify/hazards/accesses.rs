//! The bytes that a step touches.

use crate::{Action, BufferId, BufferKind, ExecutionPlan, Offloaded, PlanSet, SPILL_ALIGNMENT, StateHome};
use plimsoll_graph::{NodeId, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where bytes are.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Arena,
    File,
}

impl Space {
    pub const COUNT: usize = 2;

    pub fn name(self) -> &'static str {
        match self {
            Self::Arena => "the arena",
            Self::File => "the spill file",
        }
    }
}

/// Bytes that are read or written.
pub(super) struct Access {
    pub space: Space,
    pub bytes: Range<u64>,
    pub writes: bool,
}

/// Where the operands of a plan's steps are.
pub(super) struct Accesses<'a> {
    set: &'a PlanSet,
    plan: &'a ExecutionPlan,
    /// The states of the set, by the value that is their old version.
    states: BTreeMap<ValueId, usize>,
}

impl<'a> Accesses<'a> {
    pub fn new(set: &'a PlanSet, plan: &'a ExecutionPlan) -> Self {
        let by_name: BTreeMap<&str, usize> =
            set.states.iter().enumerate().map(|(i, state)| (state.name.as_str(), i)).collect();
        let own = plan.graph.states.iter();
        let states = own.filter_map(|s| Some((s.input, *by_name.get(s.name.as_str())?))).collect();
        Self { set, plan, states }
    }

    /// What is written before the first step.
    pub fn of_entry(&self) -> Vec<Access> {
        let enters = |kind: &BufferKind| matches!(kind, BufferKind::Input(_) | BufferKind::Accumulator(_));
        let buffers = self.plan.buffers.iter().filter(|buffer| enters(&buffer.kind));
        let all = buffers.map(|b| Access {
            space: Space::Arena,
            bytes: b.offset as u64..(b.offset + b.bytes) as u64,
            writes: true,
        });
        all.collect()
    }

    /// What a step touches in any of these micro-batches: what it loads, what the compute thread does, and what it stores.
    pub fn of_step(&self, action: &Action, micro_batches: &Range<usize>) -> [Vec<Access>; 3] {
        let read = |id: &BufferId| self.buffer(*id, micro_batches, false);
        let write = |id: &BufferId| self.buffer(*id, micro_batches, true);
        let [mut load, mut compute, mut store] = [Vec::new(), Vec::new(), Vec::new()];
        match action {
            Action::Run { reads, writes, workspace, .. } => {
                compute.extend(reads.iter().map(read));
                compute.extend(writes.iter().chain(workspace).map(write));
            }
            Action::Copy { from, to, .. } => compute.extend([read(from), write(to)]),
            Action::Load { what, to } => load.extend(self.file(*what, false).into_iter().chain([write(to)])),
            Action::Store { what, from } => {
                store.extend(self.file(*what, true).into_iter().chain([read(from)]));
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, .. } => {
                compute.extend(reads.iter().flatten().map(read));
                compute.extend(writes.iter().flatten().chain([workspace]).map(write));
                let states = self.chunked(*node, reads);
                if !states.is_empty() {
                    load.extend(states.iter().filter_map(|state| self.file(*state, false)));
                    load.push(write(workspace));
                    store.extend(states.iter().filter_map(|state| self.file(*state, true)));
                    store.push(read(workspace));
                }
            }
        }
        [load, compute, store]
    }

    /// The states that a chunked update loads and stores: those that have no buffer.
    fn chunked(&self, node: NodeId, reads: &[Option<BufferId>]) -> Vec<Offloaded> {
        let inputs = self.plan.graph.node(node).inputs.iter().zip(reads);
        let unplaced = inputs.filter(|(_, buffer)| buffer.is_none());
        unplaced.filter_map(|(value, _)| self.states.get(value).copied().map(Offloaded::State)).collect()
    }

    fn buffer(&self, id: BufferId, micro_batches: &Range<usize>, writes: bool) -> Access {
        let buffer = &self.plan.buffers[id.index()];
        let slice = buffer.micro_stride;
        let bytes = match slice {
            0 => buffer.offset..buffer.offset + buffer.bytes,
            _ => buffer.offset + micro_batches.start * slice..buffer.offset + micro_batches.end * slice,
        };
        Access { space: Space::Arena, bytes: bytes.start as u64..bytes.end as u64, writes }
    }

    /// The whole pages of a state or value in the spill file.
    fn file(&self, what: Offloaded, writes: bool) -> Option<Access> {
        let (start, bytes) = match what {
            Offloaded::State(i) => match self.set.states[i].home {
                StateHome::File(offset) => (offset, self.set.states[i].ty.bytes()),
                StateHome::Arena(_) => return None,
            },
            Offloaded::Value(i) => {
                let offloaded = &self.plan.offloaded[i];
                (offloaded.offset, self.plan.graph.ty(offloaded.value).bytes())
            }
        };
        let end = (start + bytes as u64).next_multiple_of(SPILL_ALIGNMENT);
        Some(Access { space: Space::File, bytes: start..end, writes })
    }
}
