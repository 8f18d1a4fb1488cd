//! Recurrences.

use super::{Gradients, Rule};
use plimsoll_graph::op::{MatMul, Recurrent};
use plimsoll_graph::{Builder, GraphError, Op, ValueId};

pub(super) fn backward(b: &mut Builder, op: Recurrent, r: &Rule<'_>) -> Gradients {
    let reverse = match op {
        Recurrent::Lstm { reverse } => reverse,
        Recurrent::LstmGrad { .. } => return Err(r.refuse("it is itself a gradient")),
    };
    let (dy, dcells) = match *r.outer {
        [_, _, Some(_)] => return Err(r.refuse("its gates cannot be differentiated")),
        [Some(dy), dcells, _] => (dy, dcells),
        // Only the cells are used.
        [None, Some(dcells), _] => (b.scale(dcells, 0.0)?, Some(dcells)),
        _ => return Ok(vec![None; r.x.len()]),
    };
    let op = Op::Recurrent(Recurrent::LstmGrad { reverse, cells: dcells.is_some() });
    let mut inputs = vec![r.x[1], r.x[3], r.y[1], r.y[2], dy];
    inputs.extend(dcells);
    let gradients = b.node(op, &inputs)?;
    let kernel = r.want(b, 1, |b| kernel(b, reverse, r.x[2], r.y[0], gradients[0]))?;
    Ok(vec![Some(gradients[0]), kernel, Some(gradients[1]), Some(gradients[2])])
}

/// The product of the states before every position and the gradients of its gates.
fn kernel(
    b: &mut Builder,
    reverse: bool,
    h: ValueId,
    y: ValueId,
    dx: ValueId,
) -> Result<ValueId, GraphError> {
    let &[n, t, units] = &b.shape(y)[..] else { unreachable!("a sequence has three axes") };
    let h = b.reshape(h, [n, 1, units])?;
    let before = if reverse {
        let later = b.slice(y, 1, 1..t)?;
        b.concat(&[later, h], 1)?
    } else {
        let earlier = b.slice(y, 1, 0..t - 1)?;
        b.concat(&[h, earlier], 1)?
    };
    let (before, dx) = (b.reshape(before, [n * t, units])?, b.reshape(dx, [n * t, 4 * units])?);
    b.one(Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() }), &[before, dx])
}
