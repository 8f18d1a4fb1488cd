//! What a plan is.

use crate::sheet::plans_heap_bytes;
use crate::{Direction, LoadSheet, PerTier, Queue, Tier};
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{Graph, Node, NodeId, Numerics, Op, ValueId};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::sync::Arc;

/// A graph to plan. Plans hold their graphs: one that is shared already is not copied for them.
pub trait SharedGraph: Borrow<Graph> {
    /// The graph, shared.
    fn shared(&self) -> Arc<Graph>;
}

impl SharedGraph for Graph {
    fn shared(&self) -> Arc<Graph> {
        Arc::new(self.clone())
    }
}

impl SharedGraph for Arc<Graph> {
    fn shared(&self) -> Arc<Graph> {
        self.clone()
    }
}

/// Names a buffer of an [`ExecutionPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index into [`ExecutionPlan::buffers`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferKind {
    /// State `i` of [`PlanSet::states`]; at the same offset in every plan.
    State(usize),
    /// Input `i` of the graph, for the whole batch.
    Input(usize),
    /// Gradient accumulator `i` of the graph.
    Accumulator(usize),
    /// A value; several values may share one buffer (views, in place).
    Value,
    /// Scratch of one step's kernel.
    Workspace,
}

/// A range of the arena with a lifetime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// What it is for.
    pub kind: BufferKind,
    /// The value it was made for; workspaces have none.
    pub value: Option<ValueId>,
    /// Where it starts in the arena.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
    /// First step of its lifetime; 0 for inputs and states.
    pub first: usize,
    /// Last step of its lifetime, inclusive.
    pub last: usize,
    /// Bytes between the slices of consecutive micro-batches (batched inputs), else 0.
    pub micro_stride: usize,
}

/// What a step does. Rematerialization is a second `Run` of a node into another buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Runs a node.
    Run {
        /// The node.
        node: NodeId,
        /// The buffers of its inputs, then of its accumulators.
        reads: Vec<BufferId>,
        /// The buffers of its outputs. An output that is accumulated is written to its accumulator's buffer.
        writes: Vec<BufferId>,
        /// Its scratch.
        workspace: Option<BufferId>,
    },
    /// Updates a state that is offloaded, chunk by chunk: an elementwise node runs on a part of its operands at a time. The states
    /// that it reads from their tiers and writes back there are double-buffered in its scratch.
    ChunkedUpdate {
        /// The node.
        node: NodeId,
        /// The buffers of its inputs; an offloaded state has none.
        reads: Vec<Option<BufferId>>,
        /// The buffers of its outputs; the new version of an offloaded state has none either.
        writes: Vec<Option<BufferId>>,
        /// The kernel's scratch, then two chunks of every offloaded state.
        workspace: BufferId,
        /// Elements of a chunk; the last one may be shorter.
        chunk_elements: usize,
    },
    /// Copies a value into another buffer, where a state's new version could not be written in place.
    Copy {
        /// The value copied.
        value: ValueId,
        /// Source.
        from: BufferId,
        /// Destination.
        to: BufferId,
    },
    /// Starts a transfer from a tier. The buffer is live from here on; the first step that reads it waits.
    Load {
        /// What is read.
        what: Offloaded,
        /// Where it is.
        tier: Tier,
        /// Destination.
        to: BufferId,
    },
    /// Starts a transfer of a state's new version, or of a value that is loaded again in the same step, to a tier. The first step
    /// that overwrites the buffer waits.
    Store {
        /// What is written.
        what: Offloaded,
        /// Where to.
        tier: Tier,
        /// Source.
        from: BufferId,
    },
}

impl Action {
    /// The queue that a transfer runs on; none for other actions.
    pub const fn queue(&self) -> Option<Queue> {
        match self {
            Self::Load { tier, .. } => Some(tier.queue(Direction::Load)),
            Self::Store { tier, .. } => Some(tier.queue(Direction::Store)),
            Self::Run { .. } | Self::ChunkedUpdate { .. } | Self::Copy { .. } => None,
        }
    }
}

/// What a transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Offloaded {
    /// State `i` of [`PlanSet::states`].
    State(usize),
    /// Value `i` of [`ExecutionPlan::offloaded`].
    Value(usize),
}

/// A value that is offloaded between two of its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadedValue {
    /// The value.
    pub value: ValueId,
    /// Where it waits.
    pub tier: Tier,
    /// Its offset there: a multiple of [`TIER_ALIGNMENT`](crate::TIER_ALIGNMENT), above every state.
    pub offset: u64,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub action: Action,
    /// Whether it belongs to the optimizer step, which runs once after the last micro-batch, or runs in every micro-batch. A load
    /// for the optimizer step may be hoisted among the steps of the micro-batches: it then runs in the last one alone.
    pub optimizer_step: bool,
}

/// Order and offsets of one batch type's step: the steps of every micro-batch, then the optimizer step, but for hoisted loads
/// of the latter.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionPlan {
    /// The batch type, like `train × 64`.
    pub name: String,
    /// The graph it runs.
    pub graph: Arc<Graph>,
    /// The steps, in execution order.
    pub steps: Vec<Step>,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// The buffers of the graph's outputs after the last step.
    pub outputs: Vec<BufferId>,
    /// Values that are offloaded for a part of the step.
    pub offloaded: Vec<OffloadedValue>,
    /// End of the highest buffer, and at least of all states, rounded up to the alignment.
    pub peak_bytes: usize,
    /// The largest sum of bytes live at one time, alignment included: no placement can be lower.
    pub live_bytes: usize,
    /// The step at which that sum is reached.
    pub peak_step: usize,
    /// Predicted time of a step.
    pub nanoseconds: u64,
}

