//! Joins elementwise ops into regions, and bias and relu into the product before them.

use crate::LOSS;
use crate::rewriter::{Rewriter, drop_dead};
use plimsoll_graph::op::{Binary, Conv, Elementwise, Epilogue, Instruction, Operand, Region, Unary};
use plimsoll_graph::{Graph, GraphError, Node, NodeId, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Instructions in one region at most, so that its registers fit a cache.
const MOST_INSTRUCTIONS: usize = 48;

/// Joins elementwise ops over one shape into [`Region`]s, and bias and relu into the product or convolution before
/// them. Every value keeps its rounding, so the numbers stay the same to the bit.
pub fn fuse(graph: &Graph) -> Result<Graph, GraphError> {
    // Constants that became instructions are left without readers.
    drop_dead(&regions(&epilogues(graph)?)?)
}

/// How often each value is read, leaving the graph included.
fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.value_count()];
    let written = members.iter().map(|&m| graph.node(m).outputs[0]);
    let written: Vec<ValueId> = written.filter(|&v| uses[v.index()] > reads_of(graph, members, v)).collect();
    if written.is_empty() {
        return Ok(());
    }
    let region = Region { instructions, outputs: written.iter().map(|v| results[v]).collect() };
    let last = graph.node(*members.last().expect("groups are not empty"));
    let inputs: Vec<ValueId> = inputs.into_iter().map(|v| r.get(v)).collect();
    let outputs = r.replace(last, Op::Fused(region), &inputs)?;
    for (old, new) in written.into_iter().zip(outputs) {
        r.map[old.index()] = Some(new);
    }
    Ok(())
}

/// Which nodes run together.
struct Groups {
    /// The group of each node; a node alone is its own group.
    group: Vec<usize>,
    members: Vec<Vec<NodeId>>,
    /// Nodes that run after the last micro-batch.
    tail: Vec<bool>,
}

impl Groups {
    /// Grows groups along the graph: each elementwise node joins its producers' groups where nothing between them
    /// would have to run both before and after the joined group.
    fn new(graph: &Graph) -> Self {
        let count = graph.nodes.len();
        let mut groups = Self {
            group: (0..count).collect(),
            members: (0..count).map(|i| vec![NodeId(i as u32)]).collect(),
            tail: graph.tail(),
        };
        let readers = graph.readers();
        for id in graph.node_ids() {
            let node = graph.node(id);
            if !joins(node) {
                continue;
            }
            let producers: BTreeSet<NodeId> = node.inputs.iter().filter_map(|&v| graph.producer(v)).collect();
            for producer in producers {
                let (a, b) = (groups.group[producer.index()], groups.group[id.index()]);
                let fits = joins(graph.node(producer))
                    && graph.ty(graph.node(producer).outputs[0]).shape == graph.ty(node.outputs[0]).shape
                    // Joined across the loss, a mask that `save` had made in forward would be made in backward, and
                    // what it is made of kept until then.
                    && groups.same_time(graph, producer, id);
                let small = groups.members[a].len() + groups.members[b].len() <= MOST_INSTRUCTIONS;
                if a != b && fits && small && groups.is_convex(graph, &readers, a, b) {
                    groups.join(a, b);
                }
            }
        }
        groups
    }

    fn join(&mut self, a: usize, b: usize) {
        for member in std::mem::take(&mut self.members[a]) {
            self.group[member.index()] = b;
            self.members[b].push(member);
        }
        self.members[b].sort_unstable();
    }

    /// Whether no path leaves the two groups and comes back, with every other group taken as one node.
    fn is_convex(&self, graph: &Graph, readers: &[Vec<NodeId>], a: usize, b: usize) -> bool {
        let both = |node: NodeId| [a, b].contains(&self.group[node.index()]);
        let last = self.members[a].iter().chain(&self.members[b]).max().copied();
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut stack: Vec<usize> = Vec::new();
        let leave = |from: usize, stack: &mut Vec<usize>, seen: &mut BTreeSet<usize>, start: bool| {
            for &member in &self.members[from] {
                for &value in &graph.node(member).outputs {
                    for &reader in &readers[value.index()] {
                        if both(reader) {
                            if !start {
                                return false;
                            }
                        } else if seen.insert(self.group[reader.index()]) {
                            stack.push(self.group[reader.index()]);
                        }
                    }
                }
            }
            true
        };
        for from in [a, b] {
            leave(from, &mut stack, &mut seen, true);
        }
        while let Some(group) = stack.pop() {
            // A group whose first member comes after both cannot lead back into them.
            if self.members[group].first().copied() > last {
                continue;
            }
            if !leave(group, &mut stack, &mut seen, false) {
                return false;
            }
        }
        true
    }

