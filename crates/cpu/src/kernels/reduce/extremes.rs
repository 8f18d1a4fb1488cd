//! The largest, the smallest and the product over the middle of three axes.

use super::STRIP;
use crate::isa::{Context, Isa};
use crate::kernels::math::{Shared, TASK_ELEMENTS, rows_per_task, simd_fn};
use std::ops::Range;

/// Which element is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// The largest; NaN if there is one.
    Largest,
    /// The smallest; NaN if there is one.
    Smallest,
}

/// Elements that have an order.
pub trait Element: Copy + Send + Sync {
    /// The extreme of each row of `width` elements.
    fn rows(isa: Isa, which: Extreme, width: usize, x: &[Self], y: &mut [Self]);
    /// The extreme of some columns over rows of `inner` elements, at most `STRIP` of them.
    fn columns(isa: Isa, which: Extreme, inner: usize, columns: Range<usize>, x: &[Self], y: &mut [Self]);
}

/// `y[o, i]` is the extreme of `x[o, .., i]`, with x of `[outer, reduce, inner]`; `reduce` is not zero.
pub fn extreme<T: Element>(
    ctx: Context<'_>,
    which: Extreme,
    outer: usize,
    reduce: usize,
    inner: usize,
    x: &[T],
    y: &mut [T],
) {
    assert!(reduce > 0, "there is something to choose from");
    let rows = |x: &[T], y: &mut [T]| T::rows(ctx.isa, which, reduce, x, y);
    let columns = |c: Range<usize>, x: &[T], y: &mut [T]| T::columns(ctx.isa, which, inner, c, x, y);
    over_the_middle(ctx, [outer, reduce, inner], x, y, &rows, &columns);
}

/// `y[o, i] = Π_r x[o, r, i]`, with x of `[outer, reduce, inner]`.
pub fn product(ctx: Context<'_>, outer: usize, reduce: usize, inner: usize, x: &[f32], y: &mut [f32]) {
    let rows = |x: &[f32], y: &mut [f32]| row_products(ctx.isa, reduce, x, y);
    let columns = |c: Range<usize>, x: &[f32], y: &mut [f32]| column_products(ctx.isa, inner, c, x, y);
    over_the_middle(ctx, [outer, reduce, inner], x, y, &rows, &columns);
}

/// Reduces rows, each to an element.
type Rows<'a, T> = &'a (dyn Fn(&[T], &mut [T]) + Sync);

/// Reduces some columns over all rows, each to an element.
type Columns<'a, T> = &'a (dyn Fn(Range<usize>, &[T], &mut [T]) + Sync);

/// Splits rows between tasks where the last axis is reduced, else strips of columns.
fn over_the_middle<T: Send + Sync>(
    ctx: Context<'_>,
    [outer, reduce, inner]: [usize; 3],
    x: &[T],
    y: &mut [T],
    rows: Rows<'_, T>,
    columns: Columns<'_, T>,
) {
    assert!(
        x.len() >= outer * reduce * inner && y.len() >= outer * inner,
        "operands are shorter than their shapes"
    );
    let y = Shared::new(y);
    if inner == 1 {
        let group = rows_per_task(reduce);
        ctx.pool.run(outer.div_ceil(group), &|task, _| {
            let range = task * group..((task + 1) * group).min(outer);
            // SAFETY: every task has its own rows.
            let y = unsafe { y.part(range.start, range.len()) };
            rows(&x[range.start * reduce..range.end * reduce], y);
        });
        return;
    }
    let strips = inner.div_ceil(STRIP);
    let items = outer * strips;
    let group = (TASK_ELEMENTS / (reduce * inner.min(STRIP)).max(1)).max(1);
    ctx.pool.run(items.div_ceil(group), &|task, _| {
        for item in task * group..((task + 1) * group).min(items) {
            let (o, strip) = (item / strips, item % strips);
            let range = strip * STRIP..((strip + 1) * STRIP).min(inner);
            // SAFETY: every item has its own columns of its own row.
            let y = unsafe { y.part(o * inner + range.start, range.len()) };
            columns(range, &x[o * reduce * inner..(o + 1) * reduce * inner], y);
        }
    });
}

/// Lanes that a row is folded in: lane j takes the elements j, j + L, .. The tree depends on the row's length only.
const LANES: usize = 64;

