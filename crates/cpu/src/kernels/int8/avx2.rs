//! Micro-kernels with AVX2: up to 6 rows by 16 columns with AVX-VNNI, which multiplies four pairs of bytes and adds them to a word in one
//! instruction; up to 4 without it, where bytes are widened to pairs of 16 bits, whose products are exact (those of pairs of bytes would
//! saturate).

use super::kernel::{Kernels, Tile, finish, micro_table};
use super::pack::{COLUMNS, Channels, STEP};
use crate::kernels::gemm::kernel::{nothing, unroll};
use std::arch::x86_64::*;

/// Whether the machine multiplies four pairs of bytes at once.
pub(super) fn has_dot_products() -> bool {
    is_x86_feature_detected!("avxvnni")
}

pub(super) static DOT: Kernels = Kernels {
    micro: micro_table!(dot::<1>; [1 2 3 4 5 6]),
    offset: 0,
    depthwise: None,
    enter: nothing,
    leave: nothing,
};
pub(super) static PAIRS: Kernels = Kernels {
    micro: micro_table!(pairs::<1>; [1 2 3 4]),
    offset: 0,
    depthwise: None,
    enter: nothing,
    leave: nothing,
};

macro_rules! micro {
    ($(#[$meta:meta])* $name:ident, $features:literal, $weights:ident, $codes:ident, $add:ident) => {
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As for [`Micro`](super::kernel::Micro).
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const PANELS: usize>(tile: &Tile<'_>) {
            // SAFETY: the caller vouches for the pointers.
            unsafe {
                let channels = &*tile.channels;
                let bias = channels.bias.as_ptr().cast::<__m256i>();
                let mut sums = [[_mm256_load_si256(bias), _mm256_load_si256(bias.add(1))]; ROWS];
                let mut b = tile.b;
                for &run in tile.runs {
                    let mut a = tile.a.add(run);
                    for _ in 0..tile.words {
                        let halves = b.cast::<__m256i>();
                        let weights =
                            [$weights(_mm256_load_si256(halves)), $weights(_mm256_load_si256(halves.add(1)))];
                        unroll!(ROW < ROWS, {
                            let word = a.add(ROW * tile.a_row).cast::<i32>().read_unaligned();
                            let codes = $codes(_mm256_set1_epi32(word));
                            for (sum, weights) in sums[ROW].iter_mut().zip(weights) {
                                *sum = $add(*sum, codes, weights);
                            }
                        });
                        // After the last step, these may point past the end of their memory.
                        a = a.wrapping_add(4);
                        b = b.wrapping_add(STEP);
                    }
                }
                store(tile, channels, &sums);
            }
        }
    };
}

micro! {
    /// With the instructions for dot products.
    dot, "avx2,avxvnni", whole, whole, add_dot
}
micro! {
    /// With products of pairs.
    pairs, "avx2", signed_pairs, unsigned_pairs, add_pairs
}

#[inline]
#[target_feature(enable = "avx2")]
fn whole(bytes: __m256i) -> __m256i {
    bytes
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn add_dot(sum: __m256i, codes: __m256i, weights: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sum, codes, weights)
}

/// The even bytes, and the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_pairs(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn unsigned_pairs(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_pairs(sum: __m256i, codes: [__m256i; 2], weights: [__m256i; 2]) -> __m256i {
    let (even, odd) = (_mm256_madd_epi16(codes[0], weights[0]), _mm256_madd_epi16(codes[1], weights[1]));
    _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
}

/// Writes the codes of the sums of a panel.
///
/// # Safety
///
/// As for [`Micro`](super::kernel::Micro).
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const ROWS: usize>(tile: &Tile<'_>, channels: &Channels, sums: &[[__m256i; 2]; ROWS]) {
    let Channels { multipliers, high_shifts, halves: [even_halves, odd_halves], .. } = channels;
    let (low, high) = (_mm256_set1_epi32(tile.bounds[0]), _mm256_set1_epi32(tile.bounds[1]));
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: the arrays are long enough and aligned; as the caller promises.
        unsafe {
            if !channels.high {
                let mut words = [0i32; COLUMNS];
                for (half, sums) in sums.iter().enumerate() {
                    _mm256_storeu_si256(words.as_mut_ptr().cast::<__m256i>().add(half), *sums);
                }
                finish(tile, 0, row, &words);
                continue;
            }
            let mut codes = [low; 2];
            for half in 0..2 {
                let factors = _mm256_load_si256(multipliers.as_ptr().cast::<__m256i>().add(half));
                let even = _mm256_load_si256(even_halves.as_ptr().cast::<__m256i>().add(half));
                let odd = _mm256_load_si256(odd_halves.as_ptr().cast::<__m256i>().add(half));
                let even = _mm256_add_epi64(_mm256_mul_epi32(sums[half], factors), even);
                let (odd_sums, odd_factors) =
                    (_mm256_srli_epi64::<32>(sums[half]), _mm256_srli_epi64::<32>(factors));
                let odd = _mm256_add_epi64(_mm256_mul_epi32(odd_sums, odd_factors), odd);
                let products = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd);
                let shifts = _mm256_load_si256(high_shifts.as_ptr().cast::<__m256i>().add(half));
                let scaled = _mm256_srav_epi32(products, shifts);
                codes[half] = _mm256_min_epi32(_mm256_max_epi32(scaled, low), high);
            }
            // Packs work on halves of vectors: the halves are put in order between them.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(codes[0], codes[1]));
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let y = tile.y.add(row * tile.y_row);
            if tile.cols == COLUMNS {
                _mm_storeu_si128(y.cast(), bytes);
            } else {
                let mut codes = [0u8; COLUMNS];
                _mm_storeu_si128(codes.as_mut_ptr().cast(), bytes);
                std::ptr::copy_nonoverlapping(codes.as_ptr(), y, tile.cols);
            }
        }
    }
}
