use super::depthwise::{depthwise_with, depthwise_workspace};
use super::kernel::{Form, Kernels};
use super::product::Product;
use super::*;
use crate::isa::{Context, Isa};
use crate::kernels::testing::{below, isas, with_workspace};
use crate::threads::Pool;
use plimsoll_tensor::{fixed_point, grid_code};
use plimsoll_testing::or_skip;

/// The bytes of a layer and what makes codes of its sums.
struct Layer {
    x: Vec<u8>,
    weights: Vec<u8>,
    zero: u8,
    bias: Vec<i32>,
    multipliers: Vec<i32>,
    shifts: Vec<i32>,
    bounds: [u8; 2],
}

/// Which numbers a layer has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbers {
    /// Factors as quantized models have them.
    Usual,
    /// Factors of any size.
    AnyFactor,
    /// The largest codes and weights, whose products in pairs do not fit 16 bits.
    Largest,
}

impl Layer {
    fn new(seed: u64, input: usize, weights: usize, channels: usize, numbers: Numbers) -> Self {
        let bytes =
            |seed: u64, len: usize| below(seed, len, 256).into_iter().map(|b| b as u8).collect::<Vec<_>>();
        let (lowest, span) = if numbers == Numbers::AnyFactor { (-31, 62) } else { (-14, 9) };
        let mut layer = Self {
            x: bytes(seed, input),
            weights: bytes(seed + 1, weights),
            zero: bytes(seed + 2, 1)[0],
            bias: below(seed + 3, channels, 20_000).into_iter().map(|b| b - 10_000).collect(),
            multipliers: below(seed + 4, channels, 1 << 30).into_iter().map(|m| m + (1 << 30)).collect(),
            shifts: below(seed + 5, channels, span).into_iter().map(|s| s + lowest).collect(),
            bounds: [[0, 255], [17, 255], [3, 200]][seed as usize % 3],
        };
        if numbers == Numbers::Largest {
            layer.x.fill(255);
            layer.zero = 0;
            layer.weights.iter_mut().enumerate().for_each(|(i, w)| *w = [127, 127, 0x81][i / 7 % 3]);
        }
        layer
    }

    fn finish(&self) -> Finish<'_> {
        Finish {
            bias: &self.bias,
            multipliers: &self.multipliers,
            shifts: &self.shifts,
            zero: 17,
            bounds: self.bounds,
        }
    }

    fn code(&self, sum: i32, channel: usize) -> u8 {
        let sum = sum.wrapping_add(self.bias[channel]);
        let scaled = fixed_point(sum, self.multipliers[channel], self.shifts[channel]);
        let [low, high] = self.bounds.map(i32::from);
        scaled.saturating_add(17).clamp(low, high) as u8
    }

    /// The codes of a convolution by plain loops; of every channel by itself, or of all.
    fn conv(&self, s: &ConvShape, depthwise: bool) -> Vec<u8> {
        let mut y = Vec::new();
        let places = (0..s.examples * s.output[0] * s.output[1])
            .map(|i| (i / (s.output[0] * s.output[1]), [i / s.output[1] % s.output[0], i % s.output[1]]));
        for (example, output) in places {
            for o in 0..s.outputs {
                let mut sum = 0;
                for tap in 0..s.window[0] * s.window[1] {
                    let tap_at = [tap / s.window[1], tap % s.window[1]];
                    let at = [0, 1].map(|d| {
                        (output[d] * s.stride[d] + tap_at[d] * s.dilation[d]).wrapping_sub(s.before[d])
                    });
                    if at[0] >= s.image[0] || at[1] >= s.image[1] {
                        continue;
                    }
                    let pixel = ((example * s.image[0] + at[0]) * s.image[1] + at[1]) * s.inputs;
                    for c in if depthwise { o..o + 1 } else { 0..s.inputs } {
                        let weight =
                            if depthwise { tap * s.inputs + c } else { (tap * s.inputs + c) * s.outputs + o };
                        let code = i32::from(self.x[pixel + c]) - i32::from(self.zero);
                        sum += code * i32::from(self.weights[weight] as i8);
                    }
                }
                y.push(self.code(sum, o));
            }
        }
        y
    }
}

