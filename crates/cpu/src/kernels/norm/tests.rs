//! Statistics and sums against f64, and their bits.

use super::*;
use crate::kernels::testing::{Workspace, assert_bits, assert_near, normal, on_all};

const SHAPES: [(usize, usize); 11] = [
    (1, 1),
    (7, 1),
    (1, 9),
    (50, 3),
    (5, 64),
    (700, 16),
    (33, 100),
    (9, 1000),
    (3, 1500),
    (3000, 10),
    (200, 300),
];

/// Far from zero, where a difference of moments would lose every digit.
fn shifted(rows: usize, width: usize) -> Vec<f32> {
    normal(1, rows * width).iter().map(|x| x * 0.5 + 100.0).collect()
}

fn exact_stats(rows: usize, width: usize, x: &[f32], axis: NormAxis) -> (Vec<f64>, Vec<f64>) {
    let (groups, size) = if axis == NormAxis::Row { (rows, width) } else { (width, rows) };
    let at = |g, i| f64::from(if axis == NormAxis::Row { x[g * width + i] } else { x[i * width + g] });
    let of = |g: usize| {
        let mean = (0..size).map(|i| at(g, i)).sum::<f64>() / size as f64;
        (mean, (0..size).map(|i| (at(g, i) - mean).powi(2)).sum::<f64>() / size as f64)
    };
    (0..groups).map(of).unzip()
}

#[test]
fn stats_far_from_zero() {
    for (rows, width) in SHAPES {
        let x = shifted(rows, width);
        for axis in [NormAxis::Row, NormAxis::Channel] {
            let (mean, variance) = exact_stats(rows, width, &x, axis);
            let results = on_all(|ctx| {
                let (mut m, mut v) = (vec![f32::NAN; mean.len()], vec![f32::NAN; mean.len()]);
                match axis {
                    NormAxis::Row => row_stats(ctx, rows, width, &x, &mut m, &mut v),
                    NormAxis::Channel => {
                        let mut space = Workspace::new(channel_stats_workspace(rows, width, 30));
                        channel_stats(ctx, rows, width, 30, &x, &mut m, &mut v, space.get());
                        assert_bits(&moments(ctx, rows, width, &x), &[&m[..], &v].concat(), "in two calls");
                    }
                }
                [m, v].concat()
            });
            for result in results {
                let what = format!("{axis:?} of [{rows},{width}]");
                assert_near(&result[..mean.len()], &mean, 1.0, 1e-6, &what);
                assert_near(&result[mean.len()..], &variance, 0.01, 1e-4, &what);
            }
        }
    }
}

/// The statistics of channels by way of their moments, which two calls take, cut at the end of a block.
fn moments(ctx: Context<'_>, rows: usize, width: usize, x: &[f32]) -> Vec<f32> {
    let (cut, mut moments) = (rows / 2 / 30 * 30, vec![f64::NAN; 3 * width]);
    let mut space = Workspace::new(channel_stats_workspace(rows, width, 30));
    for (part, accumulate) in [(0..cut, false), (cut..rows, true)] {
        let x = &x[part.start * width..part.end * width];
        channel_moments(ctx, part.len(), width, 30, accumulate, x, &mut moments, space.get());
    }
    let (mut mean, mut variance) = (vec![f32::NAN; width], vec![f32::NAN; width]);
    stats_of_moments(width, &moments, &mut mean, &mut variance);
    [mean, variance].concat()
}

fn sums(
    ctx: Context<'_>,
    axis: NormAxis,
    rows: usize,
    width: usize,
    dy: &[f32],
    normalised: Normalised<'_>,
) -> Vec<f32> {
    let groups = if axis == NormAxis::Row { rows } else { width };
    let (mut a, mut b) = (vec![f32::NAN; groups], vec![f32::NAN; groups]);
    match axis {
        NormAxis::Row => row_sums(ctx, rows, width, dy, normalised, &mut a, &mut b),
        NormAxis::Channel => {
            let mut space = Workspace::new(channel_sums_workspace(rows, width, 30));
            channel_sums(ctx, rows, width, 30, false, dy, normalised, &mut a, &mut b, space.get());
            // In two calls, cut at the end of a block.
            let cut = rows / 2 / 30 * 30;
            let (mut c, mut d) = (vec![f32::NAN; groups], vec![f32::NAN; groups]);
            for part in [0..cut, cut..rows] {
                let elements = part.start * width..part.end * width;
                let statistics = if normalised.axis == NormAxis::Row { part.clone() } else { 0..width };
                let piece = Normalised {
                    x: &normalised.x[elements.clone()],
                    axis: normalised.axis,
                    mean: &normalised.mean[statistics.clone()],
                    rstd: &normalised.rstd[statistics],
                };
                let (accumulate, dy) = (part.start > 0 || cut == 0 && part.end > 0, &dy[elements]);
                channel_sums(ctx, part.len(), width, 30, accumulate, dy, piece, &mut c, &mut d, space.get());
            }
            assert_bits(&c, &a, "in two calls");
            assert_bits(&d, &b, "in two calls");
        }
    }
    [a, b].concat()
}

#[test]
fn sums_with_either_statistics() {
    for (rows, width) in SHAPES {
        let (x, dy) = (normal(2, rows * width), normal(3, rows * width));
        for axis in [NormAxis::Row, NormAxis::Channel] {
            for of in [NormAxis::Row, NormAxis::Channel] {
                let statistics = if of == NormAxis::Row { rows } else { width };
                let (mean, rstd) = (normal(4, statistics), normal(5, statistics));
                let normalised = Normalised { x: &x, axis: of, mean: &mean, rstd: &rstd };
                let groups = if axis == NormAxis::Row { rows } else { width };
                let mut exact = vec![0.0; 2 * groups];
                for (i, (&x, &dy)) in x.iter().zip(&dy).enumerate() {
                    let pick = |axis| if axis == NormAxis::Row { i / width } else { i % width };
                    let hat = (f64::from(x) - f64::from(mean[pick(of)])) * f64::from(rstd[pick(of)]);
                    exact[pick(axis)] += f64::from(dy);
                    exact[groups + pick(axis)] += f64::from(dy) * hat;
                }
                for result in on_all(|ctx| sums(ctx, axis, rows, width, &dy, normalised)) {
                    let scale = ((rows * width / groups) as f64).sqrt() * 3.0;
                    assert_near(
                        &result,
                        &exact,
                        scale,
                        3e-6,
                        &format!("{axis:?} of {of:?} [{rows},{width}]"),
                    );
                }
            }
        }
    }
}

/// A row's bits must not depend on the rows beside it.
#[test]
fn a_row_is_normalised_as_if_alone() {
    let (rows, width) = (40, 500);
    let x = normal(6, rows * width);
    on_all(|ctx| {
        let (mut mean, mut variance) = (vec![0.0; rows], vec![0.0; rows]);
        row_stats(ctx, rows, width, &x, &mut mean, &mut variance);
        let (mut m, mut v) = ([0.0], [0.0]);
        row_stats(ctx, 1, width, &x[35 * width..], &mut m, &mut v);
        assert_bits(&[m[0], v[0]], &[mean[35], variance[35]], "row 35");
        mean
    });
}
