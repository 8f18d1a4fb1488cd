//! The gradient of a convolution with respect to its weights.

use super::axis::Axis;
use super::image::{View, Window};
#[cfg(target_arch = "x86_64")]
use super::weight_tiles::TileGrad;
use super::{ConvShape, depthwise, share};
use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::gemm::chunks::KC;
use crate::kernels::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::kernels::gemm::pack::{Strip, pack};
use crate::kernels::gemm::{SharedMut, shared_workspace, whole_lines};
use std::ops::Range;

/// The bytes of workspace that [`conv2d_weight_grad`] needs: a multiple of 64.
pub fn conv2d_weight_grad_workspace<T: Float>(
    isa: Isa,
    threads: usize,
    shape: &ConvShape,
    block_examples: usize,
) -> usize {
    let split = Split::new(threads, shape, block_examples);
    let floats = if shape.is_depthwise() {
        depthwise::WeightGrad::new(isa, shape, split).workspace_floats()
    } else {
        #[cfg(target_arch = "x86_64")]
        if let Some(grad) = TileGrad::new::<T>(isa, shape, split) {
            return grad.workspace_floats(threads) * size_of::<f32>();
        }
        WeightGrad::new::<T>(isa, shape, split).workspace_floats(threads)
    };
    floats * size_of::<f32>()
}

/// The gradient of [`conv2d`](super::conv2d) with respect to its weights, in `dw` or added to it.
///
/// Every block of `block_examples` examples is summed by itself, from +0, by whole output rows of at most 256
/// pixels together; the blocks are then added to `dw` in order. Splitting the examples at a block boundary
/// into two calls, the second of which accumulates, gives the same bits. Where operands are bf16 and the instruction set
/// multiplies bf16 in tiles, 32 pixels are summed at a time.
///
/// # Panics
///
/// As [`conv2d`](super::conv2d), and when a block has no examples.
#[expect(clippy::too_many_arguments, reason = "operands, sizes and space, as every kernel has")]
pub fn conv2d_weight_grad<T: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[T],
    dy: &[T],
    dw: &mut [f32],
    accumulate: bool,
    block_examples: usize,
    workspace: &mut [f32],
) {
    shape.check(x.len(), dw.len(), dy.len());
    if !accumulate {
        dw.fill(0.0);
    }
    if dw.is_empty() || dy.is_empty() {
        return;
    }
    assert_available(ctx.isa);
    let threads = ctx.pool.threads();
    let split = Split::new(threads, shape, block_examples);
    if shape.is_depthwise() {
        let grad = depthwise::WeightGrad::new(ctx.isa, shape, split);
        let space = shared_workspace(workspace, grad.workspace_floats());
        return split.fold(ctx, shape, dw, (space, grad.slot_floats), &|examples, slice, slot, _| {
            grad.block(x, dy, examples, slice, space.at(slot * grad.slot_floats));
        });
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(grad) = TileGrad::new::<T>(ctx.isa, shape, split) {
        let space = shared_workspace(workspace, grad.workspace_floats(threads));
        return split.fold(ctx, shape, dw, (space, grad.sums_floats), &|examples, slice, slot, worker| {
            grad.block(x, dy, examples, slice, space, (slot, worker));
        });
    }
    let grad = WeightGrad::new::<T>(ctx.isa, shape, split);
    let space = shared_workspace(workspace, grad.workspace_floats(threads));
    split.fold(ctx, shape, dw, (space, grad.sums_floats), &|examples, slice, slot, worker| {
        grad.block(x, dy, examples, slice, space, (slot, worker));
    });
}

/// Whether the operands of a weight gradient are multiplied in tiles.
pub(crate) fn weight_grad_is_tiled<T: Float>(isa: Isa, shape: &ConvShape) -> bool {
    #[cfg(target_arch = "x86_64")]
    return TileGrad::new::<T>(isa, shape, Split::new(1, shape, 1)).is_some();
    #[cfg(not(target_arch = "x86_64"))]
    return {
        let _ = (isa, shape);
        false
    };
}

/// How the examples are split into blocks and the blocks into tasks.
#[derive(Clone, Copy)]
pub(super) struct Split {
    pub block_examples: usize,
    /// How many blocks are summed at a time, each in its own memory.
    pub together: usize,
    /// Into how many slices a block's sums are cut, so that all threads have work when blocks are few.
    pub slices: usize,
}

impl Split {
    fn new(threads: usize, shape: &ConvShape, block_examples: usize) -> Self {
        assert!(block_examples > 0, "a block has at least one example");
        let together = shape.examples.div_ceil(block_examples).clamp(1, threads);
        Self { block_examples, together, slices: threads.div_ceil(together) }
    }

    /// Adds the sums of all blocks to `dw`, in order. `block(examples, slice, slot, worker)` leaves a slice of a block's
    /// sums at the start of its slot of the space.
    fn fold(
        &self,
        ctx: Context<'_>,
        shape: &ConvShape,
        dw: &mut [f32],
        (space, slot_floats): (SharedMut, usize),
        block: &(dyn Fn(Range<usize>, usize, usize, usize) + Sync),
    ) {
        let blocks = shape.examples.div_ceil(self.block_examples);
        let dw = SharedMut(dw.as_mut_ptr());
        for first in (0..blocks).step_by(self.together) {
            let together = self.together.min(blocks - first);
            ctx.pool.run(together * self.slices, &|task, worker| {
                let (slot, slice) = (task / self.slices, task % self.slices);
                let start = (first + slot) * self.block_examples;
                let end = start.saturating_add(self.block_examples).min(shape.examples);
                block(start..end, slice, slot, worker);
            });
            const GROUP: usize = 8192;
            let weights = shape.weights();
            ctx.pool.run(weights.div_ceil(GROUP), &|task, _| {
                let start = task * GROUP;
                let len = GROUP.min(weights - start);
                // SAFETY: every element has one task, and the blocks' sums are complete and only read.
                let dw = unsafe { std::slice::from_raw_parts_mut(dw.at(start), len) };
                for slot in 0..together {
                    let sums = space.at(slot * slot_floats + start);
                    // SAFETY: as above.
                    let sums = unsafe { std::slice::from_raw_parts(sums, len) };
                    dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
                }
            });
        }
    }
}

/// A product whose rows are (tap, input channel), whose columns are output channels, and whose k are pixels; one for
/// every group.
struct WeightGrad<'a> {
    isa: Isa,
    kernels: &'static Kernels,
    shape: &'a ConvShape,
    window: Window,
    split: Split,
    /// Output rows, and columns of them, of one chunk.
    chunk_rows: usize,
    chunk_columns: usize,
    /// Floats of a block's sums, of a worker's copy of image rows, and of its packed pixels.
    sums_floats: usize,
    copy_floats: usize,
    packed_floats: usize,
}

