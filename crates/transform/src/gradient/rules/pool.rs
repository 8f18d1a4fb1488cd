//! Pooling.

use super::{Gradients, Rule};
use plimsoll_graph::op::Pool;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Pool, r: &Rule<'_>) -> Gradients {
    match *op {
        Pool::Max { geometry } => {
            let image = [b.shape(r.x[0])[1], b.shape(r.x[0])[2]];
            let op = Op::Pool(Pool::MaxGrad { geometry, image });
            let dy = r.dy()?;
            Ok(vec![Some(b.one(op, &[dy, r.y[1]])?)])
        }
        Pool::MaxGrad { .. } => Err(r.refuse("it is itself a gradient")),
    }
}
