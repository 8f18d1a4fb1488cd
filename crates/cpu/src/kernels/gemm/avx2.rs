//! Micro-kernels with AVX2 and FMA: up to 6 rows by 16 columns, 12 of the 16 registers being sums.

use super::kernel::{Kernels, Tile, micro_table, unroll, walk_k};
use std::arch::x86_64::*;

pub(crate) static KERNELS: Kernels = Kernels::wide(6, 8, micro_table!(micro; 1 2 3 4 5 6));

/// All bits set in the lanes of vector `v` inside `cols` columns.
#[inline]
#[target_feature(enable = "avx2")]
fn mask(cols: usize, v: usize) -> __m256i {
    let inside = cols.saturating_sub(8 * v).min(8) as i32;
    _mm256_cmpgt_epi32(_mm256_set1_epi32(inside), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// See [`Micro`](super::kernel::Micro); `A_ROWS` is whether A has [`Form::Rows`](super::kernel::Form::Rows).
///
/// # Safety
///
/// As for every micro-kernel, and the machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn micro<const ROWS: usize, const VECTORS: usize, const A_ROWS: bool>(tile: &Tile) {
    let (between_rows, along_k) = if A_ROWS { (tile.a_step, 1) } else { (1, tile.a_step) };
    let zero = _mm256_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    // SAFETY: the caller vouches for the pointers; masks keep C and the bias inside the tile's columns.
    unsafe {
        if tile.load {
            unroll!(V < VECTORS, {
                let mask = mask(tile.cols, V);
                unroll!(I < ROWS, {
                    sums[I][V] = _mm256_maskload_ps(tile.c.add(I * tile.ldc + 8 * V), mask);
                });
            });
        }
        walk_k!(tile, along_k, |a, b| {
            let mut bs = [zero; VECTORS];
            unroll!(V < VECTORS, { bs[V] = _mm256_loadu_ps(b.add(8 * V)) });
            unroll!(I < ROWS, {
                let a = _mm256_broadcast_ss(&*a.add(I * between_rows));
                unroll!(V < VECTORS, { sums[I][V] = _mm256_fmadd_ps(a, bs[V], sums[I][V]) });
            });
        });
        unroll!(V < VECTORS, {
            let mask = mask(tile.cols, V);
            let bias = tile.finish.bias;
            let bias_lanes = if bias.is_null() { zero } else { _mm256_maskload_ps(bias.add(8 * V), mask) };
            unroll!(I < ROWS, {
                let mut c = sums[I][V];
                if !bias.is_null() {
                    c = _mm256_add_ps(c, bias_lanes);
                }
                if tile.finish.relu {
                    // Of a NaN and another operand the second is the result, so NaN stays.
                    c = _mm256_max_ps(zero, c);
                }
                _mm256_maskstore_ps(tile.c.add(I * tile.ldc + 8 * V), mask, c);
            });
        });
    }
}
