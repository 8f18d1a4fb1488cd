//! Sums over the rows of a matrix, column by column.

use std::ops::Range;

/// Below so many columns, several rows are taken together as one, to fill vectors.
const NARROW: usize = 64;

/// The longest row made of several.
pub(crate) const WIDEST_SUPER_ROW: usize = 256;

/// How many rows of `inner` columns are taken together: one if they are wide enough.
pub(crate) fn super_rows(inner: usize) -> usize {
    if inner >= NARROW {
        return 1;
    }
    let least = NARROW.div_ceil(inner.max(1));
    // Whole vectors, if that takes not too many rows.
    let fits = (least..=WIDEST_SUPER_ROW / inner.max(1)).find(|k| (k * inner).is_multiple_of(16));
    fits.unwrap_or(least)
}

/// `out[n][j] = Σ_r term(r, columns.start + j)[n]` over `rows` rows, from +0.
///
/// The tree of a column depends on `rows` and `inner` only. Narrow rows are taken together, so all their columns have
/// to be asked for.
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
        out.iter_mut().for_each(|out| out.fill(0.0));
        add_rows(out, columns.len(), rows, |r, j| term(r, columns.start + j));
        return;
    }
    debug_assert_eq!(columns, 0..inner);
    let width = together * inner;
    let mut lanes = [[0.0; WIDEST_SUPER_ROW]; N];
    let whole = rows / together;
    // A column past the row's end is one of a row below: terms are addressed as r * inner + j.
    add_rows(lanes.each_mut().map(|l| &mut l[..width]), width, whole, |r, j| term(r * together, j));
    let rest = (rows % together) * inner;
    add_rows(lanes.each_mut().map(|l| &mut l[..rest]), rest, usize::from(rest > 0), |_, j| term(whole * together, j));
    for (out, lanes) in out.iter_mut().zip(&lanes) {
        out.copy_from_slice(&lanes[..inner]);
        for row in lanes[..width].chunks_exact(inner).skip(1) {
            out.iter_mut().zip(row).for_each(|(a, b)| *a += b);
        }
    }
}

/// `acc[n][j] += term(r, j)[n]` for every row r in order, `j` in `0..width`.
#[inline(always)]
fn add_rows<const N: usize>(
    mut acc: [&mut [f32]; N],
    width: usize,
    rows: usize,
    term: impl Fn(usize, usize) -> [f32; N],
) {
    const ROWS: usize = 4;
    acc.iter().for_each(|acc| assert!(acc.len() >= width, "a sum is shorter than its columns"));
    let mut r = 0;
    while r < rows {
        // Several rows at a time, one after the other for every element: the sum stays in a register meanwhile.
        let step = if rows - r >= ROWS { ROWS } else { 1 };
        let mut j = 0;
        if step == ROWS {
            j = add_columns::<N, ROWS, 32>(&mut acc, j, width, r, &term);
            j = add_columns::<N, ROWS, 8>(&mut acc, j, width, r, &term);
            add_columns::<N, ROWS, 1>(&mut acc, j, width, r, &term);
        } else {
            j = add_columns::<N, 1, 32>(&mut acc, j, width, r, &term);
            j = add_columns::<N, 1, 8>(&mut acc, j, width, r, &term);
            add_columns::<N, 1, 1>(&mut acc, j, width, r, &term);
        }
        r += step;
    }
}

/// Adds `ROWS` rows in whole blocks of columns from `j` on; returns the first column left.
#[inline(always)]
fn add_columns<const N: usize, const ROWS: usize, const BLOCK: usize>(
    acc: &mut [&mut [f32]; N],
    mut j: usize,
    width: usize,
    r: usize,
    term: &impl Fn(usize, usize) -> [f32; N],
) -> usize {
    while j + BLOCK <= width {
        let mut sums = [[0.0; BLOCK]; N];
        for n in 0..N {
            sums[n].copy_from_slice(&acc[n][j..j + BLOCK]);
        }
        for row in r..r + ROWS {
            for i in 0..BLOCK {
                let terms = term(row, j + i);
                for n in 0..N {
                    sums[n][i] += terms[n];
                }
            }
        }
        for n in 0..N {
            acc[n][j..j + BLOCK].copy_from_slice(&sums[n]);
        }
        j += BLOCK;
    }
    j
}
