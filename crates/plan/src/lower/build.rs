//! Builds the task graph of a graph: a task for every live node, with loads, copies and chunked updates where states need them.

use super::task_graph::{Home, StateTier, Task, TaskGraph, TaskId, TaskKind, TensorId, rank_of};
use super::{CHUNK_ELEMENTS, ChunkTypes, aliasing, chunkable_updates};
use crate::predict::chunked_update_ns;
use crate::{Kernel, KernelQuery, PerTier, PlanError, Target, Tiers};
use plimsoll_graph::{BatchRelation, Graph, GraphError, Node, NodeId, Origin, ValueId};

impl<'a> TaskGraph<'a> {
    /// The tasks of one run of a checked graph.
    pub fn new(
        name: &str,
        graph: &'a Graph,
        target: &dyn Target,
        state_tiers: &'a [StateTier],
        tiers: &Tiers,
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
            state_tiers,
            chunked_by: chunked_by(graph, target, state_tiers),
            chunked: vec![false; graph.value_count()],
            tiers: *tiers,
            copy_ns_per_mib: target.copy_ns_per_mib(),
        };
        for (state, _) in graph.states.iter().zip(&task_graph.chunked_by).filter(|(_, node)| node.is_some()) {
            [Some(state.input), state.output]
                .into_iter()
                .flatten()
                .for_each(|v| task_graph.chunked[v.index()] = true);
        }
        task_graph.add_entering();
        let marks = graph.batch_marks();
        for id in graph.node_ids().filter(|id| live[id.index()] && !graph.node(*id).op.is_view()) {
            let node = graph.node(id);
            let unsupported = |source| PlanError::Unsupported { layer: node.layer.to_string(), source };
            let kernel = target.kernel(&KernelQuery::new(graph, &marks, node)).map_err(unsupported)?;
            let task = task_graph.add_run(id, kernel, optimizer_step[id.index()]);
            if task_graph.chunked_by.contains(&Some(id))
                && let Some(types) = ChunkTypes::new(graph, node, CHUNK_ELEMENTS)
            {
                let kernel = target.kernel(&types.query(&node.op)).map_err(unsupported)?;
                task_graph.make_chunked(task, id, kernel.workspace);
            }
        }
        task_graph.pin_outputs();
        let batch_relations: Vec<BatchRelation> = marks.iter().map(|mark| mark.relation).collect();
        aliasing::alias_in_place(&mut task_graph, &batch_relations);
        for task in &mut task_graph.tasks {
            task.after.sort_unstable();
            task.after.dedup();
        }
        task_graph.check_sizes(name)?;
        Ok(task_graph)
    }

    /// Adds the tensors of resident states, inputs and accumulators.
    fn add_entering(&mut self) {
        let graph = self.graph;
        let resident = |i: usize| self.state_tiers[i] == StateTier::Arena;
        for (i, state) in graph.states.iter().enumerate().filter(|(i, _)| resident(*i)) {
            self.add_entering_one(state.input, 1, Home::State(i));
        }
        for (i, input) in graph.inputs.iter().enumerate() {
            let times = if input.batched { graph.micro_batches } else { 1 };
            self.add_entering_one(input.value, times, Home::Input(i));
        }
        for (i, accumulator) in graph.accumulators.iter().enumerate() {
            self.add_entering_one(accumulator.input, 1, Home::Accumulator(i));
        }
    }

    fn add_entering_one(&mut self, value: ValueId, times: usize, home: Home) {
        let bytes = self.graph.ty(value).bytes().saturating_mul(times);
        self.tensor_of[value.index()] = Some(self.add_tensor(value, bytes, home));
    }

    /// Adds a node's task with its outputs and the dependencies on its inputs.
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

    /// Turns a node's task into a chunked update, with two chunks of scratch for every offloaded state, and the links' time.
    fn make_chunked(&mut self, task: TaskId, node: NodeId, kernel_workspace: usize) {
        let states = (0..self.chunked_by.len()).filter(|&i| self.chunked_by[i] == Some(node));
        let (mut chunks, mut chunked) = (0, PerTier::<u64>::default());
        for state in states {
            let ty = self.graph.ty(self.graph.states[state].input);
            chunks += CHUNK_ELEMENTS * ty.dtype.bytes();
            if let Some(tier) = self.state_tiers[state].tier() {
                chunked[tier] += ty.bytes() as u64;
            }
        }
        let task = &mut self.tasks[task];
        task.kind = TaskKind::ChunkedUpdate(node);
        task.workspace = kernel_workspace.next_multiple_of(self.alignment) + 2 * chunks;
        task.nanoseconds = chunked_update_ns(task.nanoseconds, chunked, &self.tiers);
    }

    /// The tensor that a task reads for a root value. In the optimizer step a slice of the batch, and an accumulator before its
    /// last addition, are overwritten already: it reads a copy.
    fn tensor_read(&mut self, root: ValueId, optimizer_step: bool, rank: usize) -> TensorId {
        let moves_on = match self.graph.origin(root) {
            Origin::Input(i) => self.graph.inputs[i].batched && self.has_micro_batches(),
            Origin::Accumulator(_) => self.is_rewritten(root),
            _ => false,
        };
        if optimizer_step && moves_on {
            self.snapshot(root)
        } else {
            self.resident(root, optimizer_step, rank)
        }
    }

    fn pin_outputs(&mut self) {
        for output in &self.graph.outputs {
            let root = self.roots[output.value.index()];
            let in_place = match self.graph.origin(root) {
                Origin::Input(i) => !(self.graph.inputs[i].batched && self.has_micro_batches()),
                Origin::State(_) | Origin::Accumulator(_) => !self.is_rewritten(root),
                Origin::Node { .. } => true,
            };
            let last = self.graph.nodes.len() * 4;
            let tensor = if in_place { self.resident(root, false, last) } else { self.snapshot(root) };
            self.tensors[tensor].pinned = true;
            self.outputs.push(tensor);
        }
    }

    /// Sums must not overflow; beyond this, no machine has the memory anyway.
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

