//! Prints how fast the kernels are on this machine: `cargo run --release --example kernel_speed [threads]`.
#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use plimsoll_cpu::attention::{
    AttentionSpec, RotarySpec, attention, attention_grad, attention_grad_workspace, attention_workspace,
    rotary, rotary_workspace,
};
use plimsoll_cpu::conv::{
    ConvShape, conv2d, conv2d_input_grad, conv2d_input_grad_workspace, conv2d_weight_grad,
    conv2d_weight_grad_workspace, conv2d_workspace,
};
use plimsoll_cpu::elementwise::Program;
use plimsoll_cpu::gemm::Epilogue;
use plimsoll_cpu::index::{gather, scatter_add};
use plimsoll_cpu::isa::{Context, Isa};
use plimsoll_cpu::loss::{
    LinearSpec, cross_entropy, cross_entropy_workspace, linear_cross_entropy, linear_cross_entropy_grad,
    linear_cross_entropy_grad_workspace, linear_cross_entropy_workspace,
};
use plimsoll_cpu::norm::{
    NormAxis, Normalised, channel_stats, channel_stats_workspace, channel_sums, channel_sums_workspace,
    row_stats, row_sums,
};
use plimsoll_cpu::pool::Pool;
use plimsoll_cpu::pooling::{
    Axis, PoolShape, Spacing, average_pool, average_pool_grad, average_pool_grad_workspace,
    average_pool_workspace, max_pool, max_pool_grad,
};
use plimsoll_cpu::reduce::{
    Extreme, Term, arg_extreme, cumulative_sum, extreme, product, sum, sum_fold, sum_fold_workspace, top_k,
};
use plimsoll_cpu::resize::{
    ResizeMode, ResizeShape, resize, resize_grad, resize_grad_workspace, resize_workspace,
};
use plimsoll_graph::op::{Binary, Elementwise, Instruction, Operand, Region, Unary};
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, TensorType};
use std::time::Instant;

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads).expect("threads start");
    let ctx = Context::new(&pool, Isa::detect());
    println!("{threads} threads, {}", ctx.isa().name());
    copies(&pool);
    elementwise(ctx);
    reductions(ctx);
    norms(ctx);
    attentions(ctx);
    losses(ctx);
    look_ups(ctx);
    convolutions(ctx);
    pools(ctx);
    resizes(ctx);
}

fn random(len: usize) -> Vec<f32> {
    let stream = Stream::new(1, 0, "speed");
    (0..len as u64).map(|i| stream.uniform(0, i) - 0.5).collect()
}

/// Workspace of so many bytes, with room to align it.
fn space(bytes: usize) -> Vec<f32> {
    vec![0.0; bytes / 4 + 16]
}

/// The aligned part of a workspace.
fn aligned(space: &mut [f32]) -> &mut [f32] {
    let start = space.as_ptr().align_offset(64);
    &mut space[start..]
}

/// What memory gives at best: copies by all threads.
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

/// Prints the best of several runs, and the memory traffic it amounts to.
fn time(name: &str, bytes: usize, mut run: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:44} {:9.3} ms {:8.1} GB/s", best * 1e3, bytes as f64 / best * 1e-9);
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn binary(op: Binary, a: Operand, b: Operand) -> Instruction {
    Instruction { op: Elementwise::Binary(op), operands: vec![a, b], dtype: DType::F32 }
}

fn unary(op: Unary, a: Operand) -> Instruction {
    Instruction { op: Elementwise::Unary(op), operands: vec![a], dtype: DType::F32 }
}

fn constant(value: f64) -> Instruction {
    Instruction {
        op: Elementwise::Constant { value, dtype: DType::F32 },
        operands: vec![],
        dtype: DType::F32,
    }
}

/// Runs a region; `in_place` of its outputs take the memory of the inputs of the same number.
fn region(
    ctx: Context<'_>,
    name: &str,
    region: &Region,
    inputs: &[TensorType],
    output: &TensorType,
    in_place: usize,
) {
    let outputs = vec![output.clone(); region.outputs.len()];
    let program = Program::new(region, inputs, &outputs).expect("compiles");
    let mut sources: Vec<Vec<f32>> = inputs.iter().map(|t| random(t.shape.elements())).collect();
    let mut targets: Vec<Vec<f32>> =
        outputs[in_place..].iter().map(|t| vec![0.0; t.shape.elements()]).collect();
    let from: Vec<*const u8> = sources.iter_mut().map(|s| s.as_mut_ptr().cast_const().cast()).collect();
    let to: Vec<*mut u8> = from[..in_place]
        .iter()
        .map(|p| p.cast_mut())
        .chain(targets.iter_mut().map(|t| t.as_mut_ptr().cast()))
        .collect();
    let mut memory = space(program.workspace(ctx.threads()));
    let memory = aligned(&mut memory).as_mut_ptr();
    let bytes: usize = inputs.iter().chain(&outputs).map(TensorType::bytes).sum();
    // SAFETY: the memory has the operands' sizes.
    time(name, bytes, || unsafe { program.run(ctx, &from, &to, memory.cast()) });
}

