//! Decides what forward saves for backward and what backward rematerializes.
//!
//! A minimum cut between forward and backward finds the fewest bytes to keep: backward either reads a forward value that
//! was kept, or recomputes it by cheap ops ([`Rematerialization::Cheap`]) from kept ones. To bound the work, a value may
//! be recomputed from at most [`LARGE_SOURCES`] large values: otherwise the residual stream of a network would be
//! recomputed from every block before.

use crate::LOSS;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Elementwise, Rematerialization};
use plimsoll_graph::{FlowNetwork, Graph, GraphError, Node, NodeId, Op, Origin, ValueId};

/// Large values that a rematerialized value may be computed from.
const LARGE_SOURCES: usize = 2;

/// Replaces backward's reads of forward values by rematerialized ones where that keeps fewer bytes alive in between.
/// A graph without an output named `loss` is returned as it is.
pub fn save(graph: &Graph) -> Result<Graph, GraphError> {
    let Some(loss) = graph.output(LOSS) else { return Ok(graph.clone()) };
    let partition = Partition::new(graph, loss);
    let kept = partition.cut();
    partition.rebuild(&kept)
}

/// Whether backward may recompute an op.
fn is_cheap(op: &Op) -> bool {
    match op.properties().rematerialization {
        Rematerialization::Trivial | Rematerialization::Cheap => true,
        Rematerialization::Costly => false,
    }
}

fn is_constant(op: &Op) -> bool {
    matches!(op, Op::Elementwise(Elementwise::Constant { .. }))
}

/// A step's nodes on either side of the cut.
struct Partition<'g> {
    graph: &'g Graph,
    /// Nodes that the loss depends on.
    forward: Vec<bool>,
    /// Nodes that depend on forward values alone: forward ones, and cheap ones that only backward reads.
    early: Vec<bool>,
    /// For early nodes: whether backward may recompute their output.
    rematerializable: Vec<bool>,
}

impl<'g> Partition<'g> {
    fn new(graph: &'g Graph, loss: ValueId) -> Self {
        let mut forward = vec![false; graph.nodes.len()];
        let mut stack = vec![loss];
        while let Some(value) = stack.pop() {
            if let Some(node) = graph.producer(value)
                && !std::mem::replace(&mut forward[node.index()], true)
            {
                stack.extend(graph.node(node).reads());
            }
        }
        let mut early = forward.clone();
        for id in graph.node_ids() {
            let node = graph.node(id);
            let known = |v: &ValueId| graph.producer(*v).is_none_or(|p| early[p.index()]);
            // Constants count as early, too: they cost nothing on either side.
            early[id.index()] |= is_cheap(&node.op) && node.inputs.iter().all(known);
        }
        let mut partition = Self { graph, forward, early, rematerializable: Vec::new() };
        partition.rematerializable = partition.find_rematerializable();
        partition
    }

    fn find_rematerializable(&self) -> Vec<bool> {
        let mut rematerializable = vec![false; self.graph.nodes.len()];
        // The values that each value would be recomputed from.
        let mut sources: Vec<Vec<ValueId>> = vec![Vec::new(); self.graph.value_count()];
        for value in self.graph.value_ids() {
            if self.graph.producer(value).is_none() {
                sources[value.index()] = vec![value];
            }
        }
        for id in self.graph.node_ids().filter(|id| self.early[id.index()]) {
            let node = self.graph.node(id);
            let mut from: Vec<ValueId> =
                node.inputs.iter().flat_map(|v| sources[v.index()].clone()).collect();
            from.sort_unstable();
            from.dedup();
            let output = node.outputs[0];
            // A source is large if it is not much smaller than the output: statistics and biases are free.
            let size = self.graph.ty(output).shape.elements();
            let large = from.iter().filter(|v| self.graph.ty(**v).shape.elements() * 4 > size).count();
            let may = is_cheap(&node.op) && large <= LARGE_SOURCES;
            rematerializable[id.index()] = may;
            for &v in &node.outputs {
                sources[v.index()] = if may { from.clone() } else { vec![v] };
            }
        }
        rematerializable
    }

    fn is_rematerializable(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_some_and(|p| self.rematerializable[p.index()])
    }

    fn is_early(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_none_or(|p| self.early[p.index()])
    }

    /// The values to keep: a minimum cut between what forward computes and what backward reads.
    fn cut(&self) -> Vec<bool> {
        let count = self.graph.value_count();
        let (source, sink) = (2 * count, 2 * count + 1);
        let (enter, leave) = (|v: ValueId| 2 * v.index(), |v: ValueId| 2 * v.index() + 1);
        let mut network = FlowNetwork::new(2 * count + 2);
        for value in self.graph.value_ids().filter(|&v| self.is_early(v)) {
            network.edge(enter(value), leave(value), self.price(value));
            if !self.is_rematerializable(value) {
                network.edge(source, enter(value), FlowNetwork::INFINITE);
            }
        }
        for id in self.graph.node_ids() {
            let node = self.graph.node(id);
            for &input in node.inputs.iter().filter(|v| self.is_early(**v)) {
                if !self.early[id.index()] {
                    network.edge(leave(input), sink, FlowNetwork::INFINITE);
                } else if self.rematerializable[id.index()] {
                    network.edge(leave(input), enter(node.outputs[0]), FlowNetwork::INFINITE);
                }
            }
        }
        network.min_cut(source, sink);
        let side = network.sink_side(sink);
        self.graph.value_ids().map(|v| self.is_early(v) && !side[enter(v)] && side[leave(v)]).collect()
    }

