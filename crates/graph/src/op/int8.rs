//! Layers of bytes: codes on a grid, sums in 32 bits, as TFLite has them.

use super::{
    Conv, Epilogue, Family, Geometry, InPlace, Properties, ResizeMode, Windows, arity, per_example, rank,
    require,
};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType, fixed_point, sigmoid_codes};
use serde::{Deserialize, Serialize};

/// A grid of numbers for bytes: code q stands for `scale · (q - zero)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// The distance between two codes.
    pub scale: f32,
    /// The code of zero.
    pub zero: u8,
}

/// How a sum becomes a code: times a fixed-point factor, plus the code of zero, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Codes {
    /// The code of zero.
    pub zero: u8,
    /// The smallest code; the code of zero after a relu.
    pub low: u8,
    /// The largest code.
    pub high: u8,
}

/// A fixed-point factor, `multiplier · 2^(shift - 31)` (`plimsoll_tensor::fixed_point`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor {
    /// The multiplier.
    pub multiplier: i32,
    /// The shift.
    pub shift: i32,
}

/// Bits by which the operands of [`Int8::Add`] are shifted before they are scaled.
pub const ADD_SHIFT: u32 = 20;

/// Layers of bytes. An activation is codes of a [`Grid`], u8; the scheme is TFLite's int8, whose codes are 128 less. Weights are the
/// bytes of signed 8-bit integers, symmetric around zero, with a scale for each output channel; sums and biases are i32. What scales
/// there are is in fixed-point factors, so the layers are exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Int8 {
    /// Floats → their codes: `round(x / scale) + zero`, within a byte (`plimsoll_tensor::grid_code`).
    Quantize(Grid),
    /// Codes → f32.
    Dequantize(Grid),
    /// `(x, weights, bias, multipliers, shifts) → codes`: for each output channel `bias + Σ (x - zero) · weight`, which becomes a code
    /// by the channel's factor. Padding is the code of zero.
    Conv {
        /// How the kernel slides.
        geometry: Geometry,
        /// Groups of channels: one, or as many as there are channels.
        groups: usize,
        /// The input's code of zero.
        zero: u8,
        /// The output's codes.
        output: Codes,
    },
    /// The same of rows: `(x [n, k], weights [k, o], bias, multipliers, shifts) → [n, o]`.
    Dense {
        /// The input's code of zero.
        zero: u8,
        /// The output's codes.
        output: Codes,
    },
    /// The sum of two tensors of codes: both are shifted up by [`ADD_SHIFT`] bits and scaled, their sum is scaled to the output's grid.
    Add {
        /// The code of zero and the factor of each operand.
        operands: [(u8, Factor); 2],
        /// The sum's factor.
        factor: Factor,
        /// The output's codes.
        output: Codes,
    },
    /// The product of two tensors of codes, scaled to the output's grid. The second may have one pixel for all of the first:
    /// `([n, h, w, c], [n, 1, 1, c]) → [n, h, w, c]`.
    Mul {
        /// The code of zero of each operand.
        zeros: [u8; 2],
        /// The product's factor.
        factor: Factor,
        /// The output's codes.
        output: Codes,
    },
    /// Codes of a grid → those of their sigmoid, on a grid from 0 in steps of `plimsoll_tensor::SIGMOID_SCALE`.
    Sigmoid(Grid),
    /// Codes times those of their sigmoid: as [`Int8::Sigmoid`] and [`Int8::Mul`], which need a tensor between them.
    Swish {
        /// The input's grid.
        from: Grid,
        /// The product's factor.
        factor: Factor,
        /// The output's codes.
        output: Codes,
    },
    /// The means of an image's channels, `[n, h, w, c] → [n, 1, 1, c]`: the factor divides by the pixels, too.
    Mean {
        /// The input's code of zero.
        zero: u8,
        /// The sum's factor.
        factor: Factor,
        /// The output's codes.
        output: Codes,
    },
    /// The largest code of each window.
    MaxPool {
        /// The windows.
        windows: Windows,
    },
    /// The mean of the codes of each window, rounded to the nearest, half away from 128: from zero, as TFLite's codes are 128
    /// less. Padding does not count.
    AveragePool {
        /// The windows.
        windows: Windows,
    },
    /// The image at another size; bilinear by shares in 1024ths ([`resize_taps`]), rounded as a mean of [`Int8::AveragePool`].
    Resize {
        /// The interpolation.
        mode: ResizeMode,
        /// Height and width of the result.
        output: [usize; 2],
    },
}

/// The shares of [`resize_taps`] are of two to this power.
pub const SHARE_BITS: u32 = 10;

