//! Random numbers by counter: each block of four elements of an example by itself.

use crate::isa::Context;
use crate::kernels::math::{Shared, TASK_ELEMENTS};
use plimsoll_tensor::random::Stream;

/// Uniform in [0, 1), `[examples, elements]`.
pub fn uniform(ctx: Context<'_>, stream: Stream, examples: &[i32], elements: usize, y: &mut [f32]) {
    draw(ctx, examples, elements, y, |example, block| stream.uniform_block(example, block));
}

/// Standard normal, `[examples, elements]`.
pub fn normal(ctx: Context<'_>, stream: Stream, examples: &[i32], elements: usize, y: &mut [f32]) {
    draw(ctx, examples, elements, y, |example, block| stream.normal_block(example, block));
}

/// One with probability `p`, else zero, `[examples, elements]`.
pub fn bernoulli(ctx: Context<'_>, stream: Stream, p: f64, examples: &[i32], elements: usize, y: &mut [u8]) {
    draw(ctx, examples, elements, y, |example, block| {
        stream.uniform_block(example, block).map(|u| u8::from(f64::from(u) < p))
    });
}

fn draw<T: Copy + Send + Sync>(
    ctx: Context<'_>,
    examples: &[i32],
    elements: usize,
    y: &mut [T],
    block: impl Fn(u64, u32) -> [T; 4] + Sync,
) {
    assert!(y.len() >= examples.len() * elements, "the result is shorter than its shape");
    let y = Shared::new(y);
    // Whole blocks of an example, so that a task starts where a block does.
    let parts = elements.div_ceil(TASK_ELEMENTS);
    ctx.pool.run(examples.len() * parts, &|task, _| {
        let (row, start) = (task / parts, task % parts * TASK_ELEMENTS);
        let len = TASK_ELEMENTS.min(elements - start);
        // SAFETY: every task has its own part of its own row.
        let y = unsafe { y.part(row * elements + start, len) };
        let example = u64::from(examples[row] as u32);
        for (i, four) in y.chunks_mut(4).enumerate() {
            four.copy_from_slice(&block(example, (start / 4 + i) as u32)[..four.len()]);
        }
    });
}
