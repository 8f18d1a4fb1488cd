//! One rule per op: from the outputs' gradients to the inputs', in ordinary ops. A file for each family.

mod attention;
mod conv;
mod elementwise;
mod index;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod resize;

use plimsoll_graph::{Builder, GraphError, Node, Numerics, Op, ValueId};
use plimsoll_tensor::DType;

/// One value for each input, or nothing where no gradient flows.
type Gradients = Result<Vec<Option<ValueId>>, GraphError>;

/// What a rule may use.
struct Rule<'a> {
    node: &'a Node,
    /// The node's inputs.
    x: &'a [ValueId],
    /// The node's outputs.
    y: &'a [ValueId],
    /// Gradients of the outputs.
    outer: &'a [Option<ValueId>],
    /// Which inputs' gradients are wanted.
    needs: &'a [bool],
    numerics: &'a Numerics,
}

impl Rule<'_> {
    /// The gradient of the first output, if no other output has one.
    fn dy(&self) -> Result<ValueId, GraphError> {
        match self.outer {
            [Some(dy), rest @ ..] if rest.iter().all(Option::is_none) => Ok(*dy),
            _ => Err(self.refuse("only its first output can be differentiated")),
        }
    }

    /// An input's gradient if it is wanted; otherwise nothing is emitted.
    fn want(
        &self,
        b: &mut Builder,
        input: usize,
        rule: impl FnOnce(&mut Builder) -> Result<ValueId, GraphError>,
    ) -> Result<Option<ValueId>, GraphError> {
        if self.needs[input] { rule(b).map(Some) } else { Ok(None) }
    }

    /// The element type of the gradient of a product's operand, where it is not the operand's: that of a value without a
    /// batch axis is a sum over the batch, which is f32 for 16-bit floats, and others have the type that the target gives.
    fn product(&self, b: &Builder, input: usize) -> Option<DType> {
        let operand = b.ty(self.x[input]).dtype;
        let batched = b.is_batched(self.x[input]);
        let gradient = if batched { self.numerics.input_gradient.of(operand) } else { operand.wide() };
        (gradient != operand).then_some(gradient)
    }

    fn refuse(&self, reason: &str) -> GraphError {
        GraphError::Choice(format!(
            "layer `{}`: {} has no gradient: {reason}",
            self.node.layer,
            self.node.op.name()
        ))
    }
}

/// Gradients of a node's inputs from those of its outputs; `needs` says which are wanted.
pub(super) fn backward(
    b: &mut Builder,
    numerics: &Numerics,
    node: &Node,
    outer: &[Option<ValueId>],
    needs: &[bool],
) -> Gradients {
    let rule = Rule { node, x: &node.inputs, y: &node.outputs, outer, needs, numerics };
    match &node.op {
        Op::Elementwise(op) => elementwise::backward(b, *op, &rule),
        Op::Fused(_) => Err(rule.refuse("`fuse` runs after `gradient`")),
        Op::Movement(op) => movement::backward(b, op, &rule),
        Op::Reduce(op) => reduce::backward(b, op, &rule),
        Op::MatMul(op) => matmul::backward(b, *op, &rule),
        Op::Conv(op) => conv::backward(b, op, &rule),
        Op::Pool(op) => pool::backward(b, op, &rule),
        Op::Resize(op) => resize::backward(b, op, &rule),
        Op::Norm(op) => norm::backward(b, op, &rule),
        Op::Attention(op) => attention::backward(b, *op, &rule),
        Op::Recurrent(op) => recurrent::backward(b, *op, &rule),
        Op::Index(op) => index::backward(b, *op, &rule),
        Op::Loss(op) => loss::backward(b, *op, &rule),
        // Random numbers do not depend on a float.
        Op::Random(_) => Ok(vec![None, None]),
        // A step function has no slope.
        Op::Quantise(_) | Op::Prune(_) | Op::Int8(_) => Ok(vec![None; node.inputs.len()]),
        Op::Exchange(_) => Err(rule.refuse("`replicate` runs after `gradient`")),
    }
}