fn elementwise(ctx: Context<'_>) {
    use Operand::{Input, Result};
    let bias_relu = Region {
        instructions: vec![binary(Binary::Add, Input(0), Input(1)), unary(Unary::Relu, Result(0))],
        outputs: vec![1],
    };
    for (rows, columns) in [(16384, 1024), (131_072, 64), (524_288, 16)] {
        let (x, bias) = (f32s(&[rows, columns]), f32s(&[columns]));
        region(
            ctx,
            &format!("bias + relu [{rows},{columns}]"),
            &bias_relu,
            &[x.clone(), bias.clone()],
            &x,
            0,
        );
        region(
            ctx,
            &format!("bias + relu [{rows},{columns}] in place"),
            &bias_relu,
            &[x.clone(), bias],
            &x,
            1,
        );
    }
    let adamw = Region {
        instructions: vec![
            constant(0.9),
            constant(0.1),
            constant(0.999),
            constant(0.001),
            constant(1e-8),
            binary(Binary::Mul, Input(1), Result(0)),
            binary(Binary::Mul, Input(3), Result(1)),
            binary(Binary::Add, Result(5), Result(6)),
            unary(Unary::Square, Input(3)),
            binary(Binary::Mul, Input(2), Result(2)),
            binary(Binary::Mul, Result(8), Result(3)),
            binary(Binary::Add, Result(9), Result(10)),
            unary(Unary::Sqrt, Result(11)),
            binary(Binary::Add, Result(12), Result(4)),
            binary(Binary::Div, Result(7), Result(13)),
            binary(Binary::Mul, Input(0), Result(3)),
            binary(Binary::Add, Result(14), Result(15)),
            binary(Binary::Mul, Result(16), Input(4)),
            binary(Binary::Sub, Input(0), Result(17)),
        ],
        outputs: vec![18, 7, 11],
    };
    let p = f32s(&[1 << 23]);
    let inputs = [p.clone(), p.clone(), p.clone(), p.clone(), f32s(&[])];
    region(ctx, "AdamW of 8M parameters, in place", &adamw, &inputs, &p, 3);
    let apply = Region {
        instructions: vec![
            binary(Binary::Sub, Input(0), Input(1)),
            binary(Binary::Mul, Result(0), Input(2)),
            binary(Binary::Mul, Result(1), Input(3)),
            binary(Binary::Add, Result(2), Input(4)),
        ],
        outputs: vec![3],
    };
    for (rows, columns) in [(16384, 768), (65536, 128)] {
        let (x, stat, channel) = (f32s(&[rows, columns]), f32s(&[rows, 1]), f32s(&[columns]));
        let inputs = [x.clone(), stat.clone(), stat, channel.clone(), channel];
        region(ctx, &format!("layer norm's elementwise part [{rows},{columns}]"), &apply, &inputs, &x, 0);
    }
    let x = f32s(&[1 << 22]);
    for op in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sigmoid, Unary::Erf] {
        let one = Region { instructions: vec![unary(op, Input(0))], outputs: vec![0] };
        region(ctx, &format!("{op:?} of 4M"), &one, std::slice::from_ref(&x), &x, 0);
    }
}

