//! Statistics of rows and channels, and the sums in the gradients of norms.
//!
//! A variance is always the mean squared distance from the mean, never the difference of two large moments.

#[cfg(test)]
mod tests;

use crate::isa::Context;
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, exp, ln, max_by, rows_per_task, simd_fn, sum_by, sum2_by, whole_lines};
use crate::kernels::reduce::{Fold, STRIP, WIDEST, fold, fold_workspace, sum_rows, super_rows};
pub use plimsoll_graph::op::NormAxis;
use std::ops::Range;

/// `y[r] = ln Σ exp(x[r])` for x of `[rows, width]`, without overflow.
pub fn log_sum_exp(ctx: Context<'_>, rows: usize, width: usize, x: &[f32], y: &mut [f32]) {
    assert!(x.len() >= rows * width && y.len() >= rows, "operands are too short");
    let group = rows_per_task(width);
    let y = Shared::new(y);
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let y = unsafe { y.part(rows.start, rows.len()) };
        log_sum_exp_rows(ctx.isa, width, &x[rows.start * width..rows.end * width], y);
    });
}

simd_fn! {
    pub(crate) fn log_sum_exp_rows(isa: Isa, width: usize, x: &[f32], y: &mut [f32]) {
        for (r, y) in y.iter_mut().enumerate() {
            let row = &x[r * width..(r + 1) * width];
            // SAFETY: i is below the row's length.
            let largest = max_by(width, |i| unsafe { *row.get_unchecked(i) });
            // Where there is nothing but -infinity, so is the result, and not NaN; likewise for +infinity.
            let base = if largest.is_infinite() { 0.0 } else { largest };
            // SAFETY: likewise.
            let sum = sum_by(width, |i| exp::<FMA>(unsafe { *row.get_unchecked(i) } - base));
            *y = base + ln::<FMA>(sum);
        }
    }
}

/// Mean and variance of every row of x, `[rows, width]`.
pub fn row_stats<T: Float>(
    ctx: Context<'_>,
    rows: usize,
    width: usize,
    x: &[T],
    mean: &mut [f32],
    variance: &mut [f32],
) {
    assert!(
        x.len() >= rows * width && mean.len() >= rows && variance.len() >= rows,
        "operands are too short"
    );
    let group = rows_per_task(width);
    let (mean, variance) = (Shared::new(mean), Shared::new(variance));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let (mean, variance) =
            unsafe { (mean.part(rows.start, rows.len()), variance.part(rows.start, rows.len())) };
        stats_of_rows(ctx.isa, width, &x[rows.start * width..rows.end * width], mean, variance);
    });
}

simd_fn! {
    fn stats_of_rows<T: Float>(isa: Isa, width: usize, x: &[T], mean: &mut [f32], variance: &mut [f32]) {
        for (r, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
            let row = &x[r * width..(r + 1) * width];
            // SAFETY: i is below the row's length.
            let m = sum_by(width, |i| unsafe { row.get_unchecked(i) }.widen()) / width as f32;
            let squares = sum_by(width, |i| {
                // SAFETY: likewise.
                let distance = unsafe { row.get_unchecked(i) }.widen() - m;
                distance * distance
            });
            (*mean, *variance) = (m, squares / width as f32);
        }
    }
}

/// Where `x̂ = (x - mean) · rstd` comes from, for x of `[rows, width]`.
#[derive(Clone, Copy)]
pub struct Normalised<'a, X = f32> {
    /// The input.
    pub x: &'a [X],
    /// Whose statistics they are: one for each row, or one for each channel.
    pub axis: NormAxis,
    /// The means.
    pub mean: &'a [f32],
    /// The reciprocal standard deviations.
    pub rstd: &'a [f32],
}

impl<X> Normalised<'_, X> {
    fn check(&self, rows: usize, width: usize) {
        let statistics = if self.axis == NormAxis::Row { rows } else { width };
        let fits =
            self.x.len() >= rows * width && self.mean.len() >= statistics && self.rstd.len() >= statistics;
        assert!(fits, "operands are too short");
    }
}

