//! The bytes that a step touches.

use crate::{
    Action, BufferId, BufferKind, ExecutionPlan, Offloaded, PerTier, PlanSet, StateHome, TIER_ALIGNMENT, Tier,
};
use plimsoll_graph::{NodeId, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where bytes are.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Arena,
    Tier(Tier),
}

impl Space {
    pub const COUNT: usize = 1 + Tier::ALL.len();

    pub fn index(self) -> usize {
        match self {
            Self::Arena => 0,
            Self::Tier(tier) => 1 + tier as usize,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Arena => "the arena",
            Self::Tier(tier) => tier.name(),
        }
    }
}

/// Bytes that are read or written.
pub(super) struct Access {
    pub space: Space,
    pub bytes: Range<u64>,
    pub writes: bool,
}

/// What a step touches: what it loads from each tier, what the compute thread does, and what it stores to each tier.
#[derive(Default)]
pub(super) struct Touched {
    pub loads: PerTier<Vec<Access>>,
    pub compute: Vec<Access>,
    pub stores: PerTier<Vec<Access>>,
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

    /// What a step touches in any of these micro-batches.
    pub fn of_step(&self, action: &Action, micro_batches: &Range<usize>) -> Touched {
        let read = |id: &BufferId| self.buffer(*id, micro_batches, false);
        let write = |id: &BufferId| self.buffer(*id, micro_batches, true);
        let Touched { mut loads, mut compute, mut stores } = Touched::default();
        match action {
            Action::Run { reads, writes, workspace, .. } => {
                compute.extend(reads.iter().map(read));
                compute.extend(writes.iter().chain(workspace).map(write));
            }
            Action::Copy { from, to, .. } => compute.extend([read(from), write(to)]),
            Action::Load { what, tier, to } => {
                loads[*tier].extend(self.offloaded(*what, false).into_iter().map(|(_, access)| access));
                loads[*tier].push(write(to));
            }
            Action::Store { what, tier, from } => {
                stores[*tier].extend(self.offloaded(*what, true).into_iter().map(|(_, access)| access));
                stores[*tier].push(read(from));
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } => {
                compute.extend(reads.iter().flatten().map(read));
                compute.extend(writes.iter().flatten().chain([workspace]).map(write));
                // Two chunks of each state, at the end of the workspace.
                let mut end = write(workspace).bytes.end;
                for (value, state) in self.chunked(*node, reads).into_iter().rev() {
                    let chunks = 2 * chunk_elements * self.plan.graph.ty(value).dtype.bytes();
                    let bytes = end.saturating_sub(chunks as u64)..end;
                    end = bytes.start;
                    let slot = |writes| Access { space: Space::Arena, bytes: bytes.clone(), writes };
                    if let Some((tier, access)) = self.offloaded(state, false) {
                        loads[tier].extend([access, slot(true)]);
                    }
                    if let Some((tier, access)) = self.offloaded(state, true) {
                        stores[tier].extend([access, slot(false)]);
                    }
                }
            }
        }
        Touched { loads, compute, stores }
    }

    /// The states that a chunked update loads and stores: those that have no buffer.
    fn chunked(&self, node: NodeId, reads: &[Option<BufferId>]) -> Vec<(ValueId, Offloaded)> {
        let inputs = self.plan.graph.node(node).inputs.iter().zip(reads);
        let unplaced = inputs.filter(|(_, buffer)| buffer.is_none());
        let state = |value: &ValueId| Some((*value, Offloaded::State(*self.states.get(value)?)));
        unplaced.filter_map(|(value, _)| state(value)).collect()
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

    /// The whole pages of a state or value in its tier.
    fn offloaded(&self, what: Offloaded, writes: bool) -> Option<(Tier, Access)> {
        let (tier, start, bytes) = match what {
            Offloaded::State(i) => match self.set.states[i].home {
                StateHome::Offloaded { tier, offset } => (tier, offset, self.set.states[i].ty.bytes()),
                StateHome::Arena(_) => return None,
            },
            Offloaded::Value(i) => {
                let offloaded = &self.plan.offloaded[i];
                (offloaded.tier, offloaded.offset, self.plan.graph.ty(offloaded.value).bytes())
            }
        };
        let end = (start + bytes as u64).next_multiple_of(TIER_ALIGNMENT);
        Some((tier, Access { space: Space::Tier(tier), bytes: start..end, writes }))
    }
}
