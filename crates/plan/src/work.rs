//! What there is to do, before any order: tasks that read and write *items*, and what must come before what.
//!
//! An item is one content that needs a place: a value with all its views, or a copy of one. Items that enter from
//! outside (inputs, states, running sums) have their place from the start. A result either gets a place of its own
//! when it is made, or goes over an item that stands in its way: `claims.rs` decides which states, running sums and
//! accumulated outputs can be written straight into their place, and makes copies where they cannot. A state in the
//! spill file is a value like any other, which a task loads; another stores its new version.

use crate::predict::{copying, streaming};
use crate::stream::{PIECE, through};
use crate::{Disk, Kernel, KernelQuery, PieceTypes, PlanError, Spilled, Target, claims};
use plimsoll_graph::{Flow, Graph, GraphError, Node, NodeId, Origin, ValueId};
use std::hash::{Hash, Hasher};

/// Index into [`Work::items`].
pub(crate) type ItemId = usize;
/// Index into [`Work::tasks`].
pub(crate) type TaskId = usize;

/// Where an item lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Home {
    /// In the place of the graph's state `i`.
    State(usize),
    /// In the place of the graph's input `i`.
    Input(usize),
    /// In the place of the graph's running sum `i`.
    Carry(usize),
    /// In a place of its own, or over an input that dies where it is made.
    Own,
    /// Over another item.
    Over(ItemId),
}

/// One content that needs a place.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Item {
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
pub(crate) enum InFile {
    /// It lies in the arena.
    No,
    /// It comes and goes as a whole.
    Whole,
    /// It passes through the node that rewrites it, where that can be cut into pieces.
    Pieces,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    /// Runs a node.
    Run(NodeId),
    /// Runs a node in pieces, with states passing through.
    Stream(NodeId),
    /// Copies a value to another place.
    Copy(ValueId),
    /// Reads from the spill file; states are the graph's.
    Load(Spilled),
    /// Writes a value, or the new version of a state, to the spill file.
    Store(Spilled),
}

/// One thing to do.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Task {
    /// What it does.
    pub deed: Deed,
    /// Items read, by position: inputs, then running sums.
    pub reads: Vec<ItemId>,
    /// Items written.
    pub writes: Vec<ItemId>,
    /// Pairs (output, input) such that the output may go over the input.
    pub in_place: Vec<(usize, usize)>,
    /// Scratch bytes.
    pub workspace: usize,
    /// Predicted time.
    pub nanoseconds: u64,
    /// Whether it runs once, after the last micro-batch.
    pub tail: bool,
    /// Its place in the program: node order, copies beside the nodes they belong to.
    pub rank: usize,
    /// Tasks that must come later.
    pub after: Vec<TaskId>,
}

/// A graph as tasks and items.
pub(crate) struct Work<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The items.
    pub items: Vec<Item>,
    /// The tasks, in no order that matters: see [`Task::rank`].
    pub tasks: Vec<Task>,
    /// The items handed out, one for each of the graph's outputs.
    pub outputs: Vec<ItemId>,
    /// Values that go to the spill file and come back.
    pub parked: Vec<ValueId>,
    /// Alignment of every place.
    pub alignment: usize,
    /// The value each value is a view of; itself where it is none.
    pub roots: Vec<ValueId>,
    /// The item of each root value; dead values have none.
    pub item_of: Vec<Option<ItemId>>,
    /// The copy that stands for an entering value whose place changes under it.
    snapshots: Vec<Option<ItemId>>,
    /// Where the graph's states lie.
    homes: &'a [InFile],
    /// The node that each of the graph's states passes through; none for those that do not.
    streams: Vec<Option<NodeId>>,
    /// Which values are those states and their new versions.
    passing: Vec<bool>,
    /// How fast the spill file is.
    pub disk: Disk,
}

/// Of all that its order depends on.
impl Hash for Work<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.tasks, &self.items, self.alignment, self.repeats()).hash(hasher);
    }
}

