//! The loss of a linear layer and its gradients as one op, so that the logits are computed once.

use super::uses;
use crate::LayerNumerics;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::Loss;
use plimsoll_graph::{Graph, GraphError, Node, NodeId, Op, Origin, ValueId};
use std::collections::BTreeSet;

/// A loss, and the gradients that read what it saves.
struct Pair {
    loss: NodeId,
    gradient: NodeId,
    /// The nodes that the gradient of the loss depends on, in the graph's order.
    before: Vec<NodeId>,
}

pub(super) fn fuse(graph: Graph, numerics: &LayerNumerics<'_>) -> Result<Graph, GraphError> {
    let pairs = pairs(&graph, numerics);
    if pairs.is_empty() {
        return Ok(graph);
    }
    let mut r = Rewriter::new(&graph);
    let mut done = vec![false; graph.nodes.len()];
    for id in graph.node_ids() {
        if let Some(pair) = pairs.iter().find(|pair| pair.loss == id) {
            for &id in &pair.before {
                if !std::mem::replace(&mut done[id.index()], true) {
                    r.copy(graph.node(id))?;
                }
            }
            join(&mut r, graph.node(id), graph.node(pair.gradient))?;
            done[pair.gradient.index()] = true;
        } else if !done[id.index()] {
            r.copy(graph.node(id))?;
        }
        done[id.index()] = true;
    }
    r.finish()
}

/// Emits the joined op.
fn join(r: &mut Rewriter<'_>, loss: &Node, gradient: &Node) -> Result<(), GraphError> {
    let Op::Loss(Loss::LinearCrossEntropy { transposed }) = loss.op else {
        unreachable!("pairs have a loss")
    };
    let op = Op::Loss(Loss::LinearCrossEntropyWithGrad { transposed });
    let dloss = gradient.inputs[5];
    let inputs: Vec<_> = loss.inputs.iter().chain([&dloss]).map(|&v| r.get(v)).collect();
    let outputs = r.replace(loss, op, &inputs)?;
    r.map[loss.outputs[0].index()] = Some(outputs[0]);
    r.set(gradient, &outputs[1..]);
    Ok(())
}

/// The pairs to join: the loss's row sums are for these gradients alone, and their factor does not depend on the loss.
fn pairs(graph: &Graph, numerics: &LayerNumerics<'_>) -> Vec<Pair> {
    let uses = uses(graph);
    let mut pairs = Vec::new();
    for gradient in graph.node_ids() {
        let node = graph.node(gradient);
        let (Op::Loss(Loss::LinearCrossEntropyGrad { .. }), []) = (&node.op, &node.accumulate[..]) else {
            continue;
        };
        let Some(loss) = graph.producer(node.inputs[4]) else { continue };
        let forward = graph.node(loss);
        let same = matches!(forward.op, Op::Loss(Loss::LinearCrossEntropy { .. }))
            && forward.accumulate.is_empty()
            && numerics(&forward.layer).loss_with_gradient.includes(graph.ty(forward.inputs[0]).dtype)
            && Equal::default().all(graph, &forward.inputs, &node.inputs[..4])
            && uses[forward.outputs[1].index()] == 1;
        if same && let Some(before) = ancestors(graph, node.inputs[5], loss) {
            pairs.push(Pair { loss, gradient, before });
        }
    }
    pairs
}

/// The nodes that a value depends on, in the graph's order, unless `without` is one of them.
fn ancestors(graph: &Graph, value: ValueId, without: NodeId) -> Option<Vec<NodeId>> {
    let mut found = BTreeSet::new();
    let mut stack = vec![value];
    while let Some(value) = stack.pop() {
        if let Some(node) = graph.producer(value)
            && found.insert(node)
        {
            stack.extend(graph.node(node).reads());
        }
    }
    (!found.contains(&without)).then(|| found.into_iter().collect())
}

/// Pairs of values that are equal because the same ops compute them: backward may rematerialize what forward had.
#[derive(Default)]
struct Equal {
    known: BTreeSet<(ValueId, ValueId)>,
}

impl Equal {
    fn all(&mut self, graph: &Graph, a: &[ValueId], b: &[ValueId]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| self.check(graph, a, b))
    }

    fn check(&mut self, graph: &Graph, a: ValueId, b: ValueId) -> bool {
        if a == b || self.known.contains(&(a, b)) {
            return true;
        }
        let (Origin::Node { node: of_a, output: at_a }, Origin::Node { node: of_b, output: at_b }) =
            (graph.origin(a), graph.origin(b))
        else {
            return false;
        };
        let (of_a, of_b) = (graph.node(of_a), graph.node(of_b));
        let same =
            at_a == at_b && of_a.op == of_b.op && of_a.accumulate.is_empty() && of_b.accumulate.is_empty();
        let equal = same && self.all(graph, &of_a.inputs, &of_b.inputs);
        if equal {
            self.known.insert((a, b));
        }
        equal
    }
}
