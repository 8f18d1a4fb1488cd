//! 16-bit floats read as they are stored: widening becomes part of what reads them.

use crate::fuse::joins;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Elementwise, Index, Norm, Reduce};
use plimsoll_graph::{Graph, GraphError, Node, Op, ValueId};
use plimsoll_tensor::DType;

/// Whether a node widens a 16-bit float.
pub(crate) fn widens(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Elementwise(Elementwise::Cast(DType::F32)) && graph.ty(node.inputs[0]).dtype.is_low()
}

/// The value as it is stored, if it is a widened one.
fn stored(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let producer = graph.node(graph.producer(value)?);
    widens(graph, producer).then(|| producer.inputs[0])
}

/// Lets sums and statistics read 16-bit floats as they are stored: they widen them themselves. Every elementwise op gets a
/// widening of its own, which becomes part of its region, so that widened values are not stored.
pub(crate) fn widened(graph: &Graph) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for node in &graph.nodes {
        let reads: &[usize] = match node.op {
            Op::Norm(Norm::Stats { .. }) | Op::Reduce(Reduce::Sum { .. }) => &[0],
            // Gradients are read low only beside values that are.
            Op::Norm(Norm::Sums { .. }) if stored(graph, node.inputs[1]).is_some() => &[0, 1],
            Op::Index(Index::ScatterAdd { .. }) => &[1],
            _ => &[],
        };
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).collect();
        for (i, &value) in node.inputs.iter().enumerate() {
            match stored(graph, value) {
                Some(low) if reads.contains(&i) => inputs[i] = r.get(low),
                Some(low) if joins(node) => {
                    let low = r.get(low);
                    let again = node.inputs[..i].iter().position(|&v| v == value);
                    let widen = |b: &mut plimsoll_graph::Builder| b.cast(low, DType::F32);
                    inputs[i] = match again {
                        Some(first) => inputs[first],
                        None => r.builder.within(node.layer.clone(), widen)?,
                    };
                }
                _ => {}
            }
        }
        let sums: Vec<_> = node.accumulate.iter().map(|&v| r.get(v)).collect();
        let emit = |b: &mut plimsoll_graph::Builder| b.accumulating(node.op.clone(), &inputs, &sums);
        let outputs = r.builder.within(node.layer.clone(), emit)?;
        r.set(node, &outputs);
    }
    r.finish()
}
