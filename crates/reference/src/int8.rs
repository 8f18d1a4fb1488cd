//! Layers of bytes.

use crate::conv::products;
use crate::evaluate::Values;
use crate::pool;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::{ADD_SHIFT, Codes, Factor, Int8, SHARE_BITS, resize_taps};
use plimsoll_tensor::{TensorType, fixed_point, grid_code};

pub(crate) fn evaluate(op: &Int8, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let x = &inputs[0];
    let values: Vec<f64> = match op {
        Int8::Quantize(grid) => {
            x.data.iter().map(|&x| f64::from(grid_code(x as f32, grid.scale, grid.zero))).collect()
        }
        Int8::Dequantize(grid) => {
            x.data.iter().map(|&q| f64::from(grid.scale * (q as f32 - f32::from(grid.zero)))).collect()
        }
        Int8::Conv { geometry, groups, zero, output: to } => {
            let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
            let mut sums = vec![0i32; output.shape.elements()];
            products((*geometry, *groups), x.extents(), inputs[1].extents(), outputs, |i, k, o| {
                sums[o] += difference(x.data[i], *zero) * weight(inputs[1].data[k]);
            });
            finish(&sums, inputs, *to)
        }
        Int8::Dense { zero, output: to } => {
            let ([n, k], o) = (x.extents(), inputs[1].columns());
            let mut sums = vec![0i32; n * o];
            for row in 0..n {
                for i in 0..k {
                    for column in 0..o {
                        let weight = weight(inputs[1].data[i * o + column]);
                        sums[row * o + column] += difference(x.data[row * k + i], *zero) * weight;
                    }
                }
            }
            finish(&sums, inputs, *to)
        }
        Int8::Add { operands, factor, output: to } => {
            let scaled = |side: usize, i: usize| {
                let (zero, factor) = operands[side];
                scale(difference(inputs[side].data[i], zero) << ADD_SHIFT, factor)
            };
            (0..x.data.len()).map(|i| code(scale(scaled(0, i) + scaled(1, i), *factor), *to)).collect()
        }
        Int8::Mul { zeros, factor, output: to } => {
            let second = inputs[1].broadcast(&output.shape);
            let product = |(&a, &b): (&f64, &f64)| difference(a, zeros[0]) * difference(b, zeros[1]);
            x.data.iter().zip(&second).map(|pair| code(scale(product(pair), *factor), *to)).collect()
        }
        Int8::Sigmoid(_) | Int8::Swish { .. } => {
            let table = op.table().expect("both have one");
            x.data.iter().map(|&q| f64::from(table[q as usize])).collect()
        }
        Int8::Mean { zero, factor, output: to } => {
            let [n, h, w, c] = x.extents();
            let mut sums = vec![0i32; n * c];
            for (i, &q) in x.data.iter().enumerate() {
                sums[i / (h * w * c) * c + i % c] += difference(q, *zero);
            }
            sums.into_iter().map(|sum| code(scale(sum, *factor), *to)).collect()
        }
        Int8::MaxPool { windows } => {
            let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
            pool::max(*windows, x, outputs).swap_remove(0)
        }
        Int8::AveragePool { windows } => {
            let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
            let (mut sums, mut counts) =
                (vec![0.0; output.shape.elements()], vec![0.0; output.shape.elements()]);
            pool::shares(*windows, false, x.extents(), outputs, |i, o, count| {
                sums[o] += x.data[i] - 128.0;
                counts[o] = count;
            });
            sums.iter().zip(counts).map(|(sum, count)| (sum / count).round() + 128.0).collect()
        }
        Int8::Resize { mode, output: to } => {
            let images @ [n, h, w, c] = x.extents();
            let one = 1i64 << SHARE_BITS;
            let mut values = Vec::with_capacity(output.shape.elements());
            for place in 0..n * to[0] * to[1] * c {
                let (example, channel) = (place / (to[0] * to[1] * c), place % c);
                let (top, bottom, down) = resize_taps(*mode, [h, to[0]], place / (to[1] * c) % to[0]);
                let (left, right, across) = resize_taps(*mode, [w, to[1]], place / c % to[1]);
                let [down, across] = [down, across].map(i64::from);
                let off = |row, column| x.data[at(images, [example, row, column, channel])] as i64 - 128;
                let sum = off(top, left) * (one - down) * (one - across)
                    + off(top, right) * (one - down) * across
                    + off(bottom, left) * down * (one - across)
                    + off(bottom, right) * down * across;
                let half = one * one / 2;
                let mean = (if sum > 0 { sum + half } else { sum - half }) / (one * one);
                values.push((mean + 128) as f64);
            }
            values
        }
    };
    Ok(vec![values])
}

fn difference(code: f64, zero: u8) -> i32 {
    code as i32 - i32::from(zero)
}

/// A byte as a signed integer.
fn weight(byte: f64) -> i32 {
    i32::from(byte as u8 as i8)
}

fn scale(sum: i32, factor: Factor) -> i32 {
    fixed_point(sum, factor.multiplier, factor.shift)
}

fn code(scaled: i32, to: Codes) -> f64 {
    f64::from(scaled.saturating_add(i32::from(to.zero)).clamp(i32::from(to.low), i32::from(to.high)))
}

/// Adds biases and scales, channel by channel.
fn finish(sums: &[i32], inputs: &[Elements<'_>], to: Codes) -> Vec<f64> {
    let channels = inputs[2].data.len();
    let each = |(i, sum): (usize, &i32)| {
        let [bias, multiplier, shift] = [2, 3, 4].map(|input| inputs[input].data[i % channels] as i32);
        code(fixed_point(sum.wrapping_add(bias), multiplier, shift), to)
    };
    sums.iter().enumerate().map(each).collect()
}