    /// Nodes of other groups that a group runs for itself instead of reading what they make: short chains of cheap ops
    /// on values that are as small as the one read, so that the chain's result need not be stored.
    fn repeats(&self, graph: &Graph, members: &[NodeId]) -> Vec<NodeId> {
        let mut repeated = BTreeSet::new();
        for &id in members.iter().filter(|id| joins(graph.node(**id))) {
            for &value in &graph.node(id).inputs {
                let Some(producer) = graph.producer(value) else { continue };
                let elsewhere = self.group[producer.index()] != self.group[id.index()];
                let same = graph.ty(value).shape == graph.ty(graph.node(id).outputs[0]).shape;
                if elsewhere && same && self.same_time(graph, producer, id) {
                    repeated.extend(chain(graph, producer).unwrap_or_default());
                }
            }
        }
        repeated.into_iter().collect()
    }

    /// Whether two nodes run on the same side of the loss and of the last micro-batch.
    fn same_time(&self, graph: &Graph, a: NodeId, b: NodeId) -> bool {
        let loss = graph.output(LOSS).and_then(|v| graph.producer(v));
        let backward = |id: NodeId| loss.is_some_and(|loss| id > loss);
        self.tail[a.index()] == self.tail[b.index()] && backward(a) == backward(b)
    }

    /// The groups in an order in which each comes after what it reads, as near to the graph's order as that allows.
    fn ordered(&self, graph: &Graph) -> Vec<Vec<NodeId>> {
        let mut waits: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.members.len()];
        let mut feeds: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.members.len()];
        for id in graph.node_ids() {
            for producer in graph.node(id).reads().filter_map(|v| graph.producer(v)) {
                let (from, to) = (self.group[producer.index()], self.group[id.index()]);
                if from != to {
                    waits[to].insert(from);
                    feeds[from].insert(to);
                }
            }
        }
        let key = |g: usize| (self.members[g].first().copied(), g);
        let groups = (0..self.members.len()).filter(|&g| !self.members[g].is_empty());
        let mut ready: BTreeSet<_> = groups.filter(|&g| waits[g].is_empty()).map(key).collect();
        let mut order = Vec::new();
        while let Some(next) = ready.pop_first() {
            let group = next.1;
            order.push(self.members[group].clone());
            for &to in &feeds[group] {
                waits[to].remove(&group);
                if waits[to].is_empty() {
                    ready.insert(key(to));
                }
            }
        }
        order
    }
}

/// Ops in a chain that is rather run again than stored.
const MOST_REPEATED: usize = 3;

/// The cheap ops that make a value from at most one value as large as itself, if few do.
fn chain(graph: &Graph, last: NodeId) -> Option<Vec<NodeId>> {
    let size = graph.ty(graph.node(last).outputs[0]).shape.elements();
    let mut nodes = BTreeSet::from([last]);
    let mut large = BTreeSet::new();
    let mut stack = vec![last];
    while let Some(id) = stack.pop() {
        let node = graph.node(id);
        let cheap = matches!(node.op, Op::Elementwise(Elementwise::Binary(op)) if op != Binary::Div);
        if !cheap || nodes.len() > MOST_REPEATED {
            return None;
        }
        for &value in &node.inputs {
            let producer = graph.producer(value).filter(|p| joins(graph.node(*p)));
            let producer = producer.filter(|_| graph.ty(value).shape.elements() == size);
            match producer {
                Some(p) if nodes.insert(p) => stack.push(p),
                Some(_) => {}
                None if graph.ty(value).shape.elements() * 4 > size => {
                    large.insert(value);
                }
                None => {}
            }
        }
    }
    (large.len() <= 1).then(|| nodes.into_iter().collect())
}

/// Whether a node can be part of a region. Constants join by being copied in.
fn joins(node: &Node) -> bool {
    matches!(node.op, Op::Elementwise(_)) && !is_constant(node)
}
