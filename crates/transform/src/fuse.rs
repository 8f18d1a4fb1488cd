//! Joins elementwise ops into regions, and bias and relu into the product before them.

use crate::LOSS;
use crate::rewriter::{Rewriter, drop_dead};
use crate::widen::{widened, widens};
use plimsoll_graph::op::{Binary, Conv, Elementwise, Epilogue, Instruction, Operand, Region, Unary};
use plimsoll_graph::{Graph, GraphError, Node, NodeId, Op, ValueId};
use plimsoll_tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that grow into one region at most, so that its registers fit a cache.
const MOST_INSTRUCTIONS: usize = 48;

/// Groups that the search for a path between two others looks at, at most: they lie on the way from one to the other, so
/// that only two that are far apart are kept apart by this, and the time for all searches grows with the graph alone.
const MOST_LOOKED_AT: usize = 4096;

/// Joins elementwise ops over one shape into [`Region`]s, bias, relu and the rounding to a 16-bit float into the product or
/// convolution before them, and the widening of one into the sum after it. Every value keeps its rounding, so the numbers
/// stay the same to the bit.
pub fn fuse(graph: &Graph) -> Result<Graph, GraphError> {
    let mut joined = epilogues(graph)?;
    if joined.value_ids().any(|v| joined.ty(v).dtype.is_low()) {
        joined = widened(&joined)?;
        // Values that are read as they are stored are left without readers of their widened form.
        joined = drop_dead(&joined)?;
    }
    joined = regions(&joined)?;
    // Constants that became instructions are left without readers, too.
    drop_dead(&joined)
}

/// How often each value is read, leaving the graph included.
fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.value_count()];
    let inside = graph.nodes.iter().flat_map(Node::reads);
    let leaving = graph.outputs.iter().map(|o| o.value);
    let states = graph.states.iter().filter_map(|s| s.output);
    let accumulators = graph.accumulators.iter().map(|c| c.output);
    inside.chain(leaving).chain(states).chain(accumulators).for_each(|v| uses[v.index()] += 1);
    uses
}

/// The same op with another epilogue, if it can have one.
fn with_epilogue(op: &Op, change: impl FnOnce(&mut Epilogue, &mut Option<DType>)) -> Option<Op> {
    let mut op = op.clone();
    match &mut op {
        Op::MatMul(product) => change(&mut product.epilogue, &mut product.output),
        Op::Conv(Conv::Forward { epilogue, output, .. }) => change(epilogue, output),
        _ => return None,
    }
    Some(op)
}

/// What a product does to its elements, and the element type that it gives where that is not its operands'.
fn epilogue_of(op: &Op) -> Option<(Epilogue, Option<DType>)> {
    let mut found = None;
    with_epilogue(op, |epilogue, output| found = Some((*epilogue, *output)));
    found
}

fn epilogues(graph: &Graph) -> Result<Graph, GraphError> {
    let uses = uses(graph);
    let mut r = Rewriter::new(graph);
    // Products that wait for their epilogue: by the value that the next op of the epilogue would read.
    let mut waiting: BTreeMap<ValueId, (Op, Vec<ValueId>, &Node)> = BTreeMap::new();
    let flush =
        |r: &mut Rewriter<'_>, waiting: &mut BTreeMap<ValueId, (Op, Vec<ValueId>, &Node)>, v: ValueId| {
            let Some((op, inputs, node)) = waiting.remove(&v) else { return Ok(()) };
            let outputs = r.replace(node, op, &inputs)?;
            r.map[v.index()] = Some(outputs[0]);
            Ok(())
        };
    for node in &graph.nodes {
        let extended = extend(graph, &r, &waiting, node);
        if let Some((from, op, inputs)) = extended {
            let (_, _, product) = waiting.remove(&from).expect("found above");
            if op_may_wait(&op) && uses[node.outputs[0].index()] == 1 {
                waiting.insert(node.outputs[0], (op, inputs, product));
            } else {
                let outputs = r.replace(product, op, &inputs)?;
                r.set(node, &outputs);
            }
            continue;
        }
        for value in node.reads() {
            flush(&mut r, &mut waiting, value)?;
        }
        let may_wait = may_have_epilogue(graph, node) && node.accumulate.is_empty();
        if may_wait && uses[node.outputs[0].index()] == 1 {
            let inputs = node.inputs.iter().map(|&v| r.get(v)).collect();
            waiting.insert(node.outputs[0], (node.op.clone(), inputs, node));
        } else {
            r.copy(node)?;
        }
    }
    for value in waiting.keys().copied().collect::<Vec<_>>() {
        flush(&mut r, &mut waiting, value)?;
    }
    r.finish()
}