fn shape(
    examples: usize,
    image: [usize; 2],
    [inputs, outputs]: [usize; 2],
    window: [usize; 2],
    [stride, dilation]: [usize; 2],
    padding: [[usize; 2]; 2],
) -> ConvShape {
    let output = [0, 1]
        .map(|d| (image[d] + padding[d][0] + padding[d][1] - (window[d] - 1) * dilation - 1) / stride + 1);
    ConvShape {
        examples,
        image,
        inputs,
        window,
        stride: [stride; 2],
        dilation: [dilation; 2],
        before: [padding[0][0], padding[1][0]],
        output,
        outputs,
    }
}

/// Every kind of line and run: inside the image and over its edges, whole words and not, one panel, two and parts of them.
fn shapes() -> Vec<ConvShape> {
    let none = [[0, 0], [0, 0]];
    vec![
        shape(2, [9, 7], [3, 16], [3, 3], [1, 1], [[1, 1], [1, 1]]),
        shape(1, [40, 33], [16, 17], [3, 3], [1, 1], [[1, 1], [1, 1]]),
        shape(3, [14, 13], [5, 33], [3, 3], [2, 1], [[0, 1], [1, 0]]),
        shape(2, [12, 12], [1, 6], [5, 5], [1, 1], none),
        shape(1, [12, 11], [6, 48], [5, 5], [1, 1], [[2, 2], [2, 2]]),
        shape(2, [11, 10], [4, 10], [3, 2], [1, 2], [[2, 2], [1, 1]]),
        shape(5, [5, 5], [64, 40], [1, 1], [1, 1], none),
        shape(2, [7, 9], [3, 5], [1, 1], [1, 1], none),
        shape(2, [8, 9], [8, 5], [1, 1], [2, 1], none),
        shape(1, [1, 1], [9, 65], [1, 1], [1, 1], none),
        shape(2, [3, 3], [7, 32], [3, 3], [1, 1], [[3, 3], [3, 3]]),
        shape(1, [6, 70], [2, 1], [2, 1], [3, 1], none),
    ]
}

/// Runs a layer on several numbers of threads and demands the same codes of each.
fn check(
    what: &str,
    isa: Isa,
    wanted: &[u8],
    bytes: impl Fn(usize) -> usize,
    run: impl Fn(Context<'_>, &mut [u8], *mut u8),
) {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads).expect("threads start");
        let ctx = Context::new(&pool, isa).expect("the machine has it");
        let mut y = vec![99u8; wanted.len() + 64];
        with_workspace(bytes(threads), |space| run(ctx, &mut y[..wanted.len()], space.as_mut_ptr().cast()));
        if let Some(i) = (0..wanted.len()).find(|&i| y[i] != wanted[i]) {
            panic!("{what}, {threads} threads: code {i} is {}, not {}", y[i], wanted[i]);
        }
        assert!(y[wanted.len()..].iter().all(|&code| code == 99), "{what} wrote behind its output");
    }
}

