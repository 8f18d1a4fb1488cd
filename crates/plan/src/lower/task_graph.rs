//! What there is to do, before any order: tasks that read and write *items*, and what must come before what.
//!
//! An item is one content that needs a place: a value with all its views, or a copy of one. Items that enter from
//! outside (inputs, states, running sums) have their place from the start. A result either gets a place of its own
//! when it is made, or goes over an item that stands in its way: `claims.rs` decides which states, running sums and
//! accumulated outputs can be written straight into their place, and makes copies where they cannot. A state in the
//! spill file is a value like any other, which a task loads; another stores its new version.

use super::aliasing;
use crate::lower::{CHUNK_ELEMENTS, chunkable_updates};
use crate::predict::{chunked_update_ns, copy_ns};
use crate::{ChunkTypes, Disk, Kernel, KernelQuery, Offloaded, PlanError, Target};
use plimsoll_graph::{BatchRelation, Graph, GraphError, Node, NodeId, Origin, ValueId};
use std::hash::{Hash, Hasher};

/// Index into [`TaskGraph::tensors`].
pub(crate) type TensorId = usize;
/// Index into [`TaskGraph::tasks`].
pub(crate) type TaskId = usize;

/// Where an item lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Home {
    /// In the place of the graph's state `i`.
    State(usize),
    /// In the place of the graph's input `i`.
    Input(usize),
    /// In the place of the graph's running sum `i`.
    Accumulator(usize),
    /// In a place of its own, or over an input that dies where it is made.
    Own,
    /// Over another item.
    InPlace(TensorId),
}

/// One content that needs a place.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Tensor {
    /// The value it is, views looked through.
    pub value: ValueId,
    /// Bytes of its place.
    pub bytes: usize,
    /// The same, rounded up to the alignment.
    pub size: usize,
    /// Where it lies.
    pub home: Home,
    /// Whether it must outlive the last step.
    pub pinned: bool,
    /// Tasks that read it, each once.
    pub readers: Vec<TaskId>,
    /// The task that writes it; what enters from outside has none.
    pub writer: Option<TaskId>,
}

/// Whether a state lies in the spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateTier {
    /// It lies in the arena.
    Arena,
    /// It comes and goes as a whole.
    File,
    /// It passes through the node that rewrites it, where that can be cut into pieces.
    FileChunked,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TaskKind {
    /// Runs a node.
    Run(NodeId),
    /// Runs a node in pieces, with states passing through.
    ChunkedUpdate(NodeId),
    /// Copies a value to another place.
    Copy(ValueId),
    /// Reads from the spill file; states are the graph's.
    Load(Offloaded),
    /// Writes a value, or the new version of a state, to the spill file.
    Store(Offloaded),
}

/// One thing to do.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// Items read, by position: inputs, then running sums.
    pub reads: Vec<TensorId>,
    /// Items written.
    pub writes: Vec<TensorId>,
    /// Pairs (output, input) such that the output may go over the input.
    pub in_place: Vec<(usize, usize)>,
    /// Scratch bytes.
    pub workspace: usize,
    /// Predicted time.
    pub nanoseconds: u64,
    /// Whether it runs once, after the last micro-batch.
    pub optimizer_step: bool,
    /// Its place in the program: node order, copies beside the nodes they belong to.
    pub rank: usize,
    /// Tasks that must come later.
    pub after: Vec<TaskId>,
}

impl TaskKind {
    /// Whether the task moves bytes to or from the spill file beside the kernels.
    pub const fn is_transfer(self) -> bool {
        match self {
            Self::Load(_) | Self::Store(_) => true,
            Self::Run(_) | Self::ChunkedUpdate(_) | Self::Copy(_) => false,
        }
    }
}

impl Task {
    /// Time for which the task keeps the processor busy; transfers run beside it.
    pub const fn compute_ns(&self) -> u64 {
        if self.kind.is_transfer() { 0 } else { self.nanoseconds }
    }
}