#[inline(always)]
fn fold_rows<T: Copy>(width: usize, x: &[T], y: &mut [T], start: T, combine: impl Fn(T, T) -> T) {
    for (r, y) in y.iter_mut().enumerate() {
        let row = &x[r * width..(r + 1) * width];
        let mut lanes = [start; LANES];
        let whole = width - width % LANES;
        for chunk in row[..whole].chunks_exact(LANES) {
            for j in 0..LANES {
                lanes[j] = combine(lanes[j], chunk[j]);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(&row[whole..]) {
            *lane = combine(*lane, value);
        }
        let mut half = LANES / 2;
        while half > 0 {
            for j in 0..half {
                lanes[j] = combine(lanes[j], lanes[j + half]);
            }
            half /= 2;
        }
        *y = lanes[0];
    }
}

#[inline(always)]
fn fold_columns<T: Copy>(
    inner: usize,
    columns: Range<usize>,
    x: &[T],
    y: &mut [T],
    start: T,
    combine: impl Fn(T, T) -> T,
) {
    // A local array, which the compiler knows not to alias x.
    let mut results = [start; STRIP];
    let results = &mut results[..columns.len()];
    let mut fours = x.chunks_exact(4 * inner);
    for rows in &mut fours {
        // Several rows at a time, one after the other for every element: the result stays in a register meanwhile.
        let (a, b) = rows.split_at(2 * inner);
        let [(a, b), (c, d)] = [a.split_at(inner), b.split_at(inner)];
        let [a, b, c, d] = [a, b, c, d].map(|row| &row[columns.clone()]);
        for ((((result, &a), &b), &c), &d) in results.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *result = combine(combine(combine(combine(*result, a), b), c), d);
        }
    }
    for row in fours.remainder().chunks_exact(inner) {
        for (result, &value) in results.iter_mut().zip(&row[columns.clone()]) {
            *result = combine(*result, value);
        }
    }
    y.copy_from_slice(results);
}

/// An element type with its lowest and highest value, and what makes a NaN.
macro_rules! element {
    ($ty:ty, $lowest:expr, $highest:expr, $is_nan:expr) => {
        impl Element for $ty {
            fn rows(isa: Isa, which: Extreme, width: usize, x: &[Self], y: &mut [Self]) {
                simd_fn! {
                    fn run(isa: Isa, which: Extreme, width: usize, x: &[$ty], y: &mut [$ty]) {
                        match which {
                            Extreme::Largest => fold_rows(width, x, y, $lowest, |a, b| {
                                if b > a || $is_nan(b) { b } else { a }
                            }),
                            Extreme::Smallest => fold_rows(width, x, y, $highest, |a, b| {
                                if b < a || $is_nan(b) { b } else { a }
                            }),
                        }
                    }
                }
                run(isa, which, width, x, y);
            }

            fn columns(
                isa: Isa,
                which: Extreme,
                inner: usize,
                columns: Range<usize>,
                x: &[Self],
                y: &mut [Self],
            ) {
                simd_fn! {
                    fn run(
                        isa: Isa,
                        which: Extreme,
                        inner: usize,
                        columns: Range<usize>,
                        x: &[$ty],
                        y: &mut [$ty],
                    ) {
                        match which {
                            Extreme::Largest => fold_columns(inner, columns, x, y, $lowest, |a, b| {
                                if b > a || $is_nan(b) { b } else { a }
                            }),
                            Extreme::Smallest => fold_columns(inner, columns, x, y, $highest, |a, b| {
                                if b < a || $is_nan(b) { b } else { a }
                            }),
                        }
                    }
                }
                run(isa, which, inner, columns, x, y);
            }
        }
    };
}

#[inline(always)]
fn never<T>(_: T) -> bool {
    false
}

element!(f32, f32::NEG_INFINITY, f32::INFINITY, f32::is_nan);
element!(i32, i32::MIN, i32::MAX, never);
element!(u8, u8::MIN, u8::MAX, never);

simd_fn! {
    fn row_products(isa: Isa, width: usize, x: &[f32], y: &mut [f32]) {
        fold_rows(width, x, y, 1.0, |a, b| a * b);
    }
}

simd_fn! {
    fn column_products(isa: Isa, inner: usize, columns: Range<usize>, x: &[f32], y: &mut [f32]) {
        fold_columns(inner, columns, x, y, 1.0, |a, b| a * b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_bits, assert_near, below, normal, on_all};

    const SHAPES: [[usize; 3]; 11] = [
        [1, 1, 1],
        [0, 4, 2],
        [3, 4, 0],
        [5, 1, 7],
        [3, 100, 1],
        [40, 700, 1],
        [1, 1_000_000, 1],
        [4, 300, 3],
        [2, 130, 257],
        [2, 9, 700],
        [70, 33, 100],
    ];

    /// Element by element in f64.
    fn plain(shape: [usize; 3], x: &[f32], start: f64, combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        let [outer, reduce, inner] = shape;
        let mut y = vec![start; outer * inner];
        for (i, &x) in x.iter().enumerate() {
            let at = i / (reduce * inner) * inner + i % inner;
            y[at] = combine(y[at], f64::from(x));
        }
        y
    }

    #[test]
    fn extremes_are_found_wherever_they_are() {
        for shape in SHAPES {
            let [outer, reduce, inner] = shape;
            let mut x = normal(1, outer * reduce * inner);
            if x.len() > 1000 {
                x[7] = f32::NAN;
                x[500] = f32::INFINITY;
                x[501] = f32::NEG_INFINITY;
            }
            let max = plain(shape, &x, f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
            let min = plain(shape, &x, f64::INFINITY, |a, b| if b < a || b.is_nan() { b } else { a });
            for (which, wanted) in [(Extreme::Largest, max), (Extreme::Smallest, min)] {
                let wanted: Vec<f32> = wanted.iter().map(|&v| v as f32).collect();
                let results = on_all(|ctx| {
                    let mut y = vec![7.5; outer * inner];
                    extreme(ctx, which, outer, reduce, inner, &x, &mut y);
                    y
                });
                results.iter().for_each(|y| assert_bits(y, &wanted, &format!("{which:?} of {shape:?}")));
            }
        }
    }

    #[test]
    fn integers_and_truth_values_have_extremes() {
        for shape in SHAPES {
            let [outer, reduce, inner] = shape;
            let x: Vec<i32> =
                below(2, outer * reduce * inner, 1 << 20).iter().map(|v| v - (1 << 19)).collect();
            // Rarely true, so that both answers occur.
            let bits: Vec<u8> = x.iter().map(|v| u8::from(v % 97 == 0)).collect();
            let floats: Vec<f32> = x.iter().map(|&v| v as f32).collect();
            let of_bits: Vec<f32> = bits.iter().map(|&v| f32::from(v)).collect();
            for which in [Extreme::Largest, Extreme::Smallest] {
                on_all(|ctx| {
                    let (mut y, mut any, mut wanted) =
                        (vec![1; outer * inner], vec![7; outer * inner], vec![0.0; outer * inner]);
                    extreme(ctx, which, outer, reduce, inner, &x, &mut y);
                    extreme(ctx, which, outer, reduce, inner, &floats, &mut wanted);
                    assert_bits(&y.iter().map(|&v| v as f32).collect::<Vec<_>>(), &wanted, "i32");
                    extreme(ctx, which, outer, reduce, inner, &bits, &mut any);
                    extreme(ctx, which, outer, reduce, inner, &of_bits, &mut wanted);
                    assert_bits(&any.iter().map(|&v| f32::from(v)).collect::<Vec<_>>(), &wanted, "bool");
                    Vec::new()
                });
            }
        }
    }

    #[test]
    fn products_are_near_exact_ones() {
        for shape in SHAPES.into_iter().chain([[3, 0, 5], [3, 0, 1]]) {
            let [outer, reduce, inner] = shape;
            // Near one, so that long products stay in range.
            let x: Vec<f32> =
                normal(3, outer * reduce * inner).iter().map(|v| 1.0 + v / (reduce as f32).sqrt()).collect();
            let exact = plain(shape, &x, 1.0, |a, b| a * b);
            let results = on_all(|ctx| {
                let mut y = vec![f32::NAN; outer * inner];
                product(ctx, outer, reduce, inner, &x, &mut y);
                y
            });
            let tolerance = 4.0 * (reduce.max(1) as f64).sqrt() * f64::from(f32::EPSILON);
            results.iter().for_each(|y| assert_near(y, &exact, 0.0, tolerance, &format!("{shape:?}")));
        }
    }
}