/// Whether a node is a product or convolution without epilogue that may get one: of products, only of two matrices.
fn may_have_epilogue(graph: &Graph, node: &Node) -> bool {
    let many = matches!(node.op, Op::MatMul(_)) && graph.ty(node.outputs[0]).shape.rank() > 2;
    !many && epilogue_of(&node.op).is_some_and(|(e, _)| e == Epilogue::default())
}

fn op_may_wait(op: &Op) -> bool {
    epilogue_of(op).is_some_and(|(e, output)| !e.relu || output.is_some())
}

/// A waiting product extended by this node: (the value it was waiting under, its new op and inputs).
#[allow(clippy::type_complexity, reason = "a name would say no more")]
fn extend(
    graph: &Graph,
    r: &Rewriter<'_>,
    waiting: &BTreeMap<ValueId, (Op, Vec<ValueId>, &Node)>,
    node: &Node,
) -> Option<(ValueId, Op, Vec<ValueId>)> {
    let Op::Elementwise(elementwise) = &node.op else { return None };
    let from = *node.inputs.iter().find(|v| waiting.contains_key(v))?;
    let (op, inputs, _) = &waiting[&from];
    let (epilogue, output) = epilogue_of(op)?;
    let product = graph.ty(from);
    match elementwise {
        Elementwise::Binary(Binary::Add) if !epilogue.bias && !epilogue.relu => {
            let bias = *node.inputs.iter().find(|v| **v != from)?;
            let columns = *graph.ty(from).shape.last()?;
            // What is already rounded to a 16-bit float is rounded once more with its bias.
            let fits = graph.ty(bias).shape[..] == [columns] && !product.dtype.is_low();
            // A bias that is itself computed might come after the product; states and inputs never do.
            let there = graph.producer(bias).is_none();
            if !(fits && there) {
                return None;
            }
            let op = with_epilogue(op, |e, _| e.bias = true)?;
            Some((from, op, [&inputs[..], &[r.get(bias)]].concat()))
        }
        Elementwise::Unary(Unary::Relu) if !epilogue.relu => {
            Some((from, with_epilogue(op, |e, _| e.relu = true)?, inputs.clone()))
        }
        Elementwise::Cast(to) if output.is_some() && *to == r.builder.ty(inputs[0]).dtype => {
            Some((from, with_epilogue(op, |_, output| *output = None)?, inputs.clone()))
        }
        _ => None,
    }
}

fn is_constant(node: &Node) -> bool {
    matches!(node.op, Op::Elementwise(Elementwise::Constant { .. }))
}

fn regions(graph: &Graph) -> Result<Graph, GraphError> {
    let groups = Groups::new(graph);
    let order = groups.ordered(graph);
    let mut uses = uses(graph);
    let repeated: Vec<Vec<NodeId>> = order.iter().map(|members| groups.repeats(graph, members)).collect();
    for (members, repeated) in order.iter().zip(&repeated) {
        // A region that makes a value itself does not read it.
        for value in repeated.iter().map(|&m| graph.node(m).outputs[0]) {
            uses[value.index()] -= reads_of(graph, members, value);
        }
    }
    let mut r = Rewriter::new(graph);
    for (members, repeated) in order.iter().zip(&repeated) {
        match members[..] {
            [only] if repeated.is_empty() => {
                // A value that every reader makes for itself is not made here.
                let node = graph.node(only);
                if !joins(node) || uses[node.outputs[0].index()] > 0 {
                    r.copy(node)?;
                }
            }
            _ => emit_region(graph, &uses, &mut r, members, repeated)?,
        }
    }
    r.finish()
}

/// How often nodes read a value.
fn reads_of(graph: &Graph, nodes: &[NodeId], value: ValueId) -> usize {
    nodes.iter().flat_map(|&n| graph.node(n).reads()).filter(|&v| v == value).count()
}

