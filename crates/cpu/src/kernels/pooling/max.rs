//! The largest element of each window.

use super::{PoolShape, Span};
use crate::isa::Context;
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, simd_fn};
use std::ops::Range;

/// The largest value of every window, per channel, and its place: `row · width.places + column` of the window.
///
/// The first of equal values wins. A NaN wins over all numbers, the first one if there are several. A window
/// that lies wholly outside gives negative infinity and place 0.
///
/// # Panics
///
/// When an operand's length does not fit the shape, or a window has more than 256 places.
pub fn max_pool<T: Float>(ctx: Context<'_>, shape: &PoolShape, x: &[T], y: &mut [T], index: &mut [u8]) {
    check(shape, x.len(), y.len(), index.len());
    let (rows, row) = (shape.examples * shape.height.output, shape.out_row());
    let group = shape.out_rows_per_task();
    let (y, index) = (Shared::new(y), Shared::new(index));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let (y, index) = unsafe {
            (y.part(rows.start * row, rows.len() * row), index.part(rows.start * row, rows.len() * row))
        };
        max_rows(ctx.isa, shape, rows, x, y, index);
    });
}

fn check(shape: &PoolShape, x: usize, y: usize, index: usize) {
    shape.check(x, y);
    assert!(shape.height.places * shape.width.places <= 256, "a place in a window fits a byte");
    assert_eq!(index, y, "the index's length");
}

simd_fn! {
    /// Some rows of the result, counted over all examples.
    fn max_rows<T: Float>(
        isa: Isa, shape: &PoolShape, rows: Range<usize>, x: &[T], y: &mut [T], index: &mut [u8],
    ) {
        let (image, channels) = (shape.height.input * shape.in_row(), shape.channels);
        for (i, row) in rows.enumerate() {
            let x = &x[row / shape.height.output * image..][..image];
            let down = shape.height.span(row % shape.height.output);
            for column in 0..shape.width.output {
                let at = (i * shape.width.output + column) * channels;
                let (y, index) = (&mut y[at..at + channels], &mut index[at..at + channels]);
                window_max(shape, [&down, &shape.width.span(column)], x, y, index);
            }
        }
    }
}

/// One window, all channels.
#[inline(always)]
fn window_max<T: Float>(
    shape: &PoolShape,
    [down, across]: [&Span; 2],
    x: &[T],
    y: &mut [T],
    index: &mut [u8],
) {
    let mut first = true;
    for (kh, h) in down.taps() {
        for (kw, w) in across.taps() {
            let place = (kh * shape.width.places + kw) as u8;
            let x = &x[(h * shape.width.input + w) * shape.channels..][..shape.channels];
            if first {
                y.copy_from_slice(x);
                index.fill(place);
                first = false;
                continue;
            }
            for ((y, index), &x) in y.iter_mut().zip(index.iter_mut()).zip(x) {
                let (new, old) = (x.widen(), y.widen());
                let wins = (new > old) | (new.is_nan() & !old.is_nan());
                *y = if wins { x } else { *y };
                *index = if wins { place } else { *index };
            }
        }
    }
    if first {
        y.fill(T::narrow(f32::NEG_INFINITY));
        index.fill(0);
    }
}

/// The gradient of [`max_pool`]: every output's gradient goes to the input that won, zero to the others.
///
/// A task has some rows of an image, looks through the windows that reach into them, and passes over the winners in
/// other tasks' rows.
///
/// # Panics
///
/// As [`max_pool`].
pub fn max_pool_grad<T: Float>(ctx: Context<'_>, shape: &PoolShape, dy: &[T], index: &[u8], dx: &mut [T]) {
    check(shape, dx.len(), dy.len(), index.len());
    let PoolShape { examples, height, width, channels } = *shape;
    let row = shape.in_row();
    // Where each place lies from the window's corner.
    let mut offsets = [0; 256];
    for (place, offset) in offsets.iter_mut().enumerate().take(height.places * width.places) {
        *offset = place / width.places * height.step() * row + place % width.places * width.step() * channels;
    }
    // Windows over a border are looked through twice, so an image is only cut where examples are few. An element's
    // gradients are added to +0 in order of (output row, output column) wherever the cuts are.
    let group = height.input.div_ceil((4 * ctx.threads()).div_ceil(examples.max(1)));
    let groups = height.input.div_ceil(group);
    let dx = Shared::new(dx);
    ctx.pool.run(examples * groups, &|task, _| {
        let (example, first) = (task / groups, task % groups * group);
        let rows = first..(first + group).min(height.input);
        // SAFETY: every task has its own rows of its own example.
        let dx = unsafe { dx.part((example * height.input + rows.start) * row, rows.len() * row) };
        dx.fill(T::ZERO);
        for window in height.around(rows.start).start..height.around(rows.end - 1).end {
            if height.span(window).places.is_empty() {
                continue;
            }
            // The corner may lie left of the image or above, or outside of the rows; the winner may too.
            let corner = height.corner(window).wrapping_sub(rows.start).wrapping_mul(row);
            for column in 0..width.output {
                if width.span(column).places.is_empty() {
                    continue;
                }
                let corner = corner.wrapping_add(width.corner(column).wrapping_mul(channels));
                let at = ((example * height.output + window) * width.output + column) * channels;
                let pixel = dy[at..at + channels].iter().zip(&index[at..at + channels]);
                for (channel, (dy, &place)) in pixel.enumerate() {
                    let winner = corner.wrapping_add(offsets[usize::from(place)]).wrapping_add(channel);
                    if let Some(dx) = dx.get_mut(winner) {
                        *dx = T::narrow(dx.widen() + dy.widen());
                    }
                }
            }
        }
    });
}
