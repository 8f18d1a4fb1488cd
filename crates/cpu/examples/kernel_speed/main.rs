//! Prints how fast the kernels are on this machine: `cargo run --release --example kernel_speed [threads] [recurrences]`.
//!
//! With the name of a family of kernels, only that.
#![allow(clippy::print_stdout, reason = "it is what the example is for")]

mod elementwise;
mod images;
mod reductions;
mod sequences;

use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::threads::Pool;
use plimsoll_tensor::random::Stream;
use std::time::Instant;

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads).expect("threads start");
    let ctx = Context::new(&pool, Isa::detect()).expect("the machine has its best");
    println!("{threads} threads, {}", ctx.isa().name());
    let families: [(&str, &dyn Fn()); 11] = [
        ("copies", &|| copies(&pool)),
        ("elementwise", &|| elementwise::elementwise(ctx)),
        ("reductions", &|| reductions::reductions(ctx)),
        ("norms", &|| reductions::norms(ctx)),
        ("attentions", &|| sequences::attentions(ctx)),
        ("recurrences", &|| sequences::recurrences(ctx)),
        ("losses", &|| sequences::losses(ctx)),
        ("look_ups", &|| sequences::look_ups(ctx)),
        ("convolutions", &|| images::convolutions(ctx)),
        ("pools", &|| images::pools(ctx)),
        ("resizes", &|| images::resizes(ctx)),
    ];
    let only = std::env::args().nth(2);
    for (_, run) in families.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        run();
    }
}

fn random(len: usize) -> Vec<f32> {
    let stream = Stream::new(1, 0, "speed");
    (0..len as u64).map(|i| stream.uniform(0, i) - 0.5).collect()
}

/// A workspace of so many bytes, longer so that it can be aligned.
fn space(bytes: usize) -> Vec<f32> {
    vec![0.0; bytes / 4 + 16]
}

/// The aligned part of a workspace.
fn aligned(space: &mut [f32]) -> &mut [f32] {
    let start = space.as_ptr().align_offset(64);
    &mut space[start..]
}

/// The bandwidth of memory: copies by all threads.
fn copies(pool: &Pool) {
    for n in [1usize << 21, 1 << 24, 1 << 25] {
        let (x, y) = (random(n), random(n));
        let to = y.as_ptr().expose_provenance();
        time(&format!("copy of {} MiB", n >> 18), 8 * n, || {
            pool.run(n >> 14, &|task, _| {
                let part = &x[task << 14..(task + 1) << 14];
                let to = std::ptr::with_exposed_provenance_mut::<f32>(to).wrapping_add(task << 14);
                // SAFETY: every task has its own part of the vector, which outlives the run.
                unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            });
        });
        std::hint::black_box(&y);
    }
}

/// Prints the best of several runs, and the memory traffic it amounts to; returns its seconds.
fn time(name: &str, bytes: usize, mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:44} {:9.3} ms {:8.1} GB/s", best * 1e3, bytes as f64 / best * 1e-9);
    best
}