impl<'a> WeightGrad<'a> {
    fn new<T: Float>(isa: Isa, shape: &'a ConvShape, split: Split) -> Self {
        let kernels = Kernels::of(isa);
        let window = Window::of(shape.extents().map(Axis::forward));
        let chunk_columns = shape.out_w.clamp(1, KC);
        let chunk_rows = chunk_rows(shape);
        let inside = window.needs_no_copy::<T>([shape.out_h, shape.out_w], shape.input());
        let copy = window.copy_floats(chunk_rows, shape.out_w, shape.input());
        let columns = (shape.out_c / shape.groups).next_multiple_of(kernels.lanes);
        let packed = chunk_rows * chunk_columns * columns;
        Self {
            isa,
            kernels,
            shape,
            window,
            split,
            chunk_rows,
            chunk_columns,
            sums_floats: whole_lines(shape.weights()),
            copy_floats: if inside { 0 } else { whole_lines(copy) },
            packed_floats: whole_lines(packed),
        }
    }

    fn workspace_floats(&self, threads: usize) -> usize {
        self.split.together * self.sums_floats + threads * (self.copy_floats + self.packed_floats)
    }

    /// One slice of the rows of one block's sums.
    fn block<T: Float>(
        &self,
        x: &[T],
        dy: &[T],
        examples: Range<usize>,
        slice: usize,
        space: SharedMut,
        (slot, worker): (usize, usize),
    ) {
        let (input, output) = (self.shape.input(), self.shape.output());
        let sums = space.at(slot * self.sums_floats);
        let own = self.split.together * self.sums_floats + worker * (self.copy_floats + self.packed_floats);
        let (copy, packed) = (space.at(own), space.at(own + self.copy_floats));
        let first_example = examples.start;
        for example in examples {
            let x = &x[example * input.floats()..][..input.floats()];
            let dy = &dy[example * output.floats()..][..output.floats()];
            for row in (0..output.h).step_by(self.chunk_rows) {
                let rows = row..(row + self.chunk_rows).min(output.h);
                let grid = [output.h, output.w];
                // SAFETY: the copy is the worker's own, and big enough for a chunk's rows.
                let view = unsafe { self.window.view(self.isa, x, input, rows.clone(), grid, copy) };
                for column in (0..output.w).step_by(self.chunk_columns) {
                    let columns = column..(column + self.chunk_columns).min(output.w);
                    let first = example == first_example && row == 0 && column == 0;
                    for group in 0..self.shape.groups {
                        let part = (rows.clone(), columns.clone(), group);
                        self.chunk(&view, dy, part, slice, (packed, sums), !first);
                    }
                }
            }
        }
    }

