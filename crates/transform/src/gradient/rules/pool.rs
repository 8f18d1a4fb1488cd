//! Pooling.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Pool, Windows, reach};
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Pool, r: &Rule<'_>) -> Gradients {
    let image = [b.shape(r.x[0])[1], b.shape(r.x[0])[2]];
    let (op, more) = match *op {
        Pool::Max { windows } => (Pool::MaxGrad { windows, image }, &r.y[1..]),
        Pool::Average { windows, count_padding } => {
            (Pool::AverageGrad { windows, count_padding, image }, &[][..])
        }
        // The adjoint of a linear function's adjoint is the function.
        Pool::AverageGrad { windows, count_padding, .. } => {
            (Pool::Average { windows, count_padding }, &[][..])
        }
        Pool::MaxGrad { .. } => return Err(r.refuse("it is itself a gradient")),
    };
    let (dy, dtype) = (r.dy()?, b.ty(r.x[0]).dtype);
    // An element that is the largest of several windows sums their gradients, in f32.
    let disjoint = match op {
        Pool::MaxGrad { windows: Windows::Sliding(g), .. } => {
            [0, 1].iter().all(|&axis| g.stride[axis] >= reach(g.window, g.dilation)[axis])
        }
        _ => false,
    };
    let dy = b.cast(dy, if disjoint { dtype } else { dtype.wide() })?;
    let inputs = [&[dy], more].concat();
    let dx = b.one(Op::Pool(op), &inputs)?;
    Ok(vec![Some(b.cast(dx, dtype)?)])
}
