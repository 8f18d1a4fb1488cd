//! Tiles of scores, and the products between them and tiles of q, k and v.

use super::{AttentionSpec, Head, Mask};
use crate::isa::Isa;
use crate::kernels::float::Float;
use crate::kernels::gemm::panels::{
    gemm_panels, gemm_panels_floats, pack_panels, panel_floats, takes_panels,
};
use crate::kernels::gemm::{GemmSpec, Mat, gemm_serial, gemm_serial_workspace};
use crate::kernels::math::{exp, max_by, simd_fn, sum_by, whole_lines};
use std::ops::Range;

/// Queries or keys of a tile.
pub(super) const TILE: usize = 64;

/// Floats of a tile of scores.
pub(super) const SCORES: usize = TILE * TILE;

/// The tiles of a range of positions.
pub(super) fn tiles(positions: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..positions.div_ceil(TILE)).map(move |i| i * TILE..((i + 1) * TILE).min(positions))
}

/// The positions of a tile in a head of one of q, k, v: a matrix of positions by width.
pub(super) fn rows<'a, T>(head: Head, tile: &Range<usize>, data: &'a [T]) -> Mat<'a, T> {
    Mat { data: &data[head.at(tile.start)..], row_stride: head.stride, col_stride: 1 }
}

/// The transposed matrix.
pub(super) fn transposed<T>(mat: Mat<'_, T>) -> Mat<'_, T> {
    Mat { data: mat.data, row_stride: mat.col_stride, col_stride: mat.row_stride }
}

/// A tile of scores: queries by keys.
pub(super) fn scores(data: &[f32]) -> Mat<'_> {
    Mat { data, row_stride: TILE, col_stride: 1 }
}

fn sizes(m: usize, n: usize, k: usize, accumulate: bool) -> GemmSpec {
    GemmSpec { accumulate, ..GemmSpec::new(m, n, k) }
}

/// The second operand of products of tiles.
#[derive(Clone, Copy)]
pub(super) enum Right<'a, T> {
    /// In panels, packed once for all of its products: those of f32.
    Packed(&'a [f32]),
    /// As it is: products of bf16 pack both operands.
    Plain(Mat<'a, T>),
}

impl<'a, T: Float> Right<'a, T> {
    /// A matrix of `[k, n]`, with [`right_floats`] of memory.
    pub(super) fn new(isa: Isa, mat: Mat<'a, T>, size: [usize; 2], space: &'a mut [f32]) -> Self {
        if !takes_panels::<T>(isa) {
            return Self::Plain(mat);
        }
        pack_panels(isa, mat, size, space);
        Self::Packed(space)
    }
}

/// Floats of a tile of q, k or v, or of one that is transposed, as a [`Right`].
pub(super) fn right_floats<T: Float>(isa: Isa, spec: &AttentionSpec) -> usize {
    let (tile, turned) = ([TILE, spec.width], [spec.width, TILE]);
    if takes_panels::<T>(isa) {
        whole_lines(panel_floats(isa, tile).max(panel_floats(isa, turned)))
    } else {
        0
    }
}

/// `c = a · b` or `c += a · b`, with `[m, n, k]` sizes.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub(super) fn multiply<A: Float, B: Float>(
    isa: Isa,
    [m, n, k]: [usize; 3],
    accumulate: bool,
    a: Mat<'_, A>,
    b: Right<'_, B>,
    c: &mut [f32],
    ldc: usize,
    workspace: &mut [f32],
) {
    let sizes = sizes(m, n, k, accumulate);
    match b {
        Right::Packed(panels) => gemm_panels(isa, &sizes, a, panels, (c, ldc), workspace),
        Right::Plain(b) => gemm_serial(isa, &sizes, a, b, c, ldc, workspace),
    }
}