fn reductions(ctx: Context<'_>) {
    for (outer, reduce, inner) in [(16384, 1024, 1), (64, 256, 512)] {
        let (x, mut y) = (random(outer * reduce * inner), vec![0.0; outer * inner]);
        time(&format!("sum [{outer},{reduce},{inner}]"), 4 * x.len(), || {
            sum(ctx, Term::Itself, [outer, reduce, inner], &x, &mut y)
        });
    }
    for (outer, reduce, inner) in [(16384, 1024, 1), (64, 256, 512), (1, 1 << 20, 4)] {
        let (x, mut y) = (random(outer * reduce * inner), vec![0.0; outer * inner]);
        let (name, mut all) = (format!("[{outer},{reduce},{inner}]"), vec![0.0; x.len()]);
        time(&format!("max {name}"), 4 * x.len(), || {
            extreme(ctx, Extreme::Largest, outer, reduce, inner, &x, &mut y)
        });
        time(&format!("product {name}"), 4 * x.len(), || product(ctx, outer, reduce, inner, &x, &mut y));
        time(&format!("cumulative_sum {name}"), 8 * x.len(), || {
            cumulative_sum(ctx, outer, reduce, inner, false, &x, &mut all)
        });
    }
    let (x, mut values, mut places) = (random(1 << 22), vec![0.0; 4096 * 50], vec![0; 4096 * 50]);
    time("top 50 of [4096,1024]", 4 * x.len(), || top_k(ctx, 4096, 1024, 50, &x, &mut values, &mut places));
    for (rows, inner, block) in [(131_072, 16, 4096), (65536, 128, 256), (8192, 2048, 64), (1 << 20, 10, 32)]
    {
        let (x, mut y) = (random(rows * inner), vec![0.0; inner]);
        let mut memory = space(sum_fold_workspace(rows, inner, block));
        let memory = aligned(&mut memory);
        let name = format!("sum_fold [{rows},{inner}] by {block}");
        time(&name, 4 * x.len(), || sum_fold(ctx, rows, inner, block, false, &x, &mut y, memory));
    }
    let (x, mut y) = (random(1 << 22), vec![0; 1 << 22]);
    time("argmax [419430,10]", 4 * x.len(), || arg_extreme(ctx, Extreme::Largest, 419_430, 10, &x, &mut y));
    time("argmax [4096,1024]", 4 * x.len(), || arg_extreme(ctx, Extreme::Largest, 4096, 1024, &x, &mut y));
}

fn norms(ctx: Context<'_>) {
    for (rows, width) in [(16384, 768), (131_072, 64)] {
        let (x, dy) = (random(rows * width), random(rows * width));
        let (mut a, mut b) = (vec![0.0; rows], vec![0.0; rows]);
        time(&format!("row_stats [{rows},{width}]"), 4 * x.len(), || {
            row_stats(ctx, rows, width, &x, &mut a, &mut b)
        });
        let (mean, rstd) = (random(rows), random(rows));
        let hat = Normalised { x: &x, axis: NormAxis::Row, mean: &mean, rstd: &rstd };
        time(&format!("row_sums [{rows},{width}]"), 8 * x.len(), || {
            row_sums(ctx, rows, width, &dy, hat, &mut a, &mut b)
        });
        let mut memory = space(channel_sums_workspace(rows, width, 256));
        let memory = aligned(&mut memory);
        let name = format!("channel_sums of row statistics [{rows},{width}]");
        let (mut a, mut b) = (vec![0.0; width], vec![0.0; width]);
        time(&name, 8 * x.len(), || {
            channel_sums(ctx, rows, width, 256, false, &dy, hat, &mut a, &mut b, memory)
        });
    }
    for (rows, channels) in [(131_072, 16), (131_072, 64)] {
        let (x, dy) = (random(rows * channels), random(rows * channels));
        let (mut a, mut b) = (vec![0.0; channels], vec![0.0; channels]);
        let mut memory = space(channel_stats_workspace(rows, channels));
        let memory = aligned(&mut memory);
        let name = format!("channel_stats [{rows},{channels}]");
        time(&name, 4 * x.len(), || channel_stats(ctx, rows, channels, &x, &mut a, &mut b, memory));
        let (mean, rstd) = (random(channels), random(channels));
        let hat = Normalised { x: &x, axis: NormAxis::Channel, mean: &mean, rstd: &rstd };
        let mut memory = space(channel_sums_workspace(rows, channels, 4096));
        let memory = aligned(&mut memory);
        let name = format!("channel_sums [{rows},{channels}]");
        time(&name, 8 * x.len(), || {
            channel_sums(ctx, rows, channels, 4096, false, &dy, hat, &mut a, &mut b, memory)
        });
    }
}

fn attentions(ctx: Context<'_>) {
    let plain = AttentionSpec {
        examples: 16,
        queries: 256,
        keys: 256,
        heads: 4,
        key_heads: 4,
        width: 64,
        causal: false,
        mask: None,
    };
    let causal = AttentionSpec { causal: true, ..plain };
    attention_speed(ctx, "16x256x4x64, causal false", &plain);
    attention_speed(ctx, "16x256x4x64, causal true", &causal);
    attention_speed(ctx, "16x256x4x64, masked", &AttentionSpec { mask: Some([16, 1, 1, 256]), ..plain });
    attention_speed(ctx, "16x256x4x64, one key head", &AttentionSpec { key_heads: 1, ..causal });
    attention_speed(ctx, "16x256x4x64, 77 keys", &AttentionSpec { keys: 77, ..plain });
    rotary_speed(ctx);
}

