//! Fuses elementwise ops into regions, and bias, relu and casts into the products and sums next to them.
//!
//! - `epilogue`: bias, relu and the rounding to a 16-bit float join the product or convolution before them.
//! - `widening`: sums and elementwise ops read 16-bit floats as they are stored.
//! - `loss`: the loss of a linear layer and its gradients become one op.
//! - `groups`: which elementwise nodes run as one region.
//! - `region`: emits each group as one [`Region`](plimsoll_graph::op::Region).

mod epilogue;
mod groups;
mod loss;
mod region;
mod widening;

use crate::LayerNumerics;
use crate::rewriter::drop_dead;
use plimsoll_graph::op::Elementwise;
use plimsoll_graph::{Graph, GraphError, Node, Op};

/// Fuses elementwise ops over one shape into regions, bias, relu and the rounding to a 16-bit float into the product or
/// convolution before them as far as the target's epilogues go, the widening of one into the sum after it, and a linear layer's
/// loss with its gradients. Every value keeps its rounding, so the numbers stay the same to the bit.
pub fn fuse(graph: Graph, numerics: &LayerNumerics<'_>) -> Result<Graph, GraphError> {
    let mut fused = epilogue::fuse(&graph, numerics)?;
    drop(graph);
    fused = loss::fuse(fused, numerics)?;
    if fused.value_ids().any(|v| fused.ty(v).dtype.is_low()) {
        fused = widening::fuse(&fused)?;
        // Casts whose readers now read what is stored are dead.
        fused = drop_dead(&fused)?;
    }
    fused = region::fuse(&fused)?;
    // So are constants that became instructions.
    drop_dead(&fused)
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

/// Whether a node can be part of a region. Constants are copied into each region that reads them.
fn is_fusible(node: &Node) -> bool {
    matches!(node.op, Op::Elementwise(_)) && !is_constant(node)
}

fn is_constant(node: &Node) -> bool {
    matches!(node.op, Op::Elementwise(Elementwise::Constant { .. }))
}
