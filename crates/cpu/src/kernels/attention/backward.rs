//! The gradient: the attention weights are recomputed from the saved log-sum-exp, tile by tile.

use super::tile::{
    Right, SCORES, TILE, hide, mask, multiply, product_floats, right_floats, rows, scores, tiles, transposed,
    weights_and_gradient,
};
use super::{AttentionSpec, Head};
use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, simd_fn, sum_by, whole_lines};
use std::ops::Range;

/// Floats of a worker's sums of a group's query gradients: 16-bit floats cannot hold them between tiles of keys.
fn sums_floats<T: Float>(spec: &AttentionSpec) -> usize {
    if T::LOW { whole_lines(spec.group() * spec.queries * spec.width) } else { 0 }
}

fn worker_floats<T: Float>(isa: Isa, spec: &AttentionSpec) -> usize {
    sums_floats::<T>(spec)
        + 2 * SCORES
        + 3 * whole_lines(TILE * spec.width)
        + 2 * spec.group() * whole_lines(spec.queries)
        + 5 * right_floats::<T>(isa, spec)
        + product_floats::<T>(isa, spec)
}

/// The bytes of workspace that [`attention_grad`] needs: a multiple of 64.
pub fn attention_grad_workspace<T: Float>(isa: Isa, threads: usize, spec: &AttentionSpec) -> usize {
    threads * worker_floats::<T>(isa, spec) * size_of::<f32>()
}

/// Inputs and outputs of the forward pass, and the gradient of its output.
#[derive(Clone, Copy)]
struct Saved<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    y: &'a [T],
    lse: &'a [f32],
    dy: &'a [T],
    mask: &'a [u8],
}

/// The gradients of q, k and v, from those and y, its log-sum-exp and its gradient. Those of a key head are summed over
/// the heads that share it, in their order.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn attention_grad<T: Float>(
    ctx: Context<'_>,
    spec: &AttentionSpec,
    q: &[T],
    k: &[T],
    v: &[T],
    y: &[T],
    lse: &[f32],
    dy: &[T],
    mask: &[u8],
    dq: &mut [T],
    dk: &mut [T],
    dv: &mut [T],
    workspace: &mut [f32],
) {
    spec.check(&[q, y, dy, dq], &[k, v, dk, dv], lse, mask);
    let each = worker_floats::<T>(ctx.isa, spec);
    assert!(workspace.len() >= each * ctx.pool.threads(), "the workspace is too small");
    let saved = Saved { q, k, v, y, lse, dy, mask };
    let gradients = [Shared::new(dq), Shared::new(dk), Shared::new(dv)];
    let space = Shared::new(workspace);
    ctx.pool.run(spec.examples * spec.key_heads, &|pair, worker| {
        // SAFETY: the worker's own part.
        let space = unsafe { space.part(worker * each, each) };
        key_head(ctx.isa, spec, pair, saved, gradients, space);
    });
}

