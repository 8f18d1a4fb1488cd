//! The gradient of a convolution's kernels: patches, transposed, times the result's gradient.
//!
//! Rows (output pixels) are cut into parts that lie inside a block of the fold over the batch, at the same places of every block.
//! A part's sum is a product by itself, and the parts are added in order.

use super::{CHUNK_BYTES, CallBuilder, Shape, define, direct, implicit, parameters};
use crate::kernels::{Call, Matrix, Operand, Pointer, Product};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

/// Tiles that keep a device busy: a product whose result has fewer is cut into more parts.
const TILES: usize = 264;
/// Rows and columns of a tile.
const TILE: usize = 128;
/// The least number of rows of a part.
const LEAST_ROWS: usize = 1024;

/// Consecutive parts of the rows, all of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// The first row.
    pub first: usize,
    /// Rows of each.
    pub rows: usize,
    pub count: usize,
}

/// All parts, in order: of `part` rows, but for what is left at the end of a block; `most` at a time.
pub(super) fn parts(rows: usize, block: usize, part: usize, most: usize) -> Vec<Parts> {
    let part = part.min(block);
    // Where every block has whole parts, so have all of them together.
    let span = if block.is_multiple_of(part) { rows } else { block };
    let mut all = Vec::new();
    for start in (0..rows).step_by(span.max(1)) {
        let length = span.min(rows - start);
        let whole = length / part;
        all.extend((0..whole).step_by(most).map(|i| Parts {
            first: start + i * part,
            rows: part,
            count: most.min(whole - i),
        }));
        if length % part > 0 {
            all.push(Parts { first: start + whole * part, rows: length % part, count: 1 });
        }
    }
    all
}

/// Rows of a block of the fold.
pub(super) fn block_rows(shape: &Shape, query: &KernelQuery<'_>) -> usize {
    let pixels = shape.result[0] * shape.result[1];
    if query.fold_rows == 0 { shape.rows().max(1) } else { query.fold_rows.saturating_mul(pixels).max(1) }
}

/// Adds parts of a gradient to what it holds, or to zero.
pub(super) fn fold(b: &mut CallBuilder, shape: &Shape, parts: Pointer, count: usize, accumulate: bool) {
    let elements = shape.terms() * shape.outputs;
    let source = define(&[], include_str!("fold.cu"));
    let accumulate = usize::from(accumulate);
    b.each(elements, source, parameters![parts, Operand::Write(0), elements, count, accumulate]);
}

pub(super) fn call(shape: &Shape, query: &KernelQuery<'_>) -> Call {
    let block = block_rows(shape, query);
    if shape.rows() == 0 {
        let mut b = CallBuilder::default();
        fold(&mut b, shape, Operand::Write(0).at(0), 0, query.accumulate);
        b.finish()
    } else if shape.is_direct() {
        direct::weight_grad(shape, block, query.accumulate)
    } else {
        let implicit = implicit::weight_grad(shape, block, query.accumulate);
        implicit.unwrap_or_else(|| products(shape, block, query.accumulate))
    }
}

fn products(shape: &Shape, block: usize, accumulate: bool) -> Call {
    let (patches, outputs) = (shape.windows(), shape.outputs);
    let part_bytes = shape.terms() * outputs * size_of::<f32>();
    let chunk = CHUNK_BYTES / (shape.terms() * shape.groups * shape.dtype.bytes());
    let tiles = shape.terms().div_ceil(TILE) * shape.group_outputs().div_ceil(TILE) * shape.groups;
    // Parts fill the device: those of a chunk, or, where nothing is gathered, those of a block.
    let together = if patches.is_identity() { block } else { chunk };
    let wanted = together.div_ceil(TILES.div_ceil(tiles)).max(LEAST_ROWS);
    let part = wanted.min(patches.chunk_rows(0));
    let most = (patches.chunk_rows(0) / part).min(CHUNK_BYTES / part_bytes).max(1);
    let all = parts(shape.rows(), block, part, most);
    let at_once = all.iter().map(|parts| parts.rows * parts.count).max().unwrap_or(0);
    let sums = all.iter().map(|parts| parts.count).max().unwrap_or(0);
    let mut b = CallBuilder::default();
    let space = b.scratch(patches.bytes(at_once));
    let sums = b.scratch(if sums > 1 { sums * part_bytes } else { 0 });
    for (i, &Parts { first, rows, count }) in all.iter().enumerate() {
        let a = patches.gather(&mut b, Operand::Read(0), first, rows * count, space);
        let (into, accumulate) =
            (if count > 1 { sums } else { Operand::Write(0).at(0) }, accumulate || i > 0);
        for group in 0..shape.groups {
            let columns = group * shape.group_outputs();
            let dy = Operand::Read(1).at((first * outputs + columns) * shape.dtype.bytes());
            b.product(Product {
                m: shape.terms(),
                n: shape.group_outputs(),
                k: rows,
                a: Matrix {
                    start: a.start.after(group * a.stride * shape.dtype.bytes()),
                    transposed: true,
                    stride: rows * a.row_stride,
                    ..a
                },
                b: Matrix {
                    start: dy,
                    dtype: shape.dtype,
                    transposed: false,
                    row_stride: outputs,
                    stride: rows * outputs,
                },
                c: Matrix {
                    start: into.after(columns * size_of::<f32>()),
                    dtype: DType::F32,
                    transposed: false,
                    row_stride: outputs,
                    stride: shape.terms() * outputs,
                },
                accumulate: count == 1 && accumulate,
                count,
                bias: None,
                tf32: false,
            });
        }
        if count > 1 {
            fold(&mut b, shape, sums, count, accumulate);
        }
    }
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts one by one, as (first row, rows).
    fn listed(rows: usize, block: usize, part: usize, most: usize) -> Vec<(usize, usize)> {
        let each = |p: Parts| (0..p.count).map(move |i| (p.first + i * p.rows, p.rows));
        parts(rows, block, part, most).into_iter().flat_map(each).collect()
    }

    #[test]
    fn parts_cover_all_rows_once_and_end_with_blocks() {
        for (rows, block, part, most) in
            [(100, 40, 16, 2), (100, 32, 16, 3), (7, 10, 3, 1), (64, 4, 16, 5), (0, 4, 2, 1)]
        {
            let all = listed(rows, block, part, most);
            let mut next = 0;
            for &(first, rows) in &all {
                assert_eq!(first, next);
                assert!(rows > 0 && rows <= part && first / block == (first + rows - 1) / block);
                next = first + rows;
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn a_batch_that_is_split_at_blocks_has_the_same_parts() {
        for (block, part) in [(40, 16), (32, 16), (4, 16)] {
            let whole = listed(5 * block, block, part, 3);
            let head = listed(2 * block, block, part, 7);
            let tail = listed(3 * block, block, part, 1);
            let tail = tail.into_iter().map(|(first, rows)| (first + 2 * block, rows));
            assert_eq!(whole, head.into_iter().chain(tail).collect::<Vec<_>>());
        }
    }
}
