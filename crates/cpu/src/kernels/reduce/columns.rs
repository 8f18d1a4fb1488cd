//! Sums over the rows of a matrix, column by column.

use std::ops::Range;

/// Below so many columns, several rows are taken together as one, to fill vectors.
const NARROW: usize = 64;

/// The longest row made of several, and the most columns that are summed at a time.
pub(crate) const WIDEST: usize = 256;

/// How many rows of `inner` columns are taken together: one if they are wide enough.
pub(crate) fn super_rows(inner: usize) -> usize {
    if inner >= NARROW {
        return 1;
    }
    let least = NARROW.div_ceil(inner.max(1));
    // Whole vectors, if that takes not too many rows.
    let fits = (least..=WIDEST / inner.max(1)).find(|k| (k * inner).is_multiple_of(16));
    fits.unwrap_or(least)
}

/// `out[n][j] = Σ_r term(r, columns.start + j)[n]` over `rows` rows, from +0.
///
/// The tree of a column depends on `rows` and `inner` only. Narrow rows are taken together: `columns` must then be all of
/// them, and `term(r, j)` is also called for columns past the row's end, which are those of the rows below.
#[inline(always)]
pub(crate) fn sum_rows<const N: usize>(
    rows: usize,
    inner: usize,
    columns: Range<usize>,
    mut out: [&mut [f32]; N],
    term: impl Fn(usize, usize) -> [f32; N],
) {
    let together = super_rows(inner);
    if together == 1 {
        for first in columns.clone().step_by(WIDEST) {
            let strip = first..(first + WIDEST).min(columns.end);
            let mut sums = [[0.0; WIDEST]; N];
            add_rows(&mut sums, strip.len(), rows, |r, j| term(r, first + j));
            for (out, sums) in out.iter_mut().zip(&sums) {
                out[first - columns.start..strip.end - columns.start].copy_from_slice(&sums[..strip.len()]);
            }
        }
        return;
    }
    debug_assert_eq!(columns, 0..inner);
    let width = together * inner;
    let mut sums = [[0.0; WIDEST]; N];
    let whole = rows / together;
    add_rows(&mut sums, width, whole, |r, j| term(r * together, j));
    let rest = (rows % together) * inner;
    add_rows(&mut sums, rest, usize::from(rest > 0), |_, j| term(whole * together, j));
    for (out, sums) in out.iter_mut().zip(&sums) {
        out.copy_from_slice(&sums[..inner]);
        for row in sums[..width].chunks_exact(inner).skip(1) {
            out.iter_mut().zip(row).for_each(|(a, b)| *a += b);
        }
    }
}

/// `sums[n][j] += term(r, j)[n]` for every row r in order, `j` in `0..width`.
///
/// The sums are a local array of the caller, which the compiler knows not to alias the terms' operands.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "sums and terms go side by side")]
fn add_rows<const N: usize>(
    sums: &mut [[f32; WIDEST]; N],
    width: usize,
    rows: usize,
    term: impl Fn(usize, usize) -> [f32; N],
) {
    const TOGETHER: usize = 4;
    let width = width.min(WIDEST);
    let whole = rows - rows % TOGETHER;
    for r in (0..whole).step_by(TOGETHER) {
        // Several rows at a time, one after the other for every element: the sum stays in a register meanwhile.
        for j in 0..width {
            for row in r..r + TOGETHER {
                let terms = term(row, j);
                for n in 0..N {
                    sums[n][j] += terms[n];
                }
            }
        }
    }
    for r in whole..rows {
        for j in 0..width {
            let terms = term(r, j);
            for n in 0..N {
                sums[n][j] += terms[n];
            }
        }
    }
}
