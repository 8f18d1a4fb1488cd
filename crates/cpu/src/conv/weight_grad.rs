//! The gradient of a convolution with respect to its weights.

use super::image::{Image, View, Window};
use super::{ConvShape, share};
use crate::gemm::chunks::KC;
use crate::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::gemm::pack::{Strip, pack};
use crate::gemm::{SharedMut, shared_workspace, whole_lines};
use crate::isa::{Context, Isa};
use std::ops::Range;

/// The bytes of workspace that [`conv2d_weight_grad`] needs: a multiple of 64.
pub fn conv2d_weight_grad_workspace(
    isa: Isa,
    threads: usize,
    shape: &ConvShape,
    block_examples: usize,
) -> usize {
    WeightGrad::new(isa, threads, shape, block_examples).workspace_floats(threads) * size_of::<f32>()
}

/// The gradient of [`conv2d`](super::conv2d) with respect to its weights, in `dw` or added to it.
///
/// Every block of `block_examples` examples is summed by itself, from +0, by whole output rows of at most 256
/// pixels together; the blocks are then added to `dw` in order. Splitting the examples at a block boundary
/// into two calls, the second of which accumulates, gives the same bits.
///
/// # Panics
///
/// As [`conv2d`](super::conv2d), and when a block has no examples.
#[expect(clippy::too_many_arguments, reason = "operands, sizes and space, as every kernel has")]
pub fn conv2d_weight_grad(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
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
    let grad = WeightGrad::new(ctx.isa, threads, shape, block_examples);
    let space = shared_workspace(workspace, grad.workspace_floats(threads));
    let blocks = shape.examples.div_ceil(block_examples);
    let dw = SharedMut(dw.as_mut_ptr());

    for first in (0..blocks).step_by(grad.together) {
        let together = grad.together.min(blocks - first);
        ctx.pool.run(together * grad.slices, &|task, worker| {
            let (slot, slice) = (task / grad.slices, task % grad.slices);
            let start = (first + slot) * block_examples;
            let examples = start..(start + block_examples).min(shape.examples);
            grad.block(x, dy, examples, slice, space, (slot, worker));
        });
        const GROUP: usize = 8192;
        let weights = shape.weights();
        ctx.pool.run(weights.div_ceil(GROUP), &|task, _| {
            let start = task * GROUP;
            let len = GROUP.min(weights - start);
            // SAFETY: every element has one task, and the blocks' sums are complete and only read.
            let dw = unsafe { std::slice::from_raw_parts_mut(dw.at(start), len) };
            for slot in 0..together {
                let sums = space.at(slot * grad.sums_floats + start);
                // SAFETY: as above.
                let sums = unsafe { std::slice::from_raw_parts(sums, len) };
                dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
            }
        });
    }
}

/// A product whose rows are (tap, input channel), whose columns are output channels, and whose k are pixels.
struct WeightGrad<'a> {
    isa: Isa,
    kernels: &'static Kernels,
    shape: &'a ConvShape,
    window: Window,
    /// How many blocks are summed at a time, each in its own memory.
    together: usize,
    /// Into how many slices the rows are cut, so that all threads have work when blocks are few.
    slices: usize,
    /// Output rows, and columns of them, of one chunk.
    chunk_rows: usize,
    chunk_columns: usize,
    /// Floats of a block's sums, of a worker's copy of image rows, and of its packed pixels.
    sums_floats: usize,
    copy_floats: usize,
    packed_floats: usize,
}

impl<'a> WeightGrad<'a> {
    fn new(isa: Isa, threads: usize, shape: &'a ConvShape, block_examples: usize) -> Self {
        assert!(block_examples > 0, "a block has at least one example");
        let kernels = Kernels::of(isa);
        let window = Window {
            corner: [-(shape.pad_top as isize), -(shape.pad_left as isize)],
            step: [shape.stride_h, shape.stride_w],
            span: [shape.kernel_h, shape.kernel_w],
        };
        let together = shape.examples.div_ceil(block_examples).clamp(1, threads);
        let chunk_columns = shape.out_w.clamp(1, KC);
        let chunk_rows = (KC / shape.out_w.max(1)).clamp(1, shape.out_h.max(1));
        let Image { h, w, .. } = shape.output();
        let inside = window.stays_inside([h, w], shape.input());
        let copy = window.source_rows(chunk_rows) * window.pitch(w, shape.input());
        let packed = chunk_rows * chunk_columns * shape.out_c.next_multiple_of(kernels.lanes);
        Self {
            isa,
            kernels,
            shape,
            window,
            together,
            slices: threads.div_ceil(together),
            chunk_rows,
            chunk_columns,
            sums_floats: whole_lines(shape.weights()),
            copy_floats: if inside { 0 } else { whole_lines(copy) },
            packed_floats: whole_lines(packed),
        }
    }