/// A graph as tasks and items.
pub(crate) struct TaskGraph<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The items.
    pub tensors: Vec<Tensor>,
    /// The tasks, in no order that matters: see [`Task::rank`].
    pub tasks: Vec<Task>,
    /// The items handed out, one for each of the graph's outputs.
    pub outputs: Vec<TensorId>,
    /// Values that go to the spill file and come back.
    pub offloaded: Vec<ValueId>,
    /// Alignment of every place.
    pub alignment: usize,
    /// The value each value is a view of; itself where it is none.
    pub roots: Vec<ValueId>,
    /// The item of each root value; dead values have none.
    pub tensor_of: Vec<Option<TensorId>>,
    /// The copy that stands for an entering value whose place changes under it.
    snapshots: Vec<Option<TensorId>>,
    /// Where the graph's states lie.
    homes: &'a [StateTier],
    /// The node that each of the graph's states passes through; none for those that do not.
    chunked_by: Vec<Option<NodeId>>,
    /// Which values are those states and their new versions.
    chunked: Vec<bool>,
    /// How fast the spill file is.
    pub disk: Disk,
}

/// Of all that its order depends on.
impl Hash for TaskGraph<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.tasks, &self.tensors, self.alignment, self.repeats()).hash(hasher);
    }
}

/// Rank of a node's run; copies that belong to it rank just around.
pub(crate) const fn rank_of(node: NodeId) -> usize {
    node.index() * 4 + 2
}

impl<'a> TaskGraph<'a> {
    /// Everything that has to be done for one run of a graph that has been checked.
    pub fn new(
        name: &str,
        graph: &'a Graph,
        target: &dyn Target,
        homes: &'a [StateTier],
        disk: Disk,
    ) -> Result<Self, PlanError> {
        let broken = |text| PlanError::Graph { plan: name.to_string(), source: GraphError::Broken(text) };
        let optimizer_step = graph.optimizer_step();
        let roots = roots(graph);
        let live = live(graph, &roots);
        check_phases(graph, &optimizer_step, &live).map_err(broken)?;
        let mut task_graph = Self {
            graph,
            tensors: Vec::new(),
            tasks: Vec::new(),
            outputs: Vec::new(),
            offloaded: Vec::new(),
            alignment: target.alignment().max(1),
            roots,
            tensor_of: vec![None; graph.value_count()],
            snapshots: vec![None; graph.value_count()],
            homes,
            chunked_by: chunked_by(graph, homes),
            chunked: vec![false; graph.value_count()],
            disk,
        };
        for (state, _) in graph.states.iter().zip(&task_graph.chunked_by).filter(|(_, node)| node.is_some()) {
            [Some(state.input), state.output]
                .into_iter()
                .flatten()
                .for_each(|v| task_graph.chunked[v.index()] = true);
        }
        task_graph.enter();
        let batch_relations = graph.batch_relations();
        for id in graph.node_ids().filter(|id| live[id.index()] && !graph.node(*id).op.is_view()) {
            let node = graph.node(id);
            let unsupported = |source| PlanError::Unsupported { layer: node.layer.to_string(), source };
            let kernel =
                target.kernel(&KernelQuery::new(graph, &batch_relations, node)).map_err(unsupported)?;
            let task = task_graph.add_run(id, kernel, optimizer_step[id.index()]);
            if task_graph.chunked_by.contains(&Some(id))
                && let Some(types) = ChunkTypes::new(graph, node, CHUNK_ELEMENTS)
            {
                let kernel = target.kernel(&types.query(&node.op)).map_err(unsupported)?;
                task_graph.stream(task, id, kernel.workspace);
            }
        }
        task_graph.pin_outputs();
        aliasing::settle(&mut task_graph, &batch_relations);
        for task in &mut task_graph.tasks {
            task.after.sort_unstable();
            task.after.dedup();
        }
        task_graph.check_sizes(name)?;
        Ok(task_graph)
    }

