//! Losses. Row weights are data: a gradient with respect to them is an error, not silently zero.

use super::{Gradients, Rule};
use plimsoll_graph::op::Loss;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: Loss, r: &Rule<'_>) -> Gradients {
    let (x, y) = (r.x, r.y);
    match op {
        Loss::CrossEntropy if !r.needs[2] => {
            let dy = r.dy()?;
            let dx = b.one(Op::Loss(Loss::CrossEntropyGrad), &[x[0], x[1], x[2], y[1], dy])?;
            Ok(vec![Some(dx), None, None])
        }
        Loss::LinearCrossEntropy { transposed } if !r.needs[3] => {
            let dy = r.dy()?;
            let op = Op::Loss(Loss::LinearCrossEntropyGrad { transposed });
            let gradients = b.node(op, &[x[0], x[1], x[2], x[3], y[1], dy])?;
            Ok(vec![Some(gradients[0]), Some(gradients[1]), None, None])
        }
        Loss::CrossEntropy | Loss::LinearCrossEntropy { .. } => Err(r.refuse("its row weights are data")),
        Loss::CrossEntropyGrad
        | Loss::LinearCrossEntropyGrad { .. }
        | Loss::LinearCrossEntropyWithGrad { .. } => Err(r.refuse("it is itself a gradient")),
    }
}
