use super::*;
use crate::kernels::gemm::Activation;
use crate::kernels::testing::{assert_near_sums, bits, isas, uniform, with_workspace};
use crate::threads::Pool;
use plimsoll_tensor::bf16;
use plimsoll_testing::or_skip;

fn shape(
    examples: usize,
    input: [usize; 3],
    kernel: [usize; 2],
    out_c: usize,
    stride: usize,
    pad: usize,
) -> ConvShape {
    let [in_h, in_w, in_c] = input;
    let [kernel_h, kernel_w] = kernel;
    ConvShape {
        examples,
        in_h,
        in_w,
        in_c,
        out_h: (in_h + 2 * pad - kernel_h) / stride + 1,
        out_w: (in_w + 2 * pad - kernel_w) / stride + 1,
        out_c,
        kernel_h,
        kernel_w,
        stride_h: stride,
        stride_w: stride,
        pad_top: pad,
        pad_left: pad,
        dilation_h: 1,
        dilation_w: 1,
        groups: 1,
    }
}

/// The shape with a dilation and groups.
fn spread(s: ConvShape, dilation: [usize; 2], groups: usize) -> ConvShape {
    let [dilation_h, dilation_w] = dilation;
    let positions = |input: usize, pad: usize, kernel: usize, dilation: usize, stride: usize| {
        (input + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1
    };
    ConvShape {
        out_h: positions(s.in_h, s.pad_top, s.kernel_h, dilation_h, s.stride_h),
        out_w: positions(s.in_w, s.pad_left, s.kernel_w, dilation_w, s.stride_w),
        dilation_h,
        dilation_w,
        groups,
        ..s
    }
}

fn shapes() -> Vec<ConvShape> {
    let uneven = ConvShape { stride_w: 3, out_w: 4, pad_top: 0, ..shape(2, [9, 11, 5], [3, 4], 7, 2, 1) };
    let far_over = ConvShape { out_h: 7, out_w: 6, pad_top: 4, ..shape(2, [3, 2, 3], [2, 2], 4, 1, 3) };
    vec![
        shape(3, [8, 8, 16], [3, 3], 16, 1, 1),
        shape(2, [9, 7, 64], [3, 3], 33, 1, 1),
        shape(2, [32, 32, 3], [3, 3], 16, 1, 1),
        shape(3, [16, 16, 16], [3, 3], 32, 2, 1),
        shape(3, [15, 17, 4], [3, 3], 6, 2, 1),
        shape(2, [16, 16, 8], [1, 1], 20, 2, 0),
        shape(3, [28, 28, 1], [5, 5], 6, 1, 0),
        shape(2, [12, 12, 6], [5, 5], 16, 1, 2),
        shape(1, [2, 300, 2], [1, 3], 3, 1, 0),
        shape(1, [1, 1, 1], [1, 1], 1, 1, 0),
        shape(1, [7, 7, 2], [2, 2], 3, 3, 0),
        shape(0, [4, 4, 2], [3, 3], 3, 1, 1),
        shape(2, [4, 4, 0], [3, 3], 3, 1, 1),
        shape(2, [4, 4, 3], [3, 3], 0, 1, 1),
        uneven,
        far_over,
        // Dilations, with and without a common divisor with the stride.
        spread(shape(2, [9, 10, 5], [3, 3], 7, 1, 2), [2, 3], 1),
        spread(shape(2, [13, 12, 4], [3, 2], 18, 2, 3), [2, 3], 1),
        spread(shape(1, [20, 17, 3], [4, 3], 5, 6, 4), [4, 3], 1),
        spread(shape(2, [20, 19, 3], [3, 3], 5, 1, 0), [4, 5], 1),
        spread(shape(1, [30, 3, 2], [3, 1], 3, 1, 12), [12, 100], 1),
        // Groups, of more and of fewer channels than a vector has.
        spread(shape(2, [8, 7, 64], [3, 3], 96, 1, 1), [1, 1], 2),
        spread(shape(2, [9, 8, 32], [3, 3], 32, 2, 1), [1, 1], 2),
        spread(shape(3, [7, 7, 12], [3, 2], 8, 1, 1), [2, 1], 4),
        spread(shape(2, [6, 5, 12], [1, 1], 18, 1, 0), [1, 1], 6),
        spread(shape(0, [6, 5, 12], [1, 1], 18, 1, 0), [1, 1], 6),
        // One channel for each group, with one kernel or several.
        spread(shape(3, [9, 8, 16], [3, 3], 16, 1, 1), [1, 1], 16),
        spread(shape(2, [14, 37, 39], [3, 3], 39, 2, 1), [1, 1], 39),
        spread(shape(2, [12, 12, 23], [5, 5], 23, 1, 2), [1, 1], 23),
        spread(shape(3, [13, 12, 7], [3, 4], 7, 2, 4), [2, 3], 7),
        spread(shape(1, [3, 3, 5], [2, 2], 5, 3, 5), [1, 1], 5),
        spread(shape(0, [3, 3, 5], [2, 2], 5, 1, 1), [1, 1], 5),
        spread(shape(1, [19, 4, 3], [19, 19], 3, 1, 9), [1, 1], 3),
        spread(shape(2, [7, 6, 6], [3, 3], 12, 1, 1), [1, 1], 6),
        spread(shape(2, [7, 6, 6], [3, 3], 12, 2, 1), [2, 2], 6),
    ]
}

/// Calls `f(x, w, y)` with the indices of every product that the convolution sums.
fn for_each_term(shape: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let s = shape;
    for e in 0..s.examples {
        for oh in 0..s.out_h {
            for ow in 0..s.out_w {
                for kh in 0..s.kernel_h {
                    for kw in 0..s.kernel_w {
                        let (h, w) =
                            (oh * s.stride_h + kh * s.dilation_h, ow * s.stride_w + kw * s.dilation_w);
                        if h < s.pad_top
                            || w < s.pad_left
                            || h - s.pad_top >= s.in_h
                            || w - s.pad_left >= s.in_w
                        {
                            continue;
                        }
                        let x = (e * s.in_h + h - s.pad_top) * s.in_w + w - s.pad_left;
                        let y = (e * s.out_h + oh) * s.out_w + ow;
                        let channels = s.in_c / s.groups;
                        for ic in 0..channels {
                            for oc in 0..s.out_c {
                                let weight = ((kh * s.kernel_w + kw) * channels + ic) * s.out_c + oc;
                                let group = oc / (s.out_c / s.groups);
                                f(x * s.in_c + group * channels + ic, weight, y * s.out_c + oc);
                            }
                        }
                    }
                }
            }
        }
    }
}

struct Operands {
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    bias: Vec<f32>,
}

fn operands(s: &ConvShape) -> Operands {
    Operands {
        x: uniform(1, s.examples * s.input().floats()),
        w: uniform(2, s.weights()),
        dy: uniform(3, s.examples * s.output().floats()),
        bias: uniform(4, s.out_c),
    }
}

fn forward<T: Float>(ctx: Context<'_>, s: &ConvShape, x: &[T], w: &[T], epilogue: Epilogue<'_>) -> Vec<f32> {
    let mut y = vec![f32::NAN; s.examples * s.output().floats()];
    with_workspace(conv2d_workspace::<T, f32>(ctx.isa, ctx.pool.threads(), s), |space| {
        conv2d(ctx, s, x, w, &mut y, epilogue, space);
    });
    y
}

fn input_grad<T: Float>(ctx: Context<'_>, s: &ConvShape, dy: &[T], w: &[T]) -> Vec<f32> {
    let mut dx = vec![f32::NAN; s.examples * s.input().floats()];
    with_workspace(conv2d_input_grad_workspace::<T, f32>(ctx.isa, ctx.pool.threads(), s), |space| {
        conv2d_input_grad(ctx, s, dy, w, &mut dx, space);
    });
    dx
}

fn weight_grad(
    ctx: Context<'_>,
    s: &ConvShape,
    o: &Operands,
    dw: &mut [f32],
    accumulate: bool,
    block: usize,
) {
    let bytes = conv2d_weight_grad_workspace::<f32>(ctx.isa, ctx.pool.threads(), s, block);
    with_workspace(bytes, |space| {
        conv2d_weight_grad(ctx, s, &o.x, &o.dy, dw, accumulate, block, space);
    });
}

#[test]
fn forward_agrees_with_naive_loops() {
    let pool = Pool::new(2).expect("threads start");
    for s in shapes() {
        let o = operands(&s);
        let mut sums = vec![0.0; o.dy.len()];
        for_each_term(&s, |x, w, y| sums[y] += f64::from(o.x[x]) * f64::from(o.w[w]));
        let finished = sums.chunks(s.out_c.max(1)).flat_map(|p| p.iter().zip(&o.bias));
        let finished: Vec<f64> = finished.map(|(y, &b)| (y + f64::from(b)).max(0.0)).collect();
        let epilogue = Epilogue { bias: Some(&o.bias), activation: Activation::Relu };
        for isa in isas() {
            let ctx = Context { pool: &pool, isa };
            let terms = s.kernel_h * s.kernel_w * s.in_c;
            assert_near_sums(
                &forward(ctx, &s, &o.x, &o.w, Epilogue::NONE),
                &sums,
                terms,
                &format!("{isa:?} {s:?}"),
            );
            assert_near_sums(
                &forward(ctx, &s, &o.x, &o.w, epilogue),
                &finished,
                terms,
                &format!("{isa:?} {s:?}"),
            );
        }
    }
}

#[test]
fn input_grad_agrees_with_naive_loops() {
    let pool = Pool::new(2).expect("threads start");
    for s in shapes() {
        let o = operands(&s);
        let mut sums = vec![0.0; o.x.len()];
        for_each_term(&s, |x, w, y| sums[x] += f64::from(o.dy[y]) * f64::from(o.w[w]));
        for isa in isas() {
            let ctx = Context { pool: &pool, isa };
            let terms = s.kernel_h * s.kernel_w * s.out_c;
            assert_near_sums(&input_grad(ctx, &s, &o.dy, &o.w), &sums, terms, &format!("{isa:?} {s:?}"));
        }
    }
}

#[test]
fn weight_grad_agrees_with_naive_loops() {
    let pool = Pool::new(2).expect("threads start");
    for s in shapes() {
        let o = operands(&s);
        let mut sums = vec![0.0; o.w.len()];
        for_each_term(&s, |x, w, y| sums[w] += f64::from(o.x[x]) * f64::from(o.dy[y]));
        let added: Vec<f64> = sums.iter().zip(&o.w).map(|(sum, &w)| sum + f64::from(w)).collect();
        for isa in isas() {
            let ctx = Context { pool: &pool, isa };
            let terms = s.examples * s.out_h * s.out_w;
            for block in [1, 2, 100] {
                let mut dw = vec![f32::NAN; o.w.len()];
                weight_grad(ctx, &s, &o, &mut dw, false, block);
                assert_near_sums(&dw, &sums, terms, &format!("{isa:?} {s:?} {block}"));
                dw.copy_from_slice(&o.w);
                weight_grad(ctx, &s, &o, &mut dw, true, block);
                assert_near_sums(&dw, &added, terms, &format!("{isa:?} {s:?} {block}"));
            }
        }
    }
}

#[test]
fn bits_depend_on_neither_threads_nor_other_examples() {
    let pools = [1, 2, 3, 7].map(|threads| Pool::new(threads).expect("threads start"));
    for isa in isas() {
        for s in shapes() {
            let o = operands(&s);
            let all = pools.each_ref().map(|pool| {
                let ctx = Context { pool, isa };
                let y = forward(ctx, &s, &o.x, &o.w, Epilogue::NONE);
                let dx = input_grad(ctx, &s, &o.dy, &o.w);
                let dws = [1, 2, 100].map(|block| {
                    let mut dw = vec![0.0; o.w.len()];
                    weight_grad(ctx, &s, &o, &mut dw, false, block);
                    bits(&dw)
                });
                (bits(&y), bits(&dx), dws)
            });
            assert!(all.iter().all(|each| *each == all[0]), "{isa:?} {s:?}");
            let (y, dx, _) = &all[0];
            let (input, output) = (s.input().floats(), s.output().floats());
            for e in 0..s.examples {
                let (ctx, one) = (Context { pool: &pools[1], isa }, ConvShape { examples: 1, ..s });
                let alone = forward(ctx, &one, &o.x[e * input..][..input], &o.w, Epilogue::NONE);
                assert_eq!(bits(&alone), y[e * output..][..output], "{isa:?} {s:?} example {e}");
                let alone = input_grad(ctx, &one, &o.dy[e * output..][..output], &o.w);
                assert_eq!(bits(&alone), dx[e * input..][..input], "{isa:?} {s:?} example {e}");
            }
        }
    }
}

#[test]
fn weight_grad_of_two_calls_has_the_bits_of_one() {
    let pool = Pool::new(2).expect("threads start");
    for isa in isas() {
        let ctx = Context { pool: &pool, isa };
        let dense = shape(7, [9, 9, 5], [3, 3], 18, 1, 1);
        let depthwise = spread(shape(7, [9, 9, 18], [3, 3], 18, 1, 1), [1, 1], 18);
        let grouped = spread(shape(7, [9, 9, 20], [3, 3], 10, 1, 1), [2, 1], 5);
        for whole in [dense, depthwise, grouped] {
            let o = operands(&whole);
            let mut expected = vec![0.0; o.w.len()];
            weight_grad(ctx, &whole, &o, &mut expected, false, 2);
            let mut dw = vec![f32::NAN; o.w.len()];
            for (examples, accumulate) in [(0..4, false), (4..7, true)] {
                let part = ConvShape { examples: examples.len(), ..whole };
                let floats = |image: Image| examples.start * image.floats()..examples.end * image.floats();
                let (x, dy) = (o.x[floats(whole.input())].to_vec(), o.dy[floats(whole.output())].to_vec());
                let o = Operands { x, dy, w: vec![], bias: vec![] };
                weight_grad(ctx, &part, &o, &mut dw, accumulate, 2);
            }
            assert_eq!(bits(&expected), bits(&dw));
        }
    }
}

/// Convolutions of bf16 in tiles, emulated where the machine lacks them: near exact sums, the same on any number of threads,
/// and rounded once.
#[test]
fn tiles_of_bf16_agree_with_naive_loops() {
    if or_skip(Isa::Avx512.available()).is_none() {
        return;
    }
    let pools = [1, 2, 7].map(|threads| Pool::new(threads).expect("threads start"));
    let wide = [
        shape(2, [9, 7, 8], [3, 3], 40, 1, 1),
        shape(1, [13, 12, 18], [3, 3], 34, 2, 1),
        shape(2, [7, 7, 64], [1, 1], 96, 1, 0),
        shape(5, [10, 12, 32], [3, 3], 48, 1, 1),
        shape(5, [9, 11, 16], [3, 2], 16, 3, 2),
        shape(1, [40, 140, 16], [5, 3], 16, 1, 1),
        spread(shape(3, [12, 14, 16], [3, 3], 32, 2, 3), [3, 2], 1),
        spread(shape(2, [9, 9, 32], [3, 3], 32, 1, 2), [2, 2], 2),
    ];
    for s in shapes().into_iter().chain(wide) {
        let o = operands(&s);
        let [x, w, dy] =
            [&o.x, &o.w, &o.dy].map(|all| all.iter().map(|x| bf16::narrow(*x)).collect::<Vec<_>>());
        let (mut sums, mut back) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let mut weights = vec![0.0; w.len()];
        for_each_term(&s, |at_x, at_w, at_y| {
            weights[at_w] += x[at_x].to_f64() * dy[at_y].to_f64();
            sums[at_y] += x[at_x].to_f64() * w[at_w].to_f64();
            back[at_x] += dy[at_y].to_f64() * w[at_w].to_f64();
        });
        let finished = sums.chunks(s.out_c.max(1)).flat_map(|p| p.iter().zip(&o.bias));
        let finished: Vec<f64> = finished.map(|(y, &b)| (y + f64::from(b)).max(0.0)).collect();
        let epilogue = Epilogue { bias: Some(&o.bias), activation: Activation::Relu };
        let results = pools.each_ref().map(|pool| {
            let ctx = Context { pool, isa: Isa::Amx };
            // In one call, and in two that are cut between blocks.
            let block = 2;
            let grads = [s.examples, s.examples.min(block)].map(|cut| {
                let mut dw = vec![f32::NAN; w.len()];
                for (part, accumulate) in [(0..cut, false), (cut..s.examples, true)] {
                    let s = ConvShape { examples: part.len(), ..s };
                    let (x, dy) =
                        (&x[part.start * s.input().floats()..], &dy[part.start * s.output().floats()..]);
                    let x = &x[..part.len() * s.input().floats()];
                    let dy = &dy[..part.len() * s.output().floats()];
                    let bytes = conv2d_weight_grad_workspace::<bf16>(Isa::Amx, pool.threads(), &s, block);
                    with_workspace(bytes, |space| {
                        conv2d_weight_grad(ctx, &s, x, dy, &mut dw, accumulate, block, space);
                    });
                }
                dw
            });
            assert!(bits(&grads[0]) == bits(&grads[1]), "a cut changes {s:?}");
            let [dw, _] = grads;
            let results = [forward(ctx, &s, &x, &w, epilogue), input_grad(ctx, &s, &dy, &w), dw];
            let mut rounded = vec![bf16::ONE; results[0].len()];
            with_workspace(conv2d_workspace::<bf16, bf16>(Isa::Amx, pool.threads(), &s), |space| {
                conv2d(ctx, &s, &x, &w, &mut rounded, epilogue, space);
            });
            assert!(rounded.iter().zip(&results[0]).all(|(low, y)| *low == bf16::narrow(*y)), "{s:?}");
            results
        });
        let [one, ..] = &results;
        let terms = s.kernel_h * s.kernel_w * s.in_c.max(s.out_c);
        assert_near_sums(&one[0], &finished, terms, &format!("{s:?}"));
        assert_near_sums(&one[1], &back, terms, &format!("gradient, {s:?}"));
        let terms = s.examples * s.out_h * s.out_w;
        assert_near_sums(&one[2], &weights, terms, &format!("weights, {s:?}"));
        for other in &results[1..] {
            assert!((0..3).all(|i| bits(&one[i]) == bits(&other[i])), "threads change {s:?}");
        }
    }
}
