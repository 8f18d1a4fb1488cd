//! What a plan is.

use crate::LoadSheet;
use plimsoll_graph::{Graph, NodeId, ValueId};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    /// Running sum `i` of the graph.
    Accumulator(usize),
    /// A value; several values may pass through one buffer (views, in-place).
    Value,
    /// Scratch of one step.
    Workspace,
}

/// A piece of the arena with a time in which it is taken.
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
    /// First step in which it is taken; inputs and states are taken from step 0 on.
    pub first: usize,
    /// Last step in which it is taken, inclusive.
    pub last: usize,
    /// Bytes by which its start moves on from micro-batch to micro-batch (batched inputs), else 0.
    pub micro_stride: usize,
}

/// What a step does. Recomputation is a second `Run` of a node into another buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Runs a node.
    Run {
        /// The node.
        node: NodeId,
        /// Where its inputs lie, then its running sums.
        reads: Vec<BufferId>,
        /// Where its outputs go. A folded output with a running sum goes into the sum's own buffer.
        writes: Vec<BufferId>,
        /// Its scratch.
        workspace: Option<BufferId>,
    },
    /// Runs an elementwise node piece by piece. The states that it reads from the spill file and rewrites there pass
    /// through its scratch, two pieces of each at a time.
    ChunkedUpdate {
        /// The node.
        node: NodeId,
        /// Where its inputs lie; a state in the spill file has no buffer.
        reads: Vec<Option<BufferId>>,
        /// Where its outputs go; the new version of such a state has none either.
        writes: Vec<Option<BufferId>>,
        /// The kernel's scratch, then two pieces of every state that passes through.
        workspace: BufferId,
        /// Elements of a piece; the last one may be shorter.
        piece: usize,
    },
    /// Copies a value into another buffer: a state whose new version could not be written in place.
    Copy {
        /// The value copied.
        value: ValueId,
        /// Where it lies.
        from: BufferId,
        /// Where it goes.
        to: BufferId,
    },
    /// Reads from the spill file. The buffer is taken from here on; computing goes on until something reads it.
    Load {
        /// What is read.
        what: Offloaded,
        /// Where it goes.
        to: BufferId,
    },
    /// Writes the new version of a state, or a value that is loaded later in the same step, to the spill file. Computing
    /// goes on until something writes over the buffer.
    Store {
        /// What is written.
        what: Offloaded,
        /// Where it lies.
        from: BufferId,
    },
}

/// What a transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Offloaded {
    /// State `i` of [`PlanSet::states`].
    State(usize),
    /// Value `i` of [`ExecutionPlan::offloaded`].
    Value(usize),
}

/// A value that waits in the spill file for its later readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadedValue {
    /// The value.
    pub value: ValueId,
    /// Where it lies in the file: a multiple of [`SPILL_ALIGNMENT`], above every state.
    pub offset: u64,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Whether it is done once, after the last micro-batch, rather than in every micro-batch. A load may come before that:
    /// among the steps of the body it is done in the last micro-batch alone.
    pub optimizer_step: bool,
}

/// The order and places of one batch type's step. Body steps come first, tail steps last, but for loads of
/// the tail that begin early.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionPlan {
    /// The batch type, like `train × 64`.
    pub name: String,
    /// The graph it runs.
    pub graph: Arc<Graph>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Where the graph's outputs lie after the last step.
    pub outputs: Vec<BufferId>,
    /// Values that are in the spill file for a part of the step.
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
    /// The node of every run that is not the node's first.
    pub fn rematerialized(&self) -> impl Iterator<Item = NodeId> + '_ {
        let mut ran = vec![false; self.graph.nodes.len()];
        self.steps.iter().filter_map(move |step| match step.action {
            Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
                std::mem::replace(ran.get_mut(node.index())?, true).then_some(node)
            }
            _ => None,
        })
    }

    /// Bytes written to the spill file in a step, with the states of its set.
    pub fn stored_bytes(&self, states: &[StatePlacement]) -> u64 {
        let stores = self.steps.iter().filter_map(|step| match &step.action {
            Action::Store { what: Offloaded::State(i), .. } => {
                Some((step.optimizer_step, states[*i].ty.bytes()))
            }
            Action::Store { what: Offloaded::Value(i), .. } => {
                Some((step.optimizer_step, self.graph.ty(self.offloaded[*i].value).bytes()))
            }
            Action::ChunkedUpdate { node, writes, .. } => {
                Some((step.optimizer_step, self.chunked_bytes(*node, writes)))
            }
            _ => None,
        });
        let times = |optimizer_step| if optimizer_step { 1 } else { self.graph.micro_batches as u64 };
        stores.map(|(optimizer_step, bytes)| times(optimizer_step) * bytes as u64).sum()
    }

    /// Bytes of the states that pass through a node in pieces, and have no buffer to be written to.
    pub(crate) fn chunked_bytes(&self, node: NodeId, writes: &[Option<BufferId>]) -> usize {
        let outputs = self.graph.node(node).outputs.iter().zip(writes);
        outputs.filter(|(_, to)| to.is_none()).map(|(&value, _)| self.graph.ty(value).bytes()).sum()
    }
}

/// Where a state lies between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateHome {
    /// In the arena, from this offset on.
    Arena(usize),
    /// In the spill file, from this offset on, a multiple of [`SPILL_ALIGNMENT`].
    File(u64),
}

/// Everything in the spill file starts at a multiple of this.
pub const SPILL_ALIGNMENT: u64 = 4096;

/// Where a state lies, in every plan of the set.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePlacement {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// What it is.
    pub role: plimsoll_graph::Role,
    /// How it starts.
    pub init: plimsoll_graph::Init,
    /// Where it lies.
    pub home: StateHome,
}

impl StatePlacement {
    /// Its bytes in the arena; none if it lies in the spill file.
    pub fn arena_range(&self) -> std::ops::Range<usize> {
        match self.home {
            StateHome::Arena(offset) => offset..offset + self.ty.bytes(),
            StateHome::File(_) => 0..0,
        }
    }
}

/// The plans of every batch type over one arena.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSet {
    /// The target's name.
    pub target: String,
    /// The plans.
    pub plans: Vec<ExecutionPlan>,
    /// The states, at the bottom of the arena or in the spill file.
    pub states: Vec<StatePlacement>,
    /// Every offset, every peak and the arena are multiples of this.
    pub alignment: usize,
    /// The arena: the largest plan's peak.
    pub arena_bytes: usize,
    /// The spill file.
    pub spill_bytes: u64,
    /// The account of every byte.
    pub sheet: LoadSheet,
}
