//! Patches of images as matrices.

use super::CHUNK_BYTES;
use crate::kernels::builder::{CallBuilder, copy_unit, define, index_type, parameters};
use crate::kernels::{Matrix, Operand, Parameter, Pointer};
use plimsoll_tensor::DType;

/// Rows of a chunk are a multiple of this, if there are so many: what a block of a product computes.
const TILE_ROWS: usize = 128;
/// Bytes that rows of a matrix start at a multiple of, so that a product reads them in vectors.
const ROW_ALIGNMENT: usize = 16;

/// Which elements of images make up the rows of a matrix. A row belongs to a place of a grid over an image, its columns to taps,
/// group by group of channels. Along an axis the tap's element of the image is
/// `place · window_step + tap · tap_step + offset`, or zero outside the image.
pub(super) struct Gather {
    pub dtype: DType,
    /// Height and width of the images.
    pub source: [usize; 2],
    pub channels: usize,
    pub groups: usize,
    /// Height and width of the grid.
    pub grid: [usize; 2],
    pub taps: [usize; 2],
    pub window_step: [i64; 2],
    pub tap_step: [i64; 2],
    pub offset: [i64; 2],
}

impl Gather {
    /// Whether the images themselves are the matrix.
    pub fn is_identity(&self) -> bool {
        self.taps == [1; 2] && self.window_step == [1; 2] && self.offset == [0; 2] && self.grid == self.source
    }

    /// Terms of a row.
    pub fn columns(&self) -> usize {
        self.taps[0] * self.taps[1] * self.channels
    }

    /// Elements from row to row.
    fn row_stride(&self) -> usize {
        if self.is_identity() {
            self.channels
        } else {
            self.columns().next_multiple_of(ROW_ALIGNMENT / self.dtype.bytes())
        }
    }

    /// Bytes of scratch memory that so many rows take.
    pub fn bytes(&self, rows: usize) -> usize {
        if self.is_identity() { 0 } else { rows * self.row_stride() * self.dtype.bytes() }
    }

    /// Rows of a chunk, if each also takes so many other bytes: a function of a row's sizes alone.
    pub fn chunk_rows(&self, other_bytes: usize) -> usize {
        let rows = CHUNK_BYTES.checked_div(self.bytes(1) + other_bytes).unwrap_or(usize::MAX).max(1);
        if rows > TILE_ROWS { rows / TILE_ROWS * TILE_ROWS } else { rows }
    }

    /// Some rows of the matrix, in this scratch memory unless the images are the matrix; the groups are its products.
    pub fn gather(
        &self,
        b: &mut CallBuilder,
        images: Operand,
        first_row: usize,
        rows: usize,
        space: Pointer,
    ) -> Matrix {
        let (row_stride, bytes) = (self.row_stride(), self.dtype.bytes());
        let matrix = |start: Pointer| Matrix {
            start,
            dtype: self.dtype,
            transposed: false,
            row_stride,
            stride: self.columns() / self.groups,
        };
        if self.is_identity() {
            return matrix(images.at(first_row * row_stride * bytes));
        }
        let group = self.channels / self.groups;
        let (unit, elements) = copy_unit(group, self.dtype);
        let windows = self.grid[0] * self.grid[1];
        let macros = [("UNIT", unit), ("INDEX", index_type(2 * windows))];
        let source = define(&macros, include_str!("patches.cu"));
        let total = rows * self.columns() / elements;
        let mut parameters = parameters![images, space, total, first_row / windows, first_row % windows];
        parameters.extend(self.grid.map(Parameter::from));
        parameters.extend(self.source.map(Parameter::from));
        parameters.extend([self.channels / elements, group / elements].map(Parameter::from));
        parameters.extend(self.taps.map(Parameter::from));
        for steps in [self.window_step, self.tap_step, self.offset] {
            parameters.extend(steps.map(Parameter::Integer));
        }
        parameters.push((row_stride / elements).into());
        b.each(total, source, parameters);
        matrix(space)
    }
}
