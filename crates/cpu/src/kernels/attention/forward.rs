//! The forward pass: an online softmax over tiles of keys.

use super::AttentionSpec;
use super::tile::{
    Right, SCORES, TILE, hide, mask, multiply, product_floats, right_floats, rows, scores, softmax_step,
    tiles, transposed,
};
use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, ln, simd_fn, whole_lines};
use std::ops::Range;

fn worker_floats<T: Float>(isa: Isa, spec: &AttentionSpec) -> usize {
    let tiles = whole_lines(TILE * spec.width) + 2 * right_floats::<T>(isa, spec);
    SCORES + 3 * TILE + tiles + product_floats::<T>(isa, spec)
}

/// The bytes of workspace that [`attention`] needs: a multiple of 64.
pub fn attention_workspace<T: Float>(isa: Isa, threads: usize, spec: &AttentionSpec) -> usize {
    threads * worker_floats::<T>(isa, spec) * size_of::<f32>()
}

/// Inputs of the forward pass.
#[derive(Clone, Copy)]
struct Given<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    mask: &'a [u8],
}

/// `y = softmax(q · kᵀ / √width) · v`, and the natural logarithm of the softmax's sums in `lse`.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn attention<T: Float>(
    ctx: Context<'_>,
    spec: &AttentionSpec,
    q: &[T],
    k: &[T],
    v: &[T],
    mask: &[u8],
    y: &mut [T],
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    spec.check(&[q, y], &[k, v], lse, mask);
    let each = worker_floats::<T>(ctx.isa, spec);
    assert!(workspace.len() >= each * ctx.pool.threads(), "the workspace is too small");
    let given = Given { q, k, v, mask };
    let (y, lse, space) = (Shared::new(y), Shared::new(lse), Shared::new(workspace));
    // Tiles of queries are independent, so few pairs still make enough tasks.
    let query_tiles = spec.queries.div_ceil(TILE);
    ctx.pool.run(spec.examples * spec.heads * query_tiles, &|task, worker| {
        // The last tiles of a causal head have the most keys: they go first.
        let (pair, tile) = (task / query_tiles, query_tiles - 1 - task % query_tiles);
        let queries = tile * TILE..((tile + 1) * TILE).min(spec.queries);
        // SAFETY: the worker's own part.
        let space = unsafe { space.part(worker * each, each) };
        query_tile(ctx.isa, spec, pair, queries, given, y, lse, space);
    });
}

#[allow(clippy::too_many_arguments, reason = "operands")]
fn query_tile<T: Float>(
    isa: Isa,
    spec: &AttentionSpec,
    pair: usize,
    queries: Range<usize>,
    given: Given<'_, T>,
    y: Shared<T>,
    lse: Shared<f32>,
    space: &mut [f32],
) {
    let (width, count) = (spec.width, queries.len());
    let (example, head) = (pair / spec.heads, pair % spec.heads);
    let (query_head, entries) = (spec.query_head(example, head), spec.entries(example, head));
    let key_head = spec.key_head(example, head / spec.group());
    let seen = spec.mask_of(given.mask, example, head);
    let (s, space) = space.split_at_mut(SCORES);
    let (maxima, space) = space.split_at_mut(TILE);
    let (sums, space) = space.split_at_mut(TILE);
    let (rescale, space) = space.split_at_mut(TILE);
    let (out, space) = space.split_at_mut(whole_lines(TILE * width));
    let (kt_space, space) = space.split_at_mut(right_floats::<T>(isa, spec));
    let (v_space, space) = space.split_at_mut(right_floats::<T>(isa, spec));
    maxima.fill(f32::NEG_INFINITY);
    sums.fill(0.0);
    let q = rows(query_head, &queries, given.q);
    let mut started = false;
    for keys in tiles(spec.keys).filter(|keys| spec.tiles_meet(&queries, keys)) {
        let kt = transposed(rows(key_head, &keys, given.k));
        let kt = Right::new(isa, kt, [width, keys.len()], kt_space);
        multiply(isa, [count, keys.len(), width], false, q, kt, s, TILE, space);
        mask(isa, s, spec, queries.clone(), keys.clone());
        if let Some(seen) = seen {
            hide(isa, s, queries.clone(), keys.clone(), seen);
        }
        softmax_step(isa, &mut s[..count * TILE], maxima, sums, rescale);
        if started {
            rescale_rows(isa, &mut out[..count * width], width, rescale);
        }
        let v = Right::new(isa, rows(key_head, &keys, given.v), [keys.len(), width], v_space);
        multiply(isa, [count, width, keys.len()], started, scores(s), v, out, width, space);
        started = true;
    }
    if !started {
        out.fill(0.0);
    }
    for (i, position) in queries.enumerate() {
        // SAFETY: every task has its own positions of its own pair.
        let (y, lse) = unsafe { (y.part(query_head.at(position), width), lse.part(entries.at(position), 1)) };
        finish_row(isa, &out[i * width..(i + 1) * width], maxima[i], sums[i], y, &mut lse[0]);
    }
}

simd_fn! {
    fn rescale_rows(isa: Isa, out: &mut [f32], width: usize, factors: &[f32]) {
        for (row, factor) in out.chunks_exact_mut(width.max(1)).zip(factors) {
            row.iter_mut().for_each(|y| *y *= factor);
        }
    }
}

simd_fn! {
    fn finish_row<T: Float>(isa: Isa, out: &[f32], maximum: f32, sum: f32, y: &mut [T], lse: &mut f32) {
        *lse = maximum + ln::<FMA>(sum);
        // The sum of a query whose keys are all masked is zero, and so is its result.
        let divisor = if maximum == f32::NEG_INFINITY { 1.0 } else { sum };
        y.iter_mut().zip(out).for_each(|(y, x)| *y = T::narrow(x / divisor));
    }
}
