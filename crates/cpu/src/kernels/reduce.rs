//! Reductions.

mod columns;
mod extremes;
mod fold;
mod scan;
mod topk;

pub use extremes::{Element, Extreme, extreme, product};
pub use scan::{cumulative_sum, product_grad};
pub use topk::top_k;

pub(crate) use columns::{WIDEST, sum_rows, super_rows};
pub(crate) use fold::{Fold, fold, fold_workspace};

use crate::isa::Context;
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, TASK_ELEMENTS, max_by, rows_per_task, simd_fn, sum_by};
use std::ops::Range;

/// Columns of a task where tasks are columns.
pub(crate) const STRIP: usize = 256;

/// The term that each element adds to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The element.
    Itself,
    /// Its square.
    Square,
}

/// `y[o, i] = Σ_r x[o, r, i]`, or of their squares, with x of `[outer, reduce, inner]`.
pub fn sum<T: Float>(
    ctx: Context<'_>,
    term: Term,
    [outer, reduce, inner]: [usize; 3],
    x: &[T],
    y: &mut [f32],
) {
    assert!(
        x.len() >= outer * reduce * inner && y.len() >= outer * inner,
        "operands are shorter than their shapes"
    );
    let y = Shared::new(y);
    if inner == 1 {
        let rows = rows_per_task(reduce);
        ctx.pool.run(outer.div_ceil(rows), &|task, _| {
            let rows = task * rows..((task + 1) * rows).min(outer);
            // SAFETY: every task has its own rows.
            let y = unsafe { y.part(rows.start, rows.len()) };
            let x = &x[rows.start * reduce..rows.end * reduce];
            match term {
                Term::Itself => row_sums(ctx.isa, reduce, x, y),
                Term::Square => row_square_sums(ctx.isa, reduce, x, y),
            }
        });
        return;
    }
    // One block over all that is summed; its tree is the fold's.
    let whole = Fold { rows: reduce, inner, block_rows: reduce.max(1), accumulate: false };
    let strips = inner.div_ceil(STRIP);
    let items = outer * strips;
    let group = (TASK_ELEMENTS / (reduce * inner.min(STRIP)).max(1)).max(1);
    ctx.pool.run(items.div_ceil(group), &|task, _| {
        for item in task * group..((task + 1) * group).min(items) {
            let (o, strip) = (item / strips, item % strips);
            let columns = strip * STRIP..((strip + 1) * STRIP).min(inner);
            let x = &x[o * reduce * inner..(o + 1) * reduce * inner];
            // SAFETY: every item has its own columns of its own row.
            let y = unsafe { y.part(o * inner + columns.start, columns.len()) };
            fold::fold_strip(&whole, columns, [y], &|rows, columns, [out]| match term {
                Term::Itself => sum_unit(ctx.isa, inner, rows, columns, x, out),
                Term::Square => square_sum_unit(ctx.isa, inner, rows, columns, x, out),
            });
        }
    });
}

/// The bytes of workspace that [`sum_fold`] needs: a multiple of 64.
pub fn sum_fold_workspace(rows: usize, inner: usize, block_rows: usize) -> usize {
    fold_workspace(1, &Fold { rows, inner, block_rows, accumulate: false })
}

/// `y[i] = Σ_r x[r, i]` (`y[i] += ..` with `accumulate`), with x of `[rows, inner]`, folded over blocks of
/// `block_rows` rows: rows cut at a block's end and summed in two calls give the bits of one call.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn sum_fold<T: Float>(
    ctx: Context<'_>,
    rows: usize,
    inner: usize,
    block_rows: usize,
    accumulate: bool,
    x: &[T],
    y: &mut [f32],
    workspace: &mut [f32],
) {
    assert!(x.len() >= rows * inner && y.len() >= inner, "operands are shorter than their shapes");
    let spec = Fold { rows, inner, block_rows, accumulate };
    fold(ctx, &spec, [y], workspace, &|rows, columns, [out]| sum_unit(ctx.isa, inner, rows, columns, x, out));
}

/// `y[r]` is the index of the first largest or smallest element of row r of x, `[rows, width]`; NaN counts as either.
pub fn arg_extreme(ctx: Context<'_>, which: Extreme, rows: usize, width: usize, x: &[f32], y: &mut [i32]) {
    assert!(
        width > 0 && x.len() >= rows * width && y.len() >= rows,
        "operands are shorter than their shapes"
    );
    let group = rows_per_task(width);
    // The smallest is the largest of the negated.
    let sign = if which == Extreme::Largest { 1.0 } else { -1.0 };
    let y = Shared::new(y);
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let y = unsafe { y.part(rows.start, rows.len()) };
        arg_largest_rows(ctx.isa, width, sign, &x[rows.start * width..rows.end * width], y);
    });
}