/// The gradients of one key head of one example, and of the heads that share it.
fn key_head<T: Float>(
    isa: Isa,
    spec: &AttentionSpec,
    pair: usize,
    saved: Saved<'_, T>,
    [dq, dk, dv]: [Shared<T>; 3],
    space: &mut [f32],
) {
    let (width, group, padded) = (spec.width, spec.group(), whole_lines(spec.queries));
    let (example, key_head) = (pair / spec.key_heads, pair % spec.key_heads);
    let heads = key_head * group..(key_head + 1) * group;
    let key_head = spec.key_head(example, key_head);
    let (sums, space) = space.split_at_mut(sums_floats::<T>(spec));
    let sums = Shared::new(sums);
    let (p, space) = space.split_at_mut(SCORES);
    let (ds, space) = space.split_at_mut(SCORES);
    let (dk_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (dv_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (dq_tile, space) = space.split_at_mut(whole_lines(TILE * width));
    let (lse, space) = space.split_at_mut(group * padded);
    let (delta, space) = space.split_at_mut(group * padded);
    let (rights, space) = space.split_at_mut(5 * right_floats::<T>(isa, spec));
    let [k_space, kt_space, vt_space, q_space, dy_space] = parts(rights);
    for (i, head) in heads.clone().enumerate() {
        let (query_head, entries) = (spec.query_head(example, head), spec.entries(example, head));
        for position in 0..spec.queries {
            let row = query_head.at(position)..query_head.at(position) + width;
            let sum = saved.lse[entries.at(position)];
            // A query whose keys are all masked has zero weights, not NaN.
            lse[i * padded + position] = if sum == f32::NEG_INFINITY { f32::INFINITY } else { sum };
            delta[i * padded + position] = dot(isa, &saved.y[row.clone()], &saved.dy[row.clone()]);
            // No tile of keys meets this query's, so that none sets its gradient.
            if spec.first_key(position / TILE * TILE) >= spec.keys {
                // SAFETY: every task has its own heads.
                unsafe { dq.part(row.start, width) }.fill(T::ZERO);
                if T::LOW {
                    // SAFETY: the worker's own part.
                    unsafe { sums.part((i * spec.queries + position) * width, width) }.fill(0.0);
                }
            }
        }
    }
    for keys in tiles(spec.keys) {
        let (n, k, v) = (keys.len(), rows(key_head, &keys, saved.k), rows(key_head, &keys, saved.v));
        let kt = Right::new(isa, transposed(k), [width, n], kt_space);
        let vt = Right::new(isa, transposed(v), [width, n], vt_space);
        let k = Right::new(isa, k, [n, width], k_space);
        let mut started = false;
        for (i, head) in heads.clone().enumerate() {
            let query_head = spec.query_head(example, head);
            let seen = spec.mask_of(saved.mask, example, head);
            for queries in tiles(spec.queries).filter(|queries| spec.tiles_meet(queries, &keys)) {
                let (q, dy) = (rows(query_head, &queries, saved.q), rows(query_head, &queries, saved.dy));
                let m = queries.len();
                multiply(isa, [m, n, width], false, q, kt, p, TILE, space);
                multiply(isa, [m, n, width], false, dy, vt, ds, TILE, space);
                let q = Right::new(isa, q, [m, width], q_space);
                let dy = Right::new(isa, dy, [m, width], dy_space);
                mask(isa, p, spec, queries.clone(), keys.clone());
                if let Some(seen) = seen {
                    hide(isa, p, queries.clone(), keys.clone(), seen);
                }
                clear_past(ds, m, n);
                let (used, of) = (m * TILE, i * padded + queries.start..i * padded + queries.end);
                let (lse, delta) = (&lse[of.clone()], &delta[of]);
                weights_and_gradient(isa, &mut p[..used], &mut ds[..used], lse, delta, spec.scale());
                multiply(isa, [n, width, m], started, transposed(scores(p)), dy, dv_tile, width, space);
                multiply(isa, [n, width, m], started, transposed(scores(ds)), q, dk_tile, width, space);
                multiply(isa, [m, width, n], false, scores(ds), k, dq_tile, width, space);
                let add = keys.start > spec.first_key(queries.start);
                if T::LOW {
                    let head = Head { start: i * spec.queries * width, stride: width };
                    write_rows(isa, head, queries, width, dq_tile, sums, add);
                } else {
                    write_rows(isa, query_head, queries, width, dq_tile, dq, add);
                }
                started = true;
            }
        }
        if !started {
            dk_tile.fill(0.0);
            dv_tile.fill(0.0);
        }
        write_rows(isa, key_head, keys.clone(), width, dk_tile, dk, false);
        write_rows(isa, key_head, keys, width, dv_tile, dv, false);
    }
    if T::LOW && spec.keys > 0 {
        for (i, head) in heads.enumerate() {
            let query_head = spec.query_head(example, head);
            // SAFETY: the worker's own part.
            let rows = unsafe { sums.part(i * spec.queries * width, spec.queries * width) };
            write_rows(isa, query_head, 0..spec.queries, width, rows, dq, false);
        }
    }
}

/// Five parts of the same length.
fn parts(space: &mut [f32]) -> [&mut [f32]; 5] {
    let mut parts = space.chunks_exact_mut((space.len() / 5).max(1));
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Columns past the last key hold stale numbers; a zero keeps NaN out of products with zero weights.
fn clear_past(scores: &mut [f32], rows: usize, columns: usize) {
    if columns < TILE {
        scores.chunks_exact_mut(TILE).take(rows).for_each(|row| row[columns..].fill(0.0));
    }
}

simd_fn! {
    fn dot<T: Float>(isa: Isa, a: &[T], b: &[T]) -> f32 {
        let len = a.len().min(b.len());
        // SAFETY: i is below both lengths.
        sum_by(len, |i| unsafe { a.get_unchecked(i).widen() * b.get_unchecked(i).widen() })
    }
}

simd_fn! {
    /// Writes, or adds, the rows of a tile to the positions of a head.
    fn write_rows<T: Float>(
        isa: Isa, head: Head, positions: Range<usize>, width: usize, tile: &[f32], to: Shared<T>, add: bool,
    ) {
        for (row, position) in tile.chunks_exact(width.max(1)).zip(positions) {
            // SAFETY: every task has its own heads of its own example.
            let to = unsafe { to.part(head.at(position), width) };
            if add {
                to.iter_mut().zip(row).for_each(|(a, b)| *a = T::narrow(a.widen() + b));
            } else {
                to.iter_mut().zip(row).for_each(|(a, b)| *a = T::narrow(*b));
            }
        }
    }
}