/// Rank of a node's run; copies that belong to it rank just around.
pub(crate) const fn rank_of(node: NodeId) -> usize {
    node.index() * 4 + 2
}

impl<'a> Work<'a> {
    /// Everything that has to be done for one run of a graph that has been checked.
    pub fn new(
        name: &str,
        graph: &'a Graph,
        target: &dyn Target,
        homes: &'a [InFile],
        disk: Disk,
    ) -> Result<Self, PlanError> {
        let broken = |text| PlanError::Graph { plan: name.to_string(), source: GraphError::Broken(text) };
        let tail = graph.tail();
        let roots = roots(graph);
        let live = live(graph, &roots);
        check_phases(graph, &tail, &live).map_err(broken)?;
        let mut work = Self {
            graph,
            items: Vec::new(),
            tasks: Vec::new(),
            outputs: Vec::new(),
            parked: Vec::new(),
            alignment: target.alignment().max(1),
            roots,
            item_of: vec![None; graph.value_count()],
            snapshots: vec![None; graph.value_count()],
            homes,
            streams: streams(graph, homes),
            passing: vec![false; graph.value_count()],
            disk,
        };
        for (state, _) in graph.states.iter().zip(&work.streams).filter(|(_, node)| node.is_some()) {
            [Some(state.input), state.output]
                .into_iter()
                .flatten()
                .for_each(|v| work.passing[v.index()] = true);
        }
        work.enter();
        let flows = graph.flows();
        for id in graph.node_ids().filter(|id| live[id.index()] && !graph.node(*id).op.is_view()) {
            let node = graph.node(id);
            let unsupported = |source| PlanError::Unsupported { layer: node.layer.to_string(), source };
            let kernel = target.kernel(&KernelQuery::new(graph, &flows, node)).map_err(unsupported)?;
            let task = work.add_run(id, kernel, tail[id.index()]);
            if work.streams.contains(&Some(id))
                && let Some(types) = PieceTypes::new(graph, node, PIECE)
            {
                let kernel = target.kernel(&types.query(&node.op)).map_err(unsupported)?;
                work.stream(task, id, kernel.workspace);
            }
        }
        work.pin_outputs();
        claims::settle(&mut work, &flows);
        for task in &mut work.tasks {
            task.after.sort_unstable();
            task.after.dedup();
        }
        work.check_sizes(name)?;
        Ok(work)
    }

    /// The same graph without tasks or items.
    pub fn empty(&self) -> Self {
        Self {
            graph: self.graph,
            items: Vec::new(),
            tasks: Vec::new(),
            outputs: Vec::new(),
            parked: Vec::new(),
            alignment: self.alignment,
            roots: self.roots.clone(),
            item_of: Vec::new(),
            snapshots: Vec::new(),
            homes: self.homes,
            streams: self.streams.clone(),
            passing: self.passing.clone(),
            disk: self.disk,
        }
    }

    /// Bytes of the states that lie in the arena.
    pub fn resident_bytes(&self) -> usize {
        let states = self.items.iter().filter(|item| matches!(item.home, Home::State(_)));
        states.map(|item| item.size).sum()
    }

