//! Micro-kernels with AVX-512: up to 14 rows by 32 columns, 28 of the 32 registers being sums.
//!
//! Those of f32 add one product to each sum at a time by fused multiply-add. Those of bf16 add two: first that of the odd k, then
//! that of the even one, each fused, with subnormal numbers taken as zero.

use super::kernel::{Kernels, Packing, Tile, micro_table, unroll, walk_k};
use std::arch::x86_64::*;

const MR: usize = 14;

pub(crate) static KERNELS: Kernels =
    Kernels::wide(MR, 16, micro_table!(micro; 1 2 3 4 5 6 7 8 9 10 11 12 13 14));

static PAIRS: Kernels = Kernels {
    packing: Packing::Pairs,
    ..Kernels::wide(MR, 16, micro_table!(pairs_micro; 1 2 3 4 5 6 7 8 9 10 11 12 13 14))
};

static EMULATED_PAIRS: Kernels = Kernels {
    packing: Packing::Pairs,
    ..Kernels::wide(MR, 16, micro_table!(emulated_micro; 1 2 3 4 5 6 7 8 9 10 11 12 13 14))
};

/// The kernels for pairs of bf16: with the machine's own instruction, or with one that is emulated to the bit.
pub(crate) fn pairs() -> &'static Kernels {
    if is_x86_feature_detected!("avx512bf16") { &PAIRS } else { &EMULATED_PAIRS }
}

/// The lanes of vector `v` inside `cols` columns.
#[inline(always)]
pub(crate) fn mask(cols: usize, v: usize) -> __mmask16 {
    let inside = cols.saturating_sub(16 * v).min(16);
    ((1u32 << inside) - 1) as __mmask16
}

/// Defines a micro-kernel: how it adds a row's element of A times a vector of B to a vector of sums, and the features which that
/// takes.
macro_rules! micro_kernel {
    ($name:ident, $features:literal, $add:expr) => {
        /// See [`Micro`](super::kernel::Micro); `A_ROWS` is whether A has [`Form::Rows`](super::kernel::Form::Rows).
        ///
        /// # Safety
        ///
        /// As for every micro-kernel, and the machine must have the features.
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const VECTORS: usize, const A_ROWS: bool>(tile: &Tile) {
            let (between_rows, along_k) = if A_ROWS { (tile.a_step, 1) } else { (1, tile.a_step) };
            let zero = _mm512_setzero_ps();
            let mut sums = [[zero; VECTORS]; ROWS];
            // SAFETY: the caller vouches for the pointers; masks keep C and the bias inside the tile's columns, and a prefetch may
            // have any address.
            unsafe {
                if !tile.ahead.is_null() {
                    unroll!(I < ROWS, {
                        let row = tile.ahead.wrapping_add(I * tile.ldc);
                        unroll!(V < VECTORS, {
                            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(16 * V).cast())
                        });
                    });
                }
                if tile.load {
                    unroll!(V < VECTORS, {
                        let mask = mask(tile.cols, V);
                        unroll!(I < ROWS, {
                            sums[I][V] = _mm512_maskz_loadu_ps(mask, tile.c.add(I * tile.ldc + 16 * V));
                        });
                    });
                }
                walk_k!(tile, along_k, |a, b| {
                    // Panels are longer than the first-level cache, and come from the second.
                    let next = b.wrapping_add(PREFETCH * tile.b_step);
                    unroll!(V < VECTORS, { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(16 * V).cast()) });
                    let mut bs = [zero; VECTORS];
                    unroll!(V < VECTORS, { bs[V] = _mm512_loadu_ps(b.add(16 * V)) });
                    unroll!(I < ROWS, {
                        let a = _mm512_set1_ps(*a.add(I * between_rows));
                        unroll!(V < VECTORS, { sums[I][V] = $add(a, bs[V], sums[I][V]) });
                    });
                });
                unroll!(V < VECTORS, {
                    let mask = mask(tile.cols, V);
                    let bias = tile.finish.bias;
                    let bias_lanes =
                        if bias.is_null() { zero } else { _mm512_maskz_loadu_ps(mask, bias.add(16 * V)) };
                    unroll!(I < ROWS, {
                        let mut c = sums[I][V];
                        if !bias.is_null() {
                            c = _mm512_add_ps(c, bias_lanes);
                        }
                        if tile.finish.relu {
                            // Of a NaN and another operand the second is the result, so NaN stays.
                            c = _mm512_max_ps(zero, c);
                        }
                        _mm512_mask_storeu_ps(tile.c.add(I * tile.ldc + 16 * V), mask, c);
                    });
                });
            }
        }
    };
}

micro_kernel!(micro, "avx512f", _mm512_fmadd_ps);
micro_kernel!(pairs_micro, "avx512f,avx512bf16", add_pairs);
micro_kernel!(emulated_micro, "avx512f,avx512bw,avx512dq,avx512vl", emulated_pairs);

