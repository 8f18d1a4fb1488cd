//! Two-dimensional convolution, NHWC by HWIO to NHWC, as a matrix product that is never written out.
//!
//! The rows of the product are pixels and k runs over the taps of the kernel and the channels. The
//! micro-kernels read A straight from the image, or, where windows reach over the edge, from a copy of a few
//! rows with zeros around them: a tap is then a constant distance, and nothing is gathered per pixel.

mod image;
#[cfg(test)]
mod tests;
mod weight_grad;

pub use weight_grad::{conv2d_weight_grad, conv2d_weight_grad_workspace};

use crate::gemm::chunks::Chunks;
use crate::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::gemm::pack::{Strip, pack};
use crate::gemm::{Epilogue, SharedMut, shared_workspace, whole_lines};
use crate::isa::{Context, Isa};
use image::{Image, Window};
use std::ops::Range;

/// Floats of the image that a task works on at a time: with a chunk of a panel of weights, what the
/// first-level cache holds.
const BAND_FLOATS: usize = 8192;

/// The sizes of a convolution. Windows may reach over any edge of the input, which reads as zeros.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Images.
    pub examples: usize,
    /// Rows of an input image.
    pub in_h: usize,
    /// Columns of an input image.
    pub in_w: usize,
    /// Channels of an input pixel.
    pub in_c: usize,
    /// Rows of an output image.
    pub out_h: usize,
    /// Columns of an output image.
    pub out_w: usize,
    /// Channels of an output pixel.
    pub out_c: usize,
    /// Rows of the kernel.
    pub kernel_h: usize,
    /// Columns of the kernel.
    pub kernel_w: usize,
    /// Rows between windows.
    pub stride_h: usize,
    /// Columns between windows.
    pub stride_w: usize,
    /// Rows of the first window above the image.
    pub pad_top: usize,
    /// Columns of the first window left of the image.
    pub pad_left: usize,
}

impl ConvShape {
    fn input(&self) -> Image {
        Image { h: self.in_h, w: self.in_w, c: self.in_c }
    }

    fn output(&self) -> Image {
        Image { h: self.out_h, w: self.out_w, c: self.out_c }
    }

    fn weights(&self) -> usize {
        self.kernel_h * self.kernel_w * self.in_c * self.out_c
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        assert!(self.stride_h > 0 && self.stride_w > 0, "a stride is at least one");
        assert_eq!(x, self.examples * self.input().floats(), "the input's length");
        assert_eq!(w, self.weights(), "the weights' length");
        assert_eq!(y, self.examples * self.output().floats(), "the output's length");
    }
}

/// The bytes of workspace that [`conv2d`] needs: a multiple of 64.
pub fn conv2d_workspace(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    Gather::forward(isa, shape).workspace_floats(threads) * size_of::<f32>()
}

/// Convolves every image of `x` with the weights `w`, then applies the epilogue per output channel.
///
/// The sum runs over (kernel row, kernel column, input channel) in that order, cut at every multiple of 256.
///
/// # Panics
///
/// When an operand's length does not fit the shape, or the workspace is too small or not aligned to 64 bytes.
pub fn conv2d(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) {
    shape.check(x.len(), w.len(), y.len());
    Gather::forward(ctx.isa, shape).run(ctx, x, w, y, epilogue.finish(shape.out_c), workspace);
}

/// The bytes of workspace that [`conv2d_input_grad`] needs: a multiple of 64.
pub fn conv2d_input_grad_workspace(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    Gather::input_grad(isa, shape).workspace_floats(threads) * size_of::<f32>()
}

/// The gradient of [`conv2d`] with respect to its input.
///
/// The sum runs over the taps that reach the pixel, by (kernel row, kernel column, output channel), cut at
/// every multiple of 256.
///
/// # Panics
///
/// As [`conv2d`].
pub fn conv2d_input_grad(
    ctx: Context<'_>,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(dx.len(), w.len(), dy.len());
    Gather::input_grad(ctx.isa, shape).run(ctx, dy, w, dx, Finish::NONE, workspace);
}

/// A convolution in which every target pixel gathers from a window of the source image.
///
/// Both directions are of this kind. Going back through a stride, the target pixels fall into classes by
/// their position modulo the stride, and each class meets its own taps of the kernel.
struct Gather<'a> {
    isa: Isa,
    kernels: &'static Kernels,
    shape: &'a ConvShape,
    source: Image,
    target: Image,
    backward: bool,
}

/// One class of target pixels: an evenly spaced grid of them, and the taps that they meet.
#[derive(Clone, Copy)]
struct Class {
    /// Where the class starts, and how far apart its pixels lie, in the target image.
    first: [usize; 2],
    step: [usize; 2],
    /// The number of its rows and columns.
    grid: [usize; 2],
    /// The first tap, and how many there are, `step` apart going backward and side by side going forward.
    tap: [usize; 2],
    taps: [usize; 2],
    /// What its pixels see of the source.
    window: Window,
}

