//! Moving elements without changing them.

use crate::evaluate::Values;
use crate::tensor::{Elements, offsets};
use plimsoll_graph::op::{Movement, Span};
use plimsoll_tensor::{Shape, TensorType};

pub(crate) fn evaluate(op: &Movement, inputs: &[Elements<'_>], outputs: &[&TensorType]) -> Values {
    let x = &inputs[0];
    let shape = &outputs[0].shape;
    Ok(vec![match op {
        Movement::Reshape(_) | Movement::Detach => x.data.clone(),
        Movement::Transpose(axes) => {
            let strides = x.shape().strides();
            let moved: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
            offsets(shape, &moved).into_iter().map(|offset| x.data[offset]).collect()
        }
        Movement::Broadcast(shape) => x.broadcast(shape),
        Movement::Slice(spans) => places(x.shape(), spans).into_iter().map(|place| x.data[place]).collect(),
        Movement::Pad { spans, value, .. } => {
            let mut result = vec![*value; shape.elements()];
            places(shape, spans).into_iter().zip(&x.data).for_each(|(place, x)| result[place] = *x);
            result
        }
        Movement::Concat { axis } => {
            let mut result = vec![0.0; shape.elements()];
            let mut start = 0;
            for x in inputs {
                let places = places(shape, &part(shape, *axis, start, x.shape()[*axis]));
                places.into_iter().zip(&x.data).for_each(|(place, x)| result[place] = *x);
                start += x.shape()[*axis];
            }
            result
        }
        Movement::Split { axis, extents } => {
            let mut start = 0;
            let mut pieces = Vec::new();
            for &extent in extents {
                let places = places(x.shape(), &part(x.shape(), *axis, start, extent));
                pieces.push(places.into_iter().map(|place| x.data[place]).collect());
                start += extent;
            }
            return Ok(pieces);
        }
    }])
}

/// A piece of an axis, and all of the others.
fn part(shape: &Shape, axis: usize, start: usize, extent: usize) -> Vec<Span> {
    let mut spans: Vec<Span> = shape.iter().map(|&n| Span::whole(n)).collect();
    spans[axis] = Span { start, extent, step: 1 };
    spans
}

/// The offsets in a tensor of this shape of the elements at these spans, in row-major order.
fn places(shape: &Shape, spans: &[Span]) -> Vec<usize> {
    let mut places = vec![0];
    for (span, stride) in spans.iter().zip(shape.strides()) {
        let along = |i: usize| span.start.wrapping_add_signed(i as isize * span.step) * stride;
        places = places.iter().flat_map(|place| (0..span.extent).map(move |i| place + along(i))).collect();
    }
    places
}
