//! Scans along an axis: cumulative sums, and the gradient of a product.

use super::STRIP;
use crate::isa::Context;
use crate::kernels::math::{Shared, TASK_ELEMENTS, simd_fn};
use std::ops::Range;

/// `y[o, r, i]` is the sum of `x[o, .., i]` up to r, or from r on with `reverse`; both are `[outer, extent, inner]`.
/// Sums are held in f64.
pub fn cumulative_sum(
    ctx: Context<'_>,
    outer: usize,
    extent: usize,
    inner: usize,
    reverse: bool,
    x: &[f32],
    y: &mut [f32],
) {
    let size = outer * extent * inner;
    assert!(x.len() >= size && y.len() >= size, "operands are shorter than their shapes");
    let y = Shared::new(y);
    each_strip(ctx, outer, extent, inner, &|o, columns| {
        let at = o * extent * inner;
        // SAFETY: the lengths were checked, and every strip has its own columns of its own outer index.
        unsafe { sum_strip(ctx.isa, extent, inner, columns, reverse, &x[at..at + extent * inner], y.at(at)) };
    });
}

/// `dx[o, r, i]` is `dy[o, i]` times the product of `x[o, .., i]` without r, with x of `[outer, reduce, inner]`.
/// Products are held in f64; the product of the elements before r is rounded to f32 once.
pub fn product_grad(
    ctx: Context<'_>,
    outer: usize,
    reduce: usize,
    inner: usize,
    x: &[f32],
    dy: &[f32],
    dx: &mut [f32],
) {
    let size = outer * reduce * inner;
    assert!(
        x.len() >= size && dx.len() >= size && dy.len() >= outer * inner,
        "operands are shorter than their shapes"
    );
    let dx = Shared::new(dx);
    each_strip(ctx, outer, reduce, inner, &|o, columns| {
        let (at, dy) = (o * reduce * inner, &dy[o * inner..(o + 1) * inner]);
        // SAFETY: the lengths were checked, and every strip has its own columns of its own outer index.
        unsafe { product_strip(ctx.isa, reduce, inner, columns, &x[at..at + reduce * inner], dy, dx.at(at)) };
    });
}

/// Splits strips of columns of each outer index between tasks.
fn each_strip(
    ctx: Context<'_>,
    outer: usize,
    extent: usize,
    inner: usize,
    f: &(dyn Fn(usize, Range<usize>) + Sync),
) {
    let strips = inner.div_ceil(STRIP);
    let items = outer * strips;
    let group = (TASK_ELEMENTS / (extent * inner.min(STRIP)).max(1)).max(1);
    ctx.pool.run(items.div_ceil(group), &|task, _| {
        for item in task * group..((task + 1) * group).min(items) {
            let (o, strip) = (item / strips, item % strips);
            f(o, strip * STRIP..((strip + 1) * STRIP).min(inner));
        }
    });
}

/// Columns of a row of the result.
///
/// # Safety
/// `y` holds the row, and nobody else touches these columns while the result is in use.
#[inline(always)]
unsafe fn row<'a>(y: *mut f32, r: usize, inner: usize, columns: &Range<usize>) -> &'a mut [f32] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(y.add(r * inner + columns.start), columns.len()) }
}

/// The cumulative sums of one row.
#[inline(always)]
fn sum_row<'a>(row: impl Iterator<Item = (&'a mut f32, &'a f32)>) {
    let mut sum = 0.0f64;
    for (y, &x) in row {
        sum += f64::from(x);
        *y = sum as f32;
    }
}

simd_fn! {
    /// # Safety
    /// `y` is as long as x, and nobody else touches these columns meanwhile.
    unsafe fn sum_strip(
        isa: Isa,
        extent: usize,
        inner: usize,
        columns: Range<usize>,
        reverse: bool,
        x: &[f32],
        y: *mut f32,
    ) {
        if inner == 1 {
            // SAFETY: the caller's contract.
            let y = unsafe { std::slice::from_raw_parts_mut(y, extent) };
            return if reverse {
                sum_row(y.iter_mut().zip(x).rev());
            } else {
                sum_row(y.iter_mut().zip(x));
            };
        }
        let mut sums = [0.0f64; STRIP];
        let sums = &mut sums[..columns.len()];
        for step in 0..extent {
            let r = if reverse { extent - 1 - step } else { step };
            let x = &x[r * inner..][columns.clone()];
            // SAFETY: the caller's contract.
            let y = unsafe { row(y, r, inner, &columns) };
            for ((y, &x), sum) in y.iter_mut().zip(x).zip(sums.iter_mut()) {
                *sum += f64::from(x);
                *y = *sum as f32;
            }
        }
    }
}

