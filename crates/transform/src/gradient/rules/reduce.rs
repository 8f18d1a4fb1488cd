//! Reductions.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Binary, Index, Movement, Reduce};
use plimsoll_graph::{Builder, GraphError, Op, ValueId};

pub(super) fn backward(b: &mut Builder, op: &Reduce, r: &Rule<'_>) -> Gradients {
    let x = r.x[0];
    let dx = match *op {
        Reduce::Argmax | Reduce::Argmin => return Ok(vec![None]),
        Reduce::Sum { .. } => b.one(Op::Movement(Movement::Broadcast(b.shape(x).clone())), &[r.dy()?])?,
        Reduce::SquareSum { .. } => {
            let slope = b.scale(x, 2.0)?;
            b.mul(slope, r.dy()?)?
        }
        Reduce::Max { start, end } | Reduce::Min { start, end } => share(b, x, r.y[0], r.dy()?, start, end)?,
        Reduce::Product { start, end } => {
            b.one(Op::Reduce(Reduce::ProductGrad { start, end }), &[x, r.dy()?])?
        }
        Reduce::ProductGrad { .. } => return Err(r.refuse("it is itself a gradient")),
        Reduce::CumulativeSum { axis, reverse } => {
            b.one(Op::Reduce(Reduce::CumulativeSum { axis, reverse: !reverse }), &[r.dy()?])?
        }
        Reduce::TopK { .. } => {
            let extent = b.shape(x).last().copied().unwrap_or(0);
            b.one(Op::Index(Index::Put { extent }), &[r.y[1], r.dy()?])?
        }
    };
    Ok(vec![Some(dx)])
}

/// The gradient of an extreme, shared evenly among the elements that are it.
fn share(
    b: &mut Builder,
    x: ValueId,
    y: ValueId,
    dy: ValueId,
    start: usize,
    end: usize,
) -> Result<ValueId, GraphError> {
    let is_extreme = b.binary(Binary::Equal, x, y)?;
    let ones = b.cast(is_extreme, b.ty(dy).dtype)?;
    let count = b.sum(ones, &(start..end).collect::<Vec<_>>(), true)?;
    let part = b.div(dy, count)?;
    b.mul(part, ones)
}