/// `sum + a[1] * b[1] + a[0] * b[0]` in every lane, for pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_pairs(a: __m512, b: __m512, sum: __m512) -> __m512 {
    // SAFETY: as many bytes, of which any are pairs.
    let [a, b] = unsafe { [a, b].map(|x| std::mem::transmute::<__m512, __m512bh>(x)) };
    _mm512_dpbf16_ps(sum, a, b)
}

/// [`add_pairs`] in other instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn emulated_pairs(a: __m512, b: __m512, sum: __m512) -> __m512 {
    let odd =
        |x: __m512| flush(_mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000u32 as i32))));
    let even = |x: __m512| flush(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(x))));
    let sum = flush(_mm512_fmadd_ps(odd(a), odd(b), flush(sum)));
    flush(_mm512_fmadd_ps(even(a), even(b), sum))
}

/// Zeros, with their sign, for subnormal numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn flush(x: __m512) -> __m512 {
    let sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0));
    let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(x), _mm512_set1_ps(f32::MIN_POSITIVE));
    _mm512_mask_mov_ps(x, small, sign)
}

/// Rows of a panel of B that are fetched ahead.
const PREFETCH: usize = 8;

/// Transposes up to 16 lanes by 16 k: `dst[k * pitch + lane]` is element k of the lane that starts `lane * step` bytes
/// after `src`; lanes from `lanes` to `width` become zero. Elements are any four bytes.
///
/// # Safety
///
/// `src` must be good for reads and `dst` for writes of all those elements, `lanes <= width <= 16`, `k <=
/// 16`, and the machine must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose(
    (src, step, lanes): (*const f32, usize, usize),
    (dst, pitch, width): (*mut f32, usize, usize),
    k: usize,
) {
    let k_mask = mask(k, 0);
    let mut rows = [_mm512_setzero_ps(); 16];
    for (lane, row) in rows.iter_mut().enumerate().take(lanes) {
        // SAFETY: `lane < lanes`, and the mask stops at `k`.
        *row = unsafe { _mm512_maskz_loadu_ps(k_mask, src.byte_add(lane * step)) };
    }
    // Four rounds swap ever larger squares: single floats, pairs, quads, octets.
    let mut pairs = [_mm512_setzero_pd(); 16];
    for i in 0..8 {
        pairs[2 * i] = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]));
        pairs[2 * i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
    }
    // quads[4 * q + r]: within each 128-bit group g, column 4 * g + r of rows 4 * q .. 4 * q + 4.
    let mut quads = [_mm512_setzero_ps(); 16];
    for q in 0..4 {
        for half in 0..2 {
            let (low, high) = (pairs[4 * q + half], pairs[4 * q + half + 2]);
            quads[4 * q + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            quads[4 * q + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    let width_mask = mask(width, 0);
    for r in 0..4 {
        let even = _mm512_shuffle_f32x4::<0x88>(quads[r], quads[4 + r]);
        let odd = _mm512_shuffle_f32x4::<0xdd>(quads[r], quads[4 + r]);
        let even_high = _mm512_shuffle_f32x4::<0x88>(quads[8 + r], quads[12 + r]);
        let odd_high = _mm512_shuffle_f32x4::<0xdd>(quads[8 + r], quads[12 + r]);
        let columns = [
            (r, _mm512_shuffle_f32x4::<0x88>(even, even_high)),
            (4 + r, _mm512_shuffle_f32x4::<0x88>(odd, odd_high)),
            (8 + r, _mm512_shuffle_f32x4::<0xdd>(even, even_high)),
            (12 + r, _mm512_shuffle_f32x4::<0xdd>(odd, odd_high)),
        ];
        for (column, lanes) in columns {
            if column < k {
                // SAFETY: `column < k`, and the mask stops at `width`.
                unsafe { _mm512_mask_storeu_ps(dst.add(column * pitch), width_mask, lanes) };
            }
        }
    }
}

/// Copies `k` rows of `lanes` adjacent elements: `dst[k * width + lane] = src[k * k_step + lane]`; lanes from
/// `lanes` to `width` become zero.
///
/// # Safety
///
/// `src` must be good for reads and `dst` for writes of all those elements, `lanes <= width`, and the machine
/// must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn copy_lanes(
    (src, k_step, lanes): (*const f32, usize, usize),
    (dst, width): (*mut f32, usize),
    k: usize,
) {
    for v in 0..width.div_ceil(16) {
        let (read, write) = (mask(lanes, v), mask(width, v));
        for row in 0..k {
            // SAFETY: the masks stop at `lanes` and `width`.
            unsafe {
                let values = _mm512_maskz_loadu_ps(read, src.add(row * k_step + 16 * v));
                _mm512_mask_storeu_ps(dst.add(row * width + 16 * v), write, values);
            }
        }
    }
}
