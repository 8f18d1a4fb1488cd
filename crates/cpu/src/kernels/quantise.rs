//! Floats as bytes, block by block.

use crate::isa::Context;
use crate::kernels::math::{Shared, TASK_ELEMENTS};
use plimsoll_tensor::{CODE_BLOCK, code_bounds, code_of, code_values};
use std::sync::LazyLock;

/// Buckets of magnitudes: by their exponent and seven bits of their fraction, from 2^-24 (below the smallest bound) up
/// to one.
const SHIFT: u32 = 16;
const FIRST: u32 = (127 - 24) << 7;
const BUCKETS: usize = 24 * 128 + 1;

/// For each sign and bucket of magnitudes, the code of its lowest number: at most one bound is above that in the bucket.
type Starts = [[u8; BUCKETS]; 2];

static SIGNED: LazyLock<Starts> = LazyLock::new(|| starts(true));
static UNSIGNED: LazyLock<Starts> = LazyLock::new(|| starts(false));

fn starts(signed: bool) -> Starts {
    let edge = |bucket: usize| f32::from_bits((FIRST + bucket as u32) << SHIFT);
    let above = |bucket: usize| if bucket == 0 { 0.0 } else { edge(bucket) };
    [
        std::array::from_fn(|bucket| code_of(above(bucket), signed)),
        std::array::from_fn(|bucket| code_of(-edge(bucket + 1), signed)),
    ]
}

/// The code of a share, equal to [`code_of`].
#[inline(always)]
fn code(share: f32, starts: &Starts, bounds: &[f32; 256], least: u8) -> u8 {
    let bits = share.to_bits();
    let bucket = ((bits & 0x7fff_ffff) >> SHIFT).saturating_sub(FIRST) as usize;
    let start = starts[(bits >> 31) as usize][bucket.min(BUCKETS - 1)];
    let code = start + u8::from(bounds[usize::from(start)] < share);
    let code = if share > 0.0 { code.max(least) } else { code };
    if share.is_nan() { 0 } else { code }
}

/// Writes the code of each element, and the largest magnitude of each block.
pub fn encode(ctx: Context<'_>, signed: bool, x: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let blocks = x.len().div_ceil(CODE_BLOCK);
    assert!(codes.len() >= x.len() && scales.len() >= blocks, "operands are shorter than their shapes");
    let (starts, bounds) = (if signed { &*SIGNED } else { &*UNSIGNED }, code_bounds(signed));
    let least = u8::from(!signed);
    let (codes, scales) = (Shared::new(codes), Shared::new(scales));
    each_task(ctx, x.len(), &|first, len| {
        // SAFETY: every task has its own elements.
        let codes = unsafe { codes.part(first, len) };
        // SAFETY: and its own blocks: it starts with one.
        let scales = unsafe { scales.part(first / CODE_BLOCK, len.div_ceil(CODE_BLOCK)) };
        let blocks = x[first..first + len].chunks(CODE_BLOCK).zip(codes.chunks_mut(CODE_BLOCK));
        for ((x, codes), scale) in blocks.zip(scales) {
            *scale = x.iter().fold(0.0, |a: f32, b| if b.abs() > a || b.is_nan() { b.abs() } else { a });
            // In a block of zeros every share is zero.
            let whole = if *scale == 0.0 { 1.0 } else { *scale };
            for (x, c) in x.iter().zip(codes) {
                *c = code(x / whole, starts, bounds, least);
            }
        }
    });
}

/// The values of codes, times their blocks' scales.
pub fn decode(ctx: Context<'_>, signed: bool, codes: &[u8], scales: &[f32], x: &mut [f32]) {
    let blocks = codes.len().div_ceil(CODE_BLOCK);
    assert!(x.len() >= codes.len() && scales.len() >= blocks, "operands are shorter than their shapes");
    let (values, x) = (code_values(signed), Shared::new(x));
    each_task(ctx, codes.len(), &|first, len| {
        // SAFETY: every task has its own elements.
        let x = unsafe { x.part(first, len) };
        let blocks = codes[first..first + len].chunks(CODE_BLOCK).zip(x.chunks_mut(CODE_BLOCK));
        for ((codes, x), scale) in blocks.zip(&scales[first / CODE_BLOCK..]) {
            for (c, x) in codes.iter().zip(x) {
                *x = values[usize::from(*c)] * scale;
            }
        }
    });
}

/// Runs tasks of whole blocks: first element and number of elements.
fn each_task(ctx: Context<'_>, elements: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    ctx.pool.run(elements.div_ceil(TASK_ELEMENTS), &|i, _| {
        let first = i * TASK_ELEMENTS;
        task(first, TASK_ELEMENTS.min(elements - first));
    });
}

const _: () = assert!(TASK_ELEMENTS.is_multiple_of(CODE_BLOCK), "a task starts with a block");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::threads::Pool;

    /// Around every bound and every edge of a bucket.
    #[test]
    fn codes_are_those_of_the_definition() {
        for signed in [false, true] {
            let starts = if signed { &*SIGNED } else { &*UNSIGNED };
            let bounds = code_bounds(signed);
            let edges = (0..=BUCKETS as u32 + 200).map(|i| f32::from_bits((FIRST - 100 + i) << SHIFT));
            let shares = edges.chain(bounds[..255].iter().map(|b| b.abs())).filter(|s| *s <= 1.0);
            for share in shares.chain([0.0, 1e-30, 1.0, f32::NAN]) {
                for near in [share.next_down(), share, share.next_up()] {
                    for share in
                        [near.min(1.0), (-near).max(-1.0)].into_iter().filter(|s| signed || *s >= 0.0)
                    {
                        let found = code(share, starts, bounds, u8::from(!signed));
                        assert_eq!(found, code_of(share, signed), "{share:e} {signed}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_and_lengths_do_not_change_codes() {
        let x: Vec<f32> =
            (0..50_001).map(|i| ((i * 7919 % 10_007) as f32 / 10_007.0 - 0.5).powi(5)).collect();
        let run = |threads: usize, x: &[f32]| {
            let pool = Pool::new(threads).unwrap();
            let ctx = Context::new(&pool, Isa::detect()).unwrap();
            let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len().div_ceil(CODE_BLOCK)]);
            encode(ctx, true, x, &mut codes, &mut scales);
            let mut back = vec![0.0; x.len()];
            decode(ctx, true, &codes, &scales, &mut back);
            (codes, scales, back)
        };
        let (codes, scales, back) = run(1, &x);
        assert_eq!((codes.clone(), scales, back.clone()), run(3, &x));
        assert_eq!(run(2, &x[..300]).0[..256], codes[..256]);
        for (block, back) in x.chunks(CODE_BLOCK).zip(back.chunks(CODE_BLOCK)) {
            let scale = block.iter().fold(0f32, |a, b| a.max(b.abs()));
            assert!(block.iter().zip(back).all(|(a, b)| (a - b).abs() <= 0.01 * scale));
        }
    }
}
