//! Micro-kernels with NEON's dot products: up to 4 rows by 16 columns.
//!
//! The instruction multiplies signed bytes, so codes are taken less 128; what starts the sums makes up for it.

use super::kernel::{Kernels, Tile, finish, micro_table};
use super::pack::{COLUMNS, STEP};
use crate::kernels::gemm::kernel::{nothing, unroll};
use std::arch::aarch64::*;
use std::arch::asm;

/// Whether the machine has dot products.
pub(super) fn has_dot_products() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

pub(super) static DOT: Kernels = Kernels {
    micro: micro_table!(dot::<1>; [1 2 3 4]),
    offset: 128,
    depthwise: None,
    enter: nothing,
    leave: nothing,
};

/// With the instruction for dot products.
///
/// # Safety
///
/// As for [`Micro`](super::kernel::Micro).
#[target_feature(enable = "neon,dotprod")]
unsafe fn dot<const ROWS: usize, const PANELS: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        let bias = (*tile.channels).bias.as_ptr();
        let start =
            [vld1q_s32(bias), vld1q_s32(bias.add(4)), vld1q_s32(bias.add(8)), vld1q_s32(bias.add(12))];
        let (mut sums, middle) = ([start; ROWS], vdupq_n_u8(128));
        let mut b = tile.b.cast::<i8>();
        for &run in tile.runs {
            let mut a = tile.a.add(run);
            for _ in 0..tile.words {
                let weights = [vld1q_s8(b), vld1q_s8(b.add(16)), vld1q_s8(b.add(32)), vld1q_s8(b.add(48))];
                unroll!(ROW < ROWS, {
                    let word = a.add(ROW * tile.a_row).cast::<u32>().read_unaligned();
                    let codes =
                        vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), middle));
                    for (sum, weights) in sums[ROW].iter_mut().zip(weights) {
                        *sum = add_dot(*sum, codes, weights);
                    }
                });
                // After the last step, these may point past the end of their memory.
                a = a.wrapping_add(4);
                b = b.wrapping_add(STEP);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            let mut words = [0i32; COLUMNS];
            for (i, sums) in sums.iter().enumerate() {
                vst1q_s32(words.as_mut_ptr().add(4 * i), *sums);
            }
            finish(tile, 0, row, &words);
        }
    }
}

/// Adds the products of four pairs of signed bytes to every word.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_dot(mut sum: int32x4_t, codes: int8x16_t, weights: int8x16_t) -> int32x4_t {
    // SAFETY: it works on registers alone.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {codes:v}.16b, {weights:v}.16b",
            sum = inout(vreg) sum,
            codes = in(vreg) codes,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