fn attention_speed(ctx: Context<'_>, name: &str, spec: &AttentionSpec) {
    let (n, keys) = (spec.query_elements(), spec.key_elements());
    let ([q, dy], [k, v]) = ([0; 2].map(|_| random(n)), [0; 2].map(|_| random(keys)));
    let mask = vec![1; spec.mask_elements()];
    let (mut y, mut lse) = (vec![0.0; n], vec![0.0; spec.rows()]);
    let mut memory = space(attention_workspace(ctx.isa(), ctx.threads(), spec));
    let memory = aligned(&mut memory);
    time(&format!("attention {name}"), 8 * (n + keys), || {
        attention(ctx, spec, &q, &k, &v, &mask, &mut y, &mut lse, memory);
    });
    let (mut dq, [mut dk, mut dv]) = (vec![0.0; n], [0; 2].map(|_| vec![0.0; keys]));
    let mut memory = space(attention_grad_workspace::<f32>(ctx.isa(), ctx.threads(), spec));
    let memory = aligned(&mut memory);
    time(&format!("attention_grad {name}"), 16 * (n + keys), || {
        attention_grad(ctx, spec, &q, &k, &v, &y, &lse, &dy, &mask, &mut dq, &mut dk, &mut dv, memory);
    });
}

fn rotary_speed(ctx: Context<'_>) {
    let spec = RotarySpec {
        examples: 16,
        positions: 1024,
        heads: 12,
        width: 64,
        base: 10_000.0,
        inverse: false,
        start: 0,
    };
    let x = random(16 * 1024 * 12 * 64);
    let mut y = vec![0.0; x.len()];
    let mut memory = space(rotary_workspace(&spec));
    let memory = aligned(&mut memory);
    time("rotary 16x1024x12x64", 8 * x.len(), || {
        // SAFETY: x and y have the spec's elements.
        unsafe { rotary(ctx, &spec, x.as_ptr(), y.as_mut_ptr(), memory) };
    });
}

fn losses(ctx: Context<'_>) {
    let (rows, classes) = (4096, 1000);
    let (logits, labels, weights) = (random(rows * classes), vec![7; rows], vec![1.0; rows]);
    let (mut loss, mut lse) = (0.0, vec![0.0; rows]);
    let mut memory = space(cross_entropy_workspace(rows));
    let memory = aligned(&mut memory);
    time(&format!("cross_entropy [{rows},{classes}]"), 4 * logits.len(), || {
        cross_entropy(ctx, rows, classes, 64, false, &logits, &labels, &weights, &mut loss, &mut lse, memory)
            .expect("in range");
    });
    let spec = LinearSpec {
        rows: 2048,
        width: 256,
        classes: 8192,
        transposed: false,
        block_rows: 128,
        accumulate: false,
    };
    let (x, kernel) = (random(2048 * 256), random(256 * 8192));
    let (mut dx, mut dkernel) = (vec![0.0; x.len()], vec![0.0; kernel.len()]);
    let mut memory = space(linear_cross_entropy_workspace(ctx.isa(), ctx.threads(), &spec));
    let memory = aligned(&mut memory);
    time("linear_cross_entropy 2048x256x8192 (8.6 GFlop)", 4 * kernel.len(), || {
        linear_cross_entropy(ctx, &spec, &x, &kernel, &labels, &weights, &mut loss, &mut lse, memory)
            .expect("in range");
    });
    let mut memory = space(linear_cross_entropy_grad_workspace::<f32>(ctx.isa(), ctx.threads(), &spec));
    let memory = aligned(&mut memory);
    time("linear_cross_entropy_grad (25.8 GFlop)", 4 * kernel.len(), || {
        linear_cross_entropy_grad(
            ctx,
            &spec,
            &x,
            &kernel,
            &labels,
            &weights,
            &lse,
            1.0,
            &mut dx,
            &mut dkernel,
            memory,
        )
        .expect("in range");
    });
}

fn look_ups(ctx: Context<'_>) {
    let (rows, width, count) = (8192, 256, 16384);
    let stream = Stream::new(2, 0, "indices");
    let indices: Vec<i32> = (0..count as u64).map(|i| stream.below(0, i, rows as u32) as i32).collect();
    let table = vec![1u8; rows * width * 4];
    let mut y = vec![0u8; count * width * 4];
    time("gather 16384 rows of 256", 2 * y.len(), || {
        gather(ctx, rows, width * 4, &table, &indices, &mut y).expect("in range");
    });
    let (dy, mut sums) = (random(count * width), vec![0.0; rows * width]);
    time("scatter_add 16384 rows of 256", 8 * dy.len() + 4 * sums.len(), || {
        scatter_add(ctx, rows, width, &indices, &dy, false, &mut sums).expect("in range");
    });
}

/// Depthwise, grouped and pointwise layers of 32 images. The bytes are those of input and output once: a depthwise
/// layer is near its floor where it has the speed of the copies above.
fn convolutions(ctx: Context<'_>) {
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

fn pools(ctx: Context<'_>) {
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

fn resizes(ctx: Context<'_>) {
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