impl<'a> Gather<'a> {
    fn forward(isa: Isa, shape: &'a ConvShape) -> Self {
        let (source, target) = (shape.input(), shape.output());
        Self { isa, kernels: Kernels::of(isa), shape, source, target, backward: false }
    }

    fn input_grad(isa: Isa, shape: &'a ConvShape) -> Self {
        let (source, target) = (shape.output(), shape.input());
        Self { isa, kernels: Kernels::of(isa), shape, source, target, backward: true }
    }

    fn classes(&self) -> usize {
        if self.backward { self.shape.stride_h * self.shape.stride_w } else { 1 }
    }

    fn class(&self, index: usize) -> Class {
        let shape = self.shape;
        let stride = [shape.stride_h, shape.stride_w];
        let pad = [shape.pad_top, shape.pad_left];
        let kernel = [shape.kernel_h, shape.kernel_w];
        let size = [self.target.h, self.target.w];
        if !self.backward {
            let corner = pad.map(|pad| -(pad as isize));
            let window = Window { corner, step: stride, span: kernel };
            return Class { first: [0; 2], step: [1; 2], grid: size, tap: [0; 2], taps: kernel, window };
        }
        let first = [index / stride[1], index % stride[1]];
        let tap: [usize; 2] = std::array::from_fn(|d| (first[d] + pad[d]) % stride[d]);
        let taps = std::array::from_fn(|d| kernel[d].saturating_sub(tap[d]).div_ceil(stride[d]));
        // The window's last pixel meets the first tap: the taps run against the source.
        let corner =
            std::array::from_fn(|d| ((first[d] + pad[d]) / stride[d] + 1) as isize - taps[d] as isize);
        let grid = std::array::from_fn(|d| size[d].saturating_sub(first[d]).div_ceil(stride[d]));
        let window = Window { corner, step: [1; 2], span: taps };
        Class { first, step: stride, grid, tap, taps, window }
    }

    /// The length of a class's sum.
    fn depth(&self, class: &Class) -> usize {
        class.taps[0] * class.taps[1] * self.source.c
    }

    /// Target rows that a task takes: a share of the rows as even as possible.
    fn band(&self, class: &Class) -> usize {
        let fit = class.window.rows_within(BAND_FLOATS, class.grid[1], self.source);
        let rows = class.grid[0].max(1);
        rows.div_ceil(rows.div_ceil(fit))
    }

    /// Floats of packed weights of all classes before this one.
    fn packed_before(&self, class: usize) -> usize {
        let columns = self.target.c.next_multiple_of(self.kernels.lanes);
        (0..class).map(|class| whole_lines(self.depth(&self.class(class)) * columns)).sum()
    }

    /// Floats of each worker's copy of a few rows with zeros around them.
    fn copy_floats(&self) -> usize {
        let floats = |class: Class| {
            let inside = class.window.stays_inside(class.grid, self.source);
            let rows = class.window.source_rows(self.band(&class));
            if inside { 0 } else { whole_lines(rows * class.window.pitch(class.grid[1], self.source)) }
        };
        (0..self.classes()).map(|class| floats(self.class(class))).max().unwrap_or(0)
    }

    fn workspace_floats(&self, threads: usize) -> usize {
        self.packed_before(self.classes()) + threads * self.copy_floats()
    }

    fn run(
        &self,
        ctx: Context<'_>,
        source: &[f32],
        w: &[f32],
        target: &mut [f32],
        finish: Finish,
        workspace: &mut [f32],
    ) {
        if target.is_empty() {
            return;
        }
        assert_available(self.isa);
        let space = shared_workspace(workspace, self.workspace_floats(ctx.pool.threads()));
        let copies = self.packed_before(self.classes());
        let copy_floats = self.copy_floats();
        let target = SharedMut(target.as_mut_ptr());
        for index in 0..self.classes() {
            let class = self.class(index);
            let weights = SharedMut(space.at(self.packed_before(index)));
            let taps = class.taps[0] * class.taps[1];
            if self.source.c > 0 {
                ctx.pool.run(taps, &|tap, _| self.pack_tap(&class, tap, w, weights));
            }
            let band = self.band(&class);
            let bands = class.grid[0].div_ceil(band);
            ctx.pool.run(self.shape.examples * bands, &|task, worker| {
                let example = task / bands;
                let first = task % bands * band;
                let rows = first..(first + band).min(class.grid[0]);
                let image = &source[example * self.source.floats()..][..self.source.floats()];
                let copy = space.at(copies + worker * copy_floats);
                // SAFETY: the copy is the worker's own, and big enough for a band of any class.
                let view = unsafe { class.window.view(image, self.source, rows.clone(), class.grid, copy) };
                let corner = SharedMut(target.at(example * self.target.floats()));
                self.band_product(&class, rows, view, weights, corner, finish);
            });
        }
    }

