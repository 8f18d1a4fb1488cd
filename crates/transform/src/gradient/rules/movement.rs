//! Moving elements.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Movement, Span};
use plimsoll_graph::{Builder, GraphError, Op, ValueId};

pub(super) fn backward(b: &mut Builder, op: &Movement, r: &Rule<'_>) -> Gradients {
    let shape = b.shape(r.x[0]).clone();
    let dx = match op {
        Movement::Concat { axis } => return concat(b, *axis, r),
        Movement::Split { axis, .. } => return split(b, *axis, r).map(|dx| vec![Some(dx)]),
        Movement::Detach => return Ok(vec![None]),
        Movement::Reshape(_) => b.reshape(r.dy()?, shape)?,
        Movement::Broadcast(_) => b.sum_like(r.dy()?, r.x[0])?,
        Movement::Transpose(axes) => {
            let mut inverse = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
            b.one(Op::Movement(Movement::Transpose(inverse)), &[r.dy()?])?
        }
        Movement::Slice(spans) => {
            let pad = Movement::Pad { shape, spans: spans.clone(), value: 0.0 };
            b.one(Op::Movement(pad), &[r.dy()?])?
        }
        Movement::Pad { spans, .. } => b.one(Op::Movement(Movement::Slice(spans.clone())), &[r.dy()?])?,
    };
    Ok(vec![Some(dx)])
}

/// Each input's part of the gradient: one split if all are wanted, else slices.
fn concat(b: &mut Builder, axis: usize, r: &Rule<'_>) -> Gradients {
    let dy = r.dy()?;
    let extents: Vec<usize> = r.x.iter().map(|&x| b.shape(x)[axis]).collect();
    if r.needs.iter().all(|&needed| needed) {
        let pieces = b.node(Op::Movement(Movement::Split { axis, extents }), &[dy])?;
        return Ok(pieces.into_iter().map(Some).collect());
    }
    let mut start = 0;
    let mut gradients = Vec::new();
    for (input, &extent) in extents.iter().enumerate() {
        let mut spans: Vec<Span> = b.shape(dy).iter().map(|&n| Span::whole(n)).collect();
        spans[axis] = Span { start, extent, step: 1 };
        gradients.push(r.want(b, input, |b| b.one(Op::Movement(Movement::Slice(spans)), &[dy]))?);
        start += extent;
    }
    Ok(gradients)
}

/// The pieces' gradients side by side, zeros for a piece that has none.
fn split(b: &mut Builder, axis: usize, r: &Rule<'_>) -> Result<ValueId, GraphError> {
    let mut pieces = Vec::new();
    for (&y, outer) in r.y.iter().zip(r.outer) {
        pieces.push(match outer {
            Some(dy) => *dy,
            None => {
                let zero = b.constant(0.0, b.ty(y).dtype)?;
                let shape = b.shape(y).clone();
                b.one(Op::Movement(Movement::Broadcast(shape)), &[zero])?
            }
        });
    }
    b.one(Op::Movement(Movement::Concat { axis }), &pieces)
}