    /// Bytes that keeping a value costs; states are in memory anyway.
    fn price(&self, value: ValueId) -> u64 {
        match self.graph.origin(value) {
            Origin::State(_) => 0,
            Origin::Node { node, .. } if is_constant(&self.graph.node(node).op) => 0,
            Origin::Input(_) | Origin::Accumulator(_) | Origin::Node { .. } => {
                self.graph.ty(value).bytes() as u64
            }
        }
    }

    /// Emits forward with what is kept, then backward, with the rest rematerialized where it is first read.
    fn rebuild(&self, kept: &[bool]) -> Result<Graph, GraphError> {
        let mut r = Rewriter::new(self.graph);
        let kept_early = self.kept_early_nodes(kept);
        for id in self.forward_order(&kept_early) {
            r.copy(self.graph.node(id))?;
        }
        // What backward reads for each old value: one that enters the graph, a kept one, or a rematerialized one.
        let mut late: Vec<Option<ValueId>> = vec![None; self.graph.value_count()];
        for value in self.graph.value_ids() {
            let stays = self.graph.producer(value).is_none()
                || kept[value.index()]
                || !self.is_rematerializable(value);
            if stays {
                late[value.index()] = r.map[value.index()];
            }
        }
        for id in self.graph.node_ids().filter(|id| !self.early[id.index()]) {
            let node = self.graph.node(id);
            for value in node.reads() {
                self.rematerialize(&mut r, &mut late, value)?;
            }
            let outputs = r.emit(node, |_, v| late[v.index()].expect("rematerialized above"))?;
            for (&old, &new) in node.outputs.iter().zip(&outputs) {
                late[old.index()] = Some(new);
            }
            r.set(node, &outputs);
        }
        // A state or an output may be an early value that neither forward nor backward reads.
        let ends = self
            .graph
            .states
            .iter()
            .filter_map(|s| s.output)
            .chain(self.graph.outputs.iter().map(|o| o.value));
        for value in ends {
            if r.map[value.index()].is_none() {
                self.rematerialize(&mut r, &mut late, value)?;
                r.map[value.index()] = late[value.index()];
            }
        }
        r.finish()
    }

    /// Forward's nodes in order, each followed by the kept early nodes that it completes: a mask is computed, and its
    /// operands are freed, as soon as possible.
    fn forward_order(&self, kept_early: &[bool]) -> Vec<NodeId> {
        let mut ready = vec![0; self.graph.nodes.len()];
        let mut order: Vec<NodeId> = Vec::new();
        for id in self.graph.node_ids().filter(|id| self.forward[id.index()] || kept_early[id.index()]) {
            ready[id.index()] = if self.forward[id.index()] {
                id.index()
            } else {
                let producers = self.graph.node(id).reads().filter_map(|v| self.graph.producer(v));
                producers.map(|p| ready[p.index()]).max().unwrap_or(0)
            };
            order.push(id);
        }
        order.sort_by_key(|id| (ready[id.index()], *id));
        order
    }

    /// Early nodes outside forward that run with forward, because their outputs are kept.
    fn kept_early_nodes(&self, kept: &[bool]) -> Vec<bool> {
        let mut wanted = vec![false; self.graph.nodes.len()];
        let mut stack: Vec<NodeId> = Vec::new();
        let push = |value: ValueId, stack: &mut Vec<NodeId>, wanted: &mut Vec<bool>| {
            if let Some(p) = self.graph.producer(value)
                && self.early[p.index()]
                && !self.forward[p.index()]
                && !std::mem::replace(&mut wanted[p.index()], true)
            {
                stack.push(p);
            }
        };
        for value in self.graph.value_ids().filter(|v| kept[v.index()]) {
            push(value, &mut stack, &mut wanted);
        }
        while let Some(id) = stack.pop() {
            for value in self.graph.node(id).reads() {
                push(value, &mut stack, &mut wanted);
            }
        }
        wanted
    }

    /// Emits the nodes that compute a value for backward, unless it has it.
    fn rematerialize(
        &self,
        r: &mut Rewriter<'_>,
        late: &mut [Option<ValueId>],
        value: ValueId,
    ) -> Result<(), GraphError> {
        // Depth first without recursion: chains can be long.
        let mut stack = vec![value];
        while let Some(&value) = stack.last() {
            if late[value.index()].is_some() {
                stack.pop();
                continue;
            }
            let producer = self.graph.producer(value).expect("values that enter the graph are always there");
            let node: &Node = self.graph.node(producer);
            let missing: Vec<ValueId> = node.reads().filter(|v| late[v.index()].is_none()).collect();
            if missing.is_empty() {
                let outputs = r.emit(node, |_, v| late[v.index()].expect("checked above"))?;
                for (&old, new) in node.outputs.iter().zip(outputs) {
                    late[old.index()] = Some(new);
                }
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        Ok(())
    }
}
