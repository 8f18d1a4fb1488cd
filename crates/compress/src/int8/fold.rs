//! Biases and batch norm folded into the weights before them.

use plimsoll_graph::op::{Binary, Elementwise, Unary};
use plimsoll_graph::{Graph, GraphError, Node, Op, Origin, ValueId};
use plimsoll_tensor::Tensor;

/// What an op does to each channel, with an operand that does not depend on the batch.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    op: Binary,
    pub operand: ValueId,
}

impl Fold {
    /// What a node does to a value of so many channels, if it can be folded.
    pub fn of(graph: &Graph, node: &Node, value: ValueId, channels: usize) -> Option<Self> {
        let Op::Elementwise(Elementwise::Binary(op)) = node.op else { return None };
        let operand = match (op, &node.inputs[..]) {
            (Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, &[x, operand]) if x == value => operand,
            (Binary::Add | Binary::Mul, &[operand, x]) if x == value => operand,
            _ => return None,
        };
        let shape = &graph.ty(operand).shape;
        let fits = shape.elements() == 1 || (shape.elements() == channels && shape.last() == Some(&channels));
        (fits && operand != value && is_constant(graph, operand)).then_some(Self { op, operand })
    }
}

/// Whether a value follows from states and constants by ops that [`number`] knows.
pub(super) fn is_constant(graph: &Graph, value: ValueId) -> bool {
    match graph.origin(value) {
        Origin::State(_) => true,
        Origin::Input(_) | Origin::Accumulator(_) => false,
        Origin::Node { node, .. } => {
            let node = graph.node(node);
            let known = match &node.op {
                Op::Elementwise(Elementwise::Constant { .. }) => true,
                Op::Elementwise(Elementwise::Unary(op)) => {
                    matches!(op, Unary::Rsqrt | Unary::Sqrt | Unary::Neg)
                }
                Op::Elementwise(Elementwise::Binary(op)) => {
                    matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
                }
                _ => false,
            };
            known && node.inputs.iter().all(|&input| is_constant(graph, input))
        }
    }
}

/// Whether a constant value follows from a state.
pub(super) fn reads_state(graph: &Graph, value: ValueId) -> bool {
    match graph.origin(value) {
        Origin::State(_) => true,
        Origin::Input(_) | Origin::Accumulator(_) => false,
        Origin::Node { node, .. } => graph.node(node).inputs.iter().any(|&input| reads_state(graph, input)),
    }
}

/// The elements of a constant value; a scalar stands for all channels.
fn number<E: From<GraphError>>(
    graph: &Graph,
    value: ValueId,
    read: &mut dyn FnMut(&str) -> Result<Tensor, E>,
) -> Result<Vec<f64>, E> {
    let unknown = || GraphError::Broken(format!("{value} is not constant"));
    let node = match graph.origin(value) {
        Origin::State(i) => return Ok(read(&graph.states[i].name)?.to_f64()),
        Origin::Node { node, .. } => graph.node(node),
        Origin::Input(_) | Origin::Accumulator(_) => return Err(unknown().into()),
    };
    let mut inputs = Vec::new();
    for &input in &node.inputs {
        inputs.push(number(graph, input, read)?);
    }
    match (&node.op, &inputs[..]) {
        (Op::Elementwise(Elementwise::Constant { value, .. }), _) => Ok(vec![*value]),
        (Op::Elementwise(Elementwise::Unary(op)), [x]) => {
            let f = |x: &f64| match op {
                Unary::Rsqrt => x.sqrt().recip(),
                Unary::Sqrt => x.sqrt(),
                _ => -x,
            };
            Ok(x.iter().map(f).collect())
        }
        (Op::Elementwise(Elementwise::Binary(op)), [a, b]) => {
            let length = a.len().max(b.len());
            Ok((0..length).map(|i| binary(*op, a[i % a.len().max(1)], b[i % b.len().max(1)])).collect())
        }
        _ => Err(unknown().into()),
    }
}

fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        _ => a / b,
    }
}

/// The factor and the offset of each output channel that folds amount to.
pub(super) fn affine<E: From<GraphError>>(
    graph: &Graph,
    folds: &[Fold],
    channels: usize,
    read: &mut dyn FnMut(&str) -> Result<Tensor, E>,
) -> Result<(Vec<f64>, Vec<f64>), E> {
    let (mut factors, mut offsets) = (vec![1.0; channels], vec![0.0; channels]);
    for fold in folds {
        let operand = number(graph, fold.operand, read)?;
        for channel in 0..channels {
            let operand = operand[channel % operand.len().max(1)];
            offsets[channel] = binary(fold.op, offsets[channel], operand);
            if matches!(fold.op, Binary::Mul | Binary::Div) {
                factors[channel] = binary(fold.op, factors[channel], operand);
            }
        }
    }
    Ok((factors, offsets))
}
