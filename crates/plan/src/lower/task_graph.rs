//! A graph as tasks that read and write tensors, with the dependencies between tasks, before any order.
//!
//! A tensor here is what needs memory: a value with all its views, or a copy of one. Inputs, resident states and accumulators
//! have their memory from the start. A result either gets memory of its own or is written in place of another tensor:
//! `aliasing.rs` decides which states, accumulators and accumulated outputs are updated in place, and inserts copies where they
//! cannot be. An offloaded state is a value like any other: a task loads it, and another stores its new version.

use crate::tier::per_mib;
use crate::{Direction, Offloaded, Queue, Tier, Tiers};
use plimsoll_graph::{Graph, NodeId, Origin, ValueId};
use std::hash::{Hash, Hasher};

/// Index into [`TaskGraph::tensors`].
pub(crate) type TensorId = usize;
/// Index into [`TaskGraph::tasks`].
pub(crate) type TaskId = usize;

/// The memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Home {
    /// That of the graph's state `i`.
    State(usize),
    /// That of the graph's input `i`.
    Input(usize),
    /// That of the graph's accumulator `i`.
    Accumulator(usize),
    /// Its own, or that of an input which dies where it is made.
    Own,
    /// That of another tensor, which it overwrites.
    InPlace(TensorId),
}

/// A value with all its views, or a copy of one.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Tensor {
    /// The value, views resolved.
    pub value: ValueId,
    /// Bytes.
    pub bytes: usize,
    /// Bytes, rounded up to the alignment.
    pub size: usize,
    /// Its memory.
    pub home: Home,
    /// Whether it is live after the last step.
    pub pinned: bool,
    /// Tasks that read it, each once.
    pub readers: Vec<TaskId>,
    /// The task that writes it; none for inputs, states and accumulators.
    pub writer: Option<TaskId>,
}

/// Where a state lives between steps, as tasks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateTier {
    /// It is resident in the arena.
    Arena,
    /// It is loaded and stored as a whole.
    Whole(Tier),
    /// It is updated chunk by chunk, where the node that rewrites it allows that; else as a whole.
    Chunked(Tier),
}

impl StateTier {
    /// The tier of an offloaded state.
    pub const fn tier(self) -> Option<Tier> {
        match self {
            Self::Whole(tier) | Self::Chunked(tier) => Some(tier),
            Self::Arena => None,
        }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TaskKind {
    /// Runs a node.
    Run(NodeId),
    /// Runs a node chunk by chunk on offloaded states.
    ChunkedUpdate(NodeId),
    /// Copies a value.
    Copy(ValueId),
    /// Reads from a tier; states are numbered as in the graph.
    Load(Offloaded, Tier),
    /// Writes a value, or the new version of a state, to a tier.
    Store(Offloaded, Tier),
}

/// One unit of work.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// Tensors read, by position: inputs, then accumulators.
    pub reads: Vec<TensorId>,
    /// Tensors written.
    pub writes: Vec<TensorId>,
    /// Pairs (output, input) such that the output may be written in place of the input.
    pub in_place: Vec<(usize, usize)>,
    /// Bytes of scratch.
    pub workspace: usize,
    /// Predicted time.
    pub nanoseconds: u64,
    /// Whether it belongs to the optimizer step, which runs once, after the last micro-batch.
    pub optimizer_step: bool,
    /// Its position in the program: node order, copies beside the nodes they belong to.
    pub rank: usize,
    /// Tasks that depend on it.
    pub after: Vec<TaskId>,
}

impl TaskKind {
    /// The queue of a transfer; none for other tasks.
    pub const fn queue(self) -> Option<Queue> {
        match self {
            Self::Load(_, tier) => Some(tier.queue(Direction::Load)),
            Self::Store(_, tier) => Some(tier.queue(Direction::Store)),
            Self::Run(_) | Self::ChunkedUpdate(_) | Self::Copy(_) => None,
        }
    }

    /// Whether the task moves bytes to or from a tier beside the kernels.
    pub const fn is_transfer(self) -> bool {
        self.queue().is_some()
    }
}

impl Task {
    /// Time for which the task keeps the processor busy; transfers run beside it.
    pub const fn compute_ns(&self) -> u64 {
        if self.kind.is_transfer() { 0 } else { self.nanoseconds }
    }
}

/// A graph as tasks and tensors.
pub(crate) struct TaskGraph<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The tasks, in no order that matters: see [`Task::rank`].
    pub tasks: Vec<Task>,
    /// The tensors of the graph's outputs.
    pub outputs: Vec<TensorId>,
    /// Values that are offloaded between two of their uses, and where to.
    pub offloaded: Vec<(ValueId, Tier)>,
    /// Alignment of every buffer.
    pub alignment: usize,
    /// The value that each value is a view of; itself if it is no view.
    pub roots: Vec<ValueId>,
    /// The tensor of each root value; dead values have none.
    pub tensor_of: Vec<Option<TensorId>>,
    /// The copy that is read instead of an input, state or accumulator that is overwritten first.
    pub(super) snapshots: Vec<Option<TensorId>>,
    /// Where the graph's states live.
    pub(super) state_tiers: &'a [StateTier],
    /// The node that updates each of the graph's states in chunks, if any.
    pub(super) chunked_by: Vec<Option<NodeId>>,
    /// Which values are those states and their new versions.
    pub(super) chunked: Vec<bool>,
    /// The tiers of the machine.
    pub tiers: Tiers,
    /// Time to copy a MiB inside the arena.
    pub(super) copy_ns_per_mib: u64,
}

