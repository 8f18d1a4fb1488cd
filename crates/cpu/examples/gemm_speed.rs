//! Prints how fast the matrix products and convolutions of common models run.
//!
//! `cargo run --release -p plimsoll-cpu --example gemm_speed [threads] [f32|bf16] [portable|avx2|avx512|avx512-bf16|amx]`
//!
//! Sums over the batch (TN and dw) are f32, other results are of the operands' type.
#![allow(clippy::print_stdout)]

use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::kernels::conv::{
    ConvShape, conv2d, conv2d_input_grad, conv2d_input_grad_workspace, conv2d_weight_grad,
    conv2d_weight_grad_workspace, conv2d_workspace,
};
use plimsoll_cpu::kernels::float::Float;
use plimsoll_cpu::kernels::gemm::{Epilogue, GemmSpec, Mat, gemm, gemm_direct, gemm_workspace, is_direct};
use plimsoll_cpu::threads::Pool;
use plimsoll_tensor::bf16;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let narrow = args.next().is_some_and(|name| name == "bf16");
    let isa = match args.next() {
        Some(name) => Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or("no such instruction set")?,
        None => Isa::detect(),
    };
    let pool = Pool::new(threads)?;
    let ctx = Context::new(&pool, isa)?;
    println!("{} of {} on {threads} threads, GFLOP/s", if narrow { "bf16" } else { "f32" }, isa.name());
    if narrow {
        products::<bf16>(ctx);
        convolutions::<bf16>(ctx);
    } else {
        products::<f32>(ctx);
        convolutions::<f32>(ctx);
    }
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

fn data<T: Float>(len: usize) -> Vec<T> {
    (0..len).map(|i| T::narrow((i * 7919 % 1013) as f32 / 1013.0 - 0.5)).collect()
}

/// A workspace of so many bytes, and where in it the aligned part starts.
fn workspace(bytes: usize) -> (Vec<f32>, usize) {
    let space = vec![0.0; bytes / 4 + 16];
    let start = space.as_ptr().align_offset(64);
    (space, start)
}

fn products<T: Float>(ctx: Context<'_>) {
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
        let (a, b) = (data::<T>(m * k), data::<T>(k * n));
        let spec = GemmSpec::new(m, n, k);
        let flops = 2.0 * (m * n * k) as f64;
        let turned = |data, turned: bool, rows: usize, columns: usize| {
            let (row_stride, col_stride) = if turned { (1, rows) } else { (columns, 1) };
            Mat { data, row_stride, col_stride }
        };
        let (nn_a, nn_b) = (turned(&a, false, m, k), turned(&b, false, k, n));
        let nn = product::<T, T>(ctx, &spec, nn_a, nn_b);
        let tn = product::<T, f32>(ctx, &spec, turned(&a, true, m, k), nn_b);
        let nt = product::<T, T>(ctx, &spec, nn_a, turned(&b, true, k, n));
        let direct = if is_direct(&spec) && !T::LOW {
            let (a, b, mut c) = (data(m * k), data(k * n), vec![0.0; m * n]);
            format!("{:.1}", speed(flops, || gemm_direct(ctx, &spec, &a, &b, &mut c, Epilogue::NONE)))
        } else {
            "-".to_string()
        };
        println!("{m:>7} {n:>7} {k:>7} {nn:>7.1} {tn:>7.1} {nt:>7.1} {direct:>7}");
    }
}

/// The speed of a product with its own result and workspace.
fn product<T: Float, C: Float>(ctx: Context<'_>, spec: &GemmSpec, a: Mat<'_, T>, b: Mat<'_, T>) -> f64 {
    let mut c = vec![C::ZERO; spec.m * spec.n];
    let (mut space, start) = workspace(gemm_workspace::<T, T, C>(ctx.isa(), ctx.threads(), spec));
    let flops = 2.0 * (spec.m * spec.n * spec.k) as f64;
    speed(flops, || gemm(ctx, spec, a, b, &mut c, Epilogue::NONE, &mut space[start..]))
}

fn convolutions<T: Float>(ctx: Context<'_>) {
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
        let mut x = data::<T>(128 * side * side * in_c);
        let mut y = data::<T>(128 * out * out * out_c);
        let w = data::<T>(kernel * kernel * in_c * out_c);
        let flops = 2.0 * (w.len() * out * out * 128) as f64;
        let threads = ctx.threads();
        let (mut space, at) = workspace(conv2d_workspace::<T, T>(ctx.isa(), threads, &shape));
        let forward = speed(flops, || conv2d(ctx, &shape, &x, &w, &mut y, Epilogue::NONE, &mut space[at..]));
        let (mut space, at) = workspace(conv2d_input_grad_workspace::<T, T>(ctx.isa(), threads, &shape));
        let dx = speed(flops, || conv2d_input_grad(ctx, &shape, &y, &w, &mut x, &mut space[at..]));
        let block = 32;
        let (mut space, at) = workspace(conv2d_weight_grad_workspace::<T>(ctx.isa(), threads, &shape, block));
        let mut grad = vec![0.0; w.len()];
        let dw = speed(flops, || {
            conv2d_weight_grad(ctx, &shape, &x, &y, &mut grad, false, block, &mut space[at..]);
        });
        let (image, kernel) = (format!("{side}x{side}x{in_c}"), format!("{kernel}x{kernel}x{out_c}"));
        println!("{image:>12} {kernel:>8} {stride:>6}  {forward:>7.1} {dx:>7.1} {dw:>7.1}");
    }
}
