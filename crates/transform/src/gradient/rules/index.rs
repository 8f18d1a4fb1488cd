//! Look-ups.

use super::{Gradients, Rule};
use plimsoll_graph::op::Index;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: Index, r: &Rule<'_>) -> Gradients {
    let x = r.x;
    match op {
        Index::Gather => {
            let (op, dy) = (Op::Index(Index::ScatterAdd { rows: b.shape(x[0])[0] }), r.dy()?);
            Ok(vec![r.want(b, 0, |b| b.one(op, &[x[1], dy]))?, None])
        }
        Index::ScatterAdd { .. } => {
            let dy = r.dy()?;
            Ok(vec![None, r.want(b, 1, |b| b.one(Op::Index(Index::Gather), &[dy, x[0]]))?])
        }
        Index::Take => {
            let (extent, dy) = (b.shape(x[0]).last().copied().unwrap_or(0), r.dy()?);
            Ok(vec![r.want(b, 0, |b| b.one(Op::Index(Index::Put { extent }), &[x[1], dy]))?, None])
        }
        Index::Put { .. } => {
            let dy = r.dy()?;
            Ok(vec![None, r.want(b, 1, |b| b.one(Op::Index(Index::Take), &[dy, x[0]]))?])
        }
        Index::OneHot { .. } => Ok(vec![None]),
        Index::Range { .. } => Ok(vec![]),
    }
}
