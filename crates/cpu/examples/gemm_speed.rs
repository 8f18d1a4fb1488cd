//! Prints how fast the matrix products and convolutions of common models run.
//!
//! `cargo run --release -p plimsoll-cpu --example gemm_speed [threads] [portable|avx2|avx512]`
#![allow(clippy::print_stdout)]

use plimsoll_cpu::gemm::{Epilogue, GemmSpec, Mat, gemm, gemm_workspace};
use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::pool::Pool;
use std::time::{Duration, Instant};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let isa = match args.next().as_deref() {
        Some("portable") => Isa::Portable,
        Some("avx2") => Isa::Avx2.min(Isa::detect()),
        _ => Isa::detect(),
    };
    let pool = Pool::new(threads)?;
    let ctx = Context { pool: &pool, isa };
    println!("{} on {threads} threads, GFLOP/s", isa.name());
    products(ctx);
    Ok(())
}

/// The best of many runs, in GFLOP/s.
fn speed(flops: f64, mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64());
    }
    flops / best / 1e9
}

fn data(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5).collect()
}

/// A workspace of so many bytes, and where in it the aligned part starts.
fn workspace(bytes: usize) -> (Vec<f32>, usize) {
    let space = vec![0.0; bytes / 4 + 16];
    let start = space.as_ptr().align_offset(64);
    (space, start)
}

fn products(ctx: Context<'_>) {
    println!("{:>6} {:>6} {:>6} {:>6}  {:>7} {:>7} {:>7}", "m", "n", "k", "fold", "NN", "TN", "NT");
    let none = usize::MAX;
    let shapes = [
        (512, 2048, 784, none),
        (512, 2048, 2048, none),
        (2048, 2048, 512, 32),
        (4096, 768, 256, none),
        (4096, 256, 1024, none),
        (4096, 4096, 256, none),
        (256, 1024, 4096, 256),
        (512, 10, 2048, none),
        (64, 64, 64, none),
        (8, 2048, 2048, none),
    ];
    for (m, n, k, fold) in shapes {
        let (a, b) = (data(m * k), data(k * n));
        let mut c = vec![0.0; m * n];
        let spec = GemmSpec { m, n, k, fold, accumulate: false };
        let bytes = gemm_workspace(ctx.isa, ctx.pool.threads(), &spec);
        let (mut space, start) = workspace(bytes);
        let flops = 2.0 * (m * n * k) as f64;
        let speeds = [(false, false), (true, false), (false, true)].map(|(a_turned, b_turned)| {
            let (row_stride, col_stride) = if a_turned { (1, m) } else { (k, 1) };
            let a = Mat { data: &a, row_stride, col_stride };
            let (row_stride, col_stride) = if b_turned { (1, k) } else { (n, 1) };
            let b = Mat { data: &b, row_stride, col_stride };
            speed(flops, || gemm(ctx, &spec, a, b, &mut c, Epilogue::NONE, &mut space[start..]))
        });
        let fold = if fold == none { "-".to_string() } else { fold.to_string() };
        let [nn, tn, nt] = speeds;
        println!("{m:>6} {n:>6} {k:>6} {fold:>6}  {nn:>7.1} {tn:>7.1} {nt:>7.1}");
    }
}