/// `(Σ dy, Σ dy · x̂)` over every row.
pub fn row_sums<D: Float, X: Float>(
    ctx: Context<'_>,
    rows: usize,
    width: usize,
    dy: &[D],
    normalised: Normalised<'_, X>,
    sum: &mut [f32],
    sum_with_x: &mut [f32],
) {
    normalised.check(rows, width);
    assert!(
        dy.len() >= rows * width && sum.len() >= rows && sum_with_x.len() >= rows,
        "operands are too short"
    );
    let group = rows_per_task(width);
    let (sum, sum_with_x) = (Shared::new(sum), Shared::new(sum_with_x));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let sums = unsafe { [sum.part(rows.start, rows.len()), sum_with_x.part(rows.start, rows.len())] };
        sums_of_rows(ctx.isa, width, rows, dy, normalised, sums);
    });
}

simd_fn! {
    fn sums_of_rows<D: Float, X: Float>(
        isa: Isa,
        width: usize,
        rows: Range<usize>,
        dy: &[D],
        normalised: Normalised<'_, X>,
        sums: [&mut [f32]; 2],
    ) {
        let Normalised { x, axis, mean, rstd } = normalised;
        let [sum, sum_with_x] = sums;
        for (out, r) in rows.enumerate() {
            let (dy, x) = (&dy[r * width..(r + 1) * width], &x[r * width..(r + 1) * width]);
            let totals = match axis {
                NormAxis::Row => {
                    let (mean, rstd) = (mean[r], rstd[r]);
                    // SAFETY: i is below the row's length.
                    sum2_by(width, |i| unsafe {
                        let dy = dy.get_unchecked(i).widen();
                        [dy, dy * ((x.get_unchecked(i).widen() - mean) * rstd)]
                    })
                }
                NormAxis::Channel => {
                    let (mean, rstd) = (&mean[..width], &rstd[..width]);
                    // SAFETY: i is below the row's length, which is the number of channels.
                    sum2_by(width, |i| unsafe {
                        let dy = dy.get_unchecked(i).widen();
                        [dy, dy * ((x.get_unchecked(i).widen() - *mean.get_unchecked(i)) * *rstd.get_unchecked(i))]
                    })
                }
            };
            [sum[out], sum_with_x[out]] = totals;
        }
    }
}

/// A fold over the rows of channels, in blocks of `block_rows`.
fn fold_of(rows: usize, channels: usize, block_rows: usize, accumulate: bool) -> Fold {
    Fold { rows, inner: channels, block_rows, accumulate }
}

/// The bytes of workspace that [`channel_stats`] and [`channel_moments`] need: a multiple of 64.
pub fn channel_stats_workspace(rows: usize, channels: usize, block_rows: usize) -> usize {
    2 * whole_lines(fold_of(rows, channels, block_rows, false).units() * channels) * size_of::<f32>()
}

/// Mean and variance of every column of x, `[rows, channels]`: the bits of [`channel_moments`] and [`stats_of_moments`].
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn channel_stats<T: Float>(
    ctx: Context<'_>,
    rows: usize,
    channels: usize,
    block_rows: usize,
    x: &[T],
    mean: &mut [f32],
    variance: &mut [f32],
    workspace: &mut [f32],
) {
    assert!(mean.len() >= channels && variance.len() >= channels, "operands are too short");
    let spec = fold_of(rows, channels, block_rows, false);
    let parts = stats_of_units(ctx, &spec, x, workspace);
    for first in (0..channels).step_by(STRIP) {
        let columns = first..(first + STRIP).min(channels);
        let (mut means, mut squares) = ([0.0; STRIP], [0.0; STRIP]);
        combine_stats(&spec, 0.0, columns.clone(), parts, [&mut means, &mut squares]);
        for (i, column) in columns.enumerate() {
            (mean[column], variance[column]) = stats(rows as f64, means[i], squares[i]);
        }
    }
}

/// `[count, mean, Σ (x - mean)²]` of every column of x, `[rows, channels]`, which `accumulate` combines with the moments of the rows
/// before: rows cut at a block's end and taken in two calls give the bits of one call.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn channel_moments<T: Float>(
    ctx: Context<'_>,
    rows: usize,
    channels: usize,
    block_rows: usize,
    accumulate: bool,
    x: &[T],
    moments: &mut [f64],
    workspace: &mut [f32],
) {
    let spec = fold_of(rows, channels, block_rows, accumulate);
    let parts = stats_of_units(ctx, &spec, x, workspace);
    let moments = &mut moments[..3 * channels];
    if !accumulate {
        moments.fill(0.0);
    }
    let (counts, rest) = moments.split_at_mut(channels);
    let (means, squares) = rest.split_at_mut(channels);
    let before = counts.first().copied().unwrap_or(0.0);
    for first in (0..channels).step_by(STRIP) {
        let columns = first..(first + STRIP).min(channels);
        let sums = [&mut means[columns.clone()], &mut squares[columns.clone()]];
        combine_stats(&spec, before, columns, parts, sums);
    }
    counts.fill(before + rows as f64);
}