    fn workspace_floats(&self, threads: usize) -> usize {
        self.together * self.sums_floats + threads * (self.copy_floats + self.packed_floats)
    }

    /// One slice of the rows of one block's sums.
    fn block(
        &self,
        x: &[f32],
        dy: &[f32],
        examples: Range<usize>,
        slice: usize,
        space: SharedMut,
        (slot, worker): (usize, usize),
    ) {
        let (input, output) = (self.shape.input(), self.shape.output());
        let sums = space.at(slot * self.sums_floats);
        let own = self.together * self.sums_floats + worker * (self.copy_floats + self.packed_floats);
        let (copy, packed) = (space.at(own), space.at(own + self.copy_floats));
        let first_example = examples.start;
        for example in examples {
            let x = &x[example * input.floats()..][..input.floats()];
            let dy = &dy[example * output.floats()..][..output.floats()];
            for row in (0..output.h).step_by(self.chunk_rows) {
                let rows = row..(row + self.chunk_rows).min(output.h);
                // SAFETY: the copy is the worker's own, and big enough for a chunk's rows.
                let view = unsafe { self.window.view(x, input, rows.clone(), [output.h, output.w], copy) };
                for column in (0..output.w).step_by(self.chunk_columns) {
                    let columns = column..(column + self.chunk_columns).min(output.w);
                    let first = example == first_example && row == 0 && column == 0;
                    self.chunk(&view, dy, (rows.clone(), columns), slice, (packed, sums), !first);
                }
            }
        }
    }

    /// Adds the pixels of a rectangle of the output, which either spans whole rows or lies in one.
    fn chunk(
        &self,
        view: &View,
        dy: &[f32],
        (rows, columns): (Range<usize>, Range<usize>),
        slice: usize,
        (packed, sums): (*mut f32, *mut f32),
        load: bool,
    ) {
        let Self { kernels, shape, .. } = self;
        let (n, pixels) = (shape.out_c, rows.len() * columns.len());
        let dy = &dy[(rows.start * shape.out_w + columns.start) * n..][..pixels * n];
        let a_step = shape.stride_w * shape.in_c;
        let walk = Walk {
            len: columns.len(),
            inner: 1,
            inner_step: 0,
            outer_step: (shape.stride_h * view.pitch) as isize,
        };
        // The rows of the product under one row of the kernel are side by side in the image.
        let adjacent = shape.kernel_w * shape.in_c;
        let tiles = adjacent.div_ceil(kernels.mr);
        for start in (0..n).step_by(kernels.nr()) {
            let cols = (n - start).min(kernels.nr());
            let width = kernels.panel_width(cols);
            let b = if n == width {
                dy.as_ptr()
            } else {
                let strip = Strip { src: dy[start..].as_ptr(), lane_step: 1, k_step: n, lanes: cols };
                // SAFETY: the strip lies in the output's gradient, and the panel has room for a chunk.
                unsafe { pack(self.isa, strip, packed.add(start * pixels), width, pixels) };
                packed.wrapping_add(start * pixels)
            };
            for unit in share(shape.kernel_h * tiles, self.slices, slice) {
                let kernel_row = unit / tiles;
                let adjacent_rows = share(adjacent, tiles, unit % tiles);
                let from = kernel_row * view.pitch + columns.start * a_step + adjacent_rows.start;
                let to = (kernel_row * adjacent + adjacent_rows.start) * n + start;
                let mut tile = Tile {
                    a: view.first.wrapping_add(from),
                    a_step,
                    walk,
                    k_start: 0,
                    k_len: pixels,
                    b,
                    old: std::ptr::null(),
                    old_step: n,
                    c: sums.wrapping_add(to),
                    ldc: n,
                    cols,
                    finish: Finish::NONE,
                };
                tile.load(load);
                // SAFETY: the view covers the windows of these pixels, B has a row for each of them, and only
                // this task writes these rows of the block's sums; the machine has the instructions.
                unsafe { kernels.micro(Form::Columns, adjacent_rows.len(), cols)(&tile) };
            }
        }
    }
}
