//! Which elementwise nodes run as one region.

use super::is_fusible;
use super::widening::is_widening;
use crate::LOSS;
use plimsoll_graph::op::Rematerialization;
use plimsoll_graph::{Graph, NodeId, ValueId};
use std::collections::BTreeSet;

/// Nodes of one region at most, so that its registers fit a cache.
const MOST_INSTRUCTIONS: usize = 48;

/// Groups that the search for a path between two groups visits at most. It bounds the time of all searches by the size of
/// the graph, and keeps apart only groups that are far from each other.
const MOST_VISITED: usize = 4096;

/// The nodes that run together.
pub(super) struct Groups {
    /// The group of each node; a node alone is its own group.
    group: Vec<usize>,
    members: Vec<Vec<NodeId>>,
    /// Nodes that run once, after the last micro-batch.
    optimizer_step: Vec<bool>,
    /// The number of the last search that visited a group.
    visited: Vec<u32>,
    search: u32,
}

impl Groups {
    /// Grows groups along the graph: each elementwise node joins its producers' groups where nothing between them
    /// would have to run both before and after the joined group.
    pub fn new(graph: &Graph) -> Self {
        let count = graph.nodes.len();
        let mut groups = Self {
            group: (0..count).collect(),
            members: (0..count).map(|i| vec![NodeId(i as u32)]).collect(),
            optimizer_step: graph.optimizer_step(),
            visited: vec![0; count],
            search: 0,
        };
        let readers = graph.readers();
        // A widening cast joins its only reader, whatever else that one joins.
        let has_one_reader =
            |value: ValueId| matches!(readers[value.index()][..], [reader] if is_fusible(graph.node(reader)));
        let mut absorbed = vec![false; count];
        for id in graph.node_ids() {
            let node = graph.node(id);
            if is_widening(graph, node) && has_one_reader(node.outputs[0]) {
                let reader = readers[node.outputs[0].index()][0];
                if groups.same_phase(graph, id, reader) {
                    groups.join(id.index(), reader.index());
                    absorbed[id.index()] = true;
                }
            }
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            if !is_fusible(node) || absorbed[id.index()] {
                continue;
            }
            let producer = |v: ValueId| graph.producer(v);
            let direct = node.inputs.iter().filter_map(|&v| producer(v));
            let behind = direct.clone().filter(|p| absorbed[p.index()]).map(|p| graph.node(p).inputs[0]);
            let producers: BTreeSet<NodeId> =
                direct.filter(|p| !absorbed[p.index()]).chain(behind.filter_map(producer)).collect();
            for producer in producers {
                let (a, b) = (groups.group[producer.index()], groups.group[id.index()]);
                let fits = is_fusible(graph.node(producer))
                    && graph.ty(graph.node(producer).outputs[0]).shape == graph.ty(node.outputs[0]).shape
                    // Fused across the loss, a mask that `save` computes in forward would be computed in backward, and
                    // its operands kept until then.
                    && groups.same_phase(graph, producer, id);
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

    /// Whether no path leaves the two groups and comes back, with every other group taken as one node. A search that
    /// takes too long counts as a path.
    fn is_convex(&mut self, graph: &Graph, readers: &[Vec<NodeId>], a: usize, b: usize) -> bool {
        let last = self.members[a].iter().chain(&self.members[b]).max().copied();
        self.search += 1;
        let mut stack = vec![a, b];
        for visited in 0.. {
            let Some(from) = stack.pop() else { break };
            let inside = from == a || from == b;
            // A group whose first member comes after both cannot lead back into them.
            if !inside && self.members[from].first().copied() > last {
                continue;
            }
            let values = self.members[from].iter().flat_map(|&member| &graph.node(member).outputs);
            for to in values.flat_map(|v| &readers[v.index()]).map(|reader| self.group[reader.index()]) {
                if to == a || to == b {
                    if !inside {
                        return false;
                    }
                } else if std::mem::replace(&mut self.visited[to], self.search) != self.search {
                    stack.push(to);
                }
            }
            if visited > MOST_VISITED {
                return false;
            }
        }
        true
    }

    /// Nodes of other groups that a group computes itself instead of reading their outputs: short chains of trivial ops
    /// from values no larger than the one read, so that it need not be stored.
    pub fn duplicates(&self, graph: &Graph, members: &[NodeId]) -> Vec<NodeId> {
        let mut duplicated = BTreeSet::new();
        for &id in members.iter().filter(|id| is_fusible(graph.node(**id))) {
            for &value in &graph.node(id).inputs {
                let Some(producer) = graph.producer(value) else { continue };
                let elsewhere = self.group[producer.index()] != self.group[id.index()];
                let same = graph.ty(value).shape == graph.ty(graph.node(id).outputs[0]).shape;
                if elsewhere && same && self.same_phase(graph, producer, id) {
                    duplicated.extend(chain(graph, producer).unwrap_or_default());
                }
            }
        }
        duplicated.into_iter().collect()
    }

    /// Whether two nodes run on the same side of the loss and of the last micro-batch.
    fn same_phase(&self, graph: &Graph, a: NodeId, b: NodeId) -> bool {
        let loss = graph.output(LOSS).and_then(|v| graph.producer(v));
        let backward = |id: NodeId| loss.is_some_and(|loss| id > loss);
        self.optimizer_step[a.index()] == self.optimizer_step[b.index()] && backward(a) == backward(b)
    }

    /// The groups in a topological order that is as near as possible to the graph's.
    pub fn ordered(&self, graph: &Graph) -> Vec<Vec<NodeId>> {
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

/// Ops of a chain that is recomputed rather than stored, at most; widening casts do not count.
const MOST_DUPLICATED: usize = 3;

/// The trivial ops that compute a value from at most one value as large as itself, if they are few.
fn chain(graph: &Graph, last: NodeId) -> Option<Vec<NodeId>> {
    let size = graph.ty(graph.node(last).outputs[0]).shape.elements();
    let mut nodes = BTreeSet::from([last]);
    let mut large = BTreeSet::new();
    let mut stack = vec![last];
    while let Some(id) = stack.pop() {
        let node = graph.node(id);
        let trivial =
            is_fusible(node) && node.op.properties().rematerialization == Rematerialization::Trivial;
        let counted = nodes.iter().filter(|&&n| !is_widening(graph, graph.node(n))).count();
        if !(trivial || is_widening(graph, node)) || counted > MOST_DUPLICATED {
            return None;
        }
        for &value in &node.inputs {
            let producer = graph.producer(value).filter(|p| is_fusible(graph.node(*p)));
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