fn emit_region(
    graph: &Graph,
    uses: &[usize],
    r: &mut Rewriter<'_>,
    members: &[NodeId],
    repeated: &[NodeId],
) -> Result<(), GraphError> {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut results: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut instructions: Vec<Instruction> = Vec::new();
    let mut widened: Vec<(usize, ValueId)> = Vec::new();
    for &id in repeated.iter().chain(members) {
        let node = graph.node(id);
        let Op::Elementwise(op) = node.op else { unreachable!("groups hold elementwise nodes") };
        if widens(graph, node) {
            // Once in a region.
            let same = |&(i, other): &(usize, ValueId)| (other == node.inputs[0]).then_some(i);
            if let Some(i) = widened.iter().find_map(same) {
                results.insert(node.outputs[0], i);
                continue;
            }
            widened.push((instructions.len(), node.inputs[0]));
        }
        let mut operands = Vec::new();
        for &value in &node.inputs {
            let constant = graph.producer(value).map(|p| graph.node(p)).filter(|n| is_constant(n));
            if let (Some(producer), false) = (constant, results.contains_key(&value)) {
                // Constants become instructions of the region.
                let Op::Elementwise(op) = producer.op else { unreachable!("constants are elementwise") };
                results.insert(value, instructions.len());
                instructions.push(Instruction { op, operands: Vec::new(), dtype: graph.ty(value).dtype });
            }
            operands.push(match results.get(&value) {
                Some(&i) => Operand::Result(i),
                None => {
                    let place = inputs.iter().position(|&v| v == value);
                    Operand::Input(place.unwrap_or_else(|| {
                        inputs.push(value);
                        inputs.len() - 1
                    }))
                }
            });
        }
        results.insert(node.outputs[0], instructions.len());
        instructions.push(Instruction { op, operands, dtype: graph.ty(node.outputs[0]).dtype });
    }
    // A result is written if anything outside the region reads it.
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
    /// The last search that saw a group.
    seen: Vec<u32>,
    round: u32,
}

impl Groups {
    /// Grows groups along the graph: each elementwise node joins its producers' groups where nothing between them
    /// would have to run both before and after the joined group.
    fn new(graph: &Graph) -> Self {
        let count = graph.nodes.len();
        let mut groups = Self {
            group: (0..count).collect(),
            members: (0..count).map(|i| vec![NodeId(i as u32)]).collect(),
            tail: graph.optimizer_step(),
            seen: vec![0; count],
            round: 0,
        };
        let readers = graph.readers();
        // A widening belongs to the one op that it is for.
        let own =
            |value: ValueId| matches!(readers[value.index()][..], [reader] if joins(graph.node(reader)));
        let mut given = vec![false; count];
        for id in graph.node_ids() {
            let node = graph.node(id);
            if widens(graph, node) && own(node.outputs[0]) {
                let reader = readers[node.outputs[0].index()][0];
                if groups.same_time(graph, id, reader) {
                    groups.join(id.index(), reader.index());
                    given[id.index()] = true;
                }
            }
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            if !joins(node) || given[id.index()] {
                continue;
            }
            let producer = |v: ValueId| graph.producer(v);
            let direct = node.inputs.iter().filter_map(|&v| producer(v));
            let behind = direct.clone().filter(|p| given[p.index()]).map(|p| graph.node(p).inputs[0]);
            let producers: BTreeSet<NodeId> =
                direct.filter(|p| !given[p.index()]).chain(behind.filter_map(producer)).collect();
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

    /// Whether no path leaves the two groups and comes back, with every other group taken as one node. A search that
    /// takes too long counts as a path.
    fn is_convex(&mut self, graph: &Graph, readers: &[Vec<NodeId>], a: usize, b: usize) -> bool {
        let last = self.members[a].iter().chain(&self.members[b]).max().copied();
        self.round += 1;
        let mut stack = vec![a, b];
        for looked_at in 0.. {
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
                } else if std::mem::replace(&mut self.seen[to], self.round) != self.round {
                    stack.push(to);
                }
            }
            if looked_at > MOST_LOOKED_AT {
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
        let counted = nodes.iter().filter(|&&n| !widens(graph, graph.node(n))).count();
        if !(cheap || widens(graph, node)) || counted > MOST_REPEATED {
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
pub(crate) fn joins(node: &Node) -> bool {
    matches!(node.op, Op::Elementwise(_)) && !is_constant(node)
}