/// Floats of workspace that any product of tiles needs.
pub(super) fn product_floats<T: Float>(isa: Isa, spec: &AttentionSpec) -> usize {
    let width = spec.width;
    if takes_panels::<T>(isa) {
        return whole_lines(gemm_panels_floats::<T>(isa, &sizes(TILE, TILE, width, false)));
    }
    // A last tile may be of any size, and a smaller product may need more.
    let lengths = |positions: usize| [TILE.min(positions.max(1)), (positions.max(1) - 1) % TILE + 1];
    let mut bytes = 0;
    for m in lengths(spec.queries) {
        for n in lengths(spec.keys) {
            for spec in [sizes(m, n, width, false), sizes(m, width, n, false), sizes(n, width, m, false)] {
                let wide = gemm_serial_workspace::<f32, f32, f32>(isa, &spec);
                bytes = bytes.max(wide).max(gemm_serial_workspace::<T, T, f32>(isa, &spec));
            }
        }
    }
    whole_lines(bytes / size_of::<f32>())
}

simd_fn! {
    /// Scales scores and masks the keys that a query does not see, and those past the last: they become -infinity.
    pub(super) fn mask(isa: Isa, scores: &mut [f32], spec: &AttentionSpec, queries: Range<usize>, keys: Range<usize>) {
        let scale = spec.scale();
        for (query, row) in queries.zip(scores.chunks_exact_mut(TILE)) {
            row.iter_mut().for_each(|s| *s *= scale);
            let visible = spec.sight(query, &keys);
            row[..visible.start].fill(f32::NEG_INFINITY);
            row[visible.end..].fill(f32::NEG_INFINITY);
        }
    }
}

simd_fn! {
    /// Masks the keys whose byte is zero.
    pub(super) fn hide(isa: Isa, scores: &mut [f32], queries: Range<usize>, keys: Range<usize>, mask: Mask<'_>) {
        for (query, row) in queries.zip(scores.chunks_exact_mut(TILE)) {
            let seen = &mask.bytes[query * mask.stride..][keys.clone()];
            for (s, &seen) in row.iter_mut().zip(seen) {
                *s = if seen == 0 { f32::NEG_INFINITY } else { *s };
            }
        }
    }
}

simd_fn! {
    /// One step of the online softmax: scores become `e^(s - max)` under the new maximum. Returns through `rescale`
    /// what earlier sums have to be multiplied by.
    pub(super) fn softmax_step(isa: Isa, scores: &mut [f32], maxima: &mut [f32], sums: &mut [f32], rescale: &mut [f32]) {
        let rows = scores.chunks_exact_mut(TILE).zip(maxima).zip(sums.iter_mut().zip(rescale));
        for ((row, maximum), (sum, rescale)) in rows {
            let row: &mut [f32; TILE] = row.try_into().expect("a tile's row");
            let found = max_by(TILE, |j| row[j]);
            let new = if found > *maximum { found } else { *maximum };
            // While all scores are -infinity, the weights are zero and not NaN.
            let base = if new == f32::NEG_INFINITY { 0.0 } else { new };
            *rescale = exp::<FMA>(*maximum - base);
            for s in row.iter_mut() {
                *s = exp::<FMA>(*s - base);
            }
            *sum = *sum * *rescale + sum_by(TILE, |j| row[j]);
            *maximum = new;
        }
    }
}

simd_fn! {
    /// Weights from scores and their rows' log-sum-exp; then `ds = p · (dp - delta) · scale` overwrites dp.
    pub(super) fn weights_and_gradient(
        isa: Isa, p: &mut [f32], dp: &mut [f32], lse: &[f32], delta: &[f32], scale: f32,
    ) {
        let rows = p.chunks_exact_mut(TILE).zip(dp.chunks_exact_mut(TILE)).zip(lse.iter().zip(delta));
        for ((p, dp), (lse, delta)) in rows {
            let p: &mut [f32; TILE] = p.try_into().expect("a tile's row");
            let dp: &mut [f32; TILE] = dp.try_into().expect("a tile's row");
            for j in 0..TILE {
                p[j] = exp::<FMA>(p[j] - lse);
                dp[j] = p[j] * (dp[j] - delta) * scale;
            }
        }
    }
}
