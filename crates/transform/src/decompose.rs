//! Turns composite norms into statistics and elementwise ops, which `save` and `fuse` treat like any other.

use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Binary, Norm, NormAxis, Unary};
use plimsoll_graph::{Graph, GraphError, Node, Op, ValueId};

/// Turns layer and batch norm into their statistics and elementwise ops.
pub fn decompose(graph: &Graph) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for node in &graph.nodes {
        match node.op {
            Op::Norm(Norm::Layer { eps }) => {
                let [y, mean, _, rstd] = normalise(&mut r, node, NormAxis::Row, eps)?;
                r.set(node, &[y, mean, rstd]);
            }
            Op::Norm(Norm::Batch { eps }) => {
                let outputs = normalise(&mut r, node, NormAxis::Channel, eps)?;
                r.set(node, &outputs);
            }
            _ => r.copy(node)?,
        }
    }
    r.finish()
}

/// `(x - mean) · rstd · gain + bias` with the statistics of x: y, mean, variance and rstd.
fn normalise(
    r: &mut Rewriter<'_>,
    node: &Node,
    axis: NormAxis,
    eps: f64,
) -> Result<[ValueId; 4], GraphError> {
    let [x, gain, bias] = [0, 1, 2].map(|i| r.get(node.inputs[i]));
    r.builder.within(node.layer.clone(), |b| {
        let stats = b.node(Op::Norm(Norm::Stats { axis }), &[x])?;
        let shifted = b.with_constant(Binary::Add, stats[1], eps)?;
        let rstd = b.unary(Unary::Rsqrt, shifted)?;
        let centred = b.sub(x, stats[0])?;
        let normal = b.mul(centred, rstd)?;
        let scaled = b.mul(normal, gain)?;
        Ok([b.add(scaled, bias)?, stats[0], stats[1], rstd])
    })
}
