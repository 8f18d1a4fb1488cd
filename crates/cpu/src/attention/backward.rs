//! The gradient: the weights are made again from the saved log-sum-exp, tile by tile.

use super::AttentionSpec;
use super::tile::{
    SCORES, TILE, mask, multiply, product_floats, rows, scores, tiles, transposed, weights_and_gradient,
};
use crate::isa::{Context, Isa};
use crate::math::{Shared, simd_fn, sum_by, whole_lines};
use std::ops::Range;

fn worker_floats(isa: Isa, spec: &AttentionSpec) -> usize {
    2 * SCORES
        + 3 * whole_lines(TILE * spec.width)
        + 2 * whole_lines(spec.positions)
        + product_floats(isa, spec)
}

/// The bytes of workspace that [`attention_grad`] needs: a multiple of 64.
pub fn attention_grad_workspace(isa: Isa, threads: usize, spec: &AttentionSpec) -> usize {
    threads * worker_floats(isa, spec) * size_of::<f32>()
}

/// What the forward pass was given and gave, and the gradient of its result.
#[derive(Clone, Copy)]
struct Saved<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    y: &'a [f32],
    lse: &'a [f32],
    dy: &'a [f32],
}

/// The gradients of q, k and v, from those and y, its log-sum-exp and its gradient.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn attention_grad(
    ctx: Context<'_>,
    spec: &AttentionSpec,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    y: &[f32],
    lse: &[f32],
    dy: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
    workspace: &mut [f32],
) {
    let n = spec.elements();
    assert!([q, k, v, y, dy].iter().all(|x| x.len() >= n), "operands are too short");
    assert!([&dq, &dk, &dv].iter().all(|x| x.len() >= n), "operands are too short");
    assert!(lse.len() >= spec.examples * spec.positions * spec.heads, "operands are too short");
    let each = worker_floats(ctx.isa, spec);
    assert!(workspace.len() >= each * ctx.pool.threads(), "the workspace is too small");
    let saved = Saved { q, k, v, y, lse, dy };
    let gradients = [Shared::new(dq), Shared::new(dk), Shared::new(dv)];
    let space = Shared::new(workspace);
    ctx.pool.run(spec.examples * spec.heads, &|pair, worker| {
        // SAFETY: the worker's own part.
        let space = unsafe { space.part(worker * each, each) };
        head(ctx.isa, spec, pair, saved, gradients, space);
    });
}

/// The gradients of one head of one example.
fn head(
    isa: Isa,
    spec: &AttentionSpec,
    pair: usize,
    saved: Saved<'_>,
    [dq, dk, dv]: [Shared<f32>; 3],
    space: &mut [f32],
) {
    let width = spec.width;
    let (p, space) = space.split_at_mut(SCORES);
    let (ds, space) = space.split_at_mut(SCORES);
    let (dk_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (dv_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (dq_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (lse, space) = space.split_at_mut(whole_lines(spec.positions));
    let (delta, space) = space.split_at_mut(whole_lines(spec.positions));
    for (position, (lse, delta)) in lse.iter_mut().zip(&mut *delta).enumerate().take(spec.positions) {
        let row = spec.offset(pair, position)..spec.offset(pair, position) + width;
        *lse = saved.lse[spec.entry(pair, position)];
        *delta = dot(isa, &saved.y[row.clone()], &saved.dy[row]);
    }
    for keys in tiles(spec.positions) {
        let (k, v) = (rows(spec, pair, &keys, saved.k), rows(spec, pair, &keys, saved.v));
        let mut started = false;
        for queries in tiles(spec.positions).filter(|q| !spec.causal || q.end > keys.start) {
            let (q, dy) = (rows(spec, pair, &queries, saved.q), rows(spec, pair, &queries, saved.dy));
            let (m, n) = (queries.len(), keys.len());
            multiply(isa, [m, n, width], false, q, transposed(k), p, TILE, space);
            multiply(isa, [m, n, width], false, dy, transposed(v), ds, TILE, space);
            mask(isa, p, spec.scale(), queries.clone(), keys.clone(), spec.causal);
            clear_past(ds, m, n);
            let used = m * TILE;
            let (lse, delta) = (&lse[queries.clone()], &delta[queries.clone()]);
            weights_and_gradient(isa, &mut p[..used], &mut ds[..used], lse, delta, spec.scale());
            multiply(isa, [n, width, m], started, transposed(scores(p)), dy, dv_tile, width, space);
            multiply(isa, [n, width, m], started, transposed(scores(ds)), q, dk_tile, width, space);
            multiply(isa, [m, width, n], false, scores(ds), k, dq_tile, width, space);
            write_rows(isa, spec, pair, queries, dq_tile, dq, keys.start > 0);
            started = true;
        }
        write_rows(isa, spec, pair, keys.clone(), dk_tile, dk, false);
        write_rows(isa, spec, pair, keys, dv_tile, dv, false);
    }
}

/// Columns past the last key hold whatever was there before; a zero keeps NaN out of products with zero weights.
fn clear_past(scores: &mut [f32], rows: usize, columns: usize) {
    if columns < TILE {
        scores.chunks_exact_mut(TILE).take(rows).for_each(|row| row[columns..].fill(0.0));
    }
}

simd_fn! {
    fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
        let len = a.len().min(b.len());
        // SAFETY: i is below both lengths.
        sum_by(len, |i| unsafe { a.get_unchecked(i) * b.get_unchecked(i) })
    }
}

simd_fn! {
    /// Writes, or adds, the rows of a tile to the positions of a head.
    fn write_rows(
        isa: Isa, spec: &AttentionSpec, pair: usize, positions: Range<usize>, tile: &[f32], to: Shared<f32>, add: bool,
    ) {
        for (row, position) in tile.chunks_exact(spec.width.max(1)).zip(positions) {
            // SAFETY: every task has its own pair of example and head.
            let to = unsafe { to.part(spec.offset(pair, position), spec.width) };
            if add {
                to.iter_mut().zip(row).for_each(|(a, b)| *a += b);
            } else {
                to.copy_from_slice(row);
            }
        }
    }
}