/// The two elements that element i of an axis lies between when it is resized, and the share of the second, as TFLite has them.
pub fn resize_taps(mode: ResizeMode, [from, to]: [usize; 2], i: usize) -> (usize, usize, i32) {
    let [from, to, i] = [from, to, i].map(|n| n as i64);
    let (one, last) = (1 << SHARE_BITS, (from - 1).max(0));
    let (step, at) = match mode {
        ResizeMode::Nearest => {
            let nearest = (i * from / to.max(1)).min(last) as usize;
            return (nearest, nearest, 0);
        }
        ResizeMode::Bilinear { align_corners: true } if to > 1 => ((one * last + (to - 1) / 2) / (to - 1), 0),
        ResizeMode::Bilinear { align_corners } => {
            let step = (one * from + to / 2) / to.max(1);
            (step, if align_corners { 0 } else { step / 2 - one / 2 })
        }
    };
    let at = i * step + at;
    let first = (at / one).clamp(0, last);
    let second = ((at + one - 1) / one).clamp(0, last);
    // Before the first and behind the last both are one element.
    (first as usize, second as usize, (at - one * first).clamp(0, one) as i32)
}

impl Int8 {
    /// The code that each code becomes, of ops that look it up.
    pub fn table(&self) -> Option<[u8; 256]> {
        match *self {
            Self::Sigmoid(grid) => Some(sigmoid_codes(grid.scale, grid.zero)),
            Self::Swish { from, factor, output } => {
                let gates = sigmoid_codes(from.scale, from.zero);
                let code = |code: usize| {
                    let product = (code as i32 - i32::from(from.zero)) * i32::from(gates[code]);
                    let scaled = fixed_point(product, factor.multiplier, factor.shift);
                    let code = scaled.saturating_add(i32::from(output.zero));
                    code.clamp(i32::from(output.low), i32::from(output.high).max(i32::from(output.low))) as u8
                };
                Some(std::array::from_fn(code))
            }
            _ => None,
        }
    }
}

/// The largest window of means, in pixels: sums of its codes are below 2^31.
const LARGEST_WINDOW: usize = 1 << 23;

fn is(what: &str, ty: &TensorType, dtype: DType, shape: &[usize]) -> Result<(), TypeError> {
    require(ty.dtype == dtype && ty.shape[..] == *shape, || {
        format!("{what} must be {}, it is {ty}", TensorType::new(dtype, shape.to_vec()))
    })
}

fn codes(what: &str, ty: &TensorType) -> Result<(), TypeError> {
    require(ty.dtype == DType::U8, || format!("{what} must be u8, not {}", ty.dtype))
}

/// Bias, multipliers and shifts: one for each output channel.
fn channels(parameters: &[&TensorType], channels: usize) -> Result<(), TypeError> {
    let names = ["the bias", "the multipliers", "the shifts"];
    names.iter().zip(parameters).try_for_each(|(name, ty)| is(name, ty, DType::I32, &[channels]))
}

