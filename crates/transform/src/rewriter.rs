//! Copies a graph node by node into a new one, with changes.

use plimsoll_graph::{Builder, Graph, GraphError, Input, Node, Op, Origin, State, ValueId};

/// A new graph in the making, and the new value of every old one: what a pass copies a graph through.
pub struct Rewriter<'g> {
    /// The graph that is copied.
    pub old: &'g Graph,
    /// The new graph's builder.
    pub builder: Builder,
    /// New values of old ones, where they are copied.
    pub map: Vec<Option<ValueId>>,
}

impl<'g> Rewriter<'g> {
    /// A new graph with the old one's inputs, states and accumulators, and no nodes.
    pub fn new(old: &'g Graph) -> Self {
        let mut builder = Builder::new(old.examples, old.example_block);
        builder.set_micro_batches(old.micro_batches);
        builder.set_unrolled(old.unrolled);
        Self::entering(old, builder, |_| true, |_| true, |_| true)
    }

    /// As [`Rewriter::keeping`], without the inputs that are batched: for nodes that do not depend on them.
    pub fn without_batch(
        old: &'g Graph,
        keeps: impl Fn(&State) -> bool,
        sums: impl Fn(usize) -> bool,
    ) -> Self {
        Self::entering(old, Builder::new(1, 1), |input| !input.batched, keeps, sums)
    }

    /// As [`Rewriter::without_states`], without the accumulators, by index, that `sums` refuses.
    pub fn keeping(old: &'g Graph, keeps: impl Fn(&State) -> bool, sums: impl Fn(usize) -> bool) -> Self {
        let mut builder = Builder::new(old.examples, old.example_block);
        builder.set_micro_batches(old.micro_batches);
        builder.set_unrolled(old.unrolled);
        Self::entering(old, builder, |_| true, keeps, sums)
    }

    /// As [`Rewriter::new`], without the states that `keeps` refuses; their values have no new ones.
    pub fn without_states(old: &'g Graph, keeps: impl Fn(&State) -> bool) -> Self {
        Self::keeping(old, keeps, |_| true)
    }

    fn entering(
        old: &'g Graph,
        mut builder: Builder,
        takes: impl Fn(&Input) -> bool,
        keeps: impl Fn(&State) -> bool,
        sums: impl Fn(usize) -> bool,
    ) -> Self {
        let mut map = vec![None; old.value_count()];
        for value in old.value_ids() {
            let ty = old.ty(value).clone();
            map[value.index()] = match old.origin(value) {
                Origin::Input(i) if !takes(&old.inputs[i]) => None,
                Origin::Input(i) => Some(builder.input_like(&old.inputs[i], ty)),
                Origin::State(i) if !keeps(&old.states[i]) => None,
                Origin::State(i) => {
                    let state = &old.states[i];
                    Some(builder.named_state(state.name.clone(), ty, state.role, state.init))
                }
                Origin::Accumulator(i) if !sums(i) => None,
                Origin::Accumulator(_) => Some(builder.accumulator(ty)),
                Origin::Node { .. } => None,
            };
        }
        Self { old, builder, map }
    }

    /// The new value of an old one.
    ///
    /// # Panics
    /// If it has not been copied: passes copy in topological order.
    pub fn get(&self, value: ValueId) -> ValueId {
        self.map[value.index()].unwrap_or_else(|| panic!("{value} is read before it is copied"))
    }

    /// Copies a node with its inputs mapped.
    pub fn copy(&mut self, node: &Node) -> Result<(), GraphError> {
        let outputs = self.emit(node, |this, v| this.get(v))?;
        self.set(node, &outputs);
        Ok(())
    }

    /// Emits a node with inputs found by `find`; the map stays as it is.
    pub fn emit(
        &mut self,
        node: &Node,
        find: impl Fn(&Self, ValueId) -> ValueId,
    ) -> Result<Vec<ValueId>, GraphError> {
        let inputs: Vec<_> = node.inputs.iter().map(|&v| find(self, v)).collect();
        let sums: Vec<_> = node.accumulate.iter().map(|&v| find(self, v)).collect();
        self.builder.within(node.layer.clone(), |b| b.accumulating(node.op.clone(), &inputs, &sums))
    }

    /// Copies a node with other inputs, which are new values, and returns its outputs; the map stays as it is.
    pub fn emit_with(&mut self, node: &Node, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let sums: Vec<_> = node.accumulate.iter().map(|&v| self.get(v)).collect();
        self.builder.within(node.layer.clone(), |b| b.accumulating(node.op.clone(), inputs, &sums))
    }

    /// Emits another op with a node's inputs; the map stays as it is.
    pub fn emit_as(&mut self, node: &Node, op: Op) -> Result<Vec<ValueId>, GraphError> {
        let inputs: Vec<_> = node.inputs.iter().map(|&v| self.get(v)).collect();
        self.replace(node, op, &inputs)
    }

    /// Emits another op in a node's layer, on new values.
    pub fn replace(&mut self, node: &Node, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        self.builder.within(node.layer.clone(), |b| b.node(op, inputs))
    }

    /// Maps a node's outputs to new values.
    pub fn set(&mut self, node: &Node, outputs: &[ValueId]) {
        for (&old, &new) in node.outputs.iter().zip(outputs) {
            self.map[old.index()] = Some(new);
        }
    }

    /// The new graph, with the old one's state outputs, accumulators and outputs.
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.close().finish()
    }

    /// As [`Rewriter::finish`], in a step that writes only some states.
    pub fn finish_updating(self, updates: impl Fn(&State) -> bool) -> Result<Graph, GraphError> {
        self.close_updating(updates).finish()
    }

    /// As [`Rewriter::finish`], but more nodes can be added.
    pub fn close(self) -> Builder {
        self.close_updating(|_| true)
    }

    fn close_updating(mut self, updates: impl Fn(&State) -> bool) -> Builder {
        for state in self.old.states.iter().filter(|state| updates(state)) {
            if let Some(output) = state.output {
                let (input, output) = (self.get(state.input), self.get(output));
                self.builder.set_state(input, output);
            }
        }
        for accumulator in &self.old.accumulators {
            let Some(input) = self.map[accumulator.input.index()] else { continue };
            let output = self.get(accumulator.output);
            self.builder.set_accumulator(input, output);
        }
        for output in &self.old.outputs {
            let value = self.get(output.value);
            self.builder.output(&output.name, value);
        }
        self.builder
    }
}

/// For every node, whether a value that leaves the graph depends on it.
pub(crate) fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    let mut stack: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    stack.extend(graph.states.iter().filter_map(|s| s.output));
    stack.extend(graph.accumulators.iter().map(|c| c.output));
    while let Some(value) = stack.pop() {
        if let Some(node) = graph.producer(value)
            && !std::mem::replace(&mut live[node.index()], true)
        {
            stack.extend(graph.node(node).reads());
        }
    }
    live
}

/// The graph without dead nodes.
pub(crate) fn drop_dead(graph: &Graph) -> Result<Graph, GraphError> {
    let live = live_nodes(graph);
    let mut r = Rewriter::new(graph);
    for id in graph.node_ids().filter(|id| live[id.index()]) {
        r.copy(graph.node(id))?;
    }
    r.finish()
}