/// Covers everything that the order depends on.
impl Hash for TaskGraph<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.tasks, &self.tensors, self.alignment, self.has_micro_batches()).hash(hasher);
    }
}

/// Rank of a node's task; copies that belong to it rank just before and after.
pub(crate) const fn rank_of(node: NodeId) -> usize {
    node.index() * 4 + 2
}

impl<'a> TaskGraph<'a> {
    /// The same graph without tasks and tensors.
    pub fn empty(&self) -> Self {
        Self {
            graph: self.graph,
            tensors: Vec::new(),
            tasks: Vec::new(),
            outputs: Vec::new(),
            offloaded: Vec::new(),
            alignment: self.alignment,
            roots: self.roots.clone(),
            tensor_of: Vec::new(),
            snapshots: Vec::new(),
            state_tiers: self.state_tiers,
            chunked_by: self.chunked_by.clone(),
            chunked: self.chunked.clone(),
            tiers: self.tiers,
            copy_ns_per_mib: self.copy_ns_per_mib,
        }
    }

    /// Bytes of the resident states.
    pub fn resident_bytes(&self) -> usize {
        let states = self.tensors.iter().filter(|tensor| matches!(tensor.home, Home::State(_)));
        states.map(|tensor| tensor.size).sum()
    }

    /// A lower bound of the time of all tasks in any list: transfers overlap with computing, but neither overlaps with
    /// itself.
    pub fn least_nanoseconds(&self) -> u64 {
        let of = |optimizer_step: bool| {
            let (mut computing, mut queues) = (0_u64, [0_u64; Queue::COUNT]);
            for task in self.tasks.iter().filter(|task| task.optimizer_step == optimizer_step) {
                let busy = match task.kind.queue() {
                    Some(queue) => &mut queues[queue.index()],
                    None => &mut computing,
                };
                *busy += task.nanoseconds;
            }
            queues.into_iter().fold(computing, u64::max)
        };
        of(false).saturating_mul(self.graph.micro_batches as u64).saturating_add(of(true))
    }

    /// Whether there are several micro-batches.
    pub fn has_micro_batches(&self) -> bool {
        self.graph.micro_batches > 1
    }

    /// The tensor of a root value.
    pub fn tensor(&self, root: ValueId) -> Option<TensorId> {
        self.tensor_of[root.index()]
    }

    /// The memory that a tensor lies in, resolved through [`Home::InPlace`].
    pub fn base(&self, mut tensor: TensorId) -> Home {
        while let Home::InPlace(under) = self.tensors[tensor].home {
            tensor = under;
        }
        self.tensors[tensor].home
    }

    /// Whether an output may be written in place of an input, if that dies here: it has memory of its own and as many bytes,
    /// and the kernel allows it at every position at which it reads the tensor.
    pub fn may_overwrite(&self, task: &Task, output: usize, input: usize) -> bool {
        let (new, old) = (task.writes[output], task.reads[input]);
        let reads = task.reads.iter().enumerate();
        self.tensors[new].home == Home::Own
            && self.tensors[old].bytes == self.tensors[new].bytes
            && reads
                .filter(|&(_, &tensor)| tensor == old)
                .all(|(at, _)| task.in_place.contains(&(output, at)))
    }

    /// Adds a tensor.
    pub fn add_tensor(&mut self, value: ValueId, bytes: usize, home: Home) -> TensorId {
        let size = bytes.div_ceil(self.alignment).saturating_mul(self.alignment);
        self.tensors.push(Tensor {
            value,
            bytes,
            size,
            home,
            pinned: false,
            readers: Vec::new(),
            writer: None,
        });
        self.tensors.len() - 1
    }

    /// Whether a value is an offloaded state's old version.
    pub fn is_offloaded(&self, root: ValueId) -> bool {
        matches!(self.graph.origin(root), Origin::State(i) if self.state_tiers[i] != StateTier::Arena)
    }