impl ExecutionPlan {
    /// The node of every rematerialized run: every run that is not the node's first.
    pub fn rematerialized(&self) -> impl Iterator<Item = NodeId> + '_ {
        let mut ran = vec![false; self.graph.nodes.len()];
        self.steps.iter().filter_map(move |step| match step.action {
            Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
                std::mem::replace(ran.get_mut(node.index())?, true).then_some(node)
            }
            _ => None,
        })
    }

    /// Bytes that a device receives from others in a step.
    pub fn received_bytes(&self, device: usize) -> u64 {
        let once = self.graph.optimizer_step();
        let nodes = self.graph.nodes.iter().zip(once);
        nodes.map(|(node, once)| self.node_received_bytes(node, device, once)).sum()
    }

    /// Bytes that a device receives from others in a step by a node, which may be one of the optimizer step.
    pub fn node_received_bytes(&self, node: &Node, device: usize, in_optimizer_step: bool) -> u64 {
        let Op::Exchange(op) = &node.op else { return 0 };
        let times = match *op {
            Exchange::Take { .. } if in_optimizer_step => 1,
            Exchange::Receive { wraps, .. } | Exchange::Take { wraps, .. } => {
                self.graph.micro_batches - usize::from(wraps)
            }
            Exchange::Synchronise { from, .. } | Exchange::Share { from, .. } => {
                usize::from(from as usize != device)
            }
            Exchange::AllReduce { .. } => 1,
            Exchange::Send { .. } | Exchange::Give { .. } => 0,
        };
        (times * op.received_bytes()) as u64
    }

    /// Bytes written to each tier in a step, with the states of its set.
    pub fn stored_bytes(&self, states: &[StatePlacement]) -> PerTier<u64> {
        let mut stored = PerTier::<u64>::default();
        for step in &self.steps {
            let times = if step.optimizer_step { 1 } else { self.graph.micro_batches as u64 };
            match &step.action {
                Action::Store { what, tier, .. } => {
                    let bytes = match *what {
                        Offloaded::State(i) => states[i].ty.bytes(),
                        Offloaded::Value(i) => self.graph.ty(self.offloaded[i].value).bytes(),
                    };
                    stored[*tier] += times * bytes as u64;
                }
                Action::ChunkedUpdate { node, reads, .. } => {
                    let chunked = self.chunked_bytes(*node, reads, states);
                    Tier::ALL.into_iter().for_each(|tier| stored[tier] += times * chunked[tier]);
                }
                _ => {}
            }
        }
        stored
    }

    /// Bytes of the offloaded states that a chunked update reads and rewrites, in each tier.
    pub(crate) fn chunked_bytes(
        &self,
        node: NodeId,
        reads: &[Option<BufferId>],
        states: &[StatePlacement],
    ) -> PerTier<u64> {
        let mut bytes = PerTier::<u64>::default();
        let inputs = self.graph.node(node).inputs.iter().zip(reads);
        for (&value, _) in inputs.filter(|(_, buffer)| buffer.is_none()) {
            let own = self.graph.states.iter().find(|s| s.input == value);
            let placed = own.and_then(|own| states.iter().find(|s| s.name == own.name));
            if let Some(StateHome::Offloaded { tier, .. }) = placed.map(|s| s.home) {
                bytes[tier] += self.graph.ty(value).bytes() as u64;
            }
        }
        bytes
    }
}

/// Where a state lives between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateHome {
    /// In the arena, from this offset on.
    Arena(usize),
    /// In a tier.
    Offloaded {
        /// Which one.
        tier: Tier,
        /// Its offset there, a multiple of [`TIER_ALIGNMENT`](crate::TIER_ALIGNMENT).
        offset: u64,
    },
}

/// A state and where it lives, in every plan of the set.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePlacement {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Its role.
    pub role: plimsoll_graph::Role,
    /// Its initial value.
    pub init: plimsoll_graph::Init,
    /// Where it lives.
    pub home: StateHome,
}

impl StatePlacement {
    /// Its bytes in the arena; an empty range if it is offloaded.
    pub fn arena_range(&self) -> std::ops::Range<usize> {
        match self.home {
            StateHome::Arena(offset) => offset..offset + self.ty.bytes(),
            StateHome::Offloaded { .. } => 0..0,
        }
    }
}

/// The plans of every batch type over one arena.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSet {
    /// The target's name.
    pub target: String,
    /// The target's numerics, which [`verify`](crate::verify) checks the plans against.
    pub numerics: Numerics,
    /// The plans.
    pub plans: Vec<ExecutionPlan>,
    /// The states, at the bottom of the arena or in a tier.
    pub states: Vec<StatePlacement>,
    /// Every offset, every peak and the arena are multiples of this.
    pub alignment: usize,
    /// The arena: the largest plan's peak.
    pub arena_bytes: usize,
    /// Bytes of each tier: of the arena in host memory, and of the spill file.
    pub tier_bytes: PerTier<u64>,
    /// The load sheet.
    pub sheet: LoadSheet,
}

impl PlanSet {
    /// The same in new memory, block beside block, where the arena, which is not mapped yet, has room for a copy. Planning leaves its
    /// results between holes that the allocator cannot give back to the system.
    pub fn moved_together(self) -> Self {
        if self.sheet.host.is_some() || plans_heap_bytes(&self) > self.arena_bytes {
            return self;
        }
        let mut moved = self.clone();
        let mut graphs: Vec<(Arc<Graph>, Arc<Graph>)> = Vec::new();
        for plan in &mut moved.plans {
            let known = graphs.iter().find(|(old, _)| Arc::ptr_eq(old, &plan.graph));
            let graph = known.map_or_else(|| Arc::new(Graph::clone(&plan.graph)), |(_, new)| new.clone());
            graphs.push((std::mem::replace(&mut plan.graph, graph.clone()), graph));
        }
        moved
    }
}
