//! Micro-kernels in plain code: 4 rows by 8 columns, which compilers turn into whatever vectors there are.

use super::kernel::{Kernels, Tile, micro_table, unroll, walk_k};

/// Two vectors of four columns by four rows: eight of the sixteen registers that even the oldest x86-64 has.
const LANES: usize = 4;

pub(crate) static KERNELS: Kernels = Kernels::wide(4, LANES, micro_table!(micro; 1 2 3 4));

/// Fused where the build was told of the instruction; a call into a library for every term would be far too slow. Not on ARM,
/// which has [`Isa::Neon`](crate::isa::Isa::Neon) for that: plain code has the same bits on every architecture.
#[inline(always)]
fn multiply_add(a: f32, b: [f32; LANES], sum: [f32; LANES]) -> [f32; LANES] {
    let fused = cfg!(target_feature = "fma");
    std::array::from_fn(|lane| if fused { a.mul_add(b[lane], sum[lane]) } else { a * b[lane] + sum[lane] })
}

/// See [`Micro`](super::kernel::Micro); `A_ROWS` is whether A has [`Form::Rows`](super::kernel::Form::Rows).
///
/// # Safety
///
/// As for every micro-kernel.
unsafe fn micro<const ROWS: usize, const VECTORS: usize, const A_ROWS: bool>(tile: &Tile) {
    let (between_rows, along_k) = if A_ROWS { (tile.a_step, 1) } else { (1, tile.a_step) };
    let mut sums = [[[0.0f32; LANES]; VECTORS]; ROWS];
    // SAFETY: the caller vouches for the pointers; the column loop stops at the tile's columns.
    unsafe {
        if tile.load {
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.as_flattened_mut().iter_mut().enumerate().take(tile.cols) {
                    *sum = *tile.c.add(i * tile.ldc + j);
                }
            }
        }
        walk_k!(tile, along_k, |a, b| {
            let bs = *b.cast::<[[f32; LANES]; VECTORS]>();
            unroll!(I < ROWS, {
                let a = *a.add(I * between_rows);
                unroll!(V < VECTORS, { sums[I][V] = multiply_add(a, bs[V], sums[I][V]) });
            });
        });
        for (i, row) in sums.iter().enumerate() {
            for (j, &sum) in row.as_flattened().iter().enumerate().take(tile.cols) {
                let at = tile.c.add(i * tile.ldc + j);
                let mut c = sum;
                if !tile.finish.bias.is_null() {
                    c += *tile.finish.bias.add(j);
                }
                if tile.finish.relu {
                    // Not `max`, which would turn NaN into a number.
                    c = if c < 0.0 { 0.0 } else { c };
                }
                *at = c;
            }
        }
    }
}
