//! Bias, relu and rounding as part of the product or convolution before them.

use super::uses;
use super::widening::stored;
use crate::LayerNumerics;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Binary, Conv, Elementwise, Epilogue, Unary};
use plimsoll_graph::{Graph, GraphError, Node, Op, ValueId};
use plimsoll_tensor::DType;
use std::collections::BTreeMap;

/// Products that wait for the next op of their epilogue: new op, new inputs and old node, by the old value that the op
/// would read.
type Waiting<'g> = BTreeMap<ValueId, (Op, Vec<ValueId>, &'g Node)>;

pub(super) fn fuse(graph: &Graph, numerics: &LayerNumerics<'_>) -> Result<Graph, GraphError> {
    let uses = uses(graph);
    let mut r = Rewriter::new(graph);
    let mut waiting = Waiting::new();
    let flush = |r: &mut Rewriter<'_>, waiting: &mut Waiting<'_>, v: ValueId| {
        let Some((op, inputs, node)) = waiting.remove(&v) else { return Ok(()) };
        let outputs = r.replace(node, op, &inputs)?;
        r.map[v.index()] = Some(outputs[0]);
        Ok(())
    };
    for node in &graph.nodes {
        let extended = extend(graph, numerics, &r, &waiting, node);
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

/// A product's epilogue, and its output's element type where that is not its operands'.
fn epilogue_of(op: &Op) -> Option<(Epilogue, Option<DType>)> {
    let mut found = None;
    with_epilogue(op, |epilogue, output| found = Some((*epilogue, *output)));
    found
}

/// Whether a node is a product or convolution without epilogue that may get one. A batched product may not.
fn may_have_epilogue(graph: &Graph, node: &Node) -> bool {
    let many = matches!(node.op, Op::MatMul(_)) && graph.ty(node.outputs[0]).shape.rank() > 2;
    !many && epilogue_of(&node.op).is_some_and(|(e, _)| e == Epilogue::default())
}

fn op_may_wait(op: &Op) -> bool {
    epilogue_of(op).is_some_and(|(e, output)| !e.relu || output.is_some())
}

/// A waiting product extended by this node: (the value it was waiting under, its new op and inputs).
fn extend(
    graph: &Graph,
    numerics: &LayerNumerics<'_>,
    r: &Rewriter<'_>,
    waiting: &Waiting<'_>,
    node: &Node,
) -> Option<(ValueId, Op, Vec<ValueId>)> {
    let Op::Elementwise(elementwise) = &node.op else { return None };
    let from = *node.inputs.iter().find(|v| waiting.contains_key(v))?;
    let (op, inputs, product) = &waiting[&from];
    let allowed = numerics(&product.layer).epilogues;
    let (epilogue, output) = epilogue_of(op)?;
    let operands = r.builder.ty(inputs[0]).dtype;
    match elementwise {
        Elementwise::Binary(Binary::Add) if !epilogue.bias && !epilogue.relu => {
            let bias = bias(graph, node, from, allowed.bias?.of(operands))?;
            let op = with_epilogue(op, |e, _| e.bias = true)?;
            Some((from, op, [&inputs[..], &[r.get(bias)]].concat()))
        }
        Elementwise::Unary(Unary::Relu) if allowed.relu && !epilogue.relu => {
            Some((from, with_epilogue(op, |e, _| e.relu = true)?, inputs.clone()))
        }
        Elementwise::Cast(to) if allowed.rounding && output.is_some() && *to == operands => {
            Some((from, with_epilogue(op, |_, output| *output = None)?, inputs.clone()))
        }
        _ => None,
    }
}

/// The bias that an addition adds to a product, in the type that an epilogue takes.
fn bias(graph: &Graph, add: &Node, product: ValueId, dtype: DType) -> Option<ValueId> {
    let added = *add.inputs.iter().find(|v| **v != product)?;
    let columns = *graph.ty(product).shape.last()?;
    // A product that is already a 16-bit float was rounded before its bias: it must be rounded twice.
    if graph.ty(added).shape[..] != [columns] || graph.ty(product).dtype.is_low() {
        return None;
    }
    let bias = stored(graph, added).unwrap_or(added);
    let root = match graph.producer(bias) {
        // A 16-bit bias is cast from a parameter.
        Some(cast) if bias != added => *graph.node(cast).inputs.first()?,
        _ => bias,
    };
    // A bias that is itself computed might come after the product; states and inputs never do.
    (graph.ty(bias).dtype == dtype && graph.producer(root).is_none()).then_some(bias)
}