/// Mean and variance of every channel from its moments.
pub fn stats_of_moments(channels: usize, moments: &[f64], mean: &mut [f32], variance: &mut [f32]) {
    for (i, (mean, variance)) in mean.iter_mut().zip(variance).enumerate().take(channels) {
        (*mean, *variance) = stats(moments[i], moments[channels + i], moments[2 * channels + i]);
    }
}

fn stats(count: f64, mean: f64, squares: f64) -> (f32, f32) {
    (if count == 0.0 { f32::NAN } else { mean as f32 }, (squares / count) as f32)
}

/// Means and sums of squared distances of every unit: those of a unit are taken while it is in cache, so that x is read from memory
/// once.
fn stats_of_units<'w, T: Float>(
    ctx: Context<'_>,
    spec: &Fold,
    x: &[T],
    workspace: &'w mut [f32],
) -> [&'w [f32]; 2] {
    let (rows, channels) = (spec.rows, spec.inner);
    assert!(x.len() >= rows * channels, "operands are too short");
    let floats = whole_lines(spec.units() * channels);
    let (means, squares) = workspace[..2 * floats].split_at_mut(floats);
    let (unit_means, unit_squares) = (Shared::new(means), Shared::new(squares));
    let strips = channels.div_ceil(STRIP);
    ctx.pool.run(spec.units() * strips, &|task, _| {
        let (u, strip) = (task / strips, task % strips);
        let rows = spec.unit(u);
        let columns = strip * STRIP..((strip + 1) * STRIP).min(channels);
        let at = u * channels + columns.start;
        // SAFETY: every task has its own columns of its own unit.
        let out = unsafe { [unit_means.part(at, columns.len()), unit_squares.part(at, columns.len())] };
        stats_of_unit(ctx.isa, channels, columns, &x[rows.start * channels..rows.end * channels], out);
    });
    [means, squares]
}

simd_fn! {
    /// Mean and sum of squared distances of some columns of a unit.
    fn stats_of_unit<T: Float>(
        isa: Isa, channels: usize, columns: Range<usize>, x: &[T], out: [&mut [f32]; 2],
    ) {
        let [mean, squares] = out;
        let rows = x.len() / channels;
        sum_rows(rows, channels, columns.clone(), [&mut *mean], |r, j| {
            // SAFETY: r and j lie inside the unit.
            [unsafe { x.get_unchecked(r * channels + j) }.widen()]
        });
        mean.iter_mut().for_each(|m| *m /= rows as f32);
        let tiled = Tiled::new(channels, columns.clone(), mean);
        sum_rows(rows, channels, columns.clone(), [squares], |r, j| {
            // SAFETY: r and j lie inside the unit; the statistics are repeated as far as columns go.
            let distance = unsafe { x.get_unchecked(r * channels + j).widen() - tiled.get(j - columns.start) };
            [distance * distance]
        });
    }
}

/// The statistics of at most [`STRIP`] channels, repeated as often as narrow rows are taken together.
struct Tiled([f32; STRIP]);

const _: () = assert!(STRIP >= WIDEST);

impl Tiled {
    #[inline(always)]
    fn new(channels: usize, columns: Range<usize>, values: &[f32]) -> Self {
        let mut tiled = [0.0; STRIP];
        let width = columns.len();
        for copy in 0..super_rows(channels) {
            tiled[copy * width..(copy + 1) * width].copy_from_slice(&values[..width]);
        }
        Self(tiled)
    }

    /// # Safety
    ///
    /// `i` is below the columns times the rows taken together.
    #[inline(always)]
    unsafe fn get(&self, i: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get_unchecked(i) }
    }
}

