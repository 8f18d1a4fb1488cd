//! The weight gradient of a depthwise convolution.

use super::{LANES, load, multiply_add};
use crate::isa::Isa;
use crate::kernels::conv::ConvShape;
use crate::kernels::conv::axis::Axis;
use crate::kernels::conv::weight_grad::{Split, chunk_rows};
use crate::kernels::float::Float;
use crate::kernels::gemm::kernel::unroll;
use crate::kernels::gemm::whole_lines;
use crate::kernels::math::simd_fn;
use std::ops::Range;

/// See [`conv2d_weight_grad`](crate::kernels::conv::conv2d_weight_grad).
///
/// Sums run over a few rows at a time, and inside over a few adjacent pixels at a time.
pub(in crate::kernels::conv) struct WeightGrad<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    split: Split,
    /// Floats of one block's memory: its sums, then those of a few rows.
    pub slot_floats: usize,
}

impl<'a> WeightGrad<'a> {
    pub(in crate::kernels::conv) fn new(isa: Isa, shape: &'a ConvShape, split: Split) -> Self {
        Self { isa, shape, split, slot_floats: 2 * whole_lines(shape.weights()) }
    }

    pub(in crate::kernels::conv) fn workspace_floats(&self) -> usize {
        self.split.together * self.slot_floats
    }

    /// One slice of the channels of one block's sums, left at the start of its slot.
    pub(in crate::kernels::conv) fn block<T: Float>(
        &self,
        x: &[T],
        dy: &[T],
        examples: Range<usize>,
        slice: usize,
        slot: *mut f32,
    ) {
        let shape = self.shape;
        let (input, output, c) = (shape.input(), shape.output(), shape.in_c);
        let cut = |slice: usize| (c.div_ceil(LANES) * slice / self.split.slices * LANES).min(c);
        let channels = cut(slice)..cut(slice + 1);
        let [rows, columns] = shape.extents().map(Axis::forward);
        let (sums, few) = (slot, slot.wrapping_add(whole_lines(shape.weights())));
        let taps = shape.kernel_h * shape.kernel_w;
        // SAFETY: a slot holds two kernels, and only this task touches these channels of them.
        let part = |kernel: *mut f32, tap: usize| unsafe {
            std::slice::from_raw_parts_mut(kernel.add(tap * c + channels.start), channels.len())
        };
        (0..taps).for_each(|tap| part(sums, tap).fill(0.0));
        for example in examples {
            let x = &x[example * input.floats()..][..input.floats()];
            let dy = &dy[example * output.floats()..][..output.floats()];
            for first in (0..output.h).step_by(chunk_rows(shape)) {
                (0..taps).for_each(|tap| part(few, tap).fill(0.0));
                for row in first..(first + chunk_rows(shape)).min(output.h) {
                    let taps = rows.taps_inside(row, input.h);
                    if taps.is_empty() {
                        continue;
                    }
                    let row = GradRow {
                        x: x[rows.source(row, taps.start).unsigned_abs() * input.w * c..].as_ptr(),
                        x_step: rows.spread.unsigned_abs() * input.w * c,
                        width: input.w,
                        dy: dy[row * output.w * c..].as_ptr(),
                        sums: few.wrapping_add(taps.start * shape.kernel_w * c),
                        sums_step: shape.kernel_w * c,
                        taps: taps.len(),
                        columns,
                        channels: c,
                    };
                    // SAFETY: the taps of this row lie in the image and in the kernel, only this task touches these
                    // channels of the sums, and the machine has the instructions.
                    unsafe { grad_row(self.isa, &row, channels.clone()) };
                }
                for tap in 0..taps {
                    part(sums, tap).iter_mut().zip(part(few, tap)).for_each(|(sum, few)| *sum += *few);
                }
            }
        }
    }
}

