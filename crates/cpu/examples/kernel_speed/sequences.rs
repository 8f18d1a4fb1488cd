//! Attention, recurrences, losses and look-ups.

use crate::{aligned, random, space, time};
use plimsoll_cpu::isa::Context;
use plimsoll_cpu::kernels::attention::{
    AttentionSpec, RotarySpec, attention, attention_grad, attention_grad_workspace, attention_workspace,
    rotary, rotary_workspace,
};
use plimsoll_cpu::kernels::index::{gather, scatter_add};
use plimsoll_cpu::kernels::loss::{
    LinearSpec, cross_entropy, cross_entropy_workspace, linear_cross_entropy, linear_cross_entropy_grad,
    linear_cross_entropy_grad_workspace, linear_cross_entropy_workspace,
};
use plimsoll_cpu::kernels::recurrent::{
    LstmGradOperands, LstmOperands, LstmSpec, lstm, lstm_grad, lstm_grad_workspace, lstm_workspace,
};
use plimsoll_tensor::random::Stream;

pub fn attentions(ctx: Context<'_>) {
    let plain = AttentionSpec {
        examples: 16,
        queries: 256,
        keys: 256,
        heads: 4,
        key_heads: 4,
        width: 64,
        causal: false,
        window: None,
        mask: None,
    };
    let causal = AttentionSpec { causal: true, ..plain };
    attention_speed(ctx, "16x256x4x64, causal false", &plain);
    attention_speed(ctx, "16x256x4x64, causal true", &causal);
    attention_speed(ctx, "16x256x4x64, masked", &AttentionSpec { mask: Some([16, 1, 1, 256]), ..plain });
    attention_speed(ctx, "16x256x4x64, one key head", &AttentionSpec { key_heads: 1, ..causal });
    attention_speed(ctx, "16x256x4x64, window of 64", &AttentionSpec { window: Some(64), ..causal });
    attention_speed(ctx, "16x256x4x64, 77 keys", &AttentionSpec { keys: 77, ..plain });
    rotary_speed(ctx);
}

fn attention_speed(ctx: Context<'_>, name: &str, spec: &AttentionSpec) {
    let (n, keys) = (spec.query_elements(), spec.key_elements());
    let ([q, dy], [k, v]) = ([0; 2].map(|_| random(n)), [0; 2].map(|_| random(keys)));
    let mask = vec![1; spec.mask_elements()];
    let (mut y, mut lse) = (vec![0.0; n], vec![0.0; spec.rows()]);
    let mut memory = space(attention_workspace::<f32>(ctx.isa(), ctx.threads(), spec));
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

pub fn recurrences(ctx: Context<'_>) {
    for (examples, positions, units) in
        [(32, 64, 256), (16, 64, 256), (8, 64, 256), (128, 32, 128), (64, 32, 512)]
    {
        let spec = LstmSpec { examples, positions, units, reverse: false };
        recurrence_speed(ctx, &format!("{examples}x{positions}x{units}"), &spec);
    }
}

fn recurrence_speed(ctx: Context<'_>, name: &str, spec: &LstmSpec) {
    let (sequence, state) = (spec.sequence(), spec.state());
    let (x, dy, kernel) = (random(4 * sequence), random(sequence), random(spec.kernel()));
    let kernel: Vec<f32> = kernel.iter().map(|w| w / (spec.units as f32).sqrt()).collect();
    let [h, c] = [0; 2].map(|_| random(state));
    let [mut gates, mut dx] = [0; 2].map(|_| vec![0.0; 4 * sequence]);
    let [mut y, mut cells] = [0; 2].map(|_| vec![0.0; sequence]);
    let [mut dh, mut dc] = [0; 2].map(|_| vec![0.0; state]);
    let flops = 2.0 * (spec.kernel() * spec.examples * spec.positions) as f64;
    let rate = |name: &str, bytes: usize, run: &mut dyn FnMut()| {
        let seconds = time(name, bytes, run);
        println!("{:44} {:9.1} GFLOP/s", "", flops / seconds * 1e-9);
    };
    let mut memory = space(lstm_workspace(ctx.threads(), spec));
    let memory = aligned(&mut memory);
    rate(&format!("lstm {name}"), 40 * sequence, &mut || {
        let operands = LstmOperands {
            x: x.as_ptr(),
            kernel: kernel.as_ptr(),
            h: h.as_ptr(),
            c: c.as_ptr(),
            y: y.as_mut_ptr(),
            cells: cells.as_mut_ptr(),
            gates: gates.as_mut_ptr(),
        };
        // SAFETY: all buffers have the spec's sizes.
        unsafe { lstm(ctx, spec, &operands, memory) };
    });
    let mut memory = space(lstm_grad_workspace(ctx.threads(), spec));
    let memory = aligned(&mut memory);
    rate(&format!("lstm_grad {name}"), 40 * sequence, &mut || {
        let operands = LstmGradOperands {
            kernel: kernel.as_ptr(),
            c: c.as_ptr(),
            cells: cells.as_ptr(),
            gates: gates.as_ptr(),
            dy: dy.as_ptr(),
            dcells: std::ptr::null(),
            dx: dx.as_mut_ptr(),
            dh: dh.as_mut_ptr(),
            dc: dc.as_mut_ptr(),
        };
        // SAFETY: likewise.
        unsafe { lstm_grad(ctx, spec, &operands, memory) };
    });
}

pub fn losses(ctx: Context<'_>) {
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
    let mut memory = space(linear_cross_entropy_workspace::<f32>(ctx.isa(), ctx.threads(), &spec));
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

pub fn look_ups(ctx: Context<'_>) {
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
