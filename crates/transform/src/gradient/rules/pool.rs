//! Pooling.

use super::{Gradients, Rule};
use plimsoll_graph::op::Pool;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Pool, r: &Rule<'_>) -> Gradients {
    let image = [b.shape(r.x[0])[1], b.shape(r.x[0])[2]];
    let (op, more) = match *op {
        Pool::Max { windows } => (Pool::MaxGrad { windows, image }, &r.y[1..]),
        Pool::Average { windows, count_padding } => {
            (Pool::AverageGrad { windows, count_padding, image }, &[][..])
        }
        // A linear function's adjoint has the function as its own.
        Pool::AverageGrad { windows, count_padding, .. } => {
            (Pool::Average { windows, count_padding }, &[][..])
        }
        Pool::MaxGrad { .. } => return Err(r.refuse("it is itself a gradient")),
    };
    let inputs = [&[r.dy()?], more].concat();
    Ok(vec![Some(b.one(Op::Pool(op), &inputs)?)])
}
