//! Depthwise convolution: every channel by itself, with one kernel.
//!
//! There are few operations for every float, so it is bound by memory, which is read sequentially and once. Vectors
//! run over the channels, and a few adjacent pixels share the weights; nothing is copied, and taps that lie
//! outside of the image are left out.

mod weight_grad;

pub(super) use weight_grad::WeightGrad;

use super::ConvShape;
use super::axis::Axis;
use super::image::Image;
use crate::isa::Context;
use crate::kernels::float::Float;
use crate::kernels::gemm::kernel::{Finish, assert_available, unroll};
use crate::kernels::math::{Shared, simd_fn};
use std::ops::Range;

/// Channels of a strip, whose sums are in registers.
const LANES: usize = 16;

/// Output floats that a task computes: neighbouring tasks read the same rows, so they should not be too short.
const BAND_FLOATS: usize = 65536;

/// The most taps of a kernel.
pub(super) const MAX_TAPS: usize = 256;

/// See [`conv2d`](super::conv2d). The sum of a pixel runs over the taps that lie in the image.
pub(super) fn forward<T: Float, C: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[T],
    w: &[T],
    y: &mut [C],
    finish: Finish,
) {
    let axis = |d: usize, _: usize| Axis::forward(shape.extents()[d]);
    gather(ctx, shape, (shape.input(), x), w, (shape.output(), y), finish, ([1, 1], &axis));
}

/// See [`conv2d_input_grad`](super::conv2d_input_grad).
pub(super) fn input_grad<T: Float, C: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    dy: &[T],
    w: &[T],
    dx: &mut [C],
) {
    let axis = |d: usize, class: usize| Axis::backward(shape.extents()[d], class);
    let classes = [shape.stride_h, shape.stride_w];
    gather(ctx, shape, (shape.output(), dy), w, (shape.input(), dx), Finish::NONE, (classes, &axis));
}

/// Every target pixel gathers from a window of the source image. `axis` gives the classes of its rows and columns.
fn gather<T: Float, C: Float>(
    ctx: Context<'_>,
    shape: &ConvShape,
    (source, from): (Image, &[T]),
    w: &[T],
    (target, to): (Image, &mut [C]),
    finish: Finish,
    (classes, axis): ([usize; 2], &(dyn Fn(usize, usize) -> Axis + Sync)),
) {
    if to.is_empty() {
        return;
    }
    assert_available(ctx.isa);
    let row_floats = target.w * target.c;
    let band = (BAND_FLOATS / row_floats).clamp(1, target.h);
    let bands = target.h.div_ceil(band);
    let to = Shared::new(to);
    ctx.pool.run(shape.examples * bands, &|task, _| {
        let (example, first) = (task / bands, task % bands * band);
        let image = &from[example * source.floats()..][..source.floats()];
        for row in first..(first + band).min(target.h) {
            let (rows, at) = (axis(0, row % classes[0]), row / classes[0]);
            let taps = rows.taps_inside(at, source.h);
            let source_row = if taps.is_empty() { 0 } else { rows.source(at, taps.start).unsigned_abs() };
            for class in 0..classes[1].min(target.w) {
                let part = Row {
                    source: image.as_ptr().wrapping_add(source_row * source.w * source.c),
                    source_width: source.w,
                    source_step: rows.spread * (source.w * source.c) as isize,
                    weights: w
                        .as_ptr()
                        .wrapping_add((rows.tap + taps.start * rows.tap_pitch) * shape.kernel_w * source.c),
                    weights_step: rows.tap_pitch * shape.kernel_w * source.c,
                    taps: taps.len(),
                    columns: axis(1, class),
                    channels: source.c,
                    target: to.at((example * target.h + row) * row_floats),
                    finish,
                };
                // SAFETY: the taps of this row lie in the image and in the kernel, every row of the target has one
                // task, and the machine has the instructions.
                unsafe { gather_row(ctx.isa, &part) };
            }
        }
    });
}

/// The pixels of one class in one row of the target.
struct Row<T, C> {
    /// The source row that the first tap meets, how wide it is, and how far the next tap's is.
    source: *const T,
    source_width: usize,
    source_step: isize,
    /// The first tap's row of the kernel, and how far the next one is.
    weights: *const T,
    weights_step: usize,
    /// How many rows of taps lie in the image.
    taps: usize,
    columns: Axis,
    channels: usize,
    /// The target row.
    target: *mut C,
    finish: Finish,
}

/// How far the source pixel of a tap is from that of the first tap, and the weights from the row's.
///
/// A table, because from loops over rows and columns the compiler makes a pointer for every pixel and tap, and these
/// are more than there are registers.
#[derive(Clone, Copy)]
struct Tap {
    source: isize,
    weights: usize,
}

impl<T, C> Row<T, C> {
    /// Lists the taps of these columns; returns how many there are.
    #[inline(always)]
    fn list(&self, columns: Range<usize>, taps: &mut [Tap; MAX_TAPS]) -> usize {
        let (axis, c) = (&self.columns, self.channels);
        let mut len = 0;
        for i in 0..self.taps {
            for (j, column) in columns.clone().enumerate() {
                taps[len] = Tap {
                    source: i as isize * self.source_step + j as isize * axis.spread * c as isize,
                    weights: i * self.weights_step + (axis.tap + column * axis.tap_pitch) * c,
                };
                len += 1;
            }
        }
        len
    }
}

