//! One block of columns of a product.

use super::kernel::{Finish, Form, Packing, Tile, Walk};
use super::pack::{Strip, pack};
#[cfg(target_arch = "x86_64")]
use super::pairs::{Layout, PER_SLOT, TILE, pack_pairs};
use super::{Blocking, GROUP_FLOATS, Mat, SharedMut};
use crate::kernels::float::{Float, narrow};
use crate::kernels::math::Shared;
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

    /// Packs a few adjacent panels along a block of k. Where a row of B is contiguous, a few rows of all of them at a time:
    /// rows are often pages apart, and every part of one that is read by itself is a cache miss by itself.
    pub(super) fn pack_b(&self, panels: Range<usize>, depth: &Range<usize>) {
        let Self { blocking, b, .. } = self;
        let nr = blocking.kernels.nr();
        let rows = if b.col_stride == 1 { 16 } else { depth.len() };
        for row in (0..depth.len()).step_by(rows.max(1)) {
            let rows = rows.min(depth.len() - row);
            for panel in panels.clone() {
                let start = panel * nr;
                let lanes = (self.columns.len() - start).min(nr);
                let width = blocking.kernels.panel_width(lanes);
                let column = (self.columns.start + start) * b.col_stride;
                let strip = |k: usize| {
                    let src = b.data[k * b.row_stride + column..].as_ptr();
                    Strip { src, lane_step: b.col_stride, k_step: b.row_stride, lanes }
                };
                let to = self.space.at(self.packed_b(depth) + start * depth.len() + row * width);
                let here = depth.start + row..depth.start + row + rows;
                // SAFETY: the operand covers its shape, all panels before this one are full, every panel has one
                // packer.
                unsafe { self.pack(strip, (to, width), here, false) };
            }
        }
    }

    /// Packs places along k of a strip of A or B that starts at a given k.
    ///
    /// # Safety
    ///
    /// The strips must be good for reads up to the end of k, the panel for writes, and the strips no wider than it.
    unsafe fn pack<T: Float>(
        &self,
        strip: impl Fn(usize) -> Strip<T>,
        (dst, width): (*mut f32, usize),
        slots: Range<usize>,
        is_a: bool,
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.blocking.kernels.packing != Packing::Wide {
            // SAFETY: as the caller promises.
            return unsafe { self.pack_pairs(strip, (dst, width), slots, is_a) };
        }
        let _ = is_a;
        // SAFETY: as the caller promises; places are k.
        unsafe { pack(self.blocking.isa, strip(slots.start), dst, width, slots.len()) };
    }

    /// # Safety
    ///
    /// As for [`Pass::pack`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_pairs<T: Float>(
        &self,
        strip: impl Fn(usize) -> Strip<T>,
        (dst, width): (*mut f32, usize),
        slots: Range<usize>,
        is_a: bool,
    ) {
        let Blocking { kernels, spec, block_slots, .. } = self.blocking;
        let tiles = is_a && kernels.packing.is_tiles();
        let mut at = slots.start;
        while at < slots.end {
            let (block, inside) = (at / block_slots, at % block_slots);
            let end = slots.end.min((block + 1) * block_slots);
            let first = block * spec.block + inside * PER_SLOT;
            let k = ((block + 1) * spec.block).min(spec.k).saturating_sub(first).min((end - at) * PER_SLOT);
            let done = at - slots.start;
            let (layout, to) = if tiles {
                (Layout::Tiles { pairs: slots.len() }, dst.wrapping_add(done * TILE))
            } else {
                (Layout::Panel, dst.wrapping_add(done * width))
            };
            // SAFETY: as the caller promises; such kernels are only chosen on machines with AVX-512.
            unsafe { pack_pairs(strip(first), (to, width), k, end - at, layout) };
            at = end;
        }
    }

    /// Rows and columns of a task, the columns counted from the first that is packed.
    fn block(&self, row_block: usize, col_block: usize) -> [Range<usize>; 2] {
        let Blocking { kernels, spec, row_blocks, col_blocks, .. } = self.blocking;
        let part = |whole: usize, unit: usize, parts: usize, part: usize| {
            let units = whole.div_ceil(unit);
            let ends = [part, part + 1].map(|part| (units * part / parts * unit).min(whole));
            ends[0]..ends[1]
        };
        let rows = part(spec.m, kernels.mr, *row_blocks, row_block);
        [rows, part(self.columns.len(), kernels.nr(), *col_blocks, col_block)]
    }

    /// A worker's packed block of A, and its sums.
    fn own(&self, worker: usize) -> [*mut f32; 2] {
        let Blocking { packed_b, packed_a, sums, .. } = self.blocking;
        let at = packed_b + worker * (packed_a + sums);
        [self.space.at(at), self.space.at(at + packed_a)]
    }

    /// One task: a block of rows by a block of columns. A tile of A stays in the first-level cache while it passes over a
    /// group of panels, which stay in the second.
    pub(super) fn multiply(&self, row_block: usize, col_block: usize, worker: usize, depth: &Range<usize>) {
        let Blocking { kernels, spec, slots, rounds, .. } = self.blocking;
        let (mr, nr, k_len) = (kernels.mr, kernels.nr(), depth.len());
        let [rows, cols] = self.block(row_block, col_block);
        let [packed_a, sums] = self.own(worker);
        if k_len > 0 && !cols.is_empty() {
            self.pack_a(rows.clone(), packed_a, depth);
        }
        let (c, ldc) = if *rounds {
            (sums, cols.len())
        } else {
            // A type that is not low is f32.
            let first = rows.start * self.ldc + self.columns.start + cols.start;
            (self.c.at(first).cast::<f32>(), self.ldc)
        };
        let load = spec.accumulate || depth.start > 0;
        let group = (GROUP_FLOATS / (nr * k_len.max(1))).max(1) * nr;
        // SAFETY: the machine has the kernels' instructions.
        unsafe { (kernels.enter)() };
        for first in cols.clone().step_by(group) {
            let end = (first + group).min(cols.end);
            for row in (0..rows.len()).step_by(mr) {
                let height = (rows.len() - row).min(mr);
                for col in (first..end).step_by(nr) {
                    let width = (cols.end - col).min(nr);
                    let at = |row: usize, col: usize| c.wrapping_add(row * ldc + col - cols.start);
                    let next = if col + nr < end { at(row, col + nr) } else { at(row + mr, first) };
                    let column = self.columns.start + col;
                    let last = depth.end == *slots;
                    let tile = Tile {
                        a: packed_a.wrapping_add(row * k_len),
                        a_step: mr,
                        walk: Walk::STRAIGHT,
                        k_start: 0,
                        k_len,
                        b: self.space.at(self.packed_b(depth) + col * k_len),
                        b_step: kernels.panel_width(width),
                        c: at(row, col),
                        ldc,
                        load,
                        ahead: next,
                        cols: width,
                        finish: if last { self.finish.at_column(column) } else { Finish::NONE },
                    };
                    // SAFETY: both panels are packed along the block of k, C covers its shape and no two tasks share a
                    // tile of it; an instruction set is only chosen on machines that have it.
                    unsafe { kernels.micro(Form::Columns, height, width)(&tile) };
                }
            }
        }
        // SAFETY: as above.
        unsafe { (kernels.leave)() };
    }

    /// Rounds a task's sums into C.
    pub(super) fn round(&self, row_block: usize, col_block: usize, worker: usize) {
        let [rows, cols] = self.block(row_block, col_block);
        let [_, sums] = self.own(worker);
        let len = cols.len();
        for (i, row) in rows.enumerate() {
            // SAFETY: the sums are the worker's own; every task has its own block of C, inside of its shape.
            let (sums, c) = unsafe {
                let c = self.c.part(row * self.ldc + self.columns.start + cols.start, len);
                (std::slice::from_raw_parts(sums.add(i * len), len), c)
            };
            narrow(self.blocking.isa, sums, c);
        }
    }

    /// Packs a block of A along a block of k. Where a column of A is contiguous, a few columns of all tiles at a time, as
    /// [`Pass::pack_b`] does with rows: neighbouring tiles share cache lines.
    fn pack_a(&self, rows: Range<usize>, dst: *mut f32, depth: &Range<usize>) {
        let Self { blocking, a, .. } = self;
        let mr = blocking.kernels.mr;
        let columns =
            if a.row_stride == 1 && blocking.kernels.packing == Packing::Wide { 16 } else { depth.len() };
        for start in depth.clone().step_by(columns.max(1)) {
            let here = start..(start + columns).min(depth.end);
            for row in (0..rows.len()).step_by(mr) {
                let lanes = (rows.len() - row).min(mr);
                let strip = |k: usize| {
                    let src = a.data[(rows.start + row) * a.row_stride + k * a.col_stride..].as_ptr();
                    Strip { src, lane_step: a.row_stride, k_step: a.col_stride, lanes }
                };
                let to = row * depth.len() + (start - depth.start) * mr;
                // SAFETY: the operand covers its shape; the block of A is the worker's own.
                unsafe { self.pack(strip, (dst.add(to), mr), here.clone(), true) };
            }
        }
    }
}
