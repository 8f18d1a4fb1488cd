//! Micro-kernels with NEON: up to 12 rows by 8 columns, 24 of the 32 registers being sums.
//!
//! For every k, three vectors of A and two of B feed 24 multiply-adds, each of a lane of A and a vector of B.

use super::kernel::{Finish, Kernels, Tile, micro_table, unroll, walk_k};
use std::arch::aarch64::*;

/// Columns of a vector, and rows whose elements of A are one.
const LANES: usize = 4;

pub(crate) static KERNELS: Kernels =
    Kernels::wide(12, LANES, micro_table!(micro; 1 2 3 4 5 6 7 8 9 10 11 12));

/// See [`Micro`](super::kernel::Micro); `A_ROWS` is whether A has [`Form::Rows`](super::kernel::Form::Rows).
///
/// # Safety
///
/// As for every micro-kernel.
unsafe fn micro<const ROWS: usize, const VECTORS: usize, const A_ROWS: bool>(tile: &Tile) {
    let cols = tile.cols;
    if cols == VECTORS * LANES {
        // SAFETY: the caller vouches for the pointers.
        return unsafe { whole::<ROWS, VECTORS, A_ROWS>(tile) };
    }
    // There are no masks: vectors that are not full go through memory that has all their columns.
    let mut sums = [[0.0f32; 2 * LANES]; ROWS];
    let mut bias = [0.0f32; 2 * LANES];
    let mut finish = tile.finish;
    // SAFETY: the caller vouches for the pointers, of C and of the bias for the tile's columns.
    unsafe {
        if tile.load {
            for (i, row) in sums.iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(tile.c.add(i * tile.ldc), row.as_mut_ptr(), cols);
            }
        }
        if !finish.bias.is_null() {
            std::ptr::copy_nonoverlapping(finish.bias, bias.as_mut_ptr(), cols);
            finish = Finish { bias: bias.as_ptr(), ..finish };
        }
        let (c, ahead) = (sums.as_mut_ptr().cast(), std::ptr::null());
        whole::<ROWS, VECTORS, A_ROWS>(&Tile { c, ldc: 2 * LANES, ahead, finish, ..*tile });
        for (i, row) in sums.iter().enumerate() {
            std::ptr::copy_nonoverlapping(row.as_ptr(), tile.c.add(i * tile.ldc), cols);
        }
    }
}

/// As [`micro`], of a tile with all columns of its vectors.
///
/// # Safety
///
/// As for every micro-kernel.
#[target_feature(enable = "neon")]
unsafe fn whole<const ROWS: usize, const VECTORS: usize, const A_ROWS: bool>(tile: &Tile) {
    let (between_rows, along_k) = if A_ROWS { (tile.a_step, 1) } else { (1, tile.a_step) };
    // Rows whose elements of A are loaded as vectors. Past the last row there may be no memory.
    let by_lane = if A_ROWS { 0 } else { ROWS / LANES * LANES };
    let zero = vdupq_n_f32(0.0);
    let mut sums = [[zero; VECTORS]; ROWS];
    if !tile.ahead.is_null() {
        unroll!(I < ROWS, { fetch(tile.ahead.wrapping_add(I * tile.ldc)) });
    }
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        if tile.load {
            unroll!(I < ROWS, {
                unroll!(V < VECTORS, { sums[I][V] = vld1q_f32(tile.c.add(I * tile.ldc + LANES * V)) });
            });
        }
        walk_k!(tile, along_k, |a, b| {
            let mut bs = [zero; VECTORS];
            unroll!(V < VECTORS, { bs[V] = vld1q_f32(b.add(LANES * V)) });
            let mut quads = [zero; 4];
            unroll!(I < ROWS, {
                if I < by_lane && I % LANES == 0 {
                    quads[I / LANES] = vld1q_f32(a.add(I));
                }
            });
            unroll!(I < ROWS, {
                if I < by_lane {
                    unroll!(V < VECTORS, {
                        const LANE: i32 = (I % LANES) as i32;
                        sums[I][V] = vfmaq_laneq_f32::<LANE>(sums[I][V], bs[V], quads[I / LANES]);
                    });
                } else {
                    let a = *a.add(I * between_rows);
                    unroll!(V < VECTORS, { sums[I][V] = vfmaq_n_f32(sums[I][V], bs[V], a) });
                }
            });
        });
        unroll!(V < VECTORS, {
            let bias = tile.finish.bias;
            let bias_lanes = if bias.is_null() { zero } else { vld1q_f32(bias.add(LANES * V)) };
            unroll!(I < ROWS, {
                let mut c = sums[I][V];
                if !bias.is_null() {
                    c = vaddq_f32(c, bias_lanes);
                }
                if tile.finish.relu {
                    // Not a maximum, which would turn -0 into +0.
                    c = vbslq_f32(vcltq_f32(c, zero), zero, c);
                }
                vst1q_f32(tile.c.add(I * tile.ldc + LANES * V), c);
            });
        });
    }
}