    /// The tensor of a value that exists already; an offloaded state is loaded for the task at a rank.
    pub(super) fn resident(&mut self, root: ValueId, optimizer_step: bool, rank: usize) -> TensorId {
        if let Some(tensor) = self.tensor_of[root.index()] {
            // A state that both phases read is loaded in the micro-batches.
            if let Some(load) = self.tensors[tensor].writer.filter(|_| self.is_offloaded(root)) {
                self.tasks[load].optimizer_step &= optimizer_step;
            }
            return tensor;
        }
        let Origin::State(state) = self.graph.origin(root) else { return 0 };
        let Some(tier) = self.state_tiers[state].tier() else { return 0 };
        let bytes = self.graph.ty(root).bytes();
        let tensor = self.add_tensor(root, bytes, Home::Own);
        self.tensors[tensor].writer = Some(self.tasks.len());
        self.tensor_of[root.index()] = Some(tensor);
        let nanoseconds = self.tiers.ns(tier, Direction::Load, bytes);
        let kind = TaskKind::Load(Offloaded::State(state), tier);
        self.add_transfer(kind, &[], &[tensor], nanoseconds, optimizer_step, rank);
        tensor
    }

    /// Adds the store of a state's new version, after every load of the old one.
    pub fn add_store(&mut self, state: usize, new: TensorId, rank: usize) {
        let Some(tier) = self.state_tiers[state].tier() else { return };
        let old = self.tensor_of[self.graph.states[state].input.index()];
        let makers = [self.tensors[new].writer, old.and_then(|tensor| self.tensors[tensor].writer)];
        let optimizer_step = self.has_micro_batches()
            || makers.iter().flatten().any(|&maker| self.tasks[maker].optimizer_step);
        let nanoseconds = self.tiers.ns(tier, Direction::Store, self.tensors[new].bytes);
        let kind = TaskKind::Store(Offloaded::State(state), tier);
        let task = self.add_transfer(kind, &[new], &[], nanoseconds, optimizer_step, rank);
        makers.into_iter().flatten().for_each(|maker| self.tasks[maker].after.push(task));
    }

    /// Latency of a transfer, beside the time of its bytes.
    pub fn latency(&self, transfer: TaskId) -> u64 {
        let Task { kind, reads, writes, .. } = &self.tasks[transfer];
        let (TaskKind::Load(_, tier) | TaskKind::Store(_, tier)) = kind else { return 0 };
        let bytes = reads.iter().chain(writes).map(|&tensor| self.tensors[tensor].bytes).sum();
        self.tiers.link(*tier).latency(bytes)
    }

    /// Adds a task that moves bytes unchanged.
    pub fn add_transfer(
        &mut self,
        kind: TaskKind,
        reads: &[TensorId],
        writes: &[TensorId],
        nanoseconds: u64,
        optimizer_step: bool,
        rank: usize,
    ) -> TaskId {
        let task = self.tasks.len();
        reads.iter().for_each(|&tensor| self.tensors[tensor].readers.push(task));
        self.tasks.push(Task {
            kind,
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            in_place: Vec::new(),
            workspace: 0,
            nanoseconds,
            optimizer_step,
            rank,
            after: Vec::new(),
        });
        task
    }

    /// Adds a task that copies a tensor once it is written.
    pub fn add_copy(&mut self, from: TensorId, to: TensorId, optimizer_step: bool, rank: usize) -> TaskId {
        let nanoseconds = per_mib(self.tensors[to].bytes, self.copy_ns_per_mib);
        let kind = TaskKind::Copy(self.tensors[from].value);
        let task = self.add_transfer(kind, &[from], &[to], nanoseconds, optimizer_step, rank);
        self.tensors[to].writer = Some(task);
        if let Some(writer) = self.tensors[from].writer {
            self.tasks[writer].after.push(task);
        }
        task
    }

    /// A copy of an input, state or accumulator, made before it is overwritten. It is made in every micro-batch, so that the
    /// optimizer step sees the last micro-batch's.
    pub fn snapshot(&mut self, root: ValueId) -> TensorId {
        if let Some(tensor) = self.snapshots[root.index()] {
            return tensor;
        }
        if self.is_offloaded(root) {
            return self.resident(root, false, self.graph.nodes.len() * 4);
        }
        let from = self.tensor_of[root.index()].unwrap_or_default();
        let to = self.add_tensor(root, self.graph.ty(root).bytes(), Home::Own);
        // Just before the new version that overwrites it; without one, the copy can wait.
        let replaced_by = match self.graph.origin(root) {
            Origin::State(i) => self.graph.states[i].output,
            Origin::Accumulator(i) => Some(self.graph.accumulators[i].output),
            _ => None,
        };
        let node = replaced_by.and_then(|v| self.graph.producer(self.roots[v.index()]));
        let rank = node.map_or(self.graph.nodes.len() * 4, |n| rank_of(n) - 2);
        self.add_copy(from, to, false, rank);
        self.snapshots[root.index()] = Some(to);
        to
    }

    /// Whether a state or accumulator gets a new version.
    pub fn is_rewritten(&self, root: ValueId) -> bool {
        let output = match self.graph.origin(root) {
            Origin::State(i) => self.graph.states[i].output,
            Origin::Accumulator(i) => Some(self.graph.accumulators[i].output),
            _ => None,
        };
        output.is_some_and(|v| self.roots[v.index()] != root)
    }

    /// Whether a value is a state that is updated in chunks, or its new version.
    pub fn is_chunked(&self, value: ValueId) -> bool {
        self.chunked[value.index()]
    }
}
