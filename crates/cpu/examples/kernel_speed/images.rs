//! Convolutions, pooling and resizing.

use crate::{aligned, random, space, time};
use plimsoll_cpu::isa::Context;
use plimsoll_cpu::kernels::conv::{
    ConvShape, conv2d, conv2d_input_grad, conv2d_input_grad_workspace, conv2d_weight_grad,
    conv2d_weight_grad_workspace, conv2d_workspace,
};
use plimsoll_cpu::kernels::gemm::Epilogue;
use plimsoll_cpu::kernels::pooling::{
    Axis, PoolShape, Spacing, average_pool, average_pool_grad, average_pool_grad_workspace,
    average_pool_workspace, max_pool, max_pool_grad,
};
use plimsoll_cpu::kernels::resize::{
    ResizeMode, ResizeShape, resize, resize_grad, resize_grad_workspace, resize_workspace,
};

/// Depthwise, grouped and pointwise layers of 32 images. The bytes are input and output once: a depthwise layer is at best
/// as fast as the copies above.
pub fn convolutions(ctx: Context<'_>) {
    // Name, side, channels in and out, kernel, stride, groups.
    let layers = [
        ("depthwise 3x3, 56x56x144", 56, 144, 144, 3, 1, 144),
        ("depthwise 3x3 by 2, 56x56x144", 56, 144, 144, 3, 2, 144),
        ("depthwise 3x3, 14x14x576", 14, 576, 576, 3, 1, 576),
        ("1x1, 56x56x24 to 144", 56, 24, 144, 1, 1, 1),
        ("1x1, 56x56x144 to 24", 56, 144, 24, 1, 1, 1),
        ("1x1, 14x14x96 to 576", 14, 96, 576, 1, 1, 1),
        ("1x1, 14x14x576 to 96", 14, 576, 96, 1, 1, 1),
        ("3x3 in 8 groups, 28x28x256", 28, 256, 256, 3, 1, 8),
        ("3x3 in 16 groups, 28x28x256", 28, 256, 256, 3, 1, 16),
    ];
    for (name, side, in_c, out_c, kernel, stride, groups) in layers {
        let pad = kernel / 2;
        let out = (side + 2 * pad - kernel) / stride + 1;
        let shape = ConvShape {
            examples: 32,
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
            groups,
        };
        // Aligned, as in an arena.
        let (floats_in, floats_out) = (32 * side * side * in_c, 32 * out * out * out_c);
        let (mut x, mut y) = (random(floats_in + 16), random(floats_out + 16));
        let (x, y) = (&mut aligned(&mut x)[..floats_in], &mut aligned(&mut y)[..floats_out]);
        let mut w = random(kernel * kernel * in_c / groups * out_c);
        let bytes = 4 * (x.len() + y.len());
        let flops = 2.0 * (w.len() * out * out * 32) as f64 * 1e-9;
        println!("{name}: {flops:.3} GFlop");
        let (isa, threads) = (ctx.isa(), ctx.threads());
        let mut memory = space(conv2d_workspace::<f32, f32>(isa, threads, &shape));
        time("  conv2d", bytes, || {
            conv2d(ctx, &shape, x, &w, y, Epilogue::NONE, aligned(&mut memory));
        });
        let mut memory = space(conv2d_input_grad_workspace::<f32, f32>(isa, threads, &shape));
        time("  conv2d_input_grad", bytes, || {
            conv2d_input_grad(ctx, &shape, y, &w, x, aligned(&mut memory));
        });
        let mut memory = space(conv2d_weight_grad_workspace::<f32>(isa, threads, &shape, 1));
        time("  conv2d_weight_grad", bytes, || {
            conv2d_weight_grad(ctx, &shape, x, y, &mut w, false, 1, aligned(&mut memory));
        });
    }
}

pub fn pools(ctx: Context<'_>) {
    for (examples, size, channels, window, stride, before) in [
        (64, 28, 6, 2, 2, 0),
        (64, 10, 16, 2, 2, 0),
        (64, 32, 16, 2, 2, 0),
        (16, 56, 64, 2, 2, 0),
        (16, 112, 64, 3, 2, 1),
        (16, 28, 64, 3, 1, 1),
    ] {
        let output = (size + 2 * before - window) / stride + 1;
        let spacing = Spacing::Sliding { stride, before, dilation: 1 };
        let axis = Axis { input: size, output, places: window, spacing };
        let shape = PoolShape { examples, height: axis, width: axis, channels };
        let x = random(examples * size * size * channels);
        let n = examples * output * output * channels;
        let (mut y, mut index, mut dx) = (vec![0.0; n], vec![0; n], vec![0.0; x.len()]);
        let bytes = 4 * (x.len() + n);
        let name = |name: &str| format!("{name} {window}/{stride} [{examples},{size},{size},{channels}]");
        time(&name("max_pool"), bytes + n, || max_pool(ctx, &shape, &x, &mut y, &mut index));
        time(&name("max_pool_grad"), bytes + n, || max_pool_grad(ctx, &shape, &y, &index, &mut dx));
        let mut memory = space(average_pool_workspace(ctx.threads(), &shape));
        let memory = aligned(&mut memory);
        time(&name("average_pool"), bytes, || average_pool(ctx, &shape, true, &x, &mut y, memory));
        let mut memory = space(average_pool_grad_workspace(ctx.threads(), &shape));
        let memory = aligned(&mut memory);
        time(&name("average_pool_grad"), bytes, || average_pool_grad(ctx, &shape, true, &y, &mut dx, memory));
    }
}

pub fn resizes(ctx: Context<'_>) {
    for mode in [ResizeMode::Nearest, ResizeMode::Bilinear { align_corners: false }] {
        for (from, to, channels) in [(28, 56, 64), (56, 40, 64), (256, 224, 3)] {
            let shape = ResizeShape { mode, examples: 16, from: [from; 2], to: [to; 2], channels };
            let [x, y] = shape.floats();
            let (x, mut y) = (random(x), vec![0.0; y]);
            let mut dx = vec![0.0; x.len()];
            let (name, bytes) = (format!("{mode:?} {from} to {to} by {channels}"), 4 * (x.len() + y.len()));
            let mut memory = space(resize_workspace(ctx.threads(), &shape));
            let memory = aligned(&mut memory);
            time(&name, bytes, || resize(ctx, &shape, &x, &mut y, memory));
            let mut memory = space(resize_grad_workspace(ctx.threads(), &shape));
            let memory = aligned(&mut memory);
            time(&format!("{name}, gradient"), bytes, || resize_grad(ctx, &shape, &y, &mut dx, memory));
        }
    }
}
