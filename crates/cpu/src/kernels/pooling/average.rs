//! The mean of each window: rows are summed first, then columns of the sum. The gradient reverses that.

use super::{Axis, PoolShape, Spacing, Span};
use crate::isa::Context;
use crate::kernels::math::{Shared, rows_per_task, simd_fn, whole_lines};
use std::ops::Range;

/// The bytes of workspace that [`average_pool`] needs: a multiple of 64.
pub fn average_pool_workspace(threads: usize, shape: &PoolShape) -> usize {
    threads * whole_lines(shape.in_row()) * size_of::<f32>()
}

/// The mean of every window, per channel: of a whole sliding window, zeros outside of the image, with `count_padding`;
/// otherwise of its places in the image (zero if there are none).
///
/// # Panics
///
/// When an operand's length does not fit the shape, or the workspace is too small.
pub fn average_pool(
    ctx: Context<'_>,
    shape: &PoolShape,
    count_padding: bool,
    x: &[f32],
    y: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(x.len(), y.len());
    let (rows, row) = (shape.examples * shape.height.output, shape.out_row());
    let group = shape.out_rows_per_task();
    let line = whole_lines(shape.in_row());
    let (y, lines) = (Shared::new(y), Shared::new(&mut workspace[..ctx.threads() * line]));
    ctx.pool.run(rows.div_ceil(group), &|task, worker| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows, every worker its own line.
        let (y, sums) = unsafe {
            (y.part(rows.start * row, rows.len() * row), lines.part(worker * line, shape.in_row()))
        };
        mean_rows(ctx.isa, shape, count_padding, rows, x, y, sums);
    });
}

/// The weight of each place of a window along an axis.
#[inline(always)]
fn share(axis: &Axis, count_padding: bool, span: &Span) -> f32 {
    let places = match axis.spacing {
        Spacing::Sliding { .. } if count_padding => axis.places,
        _ => span.places.len().max(1),
    };
    1.0 / places as f32
}

simd_fn! {
    /// Some rows of the result, counted over all examples.
    fn mean_rows(
        isa: Isa,
        shape: &PoolShape,
        count_padding: bool,
        rows: Range<usize>,
        x: &[f32],
        y: &mut [f32],
        sums: &mut [f32],
    ) {
        let (in_row, channels) = (shape.in_row(), shape.channels);
        for (i, row) in rows.enumerate() {
            let image = row / shape.height.output * shape.height.input;
            let down = shape.height.span(row % shape.height.output);
            sums.fill(0.0);
            for (_, h) in down.taps() {
                let x = &x[(image + h) * in_row..][..in_row];
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            let share_down = share(&shape.height, count_padding, &down);
            for column in 0..shape.width.output {
                let across = shape.width.span(column);
                let at = (i * shape.width.output + column) * channels;
                let y = &mut y[at..at + channels];
                y.fill(0.0);
                for (_, w) in across.taps() {
                    let sums = &sums[w * channels..(w + 1) * channels];
                    y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
                }
                let share = share_down * share(&shape.width, count_padding, &across);
                y.iter_mut().for_each(|y| *y *= share);
            }
        }
    }
}

/// The bytes of workspace that [`average_pool_grad`] needs: a multiple of 64.
pub fn average_pool_grad_workspace(threads: usize, shape: &PoolShape) -> usize {
    threads * whole_lines(shape.out_row()) * size_of::<f32>()
}

/// The gradient of [`average_pool`]: every output's gradient in equal shares to the inputs of its window.
///
/// # Panics
///
/// As [`average_pool`].
pub fn average_pool_grad(
    ctx: Context<'_>,
    shape: &PoolShape,
    count_padding: bool,
    dy: &[f32],
    dx: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(dx.len(), dy.len());
    let (rows, row) = (shape.examples * shape.height.input, shape.in_row());
    let group = rows_per_task(row.max(shape.out_row()));
    let line = whole_lines(shape.out_row());
    let (dx, lines) = (Shared::new(dx), Shared::new(&mut workspace[..ctx.threads() * line]));
    ctx.pool.run(rows.div_ceil(group), &|task, worker| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows, every worker its own line.
        let (dx, sums) = unsafe {
            (dx.part(rows.start * row, rows.len() * row), lines.part(worker * line, shape.out_row()))
        };
        grad_rows(ctx.isa, shape, count_padding, rows, dy, dx, sums);
    });
}

simd_fn! {
    /// Some rows of the image's gradient, counted over all examples.
    fn grad_rows(
        isa: Isa,
        shape: &PoolShape,
        count_padding: bool,
        rows: Range<usize>,
        dy: &[f32],
        dx: &mut [f32],
        sums: &mut [f32],
    ) {
        let (in_row, out_row, channels) = (shape.in_row(), shape.out_row(), shape.channels);
        dx.fill(0.0);
        for (i, row) in rows.enumerate() {
            let dx = &mut dx[i * in_row..(i + 1) * in_row];
            let (example, h) = (row / shape.height.input, row % shape.height.input);
            sums.fill(0.0);
            for window in shape.height.around(h) {
                if !shape.height.covers(window, h) {
                    continue;
                }
                let share = share(&shape.height, count_padding, &shape.height.span(window));
                let dy = &dy[(example * shape.height.output + window) * out_row..][..out_row];
                sums.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy * share);
            }
            for column in 0..shape.width.output {
                let across = shape.width.span(column);
                let share = share(&shape.width, count_padding, &across);
                let sums = &sums[column * channels..(column + 1) * channels];
                for (_, w) in across.taps() {
                    let dx = &mut dx[w * channels..(w + 1) * channels];
                    dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx += sum * share);
                }
            }
        }
    }
}