simd_fn! {
    fn row_sums<T: Float>(isa: Isa, width: usize, x: &[T], y: &mut [f32]) {
        for (r, y) in y.iter_mut().enumerate() {
            let row = &x[r * width..(r + 1) * width];
            // SAFETY: i is below the row's length.
            *y = sum_by(width, |i| unsafe { row.get_unchecked(i) }.widen());
        }
    }
}

simd_fn! {
    fn row_square_sums<T: Float>(isa: Isa, width: usize, x: &[T], y: &mut [f32]) {
        for (r, y) in y.iter_mut().enumerate() {
            let row = &x[r * width..(r + 1) * width];
            *y = sum_by(width, |i| {
                // SAFETY: i is below the row's length.
                let x = unsafe { row.get_unchecked(i) }.widen();
                x * x
            });
        }
    }
}

simd_fn! {
    /// As [`sum_unit`], of squares.
    fn square_sum_unit<T: Float>(
        isa: Isa, inner: usize, rows: Range<usize>, columns: Range<usize>, x: &[T], out: &mut [f32],
    ) {
        let x = &x[rows.start * inner..rows.end * inner];
        sum_rows(rows.len(), inner, columns, [out], |r, j| {
            // SAFETY: r and j lie inside the rows and columns that were cut out above.
            let x = unsafe { x.get_unchecked(r * inner + j) }.widen();
            [x * x]
        });
    }
}

simd_fn! {
    /// Sums rows of x in some columns, from +0.
    fn sum_unit<T: Float>(
        isa: Isa, inner: usize, rows: Range<usize>, columns: Range<usize>, x: &[T], out: &mut [f32],
    ) {
        let x = &x[rows.start * inner..rows.end * inner];
        sum_rows(rows.len(), inner, columns, [out], |r, j| {
            // SAFETY: r and j lie inside the rows and columns that were cut out above.
            [unsafe { x.get_unchecked(r * inner + j) }.widen()]
        });
    }
}