/// The nodes that update states in chunks.
fn chunked_by(graph: &Graph, target: &dyn Target, tiers: &[StateTier]) -> Vec<Option<NodeId>> {
    let chunked = |tier: &StateTier| matches!(tier, StateTier::Chunked(_));
    if !tiers.iter().any(chunked) {
        return vec![None; tiers.len()];
    }
    let nodes = chunkable_updates(graph, &target.numerics()).into_iter().zip(tiers);
    nodes.map(|(node, home)| node.filter(|_| chunked(home))).collect()
}

/// The value that each value is a view of.
fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = graph.value_ids().collect();
    for node in graph.nodes.iter().filter(|n| n.op.is_view()) {
        if let (&[output], Some(input)) = (&node.outputs[..], node.inputs.first()) {
            roots[output.index()] = roots[input.index()];
        }
    }
    roots
}

/// Which nodes reach a state's new version, an accumulator or an output.
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

/// Tasks of every micro-batch must not depend on the optimizer step.
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
        Some(accumulator) => Err(format!(
            "accumulator {} depends on the final value of another accumulator",
            accumulator.input
        )),
        None => Ok(()),
    }
}

/// Pairs (accumulator, output) of a node: which output is added to which accumulator.
pub(crate) fn folds(graph: &Graph, batch_relations: &[BatchRelation], node: &Node) -> Vec<(usize, usize)> {
    let folded = |o: &usize| batch_relations[node.outputs[*o].index()] == BatchRelation::Reduced;
    let by_flow: Vec<usize> = (0..node.outputs.len()).filter(folded).collect();
    let same_type =
        |sum: usize, output: usize| graph.ty(node.accumulate[sum]) == graph.ty(node.outputs[output]);
    if by_flow.len() == node.accumulate.len() && by_flow.iter().enumerate().all(|(s, &o)| same_type(s, o)) {
        return by_flow.into_iter().enumerate().collect();
    }
    // `Graph::check` guarantees that the accumulators' types are a subsequence of the outputs' types.
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
