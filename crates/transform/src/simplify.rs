//! Common subexpressions, dead nodes and no-ops.

use crate::rewriter::{Rewriter, drop_dead, live_nodes};
use plimsoll_graph::op::{Binary, Elementwise, Movement};
use plimsoll_graph::{Graph, GraphError, Node, Op, ValueId};
use plimsoll_tensor::{DType, Shape};
use std::collections::BTreeMap;

/// Merges nodes that compute the same, drops dead ones, and bypasses no-ops: a product with one, a broadcast before an op
/// that broadcasts anyway, a reshape of a reshape.
pub fn simplify(graph: Graph) -> Result<Graph, GraphError> {
    let merged = merge(&graph)?;
    drop(graph);
    // Bypassed nodes may be dead now.
    drop_dead(&merged)
}

/// Merges nodes that compute the same, and bypasses no-ops.
fn merge(graph: &Graph) -> Result<Graph, GraphError> {
    let live = live_nodes(graph);
    let mut r = Rewriter::new(graph);
    // Keyed by the printed op: ops hold floats, which have no order of their own.
    let mut seen: BTreeMap<(String, Vec<ValueId>), Vec<ValueId>> = BTreeMap::new();
    for id in graph.node_ids().filter(|id| live[id.index()]) {
        let node = graph.node(id);
        let inputs = bypass_no_ops(&r, node);
        if let Some(same) = identity(&r, node, &inputs) {
            r.set(node, &[same]);
            continue;
        }
        let key = (format!("{:?}", node.op), inputs.clone());
        let merged = if node.accumulate.is_empty() { seen.get(&key).cloned() } else { None };
        let outputs = match merged {
            Some(outputs) => outputs,
            None => {
                let outputs = r.emit_with(node, &inputs)?;
                seen.insert(key, outputs.clone());
                outputs
            }
        };
        r.set(node, &outputs);
    }
    drop(seen);
    r.finish()
}

/// The node's new inputs, with broadcasts and reshapes before it bypassed where the result is the same.
fn bypass_no_ops(r: &Rewriter<'_>, node: &Node) -> Vec<ValueId> {
    let mut inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).collect();
    let built = r.builder.graph();
    let source = |value: ValueId| {
        built.producer(value).map(|id| built.node(id)).map(|n| (&n.op, n.inputs.first().copied()))
    };
    match &node.op {
        Op::Elementwise(_) => {
            let shape = |inputs: &[ValueId]| {
                inputs.iter().try_fold(Shape::scalar(), |s, &v| s.broadcast(&built.ty(v).shape))
            };
            let wanted = shape(&inputs);
            for i in 0..inputs.len() {
                if let Some((Op::Movement(Movement::Broadcast(_)), Some(x))) = source(inputs[i]) {
                    let shorter: Vec<_> =
                        (0..inputs.len()).map(|j| if i == j { x } else { inputs[j] }).collect();
                    if shape(&shorter) == wanted {
                        inputs = shorter;
                    }
                }
            }
        }
        Op::Movement(Movement::Reshape(_)) => {
            if let Some((Op::Movement(Movement::Reshape(_)), Some(x))) = source(inputs[0]) {
                inputs[0] = x;
            }
        }
        _ => {}
    }
    inputs
}

/// The input that the node's only output equals to the bit, if there is one.
fn identity(r: &Rewriter<'_>, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let built = r.builder.graph();
    let constant = |value: ValueId| match built.producer(value).map(|id| &built.node(id).op) {
        Some(Op::Elementwise(Elementwise::Constant { value, .. })) => Some(*value),
        _ => None,
    };
    let output = r.old.ty(node.outputs[0]);
    let same = match node.op {
        Op::Elementwise(Elementwise::Binary(Binary::Mul)) => match (constant(inputs[0]), constant(inputs[1]))
        {
            (_, Some(1.0)) => inputs[0],
            (Some(1.0), _) => inputs[1],
            _ => return None,
        },
        Op::Elementwise(Elementwise::Binary(Binary::Div)) if constant(inputs[1]) == Some(1.0) => inputs[0],
        Op::Movement(Movement::Reshape(_) | Movement::Broadcast(_) | Movement::Detach) => inputs[0],
        // Widening a 16-bit float and rounding it back gives the same float.
        Op::Elementwise(Elementwise::Cast(to)) if to.is_low() => match built.producer(inputs[0]) {
            Some(id) if matches!(built.node(id).op, Op::Elementwise(Elementwise::Cast(DType::F32))) => {
                built.node(id).inputs[0]
            }
            _ => return None,
        },
        _ => return None,
    };
    (built.ty(same) == output).then_some(same)
}