    /// Time that all tasks take at least, in any list: transfers go on beside the computing, but each of the two is one after
    /// the other.
    pub fn least_nanoseconds(&self) -> u64 {
        let of = |tail: bool| {
            let (mut computing, mut disk) = (0_u64, 0_u64);
            for task in self.tasks.iter().filter(|task| task.tail == tail) {
                match task.deed {
                    Deed::Load(_) | Deed::Store(_) => disk += task.nanoseconds,
                    Deed::Run(_) | Deed::Stream(_) | Deed::Copy(_) => computing += task.nanoseconds,
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
    pub fn item(&self, root: ValueId) -> Option<ItemId> {
        self.item_of[root.index()]
    }

    /// The place an item lies in, looked through [`Home::Over`].
    pub fn base(&self, mut item: ItemId) -> Home {
        while let Home::Over(under) = self.items[item].home {
            item = under;
        }
        self.items[item].home
    }

    /// Adds an item.
    pub fn add_item(&mut self, value: ValueId, bytes: usize, home: Home) -> ItemId {
        let size = bytes.div_ceil(self.alignment).saturating_mul(self.alignment);
        self.items.push(Item { value, bytes, size, home, pinned: false, readers: Vec::new(), writer: None });
        self.items.len() - 1
    }

    /// Whether a value is a state that enters from the spill file.
    pub fn is_spilled(&self, root: ValueId) -> bool {
        matches!(self.graph.origin(root), Origin::State(i) if self.homes[i] != InFile::No)
    }

    /// The item of a value that exists already; a state in the spill file is loaded for the task at a rank.
    fn present(&mut self, root: ValueId, tail: bool, rank: usize) -> ItemId {
        if let Some(item) = self.item_of[root.index()] {
            // What the body needs is loaded there, whoever asked first.
            if let Some(load) = self.items[item].writer.filter(|_| self.is_spilled(root)) {
                self.tasks[load].tail &= tail;
            }
            return item;
        }
        let Origin::State(state) = self.graph.origin(root) else { return 0 };
        let bytes = self.graph.ty(root).bytes();
        let item = self.add_item(root, bytes, Home::Own);
        self.items[item].writer = Some(self.tasks.len());
        self.item_of[root.index()] = Some(item);
        let nanoseconds = self.disk.reading(bytes);
        self.add_transfer(Deed::Load(Spilled::State(state)), &[], &[item], nanoseconds, tail, rank);
        item
    }

    /// Adds a task that writes the new version of a state to the spill file, after every reading of the old one.
    pub fn add_store(&mut self, state: usize, new: ItemId, rank: usize) {
        let old = self.item_of[self.graph.states[state].input.index()];
        let makers = [self.items[new].writer, old.and_then(|item| self.items[item].writer)];
        let tail = self.repeats() || makers.iter().flatten().any(|&maker| self.tasks[maker].tail);
        let nanoseconds = self.disk.writing(self.items[new].bytes);
        let task =
            self.add_transfer(Deed::Store(Spilled::State(state)), &[new], &[], nanoseconds, tail, rank);
        makers.into_iter().flatten().for_each(|maker| self.tasks[maker].after.push(task));
    }

    /// Nanoseconds until a transfer is done, beside that of its bytes.
    pub fn latency(&self, transfer: TaskId) -> u64 {
        let Task { reads, writes, .. } = &self.tasks[transfer];
        self.disk.latency(reads.iter().chain(writes).map(|&item| self.items[item].bytes).sum())
    }

    /// Adds a task that moves bytes as they are.
    pub fn add_transfer(
        &mut self,
        deed: Deed,
        reads: &[ItemId],
        writes: &[ItemId],
        nanoseconds: u64,
        tail: bool,
        rank: usize,
    ) -> TaskId {
        let task = self.tasks.len();
        reads.iter().for_each(|&item| self.items[item].readers.push(task));
        self.tasks.push(Task {
            deed,
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            in_place: Vec::new(),
            workspace: 0,
            nanoseconds,
            tail,
            rank,
            after: Vec::new(),
        });
        task
    }

    /// Adds a task that copies an item once it is written.
    pub fn add_copy(&mut self, from: ItemId, to: ItemId, tail: bool, rank: usize) -> TaskId {
        let nanoseconds = copying(self.items[to].bytes);
        let deed = Deed::Copy(self.items[from].value);
        let task = self.add_transfer(deed, &[from], &[to], nanoseconds, tail, rank);
        self.items[to].writer = Some(task);
        if let Some(writer) = self.items[from].writer {
            self.tasks[writer].after.push(task);
        }
        task
    }

    /// A copy of a value that enters from outside, made before its place changes. It is made in the body, so that it
    /// is the last micro-batch's after the last micro-batch.
    pub fn snapshot(&mut self, root: ValueId) -> ItemId {
        if let Some(item) = self.snapshots[root.index()] {
            return item;
        }
        if self.is_spilled(root) {
            return self.present(root, false, self.graph.nodes.len() * 4);
        }
        let from = self.item_of[root.index()].unwrap_or_default();
        let to = self.add_item(root, self.graph.ty(root).bytes(), Home::Own);
        // Just before the version that takes its place; one that nothing replaces can wait.
        let replaced_by = match self.graph.origin(root) {
            Origin::State(i) => self.graph.states[i].output,
            Origin::Carry(i) => Some(self.graph.carries[i].output),
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
            Origin::Carry(i) => Some(self.graph.carries[i].output),
            _ => None,
        };
        output.is_some_and(|v| self.roots[v.index()] != root)
    }

    /// Makes the items that enter from outside.
    fn enter(&mut self) {
        let graph = self.graph;
        for (i, state) in graph.states.iter().enumerate().filter(|(i, _)| self.homes[*i] == InFile::No) {
            self.enter_one(state.input, 1, Home::State(i));
        }
        for (i, input) in graph.inputs.iter().enumerate() {
            let times = if input.batched { graph.micro_batches } else { 1 };
            self.enter_one(input.value, times, Home::Input(i));
        }
        for (i, carry) in graph.carries.iter().enumerate() {
            self.enter_one(carry.input, 1, Home::Carry(i));
        }
    }

    fn enter_one(&mut self, value: ValueId, times: usize, home: Home) {
        let bytes = self.graph.ty(value).bytes().saturating_mul(times);
        self.item_of[value.index()] = Some(self.add_item(value, bytes, home));
    }

    /// Adds a node's run with its outputs and the edges from what it reads.
    fn add_run(&mut self, id: NodeId, kernel: Kernel, tail: bool) -> TaskId {
        let node = self.graph.node(id);
        let rank = rank_of(id);
        let here = |values: Vec<ValueId>| -> (Vec<usize>, Vec<ValueId>) {
            values.into_iter().enumerate().filter(|(_, v)| !self.passes(*v)).unzip()
        };
        let ((read_at, reads), (write_at, writes)) =
            (here(node.reads().collect()), here(node.outputs.clone()));
        let reads: Vec<ItemId> =
            reads.into_iter().map(|v| self.item_read(self.roots[v.index()], tail, rank - 1)).collect();
        let task = self.tasks.len();
        for &item in &reads {
            if self.items[item].readers.last() != Some(&task) {
                self.items[item].readers.push(task);
                if let Some(writer) = self.items[item].writer {
                    self.tasks[writer].after.push(task);
                }
            }
        }
        let inputs = node.inputs.len();
        let writes = (writes.into_iter())
            .map(|value| {
                let item = self.add_item(value, self.graph.ty(value).bytes(), Home::Own);
                self.items[item].writer = Some(task);
                self.item_of[value.index()] = Some(item);
                item
            })
            .collect();
        let position = |positions: &[usize], at: usize| positions.iter().position(|&p| p == at);
        let in_place = kernel.in_place.into_iter().filter(|&(_, input)| input < inputs);
        let in_place = in_place
            .filter_map(|(output, input)| Some((position(&write_at, output)?, position(&read_at, input)?)));
        let in_place = in_place.collect();
        self.tasks.push(Task {
            deed: Deed::Run(id),
            reads,
            writes,
            in_place,
            workspace: kernel.workspace,
            nanoseconds: kernel.nanoseconds,
            tail,
            rank: rank_of(id),
            after: Vec::new(),
        });
        task
    }

    /// Makes a run one in pieces: what passes through needs two pieces of scratch and the disk's time.
    fn stream(&mut self, task: TaskId, node: NodeId, kernel_workspace: usize) {
        let states = (0..self.streams.len()).filter(|&i| self.streams[i] == Some(node));
        let types = states.map(|i| self.graph.ty(self.graph.states[i].input));
        let (mut pieces, mut passing) = (0, 0);
        for ty in types {
            pieces += PIECE * ty.dtype.bytes();
            passing += ty.bytes();
        }
        let task = &mut self.tasks[task];
        task.deed = Deed::Stream(node);
        task.workspace = kernel_workspace.next_multiple_of(self.alignment) + 2 * pieces;
        task.nanoseconds = streaming(task.nanoseconds, passing, self.disk);
    }

    /// Whether a value is a state that passes through a node, or its new version.
    pub fn passes(&self, value: ValueId) -> bool {
        self.passing[value.index()]
    }

    /// The item a task reads for a root value. After the last micro-batch a slice of the batch and a sum before its
    /// last addition are no longer in their place: the tail reads a copy.
    fn item_read(&mut self, root: ValueId, tail: bool, rank: usize) -> ItemId {
        let moves_on = match self.graph.origin(root) {
            Origin::Input(i) => self.graph.inputs[i].batched && self.repeats(),
            Origin::Carry(_) => self.is_rewritten(root),
            _ => false,
        };
        if tail && moves_on { self.snapshot(root) } else { self.present(root, tail, rank) }
    }

    fn pin_outputs(&mut self) {
        for output in &self.graph.outputs {
            let root = self.roots[output.value.index()];
            let in_place = match self.graph.origin(root) {
                Origin::Input(i) => !(self.graph.inputs[i].batched && self.repeats()),
                Origin::State(_) | Origin::Carry(_) => !self.is_rewritten(root),
                Origin::Node { .. } => true,
            };
            let last = self.graph.nodes.len() * 4;
            let item = if in_place { self.present(root, false, last) } else { self.snapshot(root) };
            self.items[item].pinned = true;
            self.outputs.push(item);
        }
    }

    /// Sums must not overflow; past this, no machine has the memory anyway.
    fn check_sizes(&self, name: &str) -> Result<(), PlanError> {
        let sizes = self.items.iter().map(|i| i.size).chain(self.tasks.iter().map(|t| t.workspace));
        let total = sizes.map(|s| s.saturating_add(self.alignment) as u128).sum::<u128>();
        if total < 1 << 62 {
            return Ok(());
        }
        let Some(item) = self.items.iter().max_by_key(|i| i.size) else { return Ok(()) };
        Err(PlanError::TooLarge { plan: name.to_string(), ty: self.graph.ty(item.value).clone() })
    }
}

/// The nodes that states pass through.
fn streams(graph: &Graph, homes: &[InFile]) -> Vec<Option<NodeId>> {
    if !homes.contains(&InFile::Pieces) {
        return vec![None; homes.len()];
    }
    let nodes = through(graph).into_iter().zip(homes);
    nodes.map(|(node, home)| node.filter(|_| *home == InFile::Pieces)).collect()
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
        .chain(graph.carries.iter().map(|c| c.output))
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
fn check_phases(graph: &Graph, tail: &[bool], live: &[bool]) -> Result<(), String> {
    let in_tail = |v: ValueId| graph.producer(v).is_some_and(|n| tail[n.index()]);
    for id in graph.node_ids().filter(|id| live[id.index()] && !tail[id.index()]) {
        let node = graph.node(id);
        if let Some(value) = node.accumulate.iter().find(|v| in_tail(**v)) {
            return Err(format!(
                "layer `{}`: {} adds to {value} in every micro-batch, but that exists only after the last",
                node.layer,
                node.op.name()
            ));
        }
    }
    match graph.carries.iter().find(|c| in_tail(c.output)) {
        Some(carry) => Err(format!("carry {} depends on another carry's finished sum", carry.input)),
        None => Ok(()),
    }
}

/// Pairs (running sum, output) of a node: which output is added to which sum.
pub(crate) fn folds(graph: &Graph, flows: &[Flow], node: &Node) -> Vec<(usize, usize)> {
    let folded = |o: &usize| flows[node.outputs[*o].index()] == Flow::Folded;
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