/// Fetches a cache line.
#[inline(always)]
fn fetch(line: *const f32) {
    // SAFETY: a hint, which may name any address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

/// Transposes: `dst[k * width + lane]` is element k of the lane that starts `lane * step` after `src`; lanes from `lanes` to
/// `width` become zero.
///
/// # Safety
///
/// `src` must be good for reads and `dst` for writes of all those elements, `lanes <= width`, and `width` be whole vectors.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn transpose(
    (src, step, lanes): (*const f32, usize, usize),
    (dst, width): (*mut f32, usize),
    k: usize,
) {
    debug_assert!(width.is_multiple_of(LANES));
    let whole = k - k % LANES;
    for lane in (0..width).step_by(LANES) {
        let here = lanes.saturating_sub(lane).min(LANES);
        for at in (0..whole).step_by(LANES) {
            let mut rows = [vdupq_n_f32(0.0); LANES];
            for (i, row) in rows.iter_mut().enumerate().take(here) {
                // SAFETY: `lane + i < lanes` and `at + 4 <= k`.
                *row = unsafe { vld1q_f32(src.add((lane + i) * step + at)) };
            }
            // Single floats are swapped, and then pairs.
            let [a, b, c, d] = rows;
            let [even, odd] = [vtrn1q_f32(a, b), vtrn2q_f32(a, b)].map(|x| vreinterpretq_f64_f32(x));
            let [even_high, odd_high] =
                [vtrn1q_f32(c, d), vtrn2q_f32(c, d)].map(|x| vreinterpretq_f64_f32(x));
            let columns = [
                vzip1q_f64(even, even_high),
                vzip1q_f64(odd, odd_high),
                vzip2q_f64(even, even_high),
                vzip2q_f64(odd, odd_high),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: `at + i < k`, and whole vectors lie inside the width.
                unsafe { vst1q_f32(dst.add((at + i) * width + lane), vreinterpretq_f32_f64(column)) };
            }
        }
        for (at, i) in (whole..k).flat_map(|at| (0..LANES).map(move |i| (at, i))) {
            // SAFETY: `at < k`, and `lane + i < lanes` where `src` is read.
            unsafe {
                let value = if i < here { *src.add((lane + i) * step + at) } else { 0.0 };
                *dst.add(at * width + lane + i) = value;
            }
        }
    }
}

/// Copies `k` rows of `lanes` adjacent elements: `dst[k * width + lane] = src[k * k_step + lane]`; lanes from `lanes` to
/// `width` become zero.
///
/// # Safety
///
/// `src` must be good for reads and `dst` for writes of all those elements, and `lanes <= width`.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn copy_lanes(
    (src, k_step, lanes): (*const f32, usize, usize),
    (dst, width): (*mut f32, usize),
    k: usize,
) {
    let whole = lanes - lanes % LANES;
    for row in 0..k {
        // SAFETY: `row < k`, and lanes below `lanes` are read, below `width` written.
        unsafe {
            let (from, to) = (src.add(row * k_step), dst.add(row * width));
            for lane in (0..whole).step_by(LANES) {
                vst1q_f32(to.add(lane), vld1q_f32(from.add(lane)));
            }
            for lane in whole..width {
                *to.add(lane) = if lane < lanes { *from.add(lane) } else { 0.0 };
            }
        }
    }
}
