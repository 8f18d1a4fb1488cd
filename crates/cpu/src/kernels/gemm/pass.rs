//! One block of columns of a product.

use super::chunks::Chunks;
use super::kernel::{Finish, Form, Tile, Walk};
use super::pack::{Strip, pack};
use super::{Blocking, Mat, SharedMut};
use crate::kernels::float::{Float, narrow};
use crate::kernels::math::Shared;
use std::mem::MaybeUninit;
use std::ops::Range;

/// One block of columns.
pub(super) struct Pass<'a, A, B, C> {
    pub blocking: &'a Blocking,
    pub a: Mat<'a, A>,
    pub b: Mat<'a, B>,
    pub c: Shared<C>,
    pub ldc: usize,
    pub finish: Finish,
    pub space: SharedMut,
    pub columns: Range<usize>,
}

impl<A: Float, B: Float, C: Float> Pass<'_, A, B, C> {
    /// Where the packed panels of a block of k start.
    fn packed_b(&self, depth: &Range<usize>) -> usize {
        let width = self.columns.len().next_multiple_of(self.blocking.kernels.lanes);
        if self.blocking.rounds { depth.start * width } else { 0 }
    }

    pub(super) fn pack_b(&self, panel: usize, depth: &Range<usize>) {
        let Self { blocking, b, .. } = self;
        let start = panel * blocking.kernels.nr();
        let lanes = (self.columns.len() - start).min(blocking.kernels.nr());
        let width = blocking.kernels.panel_width(lanes);
        let first = &b.data[depth.start * b.row_stride + (self.columns.start + start) * b.col_stride..];
        let strip = Strip { src: first.as_ptr(), lane_step: b.col_stride, k_step: b.row_stride, lanes };
        let to = self.space.at(self.packed_b(depth) + start * depth.len());
        // SAFETY: the operand covers its shape, all panels before this one are full, every panel has one
        // packer.
        unsafe { pack(blocking.isa, strip, to, width, depth.len()) };
    }

    /// Rows and columns of a task, the columns counted from the first that is packed.
    fn block(&self, row_block: usize, col_block: usize) -> [Range<usize>; 2] {
        let Blocking { spec, block_rows, block_cols, .. } = self.blocking;
        let rows = row_block * block_rows..((row_block + 1) * block_rows).min(spec.m);
        [rows, col_block * block_cols..((col_block + 1) * block_cols).min(self.columns.len())]
    }

    /// A worker's packed block of A, and its sums.
    fn own(&self, worker: usize) -> [*mut f32; 2] {
        let Blocking { packed_b, packed_a, sums, .. } = self.blocking;
        let at = packed_b + worker * (packed_a + sums);
        [self.space.at(at), self.space.at(at + packed_a)]
    }

    /// One task: a block of rows by a block of columns.
    pub(super) fn multiply(&self, row_block: usize, col_block: usize, worker: usize, depth: &Range<usize>) {
        let blocking = self.blocking;
        let (mr, nr, k_len) = (blocking.kernels.mr, blocking.kernels.nr(), depth.len());
        let [rows, cols] = self.block(row_block, col_block);
        let [packed_a, sums] = self.own(worker);
        if k_len > 0 {
            self.pack_a(rows.clone(), packed_a, depth);
        }
        for col in cols.clone().step_by(nr) {
            let packed_b = self.space.at(self.packed_b(depth) + col * k_len);
            for row in (0..rows.len()).step_by(mr) {
                let size = ((rows.len() - row).min(mr), (cols.end - col).min(nr));
                let at = (rows.start + row, self.columns.start + col);
                let (c, ldc) = if blocking.rounds {
                    let ldc = blocking.block_cols;
                    (sums.wrapping_add(row * ldc + col - cols.start), ldc)
                } else {
                    // A type that is not low is f32.
                    (self.c.at(at.0 * self.ldc + at.1).cast::<f32>(), self.ldc)
                };
                self.tile(at.1, size, packed_a.wrapping_add(row * k_len), packed_b, (c, ldc), depth);
            }
        }
    }

    /// Rounds a task's sums into C.
    pub(super) fn round(&self, row_block: usize, col_block: usize, worker: usize) {
        let [rows, cols] = self.block(row_block, col_block);
        let [_, sums] = self.own(worker);
        let (pitch, len) = (self.blocking.block_cols, cols.len());
        for (i, row) in rows.enumerate() {
            // SAFETY: the sums are the worker's own; every task has its own block of C, inside of its shape.
            let (sums, c) = unsafe {
                let c = self.c.part(row * self.ldc + self.columns.start + cols.start, len);
                (std::slice::from_raw_parts(sums.add(i * pitch), len), c)
            };
            narrow(self.blocking.isa, sums, c);
        }
    }

    fn pack_a(&self, rows: Range<usize>, dst: *mut f32, depth: &Range<usize>) {
        let Self { blocking, a, .. } = self;
        let mr = blocking.kernels.mr;
        for row in (0..rows.len()).step_by(mr) {
            let first = &a.data[(rows.start + row) * a.row_stride + depth.start * a.col_stride..];
            let lanes = (rows.len() - row).min(mr);
            let strip = Strip { src: first.as_ptr(), lane_step: a.row_stride, k_step: a.col_stride, lanes };
            // SAFETY: the operand covers its shape; the block of A is the worker's own.
            unsafe { pack(blocking.isa, strip, dst.add(row * depth.len()), mr, depth.len()) };
        }
    }

    /// All chunks of the block for one tile at a column. Between chunks it is in a buffer of its own: the rows of C are
    /// often a power of two apart, and would evict one another from the first-level cache.
    fn tile(
        &self,
        col: usize,
        (rows, cols): (usize, usize),
        a: *const f32,
        b: *const f32,
        (c, ldc): (*mut f32, usize),
        depth: &Range<usize>,
    ) {
        let Blocking { kernels, spec, .. } = self.blocking;
        let micro = kernels.micro(Form::Columns, rows, cols);
        let width = kernels.panel_width(cols);
        let mut own = OwnTile([MaybeUninit::uninit(); MAX_TILE]);
        let own = own.0.as_mut_ptr().cast::<f32>();
        let mut tile = Tile {
            a,
            a_step: kernels.mr,
            walk: Walk::STRAIGHT,
            k_start: 0,
            k_len: 0,
            b,
            b_step: width,
            old: if spec.accumulate || depth.start > 0 { c } else { std::ptr::null() },
            old_step: ldc,
            c: own,
            ldc: width,
            cols,
            finish: Finish::NONE,
        };
        for chunk in Chunks::new(spec.k, spec.fold).within(depth.clone()) {
            tile.k_len = chunk.len();
            if chunk.end == depth.end {
                (tile.c, tile.ldc) = (c, ldc);
            }
            if chunk.end == spec.k {
                tile.finish = self.finish.at_column(col);
            }
            // SAFETY: both panels are packed to the chunk's end, C covers its shape and no two tasks share a
            // tile of it, a tile fits its own memory; an instruction set is only chosen on machines that have
            // it.
            unsafe { micro(&tile) };
            tile.a = tile.a.wrapping_add(chunk.len() * kernels.mr);
            tile.b = tile.b.wrapping_add(chunk.len() * width);
            (tile.old, tile.old_step) = (own, width);
        }
    }
}

/// A buffer for the largest tile of any instruction set.
#[repr(align(64))]
struct OwnTile([MaybeUninit<f32>; MAX_TILE]);

/// The floats of the largest tile: 14 rows of two vectors of 16.
const MAX_TILE: usize = 14 * 32;
