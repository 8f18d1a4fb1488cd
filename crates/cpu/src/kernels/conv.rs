//! Two-dimensional convolution, NHWC by HWIO to NHWC, as an implicit matrix product.
//!
//! The rows of the product are pixels and k runs over the taps of the kernel and the channels. The
//! micro-kernels read A straight from the image, or, where windows reach over the edge, from a copy of a few
//! rows with zeros around them: a tap is then a constant distance, and nothing is gathered per pixel. Groups of
//! channels are products of their own; where a group is one channel (`depthwise`) there is nothing to multiply as
//! a matrix, and vectors run over the channels instead.

mod axis;
mod depthwise;
mod gather;
mod image;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weight_grad;
#[cfg(target_arch = "x86_64")]
mod weight_tiles;

pub(crate) use gather::Gather;
pub(crate) use weight_grad::{chunk_rows, weight_grad_is_tiled};
pub use weight_grad::{conv2d_weight_grad, conv2d_weight_grad_workspace};

use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::gemm::Epilogue;
use crate::kernels::gemm::kernel::Finish;
use axis::Extent;
use image::Image;
use std::ops::Range;

/// The sizes of a convolution. Windows may reach over any edge of the input, which reads as zeros.
///
/// Kernels are stored by (kernel row, kernel column, input channel of the group, output channel). Output channel `o`
/// sees the input channels of group `o / (out_c / groups)`.
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
    /// Rows between the taps of a kernel; 1 for adjacent ones.
    pub dilation_h: usize,
    /// Columns between the taps of a kernel; 1 for adjacent ones.
    pub dilation_w: usize,
    /// Groups of channels; they divide the channels of input and output.
    pub groups: usize,
}

impl ConvShape {
    fn input(&self) -> Image {
        Image { h: self.in_h, w: self.in_w, c: self.in_c }
    }

    fn output(&self) -> Image {
        Image { h: self.out_h, w: self.out_w, c: self.out_c }
    }

    /// Elements of the kernels.
    pub(crate) fn weights(&self) -> usize {
        self.kernel_h * self.kernel_w * self.in_c / self.groups * self.out_c
    }

    /// Whether every channel is convolved by itself, with one kernel of not too many taps.
    pub(crate) fn is_depthwise(&self) -> bool {
        let taps = self.kernel_h.saturating_mul(self.kernel_w);
        self.groups > 1
            && self.groups == self.in_c
            && self.groups == self.out_c
            && taps <= depthwise::MAX_TAPS
    }

    /// The sizes along rows and along columns.
    fn extents(&self) -> [Extent; 2] {
        let rows = Extent {
            input: self.in_h,
            output: self.out_h,
            kernel: self.kernel_h,
            stride: self.stride_h,
            dilation: self.dilation_h,
            pad: self.pad_top,
        };
        let columns = Extent {
            input: self.in_w,
            output: self.out_w,
            kernel: self.kernel_w,
            stride: self.stride_w,
            dilation: self.dilation_w,
            pad: self.pad_left,
        };
        [rows, columns]
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        assert!(self.stride_h > 0 && self.stride_w > 0, "a stride is at least one");
        assert!(self.dilation_h > 0 && self.dilation_w > 0, "a dilation is at least one");
        let whole = |channels: usize| self.groups > 0 && channels.is_multiple_of(self.groups);
        assert!(whole(self.in_c) && whole(self.out_c), "groups divide the channels");
        assert_eq!(x, self.examples * self.input().floats(), "the input's length");
        assert_eq!(w, self.weights(), "the weights' length");
        assert_eq!(y, self.examples * self.output().floats(), "the output's length");
    }
}

/// The bytes of workspace that [`conv2d`] needs for operands and a result of these types: a multiple of 64.
pub fn conv2d_workspace<T: Float, C: Float>(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    Gather::forward(isa, shape).workspace_floats::<T, C>(threads) * size_of::<f32>()
}

/// Convolves every image of `x` with the weights `w`, then applies the epilogue per output channel.
///
/// The sum runs over (kernel row, kernel column, input channel of the group) in that order, cut at every multiple
/// of 256. It is f32, and rounded once, after the epilogue. Where operands are bf16 and the instruction set multiplies bf16 in
/// tiles, it is cut at every multiple of 32 instead.
///
/// # Panics
///
/// When an operand's length does not fit the shape, or the workspace is too small or not aligned to 64 bytes.
pub fn conv2d<T: Float, C: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[T],
    w: &[T],
    y: &mut [C],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) {
    shape.check(x.len(), w.len(), y.len());
    let finish = epilogue.finish(shape.out_c);
    if shape.is_depthwise() {
        return depthwise::forward(ctx, shape, x, w, y, finish);
    }
    Gather::forward(ctx.isa, shape).run(ctx, x, w, y, finish, workspace);
}

/// The bytes of workspace that [`conv2d_input_grad`] needs: a multiple of 64.
pub fn conv2d_input_grad_workspace<T: Float, C: Float>(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    Gather::input_grad(isa, shape).workspace_floats::<T, C>(threads) * size_of::<f32>()
}

/// The gradient of [`conv2d`] with respect to its input.
///
/// The sum runs over the taps that reach the pixel, by (kernel row, kernel column, output channel of the group), cut
/// at every multiple of 256.
///
/// # Panics
///
/// As [`conv2d`].
pub fn conv2d_input_grad<T: Float, C: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    dy: &[T],
    w: &[T],
    dx: &mut [C],
    workspace: &mut [f32],
) {
    shape.check(dx.len(), w.len(), dy.len());
    if shape.is_depthwise() {
        return depthwise::input_grad(ctx, shape, dy, w, dx);
    }
    Gather::input_grad(ctx.isa, shape).run(ctx, dy, w, dx, Finish::NONE, workspace);
}

/// Part `index` when `0..len` is cut into `parts` parts as even as possible.
fn share(len: usize, parts: usize, index: usize) -> Range<usize> {
    let cut = |index: usize| index * len / parts;
    cut(index)..cut(index + 1)
}
