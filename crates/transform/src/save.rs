//! Decides what backward reads from forward and what it makes again.
//!
//! Backward's needs are cut off from forward at the fewest bytes: a value is either kept, or made again by cheap ops
//! from values that are. Products, convolutions, attention and reductions are never made again here. To keep the work
//! small and bounded, a value may be made again from at most [`LARGE_LEAVES`] large values: without that, a residual
//! network's stream would be made again from every block before it.

use crate::LOSS;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Elementwise, Movement};
use plimsoll_graph::{FlowNetwork, Graph, GraphError, Node, NodeId, Op, Origin, ValueId};

/// Large values that a value made again may be made from.
const LARGE_LEAVES: usize = 2;

/// Replaces backward's reads of forward values by cheaper ones, where that keeps fewer bytes alive in between.
/// A graph without an output named `loss` is returned as it is.
pub fn save(graph: &Graph) -> Result<Graph, GraphError> {
    let Some(loss) = graph.output(LOSS) else { return Ok(graph.clone()) };
    let split = Split::new(graph, loss);
    let kept = split.cut();
    split.rebuild(&kept)
}

/// Whether an op is cheap enough to run twice. Ops of several outputs never are: a cut has one value for each.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Elementwise(_) | Op::Random(_) => true,
        Op::Movement(op) => !matches!(op, Movement::Split { .. }),
        _ => false,
    }
}

fn is_constant(op: &Op) -> bool {
    matches!(op, Op::Elementwise(Elementwise::Constant { .. }))
}

struct Split<'g> {
    graph: &'g Graph,
    /// Nodes that the loss depends on.
    forward: Vec<bool>,
    /// Nodes that depend on forward values alone: forward ones, and cheap ones that only backward reads.
    early: Vec<bool>,
    /// For early nodes: whether their output may be made again.
    repeatable: Vec<bool>,
}

impl<'g> Split<'g> {
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
            // Constants come along: they cost nothing wherever they are.
            early[id.index()] |= is_cheap(&node.op) && node.inputs.iter().all(known);
        }
        let mut split = Self { graph, forward, early, repeatable: Vec::new() };
        split.repeatable = split.find_repeatable();
        split
    }

    fn find_repeatable(&self) -> Vec<bool> {
        let mut repeatable = vec![false; self.graph.nodes.len()];
        let mut leaves: Vec<Vec<ValueId>> = vec![Vec::new(); self.graph.value_count()];
        for value in self.graph.value_ids() {
            if self.graph.producer(value).is_none() {
                leaves[value.index()] = vec![value];
            }
        }
        for id in self.graph.node_ids().filter(|id| self.early[id.index()]) {
            let node = self.graph.node(id);
            let mut from: Vec<ValueId> = node.inputs.iter().flat_map(|v| leaves[v.index()].clone()).collect();
            from.sort_unstable();
            from.dedup();
            let output = node.outputs[0];
            // A leaf counts as large if it is not much smaller than what is made: statistics and biases are free.
            let size = self.graph.ty(output).shape.elements();
            let large = from.iter().filter(|v| self.graph.ty(**v).shape.elements() * 4 > size).count();
            let may = is_cheap(&node.op) && large <= LARGE_LEAVES;
            repeatable[id.index()] = may;
            for &v in &node.outputs {
                leaves[v.index()] = if may { from.clone() } else { vec![v] };
            }
        }
        repeatable
    }

    fn is_repeatable(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_some_and(|p| self.repeatable[p.index()])
    }

    fn is_early(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_none_or(|p| self.early[p.index()])
    }

    /// The values to keep: a minimum cut between what forward makes and what backward reads.
    fn cut(&self) -> Vec<bool> {
        let count = self.graph.value_count();
        let (source, sink) = (2 * count, 2 * count + 1);
        let (enter, leave) = (|v: ValueId| 2 * v.index(), |v: ValueId| 2 * v.index() + 1);
        let mut network = FlowNetwork::new(2 * count + 2);
        for value in self.graph.value_ids().filter(|&v| self.is_early(v)) {
            network.edge(enter(value), leave(value), self.price(value));
            if !self.is_repeatable(value) {
                network.edge(source, enter(value), FlowNetwork::INFINITE);
            }
        }
        for id in self.graph.node_ids() {
            let node = self.graph.node(id);
            for &input in node.inputs.iter().filter(|v| self.is_early(**v)) {
                if !self.early[id.index()] {
                    network.edge(leave(input), sink, FlowNetwork::INFINITE);
                } else if self.repeatable[id.index()] {
                    network.edge(leave(input), enter(node.outputs[0]), FlowNetwork::INFINITE);
                }
            }
        }
        network.min_cut(source, sink);
        let side = network.sink_side(sink);
        self.graph.value_ids().map(|v| self.is_early(v) && !side[enter(v)] && side[leave(v)]).collect()
    }

    /// Bytes that keeping a value costs; states lie there anyway.
    fn price(&self, value: ValueId) -> u64 {
        match self.graph.origin(value) {
            Origin::State(_) => 0,
            Origin::Node { node, .. } if is_constant(&self.graph.node(node).op) => 0,
            _ => self.graph.ty(value).bytes() as u64,
        }
    }

    /// Emits forward with what is kept, then backward with the rest made again where it is first read.
    fn rebuild(&self, kept: &[bool]) -> Result<Graph, GraphError> {
        let mut r = Rewriter::new(self.graph);
        let keep_early = self.kept_early_nodes(kept);
        for id in self.forward_order(&keep_early) {
            r.copy(self.graph.node(id))?;
        }
        // What backward reads in place of a forward value: entering values, kept ones, and what it has made again.
        let mut late: Vec<Option<ValueId>> = vec![None; self.graph.value_count()];
        for value in self.graph.value_ids() {
            let stays =
                self.graph.producer(value).is_none() || kept[value.index()] || !self.is_repeatable(value);
            if stays {
                late[value.index()] = r.map[value.index()];
            }
        }
        for id in self.graph.node_ids().filter(|id| !self.early[id.index()]) {
            let node = self.graph.node(id);
            for value in node.reads() {
                self.make_again(&mut r, &mut late, value)?;
            }
            let outputs = r.emit(node, |_, v| late[v.index()].expect("made again above"))?;
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
                self.make_again(&mut r, &mut late, value)?;
                r.map[value.index()] = late[value.index()];
            }
        }
        r.finish()
    }

    /// Forward's nodes in order, each followed by the kept early nodes that it completes: a mask is made, and what it
    /// is made of dropped, as soon as possible.
    fn forward_order(&self, keep_early: &[bool]) -> Vec<NodeId> {
        let mut ready = vec![0; self.graph.nodes.len()];
        let mut order: Vec<NodeId> = Vec::new();
        for id in self.graph.node_ids().filter(|id| self.forward[id.index()] || keep_early[id.index()]) {
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

    /// Early nodes outside forward that have to run with forward, because what they make is kept.
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

    fn make_again(
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
            let node: &Node =
                self.graph.node(self.graph.producer(value).expect("entering values are always there"));
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