/// The gradient of the product of one row.
#[inline(always)]
fn product_row(x: &[f32], dy: f32, dx: &mut [f32]) {
    let mut before = 1.0f64;
    for (dx, &x) in dx.iter_mut().zip(x) {
        *dx = before as f32;
        before *= f64::from(x);
    }
    let mut after = f64::from(dy);
    for (dx, &x) in dx.iter_mut().zip(x).rev() {
        *dx = (f64::from(*dx) * after) as f32;
        after *= f64::from(x);
    }
}

simd_fn! {
    /// # Safety
    /// `dx` is as long as x, and nobody else touches these columns meanwhile.
    unsafe fn product_strip(
        isa: Isa,
        reduce: usize,
        inner: usize,
        columns: Range<usize>,
        x: &[f32],
        dy: &[f32],
        dx: *mut f32,
    ) {
        if inner == 1 {
            // SAFETY: the caller's contract.
            return product_row(x, dy[0], unsafe { std::slice::from_raw_parts_mut(dx, reduce) });
        }
        let (mut before, mut after) = ([1.0f64; STRIP], [1.0f64; STRIP]);
        let (before, after) = (&mut before[..columns.len()], &mut after[..columns.len()]);
        let dy = &dy[columns.clone()];
        for r in 0..reduce {
            let x = &x[r * inner..][columns.clone()];
            // SAFETY: the caller's contract.
            let dx = unsafe { row(dx, r, inner, &columns) };
            for ((dx, &x), before) in dx.iter_mut().zip(x).zip(before.iter_mut()) {
                *dx = *before as f32;
                *before *= f64::from(x);
            }
        }
        for r in (0..reduce).rev() {
            let x = &x[r * inner..][columns.clone()];
            // SAFETY: likewise.
            let dx = unsafe { row(dx, r, inner, &columns) };
            for (((dx, &x), after), &dy) in dx.iter_mut().zip(x).zip(after.iter_mut()).zip(dy) {
                *dx = (f64::from(*dx) * *after * f64::from(dy)) as f32;
                *after *= f64::from(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_bits, assert_near, normal, on_all};

    const SHAPES: [[usize; 3]; 9] = [
        [1, 1, 1],
        [0, 3, 2],
        [2, 0, 3],
        [3, 100, 1],
        [1, 1_000_000, 1],
        [40, 70, 3],
        [2, 9, 700],
        [3, 33, 257],
        [300, 5, 2],
    ];

    #[test]
    fn cumulative_sums_in_both_directions() {
        for [outer, extent, inner] in SHAPES {
            let x = normal(1, outer * extent * inner);
            for reverse in [false, true] {
                let mut exact = vec![0.0f64; x.len()];
                for o in 0..outer {
                    for i in 0..inner {
                        let mut sum = 0.0;
                        for step in 0..extent {
                            let r = if reverse { extent - 1 - step } else { step };
                            let at = (o * extent + r) * inner + i;
                            sum += f64::from(x[at]);
                            exact[at] = sum;
                        }
                    }
                }
                let wanted: Vec<f32> = exact.iter().map(|&v| v as f32).collect();
                let results = on_all(|ctx| {
                    let mut y = vec![f32::NAN; x.len()];
                    cumulative_sum(ctx, outer, extent, inner, reverse, &x, &mut y);
                    y
                });
                let what = format!("[{outer},{extent},{inner}], reverse: {reverse}");
                results.iter().for_each(|y| assert_bits(y, &wanted, &what));
            }
        }
    }

    #[test]
    fn a_products_gradient_with_zeros() {
        for [outer, reduce, inner] in SHAPES.into_iter().filter(|shape| shape[1] < 1000) {
            let mut x: Vec<f32> = normal(2, outer * reduce * inner).iter().map(|v| 1.0 + v / 8.0).collect();
            // None, one and two zeros among the factors.
            x.iter_mut().step_by(37).for_each(|x| *x = 0.0);
            let dy = normal(3, outer * inner);
            let mut exact = vec![0.0f64; x.len()];
            for (at, exact) in exact.iter_mut().enumerate() {
                let (o, r, i) = (at / (reduce * inner), at / inner % reduce, at % inner);
                let others = (0..reduce).filter(|&other| other != r);
                let product: f64 =
                    others.map(|other| f64::from(x[(o * reduce + other) * inner + i])).product();
                *exact = product * f64::from(dy[o * inner + i]);
            }
            let results = on_all(|ctx| {
                let mut dx = vec![f32::NAN; x.len()];
                product_grad(ctx, outer, reduce, inner, &x, &dy, &mut dx);
                dx
            });
            for dx in results {
                assert_near(
                    &dx,
                    &exact,
                    0.0,
                    4.0 * f64::from(f32::EPSILON),
                    &format!("[{outer},{reduce},{inner}]"),
                );
            }
        }
    }
}