simd_fn! {
    /// The first largest of each row, times a sign.
    fn arg_largest_rows(isa: Isa, width: usize, sign: f32, x: &[f32], y: &mut [i32]) {
        for (r, y) in y.iter_mut().enumerate() {
            let row = &x[r * width..(r + 1) * width];
            // Without an early exit, which would keep the compiler from vectorising what nearly always finds nothing.
            let first = if width < 32 {
                // Too short to be worth two passes.
                let beats = |a: f32, b: f32| a > b || a.is_nan() && !b.is_nan();
                Some((1..width).fold(0, |best, i| if beats(sign * row[i], sign * row[best]) { i } else { best }))
            } else if row.iter().fold(false, |any, v| any | v.is_nan()) {
                row.iter().position(|v| v.is_nan())
            } else {
                // SAFETY: i is below the row's length.
                let largest = max_by(width, |i| unsafe { sign * *row.get_unchecked(i) });
                row.iter().position(|v| sign * *v == largest)
            };
            *y = first.unwrap_or(0) as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::testing::{Workspace, assert_bits, assert_near, normal, on_all};
    use crate::threads::Pool;

    /// How far a sum of so many terms may be off: roundings of random sign add up like the root of their number.
    fn roundings(terms: usize) -> f64 {
        2.0 * (terms.max(1) as f64).sqrt() * f64::from(f32::EPSILON)
    }

    #[test]
    fn sum_over_the_middle() {
        let shapes = [
            (1, 1, 1),
            (3, 0, 5),
            (0, 4, 2),
            (5, 1, 7),
            (3, 100, 1),
            (2, 5000, 1),
            (40, 700, 1),
            (4, 300, 3),
            (3, 257, 64),
            (2, 130, 65),
            (2, 9, 700),
            (70, 33, 100),
            (1, 20_000, 16),
        ];
        for (outer, reduce, inner) in shapes {
            let x = normal(1, outer * reduce * inner);
            let mut exact = vec![0.0; outer * inner];
            for (i, &x) in x.iter().enumerate() {
                exact[i / (reduce * inner) * inner + i % inner] += f64::from(x);
            }
            let results = on_all(|ctx| {
                let mut y = vec![f32::NAN; outer * inner];
                sum(ctx, Term::Itself, [outer, reduce, inner], &x, &mut y);
                y
            });
            for y in results {
                assert_near(
                    &y,
                    &exact,
                    (reduce as f64).sqrt(),
                    roundings(reduce),
                    &format!("[{outer},{reduce},{inner}]"),
                );
            }
        }
    }

    /// A row's bits must not depend on the rows beside it.
    #[test]
    fn a_row_is_summed_as_if_alone() {
        let x = normal(2, 9 * 333 * 20);
        let pool = Pool::new(2).expect("threads start");
        let ctx = Context { pool: &pool, isa: Isa::detect() };
        for (reduce, inner) in [(333 * 20, 1), (333, 20)] {
            let (mut all, mut one) = (vec![0.0; 9 * inner], vec![0.0; inner]);
            sum(ctx, Term::Itself, [9, reduce, inner], &x, &mut all);
            sum(ctx, Term::Itself, [1, reduce, inner], &x[4 * reduce * inner..], &mut one);
            assert_bits(&all[4 * inner..5 * inner], &one, "row four");
        }
    }

    #[test]
    fn fold_is_the_same_in_one_call_or_two() {
        for (rows, inner, block) in [
            (0, 3, 4),
            (1, 1, 1),
            (37, 1, 5),
            (1000, 10, 1),
            (999, 3, 16),
            (5000, 16, 700),
            (130, 100, 64),
            (70, 1500, 32),
        ] {
            let x = normal(3, rows * inner);
            let mut exact = vec![0.0; inner];
            x.iter().enumerate().for_each(|(i, &x)| exact[i % inner] += f64::from(x));
            let run = |ctx: Context<'_>, y: &mut [f32], rows: Range<usize>, accumulate| {
                let mut space = Workspace::new(sum_fold_workspace(rows.len(), inner, block));
                let x = &x[rows.start * inner..rows.end * inner];
                sum_fold(ctx, rows.len(), inner, block, accumulate, x, y, space.get());
            };
            let results = on_all(|ctx| {
                let mut y = vec![f32::NAN; inner];
                run(ctx, &mut y, 0..rows, false);
                let mut parts = vec![f32::NAN; inner];
                let cut = rows / 2 / block * block;
                run(ctx, &mut parts, 0..cut, false);
                run(ctx, &mut parts, cut..rows, true);
                assert_bits(&parts, &y, &format!("[{rows},{inner}] cut at {cut}"));
                y
            });
            for y in results {
                assert_near(
                    &y,
                    &exact,
                    (rows as f64).sqrt(),
                    roundings(rows),
                    &format!("[{rows},{inner}] by {block}"),
                );
            }
        }
    }

    /// The fold is defined by its blocks: partial sums from +0, added in order.
    #[test]
    fn fold_adds_block_after_block() {
        // Blocks of several units: then it shows where blocks end.
        let (rows, inner, block) = (1800, 33, 600);
        let x = normal(4, rows * inner);
        on_all(|ctx| {
            let (mut whole, mut by_hand) = (vec![0.0; inner], vec![0.0; inner]);
            let mut space = Workspace::new(sum_fold_workspace(rows, inner, block));
            sum_fold(ctx, rows, inner, block, false, &x, &mut whole, space.get());
            for part in x.chunks(block * inner) {
                let mut partial = vec![0.0; inner];
                sum_fold(ctx, block, inner, block, false, part, &mut partial, space.get());
                by_hand.iter_mut().zip(&partial).for_each(|(a, b)| *a += b);
            }
            assert_bits(&whole, &by_hand, "blocks");
            whole
        });
    }

    #[test]
    fn the_first_extreme_is_found_and_nan_first() {
        for (which, sign) in [(Extreme::Largest, 1.0), (Extreme::Smallest, -1.0)] {
            for width in [1, 2, 10, 64, 65, 300] {
                let rows = 50;
                let mut x: Vec<f32> = normal(5, rows * width).iter().map(|v| (v * 2.0).round()).collect();
                if width > 2 {
                    x[3 * width + 1] = f32::NAN;
                    x[3 * width + 2] = f32::NAN;
                    x[4 * width..5 * width].fill(f32::NEG_INFINITY);
                    x[5 * width + 2] = f32::INFINITY;
                }
                let first = |row: &[f32]| {
                    let beats = |a: f32, b: f32| sign * a > sign * b || a.is_nan() && !b.is_nan();
                    (1..width).fold(0, |best, i| if beats(row[i], row[best]) { i } else { best })
                };
                let exact: Vec<f32> = x.chunks(width).map(|row| first(row) as f32).collect();
                let results = on_all(|ctx| {
                    let mut y = vec![-1; rows];
                    arg_extreme(ctx, which, rows, width, &x, &mut y);
                    y.iter().map(|&i| i as f32).collect()
                });
                results.iter().for_each(|y| assert_bits(y, &exact, &format!("{which:?}, width {width}")));
            }
        }
    }
}