simd_fn! {
    /// Gathers one row.
    ///
    /// # Safety
    ///
    /// The pointers must be good for what the sizes say, and nothing else may touch the target row meanwhile.
    unsafe fn gather_row<T: Float, C: Float>(isa: Isa, row: &Row<T, C>) {
        const TOGETHER: usize = 4;
        let columns = &row.columns;
        let whole = columns.whole(row.source_width);
        let mut taps = [Tap { source: 0, weights: 0 }; MAX_TAPS];
        let mut listed = (0..0, 0);
        let mut at = 0;
        while at < columns.count {
            let inside =
                if whole.contains(&at) { 0..columns.taps } else { columns.taps_inside(at, row.source_width) };
            if listed.0 != inside {
                listed = (inside.clone(), row.list(inside.clone(), &mut taps));
            }
            let taps = &taps[..listed.1];
            let source = if inside.is_empty() { 0 } else { columns.source(at, inside.start) };
            let source = row.source.wrapping_offset(source * row.channels as isize);
            // SAFETY: as the caller promises; these taps lie in the image, for all of the pixels.
            at += unsafe {
                if at + TOGETHER <= whole.end && at >= whole.start {
                    gather_pixels::<FMA, TOGETHER, T, C>(row, at, source, taps)
                } else {
                    gather_pixels::<FMA, 1, T, C>(row, at, source, taps)
                }
            };
        }
    }
}

/// A few adjacent pixels that meet the same taps, all inside of the image; returns how many.
///
/// # Safety
///
/// As for [`gather_row`].
#[inline(always)]
unsafe fn gather_pixels<const FMA: bool, const PIXELS: usize, T: Float, C: Float>(
    row: &Row<T, C>,
    at: usize,
    source: *const T,
    taps: &[Tap],
) -> usize {
    let (axis, c) = (&row.columns, row.channels);
    let target = row.target.wrapping_add((axis.first + at * axis.pitch) * c);
    let mut channel = 0;
    while channel < c {
        let (x, w) = (source.wrapping_add(channel), row.weights.wrapping_add(channel));
        let (y, finish) = (target.wrapping_add(channel), row.finish.at_column(channel));
        // SAFETY: as the caller promises, and so many channels are left.
        channel += unsafe {
            match c - channel {
                LANES.. => gather_strip::<FMA, PIXELS, LANES, T, C>(row, taps, x, w, y, finish),
                4.. => gather_strip::<FMA, PIXELS, 4, T, C>(row, taps, x, w, y, finish),
                _ => gather_strip::<FMA, PIXELS, 1, T, C>(row, taps, x, w, y, finish),
            }
        };
    }
    PIXELS
}

/// A strip of channels of those pixels; returns how many.
///
/// # Safety
///
/// As for [`gather_pixels`], from the strip's first channel on.
#[inline(always)]
unsafe fn gather_strip<const FMA: bool, const PIXELS: usize, const L: usize, T: Float, C: Float>(
    row: &Row<T, C>,
    taps: &[Tap],
    source: *const T,
    weights: *const T,
    target: *mut C,
    finish: Finish,
) -> usize {
    let between_pixels = row.columns.step * row.channels;
    let mut sums = [[0.0f32; L]; PIXELS];
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        for tap in taps {
            let x = source.offset(tap.source);
            let weights = load::<L, T>(weights.add(tap.weights));
            unroll!(P < PIXELS, {
                multiply_add::<FMA, L>(&mut sums[P], &load(x.add(P * between_pixels)), &weights);
            });
        }
        if !finish.bias.is_null() {
            let bias = *finish.bias.cast::<[f32; L]>();
            unroll!(P < PIXELS, {
                for lane in 0..L {
                    sums[P][lane] += bias[lane];
                }
            });
        }
        unroll!(P < PIXELS, {
            if finish.relu {
                for sum in &mut sums[P] {
                    // Not `max`, which would turn NaN into a number.
                    *sum = if *sum < 0.0 { 0.0 } else { *sum };
                }
            }
            *target.add(P * row.columns.pitch * row.channels).cast() = sums[P].map(C::narrow);
        });
    }
    L
}

/// `L` consecutive elements.
///
/// # Safety
///
/// They must be good for reads.
#[inline(always)]
unsafe fn load<const L: usize, T: Float>(from: *const T) -> [f32; L] {
    // SAFETY: as the caller promises.
    unsafe { *from.cast::<[T; L]>() }.map(T::widen)
}

/// `sums += a * b`, fused where that is one instruction.
#[inline(always)]
fn multiply_add<const FMA: bool, const L: usize>(sums: &mut [f32; L], a: &[f32; L], b: &[f32; L]) {
    for lane in 0..L {
        let product = if FMA { a[lane].mul_add(b[lane], sums[lane]) } else { a[lane] * b[lane] + sums[lane] };
        sums[lane] = product;
    }
}