/// One row of the output and the rows of the input that it meets.
struct GradRow<T> {
    /// The input row that the first tap meets, how far the next tap's is, and how wide they are.
    x: *const T,
    x_step: usize,
    width: usize,
    dy: *const T,
    /// The sums of the first tap's row of the kernel, and how far the next one's are.
    sums: *mut f32,
    sums_step: usize,
    /// How many rows of taps lie in the image.
    taps: usize,
    columns: Axis,
    channels: usize,
}

simd_fn! {
    /// Adds the products of one row, for some channels.
    ///
    /// # Safety
    ///
    /// The pointers must be good for what the sizes say, and nothing else may touch these channels of the sums
    /// meanwhile.
    unsafe fn grad_row<T: Float>(isa: Isa, row: &GradRow<T>, channels: Range<usize>) {
        const TOGETHER: usize = 16;
        let columns = &row.columns;
        let whole = columns.whole(row.width);
        let mut at = 0;
        while at < columns.count {
            let (pixels, taps) = if whole.contains(&at) {
                ((whole.end - at).min(TOGETHER), 0..columns.taps)
            } else {
                (1, columns.taps_inside(at, row.width))
            };
            let mut channel = channels.start;
            while channel < channels.end {
                // SAFETY: as the caller promises, and so many channels are left.
                channel += unsafe {
                    match channels.end - channel {
                        LANES.. => grad_strip::<FMA, LANES, T>(row, (at, pixels), taps.clone(), channel),
                        4.. => grad_strip::<FMA, 4, T>(row, (at, pixels), taps.clone(), channel),
                        _ => grad_strip::<FMA, 1, T>(row, (at, pixels), taps.clone(), channel),
                    }
                };
            }
            at += pixels;
        }
    }
}

/// A strip of channels of a few pixels that meet the same taps; returns how many channels.
///
/// # Safety
///
/// As for [`grad_row`], and the taps must lie in the image.
#[inline(always)]
unsafe fn grad_strip<const FMA: bool, const L: usize, T: Float>(
    row: &GradRow<T>,
    (at, pixels): (usize, usize),
    taps: Range<usize>,
    channel: usize,
) -> usize {
    let dy = row.dy.wrapping_add(at * row.channels + channel);
    for i in 0..row.taps {
        let mut tap = taps.start;
        while tap < taps.end {
            let x = row.columns.source(at, tap) * row.channels as isize + channel as isize;
            let x = row.x.wrapping_add(i * row.x_step).wrapping_offset(x);
            let sums = row.sums.wrapping_add(i * row.sums_step + tap * row.channels + channel);
            // SAFETY: as the caller promises, and so many taps are left.
            tap += unsafe {
                match taps.end - tap {
                    3.. => grad_taps::<FMA, L, 3, T>(row, x, dy, sums, pixels),
                    2 => grad_taps::<FMA, L, 2, T>(row, x, dy, sums, pixels),
                    _ => grad_taps::<FMA, L, 1, T>(row, x, dy, sums, pixels),
                }
            };
        }
    }
    L
}

/// A few adjacent taps of them; returns how many.
///
/// # Safety
///
/// As for [`grad_strip`], from the first tap on.
#[inline(always)]
unsafe fn grad_taps<const FMA: bool, const L: usize, const TAPS: usize, T: Float>(
    row: &GradRow<T>,
    mut x: *const T,
    mut dy: *const T,
    sums: *mut f32,
    pixels: usize,
) -> usize {
    let c = row.channels;
    let between_taps = row.columns.spread.unsigned_abs() * c;
    let mut own = [[0.0f32; L]; TAPS];
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        for _ in 0..pixels {
            let gradient = load::<L, T>(dy);
            unroll!(TAP < TAPS, {
                multiply_add::<FMA, L>(&mut own[TAP], &load(x.add(TAP * between_taps)), &gradient);
            });
            x = x.wrapping_add(row.columns.step * c);
            dy = dy.wrapping_add(c);
        }
        unroll!(TAP < TAPS, {
            let at = sums.add(TAP * c).cast::<[f32; L]>();
            let mut sums = *at;
            for lane in 0..L {
                sums[lane] += own[TAP][lane];
            }
            *at = sums;
        });
    }
    TAPS
}