fn each_layer(mut check: impl FnMut(&str, Isa, &'static Kernels, &ConvShape, Numbers)) {
    for (name, isa, kernels) in Kernels::all().into_iter().filter_map(or_skip) {
        for shape in &shapes() {
            for numbers in [Numbers::Usual, Numbers::AnyFactor, Numbers::Largest] {
                check(&format!("{name}, {numbers:?}, {shape:?}"), isa, kernels, shape, numbers);
            }
        }
    }
}

/// The kernels that take words where weights are packed as such: tiles are of whole ones.
fn words_of(kernels: &'static Kernels) -> &'static Kernels {
    match kernels.rows() > 16 {
        true => Kernels::of(Isa::Avx512, Form::Words),
        false => kernels,
    }
}

#[test]
fn some_shapes_are_of_words_and_some_of_tiles() {
    let forms: Vec<Form> = shapes().iter().map(|shape| Product::conv(Isa::Amx, shape, 1).form).collect();
    assert!(forms.contains(&Form::Words) && forms.contains(&Form::Tiles), "{forms:?}");
}

#[test]
fn convolutions_have_the_codes_of_plain_loops() {
    each_layer(|what, isa, kernels, shape, numbers| {
        let weights = shape.window[0] * shape.window[1] * shape.inputs * shape.outputs;
        let layer = Layer::new(weights as u64, shape.input_len(), weights, shape.outputs, numbers);
        let bytes = |threads| Product::conv(isa, shape, threads).workspace(threads);
        let form = Product::conv(isa, shape, 1).form;
        let kernels = if form == Form::Words { words_of(kernels) } else { kernels };
        check(what, isa, &layer.conv(shape, false), bytes, |ctx, y, space| {
            let product = Product::conv(isa, shape, ctx.threads());
            // SAFETY: the workspace is aligned and as long as it has to be; the machine has the kernels.
            unsafe {
                product.run(ctx, kernels, &layer.x, (&layer.weights, layer.zero), layer.finish(), y, space)
            };
        });
    });
}

#[test]
fn depthwise_convolutions_have_the_codes_of_plain_loops() {
    each_layer(|what, isa, kernels, shape, numbers| {
        let kernels = words_of(kernels);
        for channels in [shape.inputs, shape.outputs + 60] {
            let shape = ConvShape { inputs: channels, outputs: channels, ..*shape };
            let weights = shape.window[0] * shape.window[1] * channels;
            let layer = Layer::new(weights as u64, shape.input_len(), weights, channels, numbers);
            let bytes = |threads| depthwise_workspace(isa, &shape, threads);
            check(what, isa, &layer.conv(&shape, true), bytes, |ctx, y, space| {
                let weights = (&layer.weights[..], layer.zero);
                // SAFETY: the workspace is aligned and as long as it has to be; the machine has the kernels.
                unsafe { depthwise_with(ctx, kernels, &shape, &layer.x, weights, layer.finish(), y, space) };
            });
        }
    });
}

#[test]
fn dense_layers_have_the_codes_of_plain_loops() {
    for (name, isa, kernels) in Kernels::all().into_iter().filter_map(or_skip) {
        for [rows, k, n] in
            [[1, 400, 120], [64, 84, 10], [97, 33, 16], [200, 3, 31], [5, 0, 3], [3, 300, 700]]
        {
            let layer = Layer::new((rows + n) as u64, rows * k, k * n, n, Numbers::Usual);
            let sum = |i: usize| {
                let product = |at: usize| {
                    let code = i32::from(layer.x[i / n * k + at]) - i32::from(layer.zero);
                    code * i32::from(layer.weights[at * n + i % n] as i8)
                };
                (0..k).map(product).sum::<i32>()
            };
            let wanted: Vec<u8> = (0..rows * n).map(|i| layer.code(sum(i), i % n)).collect();
            let form = Product::dense(isa, [rows, k, n], 1).form;
            let kernels = if form == Form::Words { words_of(kernels) } else { kernels };
            let bytes = |threads| dense_workspace(isa, [rows, k, n], threads);
            check(&format!("{name}, {rows} × {k} × {n}"), isa, &wanted, bytes, |ctx, y, space| {
                let product = Product::dense(isa, [rows, k, n], ctx.threads());
                let weights = (&layer.weights[..], layer.zero);
                // SAFETY: the workspace is aligned and as long as it has to be; the machine has the kernels.
                unsafe { product.run(ctx, kernels, &layer.x, weights, layer.finish(), y, space) };
            });
        }
    }
}

#[test]
fn sums_of_all_pairs_of_codes_are_those_of_fixed_point_factors() {
    let codes = |shift: u32| (0..1 << 16).map(|i: u32| (i >> shift) as u8).collect::<Vec<u8>>();
    let (a, b) = (codes(0), codes(8));
    // Those of layers: one operand's factor is a half, the other's at most that, the sum's small; and others.
    let factors = [
        [(3, 1 << 30, 0), (200, 1_234_567_891, -2), (0, 1_999_999_999, -17)],
        [(128, 2_000_000_000, -9), (0, 1 << 30, 0), (0, 1 << 30, -18)],
        [(0, 1_500_000_000, 1), (255, 1 << 30, 0), (0, 1_234_567_890, -16)],
        [(7, 1 << 30, -31), (9, 1_100_000_000, -3), (0, 1_234_567_890, 0)],
    ];
    for isa in isas() {
        for [first, second, (_, multiplier, shift)] in factors {
            for (zero, bounds) in [(0, [0, 255]), (131, [131, 250])] {
                let scaled = |(zero, multiplier, shift): Operand, code: u8| {
                    fixed_point((i32::from(code) - zero) << 20, multiplier, shift)
                };
                let sum = |(a, b): (&u8, &u8)| {
                    let sum = fixed_point(scaled(first, *a) + scaled(second, *b), multiplier, shift);
                    sum.saturating_add(i32::from(zero)).clamp(i32::from(bounds[0]), i32::from(bounds[1]))
                        as u8
                };
                let wanted: Vec<u8> = a.iter().zip(&b).map(sum).collect();
                check(
                    &format!("{isa:?}, {first:?} + {second:?}"),
                    isa,
                    &wanted,
                    |_| 0,
                    |ctx, y, _| {
                        add(ctx, [first, second], (multiplier, shift), (zero, bounds, 20), [&a, &b], y);
                    },
                );
            }
        }
    }
}

/// As long as the other, and a row for each example; by the high halves of products and otherwise.
#[test]
fn products_of_codes_are_those_of_plain_loops() {
    let bytes =
        |seed: u64, len: usize| below(seed, len, 256).into_iter().map(|b| b as u8).collect::<Vec<_>>();
    for (examples, pixels, channels) in [(3, 70, 17), (2, 5, 20_000), (1, 30_000, 3)] {
        let each = pixels * channels;
        let (a, same, gates) =
            (bytes(1, examples * each), bytes(2, examples * each), bytes(3, examples * channels));
        for isa in isas() {
            for (multiplier, shift) in
                [(1_500_000_000, -8), (1 << 30, -21), (1_234_567_890, 0), (2_000_000_000, -31)]
            {
                for (zeros, zero, bounds) in [([0, 255], 0, [0, 255]), ([131, 7], 131, [131, 250])] {
                    let code = |a: u8, b: u8| {
                        let product =
                            (i32::from(a) - i32::from(zeros[0])) * (i32::from(b) - i32::from(zeros[1]));
                        let scaled = fixed_point(product, multiplier, shift).saturating_add(i32::from(zero));
                        scaled.clamp(i32::from(bounds[0]), i32::from(bounds[1])) as u8
                    };
                    let gate = |i: usize| gates[i / each * channels + i % channels];
                    let by_same: Vec<u8> = (0..a.len()).map(|i| code(a[i], same[i])).collect();
                    let by_gate: Vec<u8> = (0..a.len()).map(|i| code(a[i], gate(i))).collect();
                    let (factor, output) = ((multiplier, shift), (zero, bounds));
                    let what = format!("{isa:?}, {pixels} · {channels}, {factor:?}");
                    check(
                        &what,
                        isa,
                        &by_same,
                        |_| 0,
                        |ctx, y, _| {
                            mul(ctx, zeros, factor, output, None, [&a, &same], y);
                        },
                    );
                    check(
                        &what,
                        isa,
                        &by_gate,
                        |_| 0,
                        |ctx, y, _| {
                            mul(ctx, zeros, factor, output, Some(channels), [&a, &gates], y);
                        },
                    );
                }
            }
        }
    }
}

#[test]
fn resized_images_are_those_of_plain_loops() {
    let shape = PoolShape { examples: 3, image: [5, 4], output: [7, 9], channels: 70 };
    let PoolShape { examples, image: [h, w], output: [oh, ow], channels } = shape;
    let x: Vec<u8> = below(6, examples * h * w * channels, 256).into_iter().map(|b| b as u8).collect();
    // Some on an element, others between two, and both at the border.
    let taps = |axis: usize, i: usize| {
        let (last, share) = ([h, w][axis] - 1, [0, 300, 1023][i % 3]);
        ((i / 2).min(last), (i / 2 + 1).min(last), share)
    };
    let mut wanted = Vec::new();
    for i in 0..examples * oh * ow * channels {
        let (top, bottom, down) = taps(0, i / channels / ow % oh);
        let (left, right, across) = taps(1, i / channels % ow);
        let off = |row: usize, column: usize| {
            let pixel = (i / channels / ow / oh * h + row) * w + column;
            f64::from(x[pixel * channels + i % channels]) - 128.0
        };
        let [down, across] = [down, across].map(|share| f64::from(share) / 1024.0);
        let upper = off(top, left) * (1.0 - across) + off(top, right) * across;
        let lower = off(bottom, left) * (1.0 - across) + off(bottom, right) * across;
        wanted.push(((upper * (1.0 - down) + lower * down).round() + 128.0) as u8);
    }
    for isa in isas() {
        check(&format!("{isa:?}"), isa, &wanted, |_| 0, |ctx, y, _| resize(ctx, &shape, 10, &taps, &x, y));
    }
}

#[test]
fn every_code_is_looked_up() {
    let table: [u8; 256] = std::array::from_fn(|i| (i * 37 % 256) as u8);
    for len in [0, 1, 63, 64, 65, 1000, 20_000] {
        let x: Vec<u8> = below(4, len, 256).into_iter().map(|b| b as u8).collect();
        let wanted: Vec<u8> = x.iter().map(|&x| table[usize::from(x)]).collect();
        for isa in isas() {
            let what = format!("{isa:?}, {len}");
            check(&what, isa, &wanted, |_| 0, |ctx, y, _| look_up(ctx, &table, Some(&x), y));
            check(
                &what,
                isa,
                &wanted,
                |_| 0,
                |ctx, y, _| {
                    y.copy_from_slice(&x);
                    look_up(ctx, &table, None, y);
                },
            );
        }
    }
}

#[test]
fn numbers_become_the_codes_of_their_grid_and_back() {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-30, 3e9, -3e9];
    let ties = (-600..600).map(|i| i as f32 * 0.25);
    let x: Vec<f32> = special.into_iter().chain(ties).collect();
    for isa in isas() {
        for (scale, zero) in [(0.5, 0), (0.25, 128), (0.1, 255), (3.7, 7)] {
            let codes: Vec<u8> = x.iter().map(|&x| grid_code(x, scale, zero)).collect();
            check(
                &format!("{isa:?}, {scale}"),
                isa,
                &codes,
                |_| 0,
                |ctx, y, _| quantize(ctx, scale, zero, &x, y),
            );
            let pool = Pool::new(2).unwrap();
            let mut numbers = vec![0.0; codes.len()];
            dequantize(Context::new(&pool, isa).unwrap(), scale, zero, &codes, &mut numbers);
            for (code, number) in codes.iter().zip(numbers) {
                assert_eq!(number, scale * (f32::from(*code) - f32::from(zero)));
            }
        }
    }
}

#[test]
fn means_and_maxima_are_those_of_plain_loops() {
    let even = |taps, dilation, stride, before| Spans::Even { taps, dilation, stride, before };
    let shape =
        |image: [usize; 2], output: [usize; 2], channels| PoolShape { examples: 3, image, output, channels };
    let cases = [
        (shape([8, 10], [4, 5], 6), [even(2, 1, 2, 0); 2]),
        (shape([9, 9], [5, 5], 20), [even(3, 1, 2, 1); 2]),
        (shape([7, 40], [7, 40], 3), [even(3, 1, 1, 1); 2]),
        (shape([9, 8], [5, 4], 1), [even(3, 2, 1, 0); 2]),
        (shape([5, 60], [2, 20], 5), [even(2, 1, 3, 0), even(1, 1, 3, 0)]),
        (shape([7, 11], [3, 4], 17), [Spans::Parts; 2]),
    ];
    for (shape, spans) in cases {
        let PoolShape { examples, image: [h, w], output: [oh, ow], channels } = shape;
        let x: Vec<u8> = below(5, examples * h * w * channels, 256).into_iter().map(|b| b as u8).collect();
        let taps = |span: Spans, o: usize, outputs: usize, image: usize| -> Vec<usize> {
            match span {
                Spans::Even { taps, dilation, stride, before } => (0..taps)
                    .map(|t| (o * stride + t * dilation).wrapping_sub(before))
                    .filter(|&at| at < image)
                    .collect(),
                Spans::Parts => (o * image / outputs..((o + 1) * image).div_ceil(outputs)).collect(),
            }
        };
        let mut wanted = Vec::new();
        for i in 0..examples * oh * ow * channels {
            let (c, column, row) = (i % channels, i / channels % ow, i / channels / ow % oh);
            let example = i / channels / ow / oh;
            let rows = taps(spans[0], row, oh, h).into_iter();
            let places = rows.flat_map(|i| taps(spans[1], column, ow, w).into_iter().map(move |j| (i, j)));
            let largest = places.map(|(i, j)| x[((example * h + i) * w + j) * channels + c]).max();
            wanted.push(largest.unwrap_or(0));
        }
        let mut averages = Vec::new();
        for i in 0..examples * oh * ow * channels {
            let (c, column, row) = (i % channels, i / channels % ow, i / channels / ow % oh);
            let example = i / channels / ow / oh;
            let rows = taps(spans[0], row, oh, h).into_iter();
            let places = rows.flat_map(|i| taps(spans[1], column, ow, w).into_iter().map(move |j| (i, j)));
            let codes = places.map(|(i, j)| f64::from(x[((example * h + i) * w + j) * channels + c]) - 128.0);
            let codes: Vec<f64> = codes.collect();
            averages.push(((codes.iter().sum::<f64>() / codes.len() as f64).round() + 128.0) as u8);
        }
        for isa in isas() {
            check(
                &format!("{isa:?}, averages of {shape:?}"),
                isa,
                &averages,
                |_| 0,
                |ctx, y, _| {
                    average_pool(ctx, &shape, spans, &x, y);
                },
            );
            let bytes = |threads| max_pool_workspace(&shape, spans, threads);
            check(&format!("{isa:?}, {shape:?}"), isa, &wanted, bytes, |ctx, y, space| {
                // SAFETY: the workspace is as long as it has to be.
                unsafe { max_pool(ctx, &shape, spans, &x, y, space) };
            });
            let mean_of = |i: usize| {
                let of_channel = (0..h * w).map(|p| x[(i / channels * h * w + p) * channels + i % channels]);
                let sum: i32 = of_channel.map(|code| i32::from(code) - 100).sum();
                fixed_point(sum, 1_500_000_000, -5).saturating_add(90).clamp(3, 250) as u8
            };
            let means: Vec<u8> = (0..examples * channels).map(mean_of).collect();
            check(
                &format!("{isa:?}, mean of {shape:?}"),
                isa,
                &means,
                |_| 0,
                |ctx, y, _| {
                    mean(ctx, [examples, h * w, channels], (100, 1_500_000_000, -5), (90, [3, 250]), &x, y);
                },
            );
        }
    }
}