/// Combines the statistics of units in order, by the method of Chan, Golub and LeVeque, with those of `before` rows; in f64: units are
/// few, and their sums of squares are large.
fn combine_stats(
    spec: &Fold,
    before: f64,
    columns: Range<usize>,
    [unit_means, unit_squares]: [&[f32]; 2],
    [means, squares]: [&mut [f64]; 2],
) {
    for u in 0..spec.units() {
        let rows = spec.unit(u);
        let (before, here) = (before + rows.start as f64, rows.len() as f64);
        let (share, weight) = (here / (before + here), before * here / (before + here));
        let at = u * spec.inner + columns.start;
        for (i, (mean, squares)) in means.iter_mut().zip(&mut *squares).enumerate().take(columns.len()) {
            let distance = f64::from(unit_means[at + i]) - *mean;
            *mean += distance * share;
            *squares += f64::from(unit_squares[at + i]) + distance * distance * weight;
        }
    }
}

/// The bytes of workspace that [`channel_sums`] needs: a multiple of 64.
pub fn channel_sums_workspace(rows: usize, channels: usize, block_rows: usize) -> usize {
    fold_workspace(2, &fold_of(rows, channels, block_rows, false))
}

/// `(Σ dy, Σ dy · x̂)` over every column, added to the results with `accumulate`, folded over blocks of
/// `block_rows` rows.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn channel_sums<D: Float, X: Float>(
    ctx: Context<'_>,
    rows: usize,
    channels: usize,
    block_rows: usize,
    accumulate: bool,
    dy: &[D],
    normalised: Normalised<'_, X>,
    sum: &mut [f32],
    sum_with_x: &mut [f32],
    workspace: &mut [f32],
) {
    normalised.check(rows, channels);
    assert!(
        dy.len() >= rows * channels && sum.len() >= channels && sum_with_x.len() >= channels,
        "operands are too short"
    );
    let spec = fold_of(rows, channels, block_rows, accumulate);
    fold(ctx, &spec, [sum, sum_with_x], workspace, &|rows, columns, out| {
        sums_of_unit(ctx.isa, channels, rows, columns, dy, normalised, out);
    });
}

simd_fn! {
    fn sums_of_unit<D: Float, X: Float>(
        isa: Isa,
        channels: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        dy: &[D],
        normalised: Normalised<'_, X>,
        out: [&mut [f32]; 2],
    ) {
        let Normalised { x, axis, mean, rstd } = normalised;
        let elements = rows.start * channels..rows.end * channels;
        let (dy, x) = (&dy[elements.clone()], &x[elements]);
        match axis {
            NormAxis::Row => {
                let (mean, rstd) = (&mean[rows.clone()], &rstd[rows.clone()]);
                let narrow = super_rows(channels) > 1;
                sum_rows(rows.len(), channels, columns, out, |r, j| {
                    // Where narrow rows are taken together, column j may be one of a row below.
                    let row = if narrow { r + j / channels } else { r };
                    // SAFETY: r and j lie inside the unit.
                    unsafe {
                        let at = r * channels + j;
                        let dy = dy.get_unchecked(at).widen();
                        [dy, dy * ((x.get_unchecked(at).widen() - *mean.get_unchecked(row)) * *rstd.get_unchecked(row))]
                    }
                });
            }
            NormAxis::Channel if columns.len() <= STRIP => {
                let mean = Tiled::new(channels, columns.clone(), &mean[columns.clone()]);
                let rstd = Tiled::new(channels, columns.clone(), &rstd[columns.clone()]);
                let first = columns.start;
                sum_rows(rows.len(), channels, columns, out, |r, j| {
                    // SAFETY: r and j lie inside the unit; the statistics are repeated as far as columns go.
                    unsafe {
                        let at = r * channels + j;
                        let dy = dy.get_unchecked(at).widen();
                        [dy, dy * ((x.get_unchecked(at).widen() - mean.get(j - first)) * rstd.get(j - first))]
                    }
                });
            }
            NormAxis::Channel => {
                let (mean, rstd) = (&mean[..channels], &rstd[..channels]);
                sum_rows(rows.len(), channels, columns, out, |r, j| {
                    // SAFETY: r and j lie inside the unit; rows this wide are not taken together.
                    unsafe {
                        let at = r * channels + j;
                        let dy = dy.get_unchecked(at).widen();
                        [dy, dy * ((x.get_unchecked(at).widen() - *mean.get_unchecked(j)) * *rstd.get_unchecked(j))]
                    }
                });
            }
        }
    }
}
