//! 16-bit floats read as they are stored: widening casts become part of their readers.

use super::is_fusible;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Elementwise, Index, Norm, Reduce};
use plimsoll_graph::{Graph, GraphError, Node, Op, ValueId};
use plimsoll_tensor::DType;

/// Whether a node casts a 16-bit float to f32.
pub(super) fn is_widening(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Elementwise(Elementwise::Cast(DType::F32)) && graph.ty(node.inputs[0]).dtype.is_low()
}

/// The 16-bit value that a value is widened from, if it is.
pub(super) fn stored(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let producer = graph.node(graph.producer(value)?);
    is_widening(graph, producer).then(|| producer.inputs[0])
}

/// Lets sums and statistics, which widen as they read, read 16-bit floats as they are stored. Every elementwise op gets a
/// widening cast of its own, which becomes part of its region, so that no widened value is stored.
pub(super) fn fuse(graph: &Graph) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for node in &graph.nodes {
        let reads: &[usize] = match node.op {
            Op::Norm(Norm::Stats { .. }) | Op::Reduce(Reduce::Sum { .. }) => &[0],
            // Gradients are read low only together with low values.
            Op::Norm(Norm::Sums { .. }) if stored(graph, node.inputs[1]).is_some() => &[0, 1],
            Op::Index(Index::ScatterAdd { .. }) => &[1],
            _ => &[],
        };
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).collect();
        for (i, &value) in node.inputs.iter().enumerate() {
            match stored(graph, value) {
                Some(low) if reads.contains(&i) => inputs[i] = r.get(low),
                Some(low) if is_fusible(node) => {
                    let low = r.get(low);
                    let same = node.inputs[..i].iter().position(|&v| v == value);
                    let widen = |b: &mut plimsoll_graph::Builder| b.cast(low, DType::F32);
                    inputs[i] = match same {
                        Some(first) => inputs[first],
                        None => r.builder.within(node.layer.clone(), widen)?,
                    };
                }
                _ => {}
            }
        }
        let outputs = r.emit_with(node, &inputs)?;
        r.set(node, &outputs);
    }
    r.finish()
}
