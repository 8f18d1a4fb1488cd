//! Moving elements: slices, joins, repeats.

use super::Builder;
use crate::op::{Movement, Span};
use crate::{GraphError, Op, ValueId};
use plimsoll_tensor::Shape;
use std::ops::Range;

impl Builder {
    /// The extent of an axis, or an error that names it.
    pub(crate) fn extent(&self, op: &'static str, x: ValueId, axis: usize) -> Result<usize, GraphError> {
        let extent = self.shape(x).get(axis).copied();
        extent.ok_or_else(|| self.refuse(op, &[x], format!("there is no axis {axis}")))
    }

    fn moved(&mut self, op: Movement, x: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Movement(op), &[x])
    }

    /// Output axis i is input axis `axes[i]`.
    pub fn transpose(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId, GraphError> {
        if axes.iter().copied().eq(0..self.shape(x).rank()) {
            return Ok(x);
        }
        self.moved(Movement::Transpose(axes.to_vec()), x)
    }

    /// Repeats along axes of extent one and new leading axes.
    pub fn broadcast_to(&mut self, x: ValueId, shape: impl Into<Shape>) -> Result<ValueId, GraphError> {
        let shape = shape.into();
        if *self.shape(x) == shape { Ok(x) } else { self.moved(Movement::Broadcast(shape), x) }
    }

    /// The value itself, through which no gradient flows.
    pub fn detach(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.moved(Movement::Detach, x)
    }

    /// A range of an axis.
    pub fn slice(&mut self, x: ValueId, axis: usize, range: Range<usize>) -> Result<ValueId, GraphError> {
        let span = Span { start: range.start, extent: range.len(), step: 1 };
        self.span(x, axis, span)
    }

    /// A strided slice of an axis.
    pub fn span(&mut self, x: ValueId, axis: usize, span: Span) -> Result<ValueId, GraphError> {
        let extent = self.extent("slice", x, axis)?;
        if span == Span::whole(extent) {
            return Ok(x);
        }
        let mut spans: Vec<Span> = self.shape(x).iter().map(|&n| Span::whole(n)).collect();
        spans[axis] = span;
        self.moved(Movement::Slice(spans), x)
    }

    /// An axis in reverse.
    pub fn flip(&mut self, x: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        let extent = self.extent("flip", x, axis)?;
        self.span(x, axis, Span { start: extent.saturating_sub(1), extent, step: -1 })
    }

    /// `[before, after]` elements of a value around every axis.
    pub fn pad(&mut self, x: ValueId, around: &[[usize; 2]], value: f64) -> Result<ValueId, GraphError> {
        if around.len() != self.shape(x).rank() {
            return Err(self.refuse(
                "pad",
                &[x],
                format!("needs a pair for every axis, has {}", around.len()),
            ));
        }
        let pairs = self.shape(x).iter().zip(around);
        let shape: Vec<usize> = pairs.map(|(n, [a, b])| n.saturating_add(*a).saturating_add(*b)).collect();
        let pairs = self.shape(x).iter().zip(around);
        let spans = pairs.map(|(&extent, &[start, _])| Span { start, extent, step: 1 }).collect();
        self.moved(Movement::Pad { shape: shape.into(), spans, value }, x)
    }

    /// Values one after another along an axis.
    pub fn concat(&mut self, values: &[ValueId], axis: usize) -> Result<ValueId, GraphError> {
        if let [only] = values {
            return Ok(*only);
        }
        self.one(Op::Movement(Movement::Concat { axis }), values)
    }

    /// Splits an axis into pieces of these extents.
    pub fn split(&mut self, x: ValueId, axis: usize, extents: &[usize]) -> Result<Vec<ValueId>, GraphError> {
        if extents.len() == 1 && self.shape(x).get(axis) == extents.first() {
            return Ok(vec![x]);
        }
        self.node(Op::Movement(Movement::Split { axis, extents: extents.to_vec() }), &[x])
    }

    /// Every slice of an axis as a value without that axis.
    pub fn unstack(&mut self, x: ValueId, axis: usize) -> Result<Vec<ValueId>, GraphError> {
        let extent = self.extent("unstack", x, axis)?;
        let mut shape = self.shape(x).to_vec();
        shape.remove(axis);
        let pieces = self.split(x, axis, &vec![1; extent])?;
        pieces.into_iter().map(|piece| self.reshape(piece, shape.clone())).collect()
    }

    /// Values of one shape along a new axis.
    pub fn stack(&mut self, values: &[ValueId], axis: usize) -> Result<ValueId, GraphError> {
        let mut pieces = Vec::new();
        for &value in values {
            let mut shape = self.shape(value).to_vec();
            if axis > shape.len() {
                return Err(self.refuse("stack", &[value], format!("there is no place {axis} for an axis")));
            }
            shape.insert(axis, 1);
            pieces.push(self.reshape(value, shape)?);
        }
        self.concat(&pieces, axis)
    }

    /// Repeats the whole value so many times along every axis.
    pub fn tile(&mut self, x: ValueId, times: &[usize]) -> Result<ValueId, GraphError> {
        let shape = self.shape(x).clone();
        if times.len() != shape.rank() {
            return Err(self.refuse(
                "tile",
                &[x],
                format!("needs a number for every axis, has {}", times.len()),
            ));
        }
        // [a, b] is read as [1, a, 1, b], repeated to [t, a, u, b], and read as [t·a, u·b].
        let apart: Vec<usize> = shape.iter().flat_map(|&n| [1, n]).collect();
        let repeated: Vec<usize> = shape.iter().zip(times).flat_map(|(&n, &t)| [t, n]).collect();
        let joined: Vec<usize> = shape.iter().zip(times).map(|(&n, &t)| n.saturating_mul(t)).collect();
        let x = self.reshape(x, apart)?;
        let x = self.broadcast_to(x, repeated)?;
        self.reshape(x, joined)
    }
}