    /// The same graph without tasks or items.
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
            homes: self.homes,
            chunked_by: self.chunked_by.clone(),
            chunked: self.chunked.clone(),
            disk: self.disk,
        }
    }

    /// Bytes of the states that lie in the arena.
    pub fn resident_bytes(&self) -> usize {
        let states = self.tensors.iter().filter(|tensor| matches!(tensor.home, Home::State(_)));
        states.map(|tensor| tensor.size).sum()
    }

    /// Time that all tasks take at least, in any list: transfers go on beside the computing, but each of the two is one after
    /// the other.
    pub fn least_nanoseconds(&self) -> u64 {
        let of = |optimizer_step: bool| {
            let (mut computing, mut disk) = (0_u64, 0_u64);
            for task in self.tasks.iter().filter(|task| task.optimizer_step == optimizer_step) {
                match task.kind {
                    TaskKind::Load(_) | TaskKind::Store(_) => disk += task.nanoseconds,
                    TaskKind::Run(_) | TaskKind::ChunkedUpdate(_) | TaskKind::Copy(_) => {
                        computing += task.nanoseconds
                    }
                }
            }
            computing.max(disk)
        };
        of(false).saturating_mul(self.graph.micro_batches as u64).saturating_add(of(true))
    }

    /// Whether the body runs more than once.
    pub fn repeats(&self) -> bool {
        self.graph.micro_batches > 1
    }

    /// The item that a root value is.
    pub fn tensor(&self, root: ValueId) -> Option<TensorId> {
        self.tensor_of[root.index()]
    }

    /// The place an item lies in, looked through [`Home::InPlace`].
    pub fn base(&self, mut tensor: TensorId) -> Home {
        while let Home::InPlace(under) = self.tensors[tensor].home {
            tensor = under;
        }
        self.tensors[tensor].home
    }

    /// Adds an item.
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

    /// Whether a value is a state that enters from the spill file.
    pub fn is_offloaded(&self, root: ValueId) -> bool {
        matches!(self.graph.origin(root), Origin::State(i) if self.homes[i] != StateTier::Arena)
    }

    /// The item of a value that exists already; a state in the spill file is loaded for the task at a rank.
    fn present(&mut self, root: ValueId, optimizer_step: bool, rank: usize) -> TensorId {
        if let Some(tensor) = self.tensor_of[root.index()] {
            // What the body needs is loaded there, whoever asked first.
            if let Some(load) = self.tensors[tensor].writer.filter(|_| self.is_offloaded(root)) {
                self.tasks[load].optimizer_step &= optimizer_step;
            }
            return tensor;
        }
        let Origin::State(state) = self.graph.origin(root) else { return 0 };
        let bytes = self.graph.ty(root).bytes();
        let tensor = self.add_tensor(root, bytes, Home::Own);
        self.tensors[tensor].writer = Some(self.tasks.len());
        self.tensor_of[root.index()] = Some(tensor);
        let nanoseconds = self.disk.read_ns(bytes);
        self.add_transfer(
            TaskKind::Load(Offloaded::State(state)),
            &[],
            &[tensor],
            nanoseconds,
            optimizer_step,
            rank,
        );
        tensor
    }

    /// Adds a task that writes the new version of a state to the spill file, after every reading of the old one.
    pub fn add_store(&mut self, state: usize, new: TensorId, rank: usize) {
        let old = self.tensor_of[self.graph.states[state].input.index()];
        let makers = [self.tensors[new].writer, old.and_then(|tensor| self.tensors[tensor].writer)];
        let optimizer_step =
            self.repeats() || makers.iter().flatten().any(|&maker| self.tasks[maker].optimizer_step);
        let nanoseconds = self.disk.write_ns(self.tensors[new].bytes);
        let task = self.add_transfer(
            TaskKind::Store(Offloaded::State(state)),
            &[new],
            &[],
            nanoseconds,
            optimizer_step,
            rank,
        );
        makers.into_iter().flatten().for_each(|maker| self.tasks[maker].after.push(task));
    }

    /// Nanoseconds until a transfer is done, beside that of its bytes.
    pub fn latency(&self, transfer: TaskId) -> u64 {
        let Task { reads, writes, .. } = &self.tasks[transfer];
        self.disk.latency(reads.iter().chain(writes).map(|&tensor| self.tensors[tensor].bytes).sum())
    }

    /// Adds a task that moves bytes as they are.
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

    /// Adds a task that copies an item once it is written.
    pub fn add_copy(&mut self, from: TensorId, to: TensorId, optimizer_step: bool, rank: usize) -> TaskId {
        let nanoseconds = copy_ns(self.tensors[to].bytes);
        let kind = TaskKind::Copy(self.tensors[from].value);
        let task = self.add_transfer(kind, &[from], &[to], nanoseconds, optimizer_step, rank);
        self.tensors[to].writer = Some(task);
        if let Some(writer) = self.tensors[from].writer {
            self.tasks[writer].after.push(task);
        }
        task
    }

    /// A copy of a value that enters from outside, made before its place changes. It is made in the body, so that it
    /// is the last micro-batch's after the last micro-batch.
    pub fn snapshot(&mut self, root: ValueId) -> TensorId {
        if let Some(tensor) = self.snapshots[root.index()] {
            return tensor;
        }
        if self.is_offloaded(root) {
            return self.present(root, false, self.graph.nodes.len() * 4);
        }
        let from = self.tensor_of[root.index()].unwrap_or_default();
        let to = self.add_tensor(root, self.graph.ty(root).bytes(), Home::Own);
        // Just before the version that takes its place; one that nothing replaces can wait.
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

    /// Whether a state or running sum ends as another value than it starts.
    pub fn is_rewritten(&self, root: ValueId) -> bool {
        let output = match self.graph.origin(root) {
            Origin::State(i) => self.graph.states[i].output,
            Origin::Accumulator(i) => Some(self.graph.accumulators[i].output),
            _ => None,
        };
        output.is_some_and(|v| self.roots[v.index()] != root)
    }

    /// Makes the items that enter from outside.
    fn enter(&mut self) {
        let graph = self.graph;
        for (i, state) in graph.states.iter().enumerate().filter(|(i, _)| self.homes[*i] == StateTier::Arena)
        {
            self.enter_one(state.input, 1, Home::State(i));
        }
        for (i, input) in graph.inputs.iter().enumerate() {
            let times = if input.batched { graph.micro_batches } else { 1 };
            self.enter_one(input.value, times, Home::Input(i));
        }
        for (i, accumulator) in graph.accumulators.iter().enumerate() {
            self.enter_one(accumulator.input, 1, Home::Accumulator(i));
        }
    }

    fn enter_one(&mut self, value: ValueId, times: usize, home: Home) {
        let bytes = self.graph.ty(value).bytes().saturating_mul(times);
        self.tensor_of[value.index()] = Some(self.add_tensor(value, bytes, home));
    }

    /// Adds a node's run with its outputs and the edges from what it reads.
    fn add_run(&mut self, id: NodeId, kernel: Kernel, optimizer_step: bool) -> TaskId {
        let node = self.graph.node(id);
        let rank = rank_of(id);
        let here = |values: Vec<ValueId>| -> (Vec<usize>, Vec<ValueId>) {
            values.into_iter().enumerate().filter(|(_, v)| !self.is_chunked(*v)).unzip()
        };
        let ((read_at, reads), (write_at, writes)) =
            (here(node.reads().collect()), here(node.outputs.clone()));
        let reads: Vec<TensorId> = reads
            .into_iter()
            .map(|v| self.tensor_read(self.roots[v.index()], optimizer_step, rank - 1))
            .collect();
        let task = self.tasks.len();
        for &tensor in &reads {
            if self.tensors[tensor].readers.last() != Some(&task) {
                self.tensors[tensor].readers.push(task);
                if let Some(writer) = self.tensors[tensor].writer {
                    self.tasks[writer].after.push(task);
                }
            }
        }
        let inputs = node.inputs.len();
        let writes = (writes.into_iter())
            .map(|value| {
                let tensor = self.add_tensor(value, self.graph.ty(value).bytes(), Home::Own);
                self.tensors[tensor].writer = Some(task);
                self.tensor_of[value.index()] = Some(tensor);
                tensor
            })
            .collect();
        let position = |positions: &[usize], at: usize| positions.iter().position(|&p| p == at);
        let in_place = kernel.in_place.into_iter().filter(|&(_, input)| input < inputs);
        let in_place = in_place
            .filter_map(|(output, input)| Some((position(&write_at, output)?, position(&read_at, input)?)));
        let in_place = in_place.collect();
        self.tasks.push(Task {
            kind: TaskKind::Run(id),
            reads,
            writes,
            in_place,
            workspace: kernel.workspace,
            nanoseconds: kernel.nanoseconds,
            optimizer_step,
            rank: rank_of(id),
            after: Vec::new(),
        });
        task
    }

    /// Makes a run one in pieces: what passes through needs two pieces of scratch and the disk's time.
    fn stream(&mut self, task: TaskId, node: NodeId, kernel_workspace: usize) {
        let states = (0..self.chunked_by.len()).filter(|&i| self.chunked_by[i] == Some(node));
        let types = states.map(|i| self.graph.ty(self.graph.states[i].input));
        let (mut pieces, mut chunked) = (0, 0);
        for ty in types {
            pieces += CHUNK_ELEMENTS * ty.dtype.bytes();
            chunked += ty.bytes();
        }
        let task = &mut self.tasks[task];
        task.kind = TaskKind::ChunkedUpdate(node);
        task.workspace = kernel_workspace.next_multiple_of(self.alignment) + 2 * pieces;
        task.nanoseconds = chunked_update_ns(task.nanoseconds, chunked, self.disk);
    }

    /// Whether a value is a state that passes through a node, or its new version.
    pub fn is_chunked(&self, value: ValueId) -> bool {
        self.chunked[value.index()]
    }

    /// The item a task reads for a root value. After the last micro-batch a slice of the batch and a sum before its
    /// last addition are no longer in their place: the tail reads a copy.
    fn tensor_read(&mut self, root: ValueId, optimizer_step: bool, rank: usize) -> TensorId {
        let moves_on = match self.graph.origin(root) {
            Origin::Input(i) => self.graph.inputs[i].batched && self.repeats(),
            Origin::Accumulator(_) => self.is_rewritten(root),
            _ => false,
        };
        if optimizer_step && moves_on {
            self.snapshot(root)
        } else {
            self.present(root, optimizer_step, rank)
        }
    }

    fn pin_outputs(&mut self) {
        for output in &self.graph.outputs {
            let root = self.roots[output.value.index()];
            let in_place = match self.graph.origin(root) {
                Origin::Input(i) => !(self.graph.inputs[i].batched && self.repeats()),
                Origin::State(_) | Origin::Accumulator(_) => !self.is_rewritten(root),
                Origin::Node { .. } => true,
            };
            let last = self.graph.nodes.len() * 4;
            let tensor = if in_place { self.present(root, false, last) } else { self.snapshot(root) };
            self.tensors[tensor].pinned = true;
            self.outputs.push(tensor);
        }
    }

    /// Sums must not overflow; past this, no machine has the memory anyway.
    fn check_sizes(&self, name: &str) -> Result<(), PlanError> {
        let sizes = self.tensors.iter().map(|i| i.size).chain(self.tasks.iter().map(|t| t.workspace));
        let total = sizes.map(|s| s.saturating_add(self.alignment) as u128).sum::<u128>();
        if total < 1 << 62 {
            return Ok(());
        }
        let Some(tensor) = self.tensors.iter().max_by_key(|i| i.size) else { return Ok(()) };
        Err(PlanError::TooLarge { plan: name.to_string(), ty: self.graph.ty(tensor.value).clone() })
    }
}

