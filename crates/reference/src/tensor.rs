//! Operands as f64, and addressing.

use crate::EvaluateError;
use plimsoll_tensor::{Shape, Tensor, TensorType};

/// An operand: its type and its elements as f64. (i64 is exact up to 2⁵³.)
pub(crate) struct Elements<'a> {
    /// Element type and shape.
    pub ty: &'a TensorType,
    /// The elements in row-major order.
    pub data: Vec<f64>,
}

impl<'a> Elements<'a> {
    /// Reads a host tensor.
    pub fn new(host: &'a Tensor) -> Self {
        Self { ty: host.ty(), data: host.to_f64() }
    }

    /// The shape.
    pub fn shape(&self) -> &'a Shape {
        &self.ty.shape
    }

    /// The extents of a tensor whose rank the type rules have checked.
    pub fn extents<const N: usize>(&self) -> [usize; N] {
        self.shape()[..].try_into().expect("the type rule checks the rank")
    }

    /// The last extent; 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }

    /// The elements when the tensor is broadcast to a shape.
    pub fn broadcast(&self, shape: &Shape) -> Vec<f64> {
        offsets(shape, &self.shape().strides_in(shape)).into_iter().map(|o| self.data[o]).collect()
    }

    /// The element at a position as an index below `range`.
    pub fn index(
        &self,
        op: &'static str,
        what: &'static str,
        position: usize,
        range: usize,
    ) -> Result<usize, EvaluateError> {
        let value = self.data[position] as i64;
        match usize::try_from(value) {
            Ok(index) if index < range => Ok(index),
            _ => Err(EvaluateError::OutOfRange { op, what, value, position, range }),
        }
    }
}

/// The row-major offset of an element.
pub(crate) fn at<const N: usize>(extents: [usize; N], index: [usize; N]) -> usize {
    extents.iter().zip(index).fold(0, |offset, (&extent, i)| offset * extent + i)
}

/// The offset of every index of `shape`, in row-major order, where one step along an axis moves by its stride.
pub(crate) fn offsets(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    for (&extent, &stride) in shape.iter().zip(strides) {
        offsets = offsets.iter().flat_map(|o| (0..extent).map(move |i| o + i * stride)).collect();
    }
    offsets
}
