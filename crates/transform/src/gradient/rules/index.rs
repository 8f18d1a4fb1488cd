//! Look-ups.

use super::{Gradients, Rule};
use plimsoll_graph::op::Index;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: Index, r: &Rule<'_>) -> Gradients {
    let (x, dy) = (r.x, r.dy()?);
    match op {
        Index::Gather => {
            let op = Op::Index(Index::ScatterAdd { rows: b.shape(x[0])[0] });
            Ok(vec![r.want(b, 0, |b| b.one(op, &[x[1], dy]))?, None])
        }
        Index::ScatterAdd { .. } => {
            Ok(vec![None, r.want(b, 1, |b| b.one(Op::Index(Index::Gather), &[dy, x[0]]))?])
        }
    }
}