/// The nodes that states pass through.
fn chunked_by(graph: &Graph, homes: &[StateTier]) -> Vec<Option<NodeId>> {
    if !homes.contains(&StateTier::FileChunked) {
        return vec![None; homes.len()];
    }
    let nodes = chunkable_updates(graph).into_iter().zip(homes);
    nodes.map(|(node, home)| node.filter(|_| *home == StateTier::FileChunked)).collect()
}

/// The value each value is a view of.
fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = graph.value_ids().collect();
    for node in graph.nodes.iter().filter(|n| n.op.is_view()) {
        if let (&[output], Some(input)) = (&node.outputs[..], node.inputs.first()) {
            roots[output.index()] = roots[input.index()];
        }
    }
    roots
}

/// Which nodes reach a state's new version, a running sum or a result.
fn live(graph: &Graph, roots: &[ValueId]) -> Vec<bool> {
    let mut wanted = vec![false; graph.value_count()];
    let ends = (graph.states.iter().filter_map(|s| s.output))
        .chain(graph.accumulators.iter().map(|c| c.output))
        .chain(graph.outputs.iter().map(|o| o.value));
    ends.for_each(|v| wanted[roots[v.index()].index()] = true);
    let mut live = vec![false; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate().rev() {
        if !node.op.is_view() && node.outputs.iter().any(|v| wanted[v.index()]) {
            live[id] = true;
            node.reads().for_each(|v| wanted[roots[v.index()].index()] = true);
        }
    }
    live
}

/// What runs in every micro-batch must not wait for what runs after the last.
fn check_phases(graph: &Graph, optimizer_step: &[bool], live: &[bool]) -> Result<(), String> {
    let in_optimizer_step = |v: ValueId| graph.producer(v).is_some_and(|n| optimizer_step[n.index()]);
    for id in graph.node_ids().filter(|id| live[id.index()] && !optimizer_step[id.index()]) {
        let node = graph.node(id);
        if let Some(value) = node.accumulate.iter().find(|v| in_optimizer_step(**v)) {
            return Err(format!(
                "layer `{}`: {} adds to {value} in every micro-batch, but that exists only after the last",
                node.layer,
                node.op.name()
            ));
        }
    }
    match graph.accumulators.iter().find(|c| in_optimizer_step(c.output)) {
        Some(accumulator) => {
            Err(format!("carry {} depends on another carry's finished sum", accumulator.input))
        }
        None => Ok(()),
    }
}

/// Pairs (running sum, output) of a node: which output is added to which sum.
pub(crate) fn folds(graph: &Graph, batch_relations: &[BatchRelation], node: &Node) -> Vec<(usize, usize)> {
    let folded = |o: &usize| batch_relations[node.outputs[*o].index()] == BatchRelation::Reduced;
    let by_flow: Vec<usize> = (0..node.outputs.len()).filter(folded).collect();
    let same_type =
        |sum: usize, output: usize| graph.ty(node.accumulate[sum]) == graph.ty(node.outputs[output]);
    if by_flow.len() == node.accumulate.len() && by_flow.iter().enumerate().all(|(s, &o)| same_type(s, o)) {
        return by_flow.into_iter().enumerate().collect();
    }
    // `Graph::check` holds the sums' types to be a subsequence of the outputs' types.
    let mut next = 0;
    let mut pairs = Vec::new();
    for sum in 0..node.accumulate.len() {
        if let Some(output) = (next..node.outputs.len()).find(|&o| same_type(sum, o)) {
            pairs.push((sum, output));
            next = output + 1;
        }
    }
    pairs
}
