//! The elements of a model's states on their way into a file, piece by piece.

use crate::ExportError;
use plimsoll_graph::{Graph, Origin, ValueId};
use plimsoll_tensor::{Shape, TensorType, all_finite};
use std::io::Write;
use std::path::Path;

/// Bytes of the buffers through which weights pass.
pub const BUFFER_BYTES: usize = 4 << 20;

/// Where the elements of a graph's states are: in memory, in a file, on a device.
pub trait Weights {
    /// Copies bytes of state `state` of the graph, from `offset` on, in row-major order of its shape.
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExportError>;
}

/// What a tensor in a file holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Those of a state. Axis i of the tensor is axis `order[i]` of the state; empty: the same order.
    State { state: usize, order: Vec<usize> },
}

/// Writes the elements of tensors.
pub(crate) struct Source<'a> {
    pub graph: &'a Graph,
    pub weights: &'a dyn Weights,
}

impl Source<'_> {
    /// Gives all bytes of a tensor to `take`, in pieces.
    pub fn each(
        &self,
        elements: &Elements,
        mut take: impl FnMut(&[u8]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let (state, order) = match elements {
            Elements::Bytes(bytes) => return take(bytes),
            Elements::State { state, order } => (*state, order),
        };
        let (name, ty) = (&self.graph.states[state].name, self.graph.ty(self.graph.states[state].input));
        let mut checked = |bytes: &[u8]| match all_finite(ty.dtype, bytes) {
            true => take(bytes),
            false => Err(ExportError::NotFinite(name.clone())),
        };
        if order.is_empty() {
            let bytes = ty.bytes();
            let mut buffer = vec![0; bytes.min(BUFFER_BYTES)];
            for first in (0..bytes).step_by(BUFFER_BYTES) {
                let piece = &mut buffer[..BUFFER_BYTES.min(bytes - first)];
                self.weights.read(state, first, piece)?;
                checked(piece)?;
            }
            return Ok(());
        }
        self.reordered(state, ty, order, checked)
    }

    /// The elements of a small state, of four bytes each; `None` for a value that is no state.
    pub fn vector<T>(&self, value: ValueId, of: fn([u8; 4]) -> T) -> Result<Option<Vec<T>>, ExportError> {
        let Origin::State(state) = self.graph.origin(value) else { return Ok(None) };
        let mut values = Vec::new();
        self.each(&Elements::State { state, order: Vec::new() }, |bytes| {
            values.extend(bytes.chunks_exact(4).map(|b| of([b[0], b[1], b[2], b[3]])));
            Ok(())
        })?;
        Ok(Some(values))
    }

    /// A group of the result's outermost slices at a time.
    fn reordered(
        &self,
        state: usize,
        ty: &TensorType,
        order: &[usize],
        mut take: impl FnMut(&[u8]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let (size, strides) = (ty.dtype.bytes(), ty.shape.strides());
        let outer = order[0];
        let count = ty.shape[outer];
        let inner: Vec<usize> = order[1..].iter().map(|&axis| ty.shape[axis]).collect();
        let inner_strides: Vec<usize> = order[1..].iter().map(|&axis| strides[axis]).collect();
        let elements = Shape::from(inner.clone()).elements();
        if count == 0 || elements == 0 {
            return Ok(());
        }
        let per_group = (BUFFER_BYTES / (elements * size)).clamp(1, count);
        let mut group = vec![0; per_group * elements * size];
        let mut run = vec![0; per_group * size];
        for first in (0..count).step_by(per_group) {
            let slices = per_group.min(count - first);
            let mut index = vec![0; inner.len()];
            for element in 0..elements {
                let at: usize = index.iter().zip(&inner_strides).map(|(i, stride)| i * stride).sum();
                let run = &mut run[..slices * size];
                if strides[outer] == 1 {
                    self.weights.read(state, (at + first) * size, run)?;
                } else {
                    for (slice, bytes) in run.chunks_exact_mut(size).enumerate() {
                        self.weights.read(state, (at + (first + slice) * strides[outer]) * size, bytes)?;
                    }
                }
                for (slice, bytes) in run.chunks_exact(size).enumerate() {
                    group[(slice * elements + element) * size..][..size].copy_from_slice(bytes);
                }
                for axis in (0..inner.len()).rev() {
                    index[axis] += 1;
                    if index[axis] < inner[axis] {
                        break;
                    }
                    index[axis] = 0;
                }
            }
            take(&group[..slices * elements * size])?;
        }
        Ok(())
    }

    /// Writes all bytes of a tensor.
    pub fn write(&self, elements: &Elements, out: &mut impl Write, path: &Path) -> Result<(), ExportError> {
        self.each(elements, |bytes| out.write_all(bytes).map_err(|e| ExportError::write(path, e)))
    }
}