    /// Packs the rows of B that belong to one tap, in all panels.
    fn pack_tap(&self, class: &Class, tap: usize, w: &[f32], weights: SharedMut) {
        let (depth, channels, columns) = (self.depth(class), self.source.c, self.target.c);
        let tap_step = if self.backward { class.step } else { [1; 2] };
        let row = class.tap[0] + tap / class.taps[1] * tap_step[0];
        let column = class.tap[1] + tap % class.taps[1] * tap_step[1];
        let w = &w[(row * self.shape.kernel_w + column) * channels * columns..][..channels * columns];
        let (lane_step, k_step) = if self.backward { (channels, 1) } else { (1, columns) };
        for start in (0..columns).step_by(self.kernels.nr()) {
            let lanes = (columns - start).min(self.kernels.nr());
            let width = self.kernels.panel_width(lanes);
            let dst = weights.at(start * depth + tap * channels * width);
            let strip = Strip { src: w[start * lane_step..].as_ptr(), lane_step, k_step, lanes };
            // SAFETY: the tap's weights are a matrix of channels by columns, in either order; a tap's rows of
            // a panel have one writer.
            unsafe { pack(self.isa, strip, dst, width, channels) };
        }
    }

    /// All target pixels in a few rows of one class.
    fn band_product(
        &self,
        class: &Class,
        rows: Range<usize>,
        view: image::View,
        weights: SharedMut,
        target: SharedMut,
        finish: Finish,
    ) {
        let (kernels, depth, columns) = (self.kernels, self.depth(class), self.target.c);
        let (a, walk) = self.walk(class, &view);
        let tiles = class.grid[1].div_ceil(kernels.mr);
        let chunks = Chunks::new(depth, usize::MAX);
        // A chunk of one panel of weights stays in the first-level cache for the whole band.
        for chunk in chunks.within(0..depth) {
            for start in (0..columns).step_by(kernels.nr()) {
                let cols = (columns - start).min(kernels.nr());
                let width = kernels.panel_width(cols);
                let last = chunk.end == depth;
                let mut tile = Tile {
                    a,
                    a_step: class.window.step[1] * self.source.c,
                    walk,
                    k_start: chunk.start,
                    k_len: chunk.len(),
                    b: weights.at(start * depth + chunk.start * width),
                    old: std::ptr::null(),
                    old_step: 0,
                    c: target.at(0),
                    ldc: class.step[1] * columns,
                    cols,
                    finish: if last { finish.at_column(start) } else { Finish::NONE },
                };
                for row in rows.clone() {
                    let a = a.wrapping_add((row - rows.start) * class.window.step[0] * view.pitch);
                    let c_row = class.first[0] + row * class.step[0];
                    for index in 0..tiles {
                        let pixels = share(class.grid[1], tiles, index);
                        let c_column = class.first[1] + pixels.start * class.step[1];
                        tile.a = a.wrapping_add(pixels.start * tile.a_step);
                        tile.c = target.at((c_row * self.target.w + c_column) * columns + start);
                        tile.load(chunk.start > 0);
                        // SAFETY: the view covers the windows of these pixels, the panel is packed, the
                        // pixels lie in the target image and belong to this task; the machine has the
                        // instructions.
                        unsafe { kernels.micro(Form::Rows, pixels.len(), cols)(&tile) };
                    }
                }
            }
        }
    }

    /// Where the sum of the view's first pixel starts, and how it goes on.
    fn walk(&self, class: &Class, view: &image::View) -> (*const f32, Walk) {
        let (c, pitch) = (self.source.c, view.pitch);
        if !self.backward {
            // Side by side in the kernel is side by side in the image.
            let len = (class.taps[1] * c).max(1);
            return (view.first, Walk { len, inner: 1, inner_step: 0, outer_step: pitch as isize });
        }
        let last = class.taps[0].saturating_sub(1) * pitch + class.taps[1].saturating_sub(1) * c;
        let (inner_step, outer_step) = (-(c as isize), -(pitch as isize));
        let walk = Walk { len: c.max(1), inner: class.taps[1].max(1), inner_step, outer_step };
        (view.first.wrapping_add(last), walk)
    }
}

/// Part `index` when `0..len` is cut into `parts` parts as even as possible.
fn share(len: usize, parts: usize, index: usize) -> Range<usize> {
    let cut = |index: usize| index * len / parts;
    cut(index)..cut(index + 1)
}
