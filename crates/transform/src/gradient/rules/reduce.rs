//! Reductions.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Movement, Reduce};
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Reduce, r: &Rule<'_>) -> Gradients {
    match op {
        Reduce::Sum { .. } => {
            let (shape, dy) = (b.shape(r.x[0]).clone(), r.dy()?);
            Ok(vec![Some(b.one(Op::Movement(Movement::Broadcast(shape)), &[dy])?)])
        }
        Reduce::Argmax => Ok(vec![None]),
    }
}