impl Family for Int8 {
    fn name(&self) -> &'static str {
        match self {
            Self::Quantize(_) => "int8_quantize",
            Self::Dequantize(_) => "int8_dequantize",
            Self::Conv { .. } => "int8_conv2d",
            Self::Dense { .. } => "int8_dense",
            Self::Add { .. } => "int8_add",
            Self::Mul { .. } => "int8_mul",
            Self::Sigmoid(_) => "int8_sigmoid",
            Self::Swish { .. } => "int8_swish",
            Self::Mean { .. } => "int8_mean",
            Self::MaxPool { .. } => "int8_max_pool",
            Self::AveragePool { .. } => "int8_average_pool",
            Self::Resize { .. } => "int8_resize",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match self {
            Self::Quantize(_) => {
                let [x] = arity(inputs)?;
                require(x.dtype.is_float(), || format!("needs a float, not {}", x.dtype))?;
                Ok(vec![TensorType::new(DType::U8, x.shape.clone())])
            }
            Self::Dequantize(_) => {
                let [x] = arity(inputs)?;
                codes("the input", x)?;
                Ok(vec![TensorType::new(DType::F32, x.shape.clone())])
            }
            Self::Conv { geometry, groups, .. } => {
                let [x, weights, rest @ ..]: [&TensorType; 5] = arity(inputs)?;
                codes("the input", x)?;
                codes("the weights", weights)?;
                let float = |ty: &TensorType| TensorType::new(DType::F32, ty.shape.clone());
                let plain = Conv::Forward {
                    geometry: *geometry,
                    groups: *groups,
                    epilogue: Epilogue::default(),
                    output: None,
                };
                let output = plain.infer(&[&float(x), &float(weights)])?;
                let outputs = output[0].shape[3];
                require(*groups == 1 || (*groups == x.shape[3] && outputs == *groups), || {
                    format!("has 1 group or one for each of {} channels, not {groups}", x.shape[3])
                })?;
                channels(&rest, outputs)?;
                Ok(vec![TensorType::new(DType::U8, output[0].shape.clone())])
            }
            Self::Dense { .. } => {
                let [x, weights, rest @ ..]: [&TensorType; 5] = arity(inputs)?;
                codes("the input", x)?;
                let [n, k] = rank("the input", x)?;
                let [_, o] = rank("the weights", weights)?;
                is("the weights", weights, DType::U8, &[k, o])?;
                channels(&rest, o)?;
                Ok(vec![TensorType::new(DType::U8, [n, o])])
            }
            Self::Add { .. } => {
                let [a, b] = arity(inputs)?;
                codes("the input", a)?;
                require(a == b, || format!("adds tensors of one type, not {a} and {b}"))?;
                Ok(vec![a.clone()])
            }
            Self::Mul { .. } => {
                let [a, b] = arity(inputs)?;
                codes("the input", a)?;
                codes("the second input", b)?;
                let gates = matches!(a.shape[..], [n, _, _, c] if b.shape[..] == [n, 1, 1, c]);
                require(a == b || gates, || {
                    format!("multiplies tensors of one type, or an image by one pixel, not {a} by {b}")
                })?;
                Ok(vec![a.clone()])
            }
            Self::Sigmoid(_) | Self::Swish { .. } => {
                let [x] = arity(inputs)?;
                codes("the input", x)?;
                Ok(vec![x.clone()])
            }
            Self::Mean { .. } => {
                let [x] = arity(inputs)?;
                codes("the input", x)?;
                let [n, _, _, c] = rank("the input", x)?;
                Ok(vec![TensorType::new(DType::U8, [n, 1, 1, c])])
            }
            Self::MaxPool { windows } | Self::AveragePool { windows } => {
                let [x] = arity(inputs)?;
                codes("the input", x)?;
                let [n, h, w, c] = rank("the input", x)?;
                let [oh, ow] = windows.output([h, w])?;
                let [rows, columns] = windows.largest([h, w]);
                let fits = rows.saturating_mul(columns) <= LARGEST_WINDOW;
                require(fits, || format!("a window of {rows} × {columns} has over {LARGEST_WINDOW} pixels"))?;
                Ok(vec![TensorType::new(DType::U8, [n, oh, ow, c])])
            }
            Self::Resize { output, .. } => {
                let [x] = arity(inputs)?;
                codes("the input", x)?;
                let [n, h, w, c] = rank("the input", x)?;
                let extents = [h, w, output[0], output[1]];
                require(extents.iter().all(|extent| (1..1 << 30).contains(extent)), || {
                    format!("an image of {h} × {w} cannot become one of {} × {}", output[0], output[1])
                })?;
                Ok(vec![TensorType::new(DType::U8, [n, output[0], output[1], c])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let elements = outputs[0].shape.elements() as u64;
        match self {
            Self::Quantize(_) | Self::Dequantize(_) => 2 * elements,
            Self::Conv { .. } | Self::Dense { .. } => {
                let weights = &inputs[1].shape;
                let each = weights.elements() / weights.last().copied().unwrap_or(1).max(1);
                2 * elements * each as u64
            }
            Self::Add { .. } => 6 * elements,
            Self::Mul { .. } => 3 * elements,
            Self::Sigmoid(_) | Self::Swish { .. } => elements,
            Self::Mean { .. } => inputs[0].shape.elements() as u64,
            Self::MaxPool { windows } | Self::AveragePool { windows } => {
                let [h, w] = windows.largest([inputs[0].shape[1], inputs[0].shape[2]]);
                elements * (h * w) as u64
            }
            Self::Resize { mode: ResizeMode::Nearest, .. } => elements,
            Self::Resize { mode: ResizeMode::Bilinear { .. }, .. } => 8 * elements,
        }
    }

    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        per_example(1)
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Sigmoid(_) | Self::Swish { .. } => {
                Properties { in_place: InPlace::ReadFirst, ..Properties::GENERAL }
            }
            Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::Conv { .. }
            | Self::Dense { .. }
            | Self::Add { .. }
            | Self::Mul { .. }
            | Self::Mean { .. }
            | Self::MaxPool { .. }
            | Self::AveragePool { .. }
            | Self::Resize { .. } => Properties::GENERAL,
        }
    }
}