    /// Adds the pixels of a rectangle of the output, which either spans whole rows or lies in one, to a group's sums.
    fn chunk<T: Float>(
        &self,
        view: &View,
        dy: &[T],
        (rows, columns, group): (Range<usize>, Range<usize>, usize),
        slice: usize,
        (packed, sums): (*mut f32, *mut f32),
        load: bool,
    ) {
        let Self { kernels, shape, .. } = self;
        let (channels, n) = (shape.in_c / shape.groups, shape.out_c / shape.groups);
        let pixels = rows.len() * columns.len();
        let dy = &dy[(rows.start * shape.out_w + columns.start) * shape.out_c..][..pixels * shape.out_c];
        let a_step = shape.stride_w * shape.in_c;
        let walk =
            Walk { len: columns.len(), inner: 1, inner_step: 0, outer_step: view.window_pitch as isize };
        // The rows of the product that are contiguous in the image: those under one row of the kernel, or with a dilation
        // or groups only those of one tap.
        let whole_rows = shape.groups == 1 && self.window.spread[1] == 1;
        let (steps, adjacent) =
            if whole_rows { (1, shape.kernel_w * channels) } else { (shape.kernel_w, channels) };
        let tap_step = self.window.spread[1] * shape.in_c;
        let tiles = adjacent.div_ceil(kernels.mr);
        for start in (0..n).step_by(kernels.nr()) {
            let cols = (n - start).min(kernels.nr());
            let width = kernels.panel_width(cols);
            let column = group * n + start;
            let b = if !T::LOW && shape.groups == 1 && n == width {
                dy.as_ptr().cast::<f32>()
            } else {
                let (src, k_step) = (dy[column..].as_ptr(), shape.out_c);
                let strip = Strip { src, lane_step: 1, k_step, lanes: cols };
                // SAFETY: the strip lies in the output's gradient, and the panel holds a chunk.
                unsafe { pack(self.isa, strip, packed.add(start * pixels), width, pixels) };
                packed.wrapping_add(start * pixels)
            };
            for unit in share(shape.kernel_h * steps * tiles, self.split.slices, slice) {
                let (tap, tile) = (unit / tiles, unit % tiles);
                let adjacent_rows = share(adjacent, tiles, tile);
                let corner = tap / steps * view.tap_pitch + tap % steps * tap_step + group * channels;
                let from = corner + columns.start * a_step + adjacent_rows.start;
                let to = (tap * adjacent + adjacent_rows.start) * shape.out_c + column;
                let tile = Tile {
                    a: view.first.wrapping_add(from),
                    a_step,
                    walk,
                    k_start: 0,
                    k_len: pixels,
                    b,
                    b_step: width,
                    c: sums.wrapping_add(to),
                    ldc: shape.out_c,
                    load,
                    ahead: std::ptr::null(),
                    cols,
                    finish: Finish::NONE,
                };
                // SAFETY: the view covers the windows of these pixels, B has a row for each of them, and only
                // this task writes these rows of the block's sums; the machine has the instructions.
                unsafe { kernels.micro(Form::Columns, adjacent_rows.len(), cols)(&tile) };
            }
        }
    }
}

/// Output rows of a chunk: as many as 256 pixels have, at least one.
pub(crate) fn chunk_rows(shape: &ConvShape) -> usize {
    (KC / shape.out_w.max(1)).clamp(1, shape.out_h.max(1))
}
