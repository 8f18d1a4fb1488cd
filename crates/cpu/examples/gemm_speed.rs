//! Prints how fast the matrix products and convolutions of common models run.
//!
//! `cargo run --release -p plimsoll-cpu --example gemm_speed [threads] [portable|avx2|avx512]`
#![allow(clippy::print_stdout)]

use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::kernels::conv::{
    ConvShape, conv2d, conv2d_input_grad, conv2d_input_grad_workspace, conv2d_weight_grad,
    conv2d_weight_grad_workspace, conv2d_workspace,
};
use plimsoll_cpu::kernels::gemm::{Epilogue, GemmSpec, Mat, gemm, gemm_direct, gemm_workspace, is_direct};
use plimsoll_cpu::threads::Pool;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let isa = match args.next() {
        Some(name) => Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or("no such instruction set")?,
        None => Isa::detect(),
    };
    let pool = Pool::new(threads)?;
    let ctx = Context::new(&pool, isa)?;
    println!("{} on {threads} threads, GFLOP/s", isa.name());
    products(ctx);
    convolutions(ctx);
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
    let header = ["m", "n", "k", " NN", "TN", "NT", "direct"];
    println!("{}", header.map(|name| format!("{name:>7}")).join(" "));
    let shapes = [
        (512, 2048, 784),
        (512, 2048, 2048),
        (2048, 2048, 512),
        (4096, 768, 256),
        (4096, 256, 1024),
        (4096, 4096, 256),
        (256, 1024, 4096),
        (512, 10, 2048),
        (64, 64, 64),
        (1, 1024, 256),
        (2, 1024, 256),
        (4, 1024, 256),
        (8, 1024, 256),
        (16, 1024, 256),
        (32, 1024, 256),
        (32, 256, 1024),
        (64, 1024, 256),
        (64, 256, 1024),
        (128, 1024, 256),
        (128, 256, 1024),
        (256, 1024, 128),
        (16, 2048, 512),
        (8, 2048, 2048),
    ];
    for (m, n, k) in shapes {
        let (a, b) = (data(m * k), data(k * n));
        let mut c = vec![0.0; m * n];
        let spec = GemmSpec { m, n, k, accumulate: false };
        let bytes = gemm_workspace(ctx.isa(), ctx.threads(), &spec);
        let (mut space, start) = workspace(bytes);
        let flops = 2.0 * (m * n * k) as f64;
        let speeds = [(false, false), (true, false), (false, true)].map(|(a_turned, b_turned)| {
            let (row_stride, col_stride) = if a_turned { (1, m) } else { (k, 1) };
            let a = Mat { data: &a, row_stride, col_stride };
            let (row_stride, col_stride) = if b_turned { (1, k) } else { (n, 1) };
            let b = Mat { data: &b, row_stride, col_stride };
            speed(flops, || gemm(ctx, &spec, a, b, &mut c, Epilogue::NONE, &mut space[start..]))
        });
        let [nn, tn, nt] = speeds;
        let direct = if is_direct(&spec) {
            format!("{:.1}", speed(flops, || gemm_direct(ctx, &spec, &a, &b, &mut c, Epilogue::NONE)))
        } else {
            "-".to_string()
        };
        println!("{m:>7} {n:>7} {k:>7} {nn:>7.1} {tn:>7.1} {nt:>7.1} {direct:>7}");
    }
}

fn convolutions(ctx: Context<'_>) {
    println!("{:>12} {:>8} {:>6}  {:>7} {:>7} {:>7}", "image", "kernel", "stride", "y", "dx", "dw");
    // Side, channels in and out, kernel, stride, padding.
    let layers = [
        (32, 3, 16, 3, 1, 1),
        (32, 16, 16, 3, 1, 1),
        (32, 16, 32, 3, 2, 1),
        (32, 16, 32, 1, 2, 0),
        (16, 32, 32, 3, 1, 1),
        (16, 32, 64, 3, 2, 1),
        (16, 32, 64, 1, 2, 0),
        (8, 64, 64, 3, 1, 1),
        (28, 1, 6, 5, 1, 2),
        (14, 6, 16, 5, 1, 0),
    ];
    for (side, in_c, out_c, kernel, stride, pad) in layers {
        let out = (side + 2 * pad - kernel) / stride + 1;
        let shape = ConvShape {
            examples: 128,
            in_h: side,
            in_w: side,
            in_c,
            out_h: out,
            out_w: out,
            out_c,
            kernel_h: kernel,
            kernel_w: kernel,
            stride_h: stride,
            stride_w: stride,
            pad_top: pad,
            pad_left: pad,
            dilation_h: 1,
            dilation_w: 1,
            groups: 1,
        };
        let mut x = data(128 * side * side * in_c);
        let mut y = data(128 * out * out * out_c);
        let mut w = data(kernel * kernel * in_c * out_c);
        let flops = 2.0 * (w.len() * out * out * 128) as f64;
        let threads = ctx.threads();
        let (mut space, at) = workspace(conv2d_workspace::<f32, f32>(ctx.isa(), threads, &shape));
        let forward = speed(flops, || conv2d(ctx, &shape, &x, &w, &mut y, Epilogue::NONE, &mut space[at..]));
        let (mut space, at) = workspace(conv2d_input_grad_workspace::<f32, f32>(ctx.isa(), threads, &shape));
        let dx = speed(flops, || conv2d_input_grad(ctx, &shape, &y, &w, &mut x, &mut space[at..]));
        let block = 32;
        let (mut space, at) =
            workspace(conv2d_weight_grad_workspace::<f32>(ctx.isa(), threads, &shape, block));
        let dw = speed(flops, || {
            conv2d_weight_grad(ctx, &shape, &x, &y, &mut w, false, block, &mut space[at..]);
        });
        let (image, kernel) = (format!("{side}x{side}x{in_c}"), format!("{kernel}x{kernel}x{out_c}"));
        println!("{image:>12} {kernel:>8} {stride:>6}  {forward:>7.1} {dx:>7.1} {dw:>7.1}");
    }
}
