//! Kernels for layers of bytes.

use super::call::{Call, Found, Operands, bytes, found, read, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::int8::{self, ConvShape, Finish};
use plimsoll_graph::op::{ADD_SHIFT, Codes, Factor, Grid, Int8, Windows};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};

/// Nanoseconds of a multiplication and an addition of bytes on one thread, and of an element that is scaled.
const PRODUCT: f64 = 0.012;
const SCALED: f64 = 1.0;

pub(super) fn find(op: &Int8, query: &KernelQuery<'_>) -> Found {
    let (x, y) = (query.inputs[0], query.outputs[0]);
    match op {
        Int8::Quantize(grid) if x.dtype == DType::F32 => {
            found(Convert { grid: *grid, to_codes: true, elements: x.shape.elements() })
        }
        Int8::Quantize(_) => None,
        Int8::Dequantize(grid) => {
            found(Convert { grid: *grid, to_codes: false, elements: x.shape.elements() })
        }
        Int8::Conv { geometry, groups, zero, output } => {
            let shape = ConvShape {
                examples: x.shape[0],
                image: [x.shape[1], x.shape[2]],
                inputs: x.shape[3],
                window: geometry.window,
                stride: geometry.stride,
                dilation: geometry.dilation,
                before: [geometry.padding[0][0], geometry.padding[1][0]],
                output: [y.shape[1], y.shape[2]],
                outputs: y.shape[3],
            };
            let layer = Layer { zero: *zero, output: *output };
            match *groups {
                1 => found(Conv { shape, layer }),
                _ => found(Depthwise { shape, layer }),
            }
        }
        Int8::Dense { zero, output } => {
            let sizes = [x.shape[0], x.shape[1], y.shape[1]];
            found(Dense { sizes, layer: Layer { zero: *zero, output: *output } })
        }
        Int8::Add { operands, factor, output } => {
            let elements = x.shape.elements();
            found(Add { operands: *operands, factor: *factor, output: *output, elements })
        }
        Int8::Mean { zero, factor, output } => {
            let sizes = [x.shape[0], x.shape[1] * x.shape[2], x.shape[3]];
            found(Mean { sizes, zero: *zero, factor: *factor, output: *output })
        }
        Int8::MaxPool { windows } => found(MaxPool { windows: *windows, x: x.clone(), y: y.clone() }),
    }
}

/// The input's code of zero, and the output's codes.
#[derive(Clone, Copy)]
struct Layer {
    zero: u8,
    output: Codes,
}

impl Layer {
    /// What makes codes of sums, from the operands of a layer.
    fn finish<'a>(&self, o: &'a Operands<'_>, channels: usize) -> Finish<'a> {
        Finish {
            bias: read!(o, 2, channels),
            multipliers: read!(o, 3, channels),
            shifts: read!(o, 4, channels),
            zero: self.output.zero,
            bounds: [self.output.low, self.output.high],
        }
    }
}

/// The products of a layer, and an element that is scaled for each output.
fn cost(core: &Core, products: usize, query: &KernelQuery<'_>) -> f64 {
    products as f64 * PRODUCT + query.outputs[0].shape.elements() as f64 * SCALED + core.memory(bytes(query))
}

struct Conv {
    shape: ConvShape,
    layer: Layer,
}

impl Call for Conv {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        let [h, w] = self.shape.window;
        int8::workspace(h * w * self.shape.inputs, self.shape.outputs, threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let [h, w] = self.shape.window;
        cost(core, query.outputs[0].shape.elements() * h * w * self.shape.inputs, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let s = &self.shape;
        let x = read!(o, 0, s.examples * s.image[0] * s.image[1] * s.inputs);
        let weights = read!(o, 1, s.window[0] * s.window[1] * s.inputs * s.outputs);
        let y = write!(o, 0, s.examples * s.output[0] * s.output[1] * s.outputs);
        let finish = self.layer.finish(o, s.outputs);
        // SAFETY: the plan gives each step its own workspace, aligned and of the bytes above.
        unsafe { int8::conv(ctx, s, x, (weights, self.layer.zero), finish, y, o.workspace) };
        Ok(())
    }
}

struct Depthwise {
    shape: ConvShape,
    layer: Layer,
}

impl Call for Depthwise {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        int8::depthwise_workspace(self.shape.inputs, threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let [h, w] = self.shape.window;
        // A few bytes at a time.
        cost(core, 8 * query.outputs[0].shape.elements() * h * w, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let s = &self.shape;
        let x = read!(o, 0, s.examples * s.image[0] * s.image[1] * s.inputs);
        let weights = read!(o, 1, s.window[0] * s.window[1] * s.inputs);
        let y = write!(o, 0, s.examples * s.output[0] * s.output[1] * s.inputs);
        let finish = self.layer.finish(o, s.inputs);
        // SAFETY: the plan gives each step its own workspace, aligned and of the bytes above.
        unsafe { int8::depthwise(ctx, s, x, (weights, self.layer.zero), finish, y, o.workspace) };
        Ok(())
    }
}

struct Dense {
    sizes: [usize; 3],
    layer: Layer,
}

impl Call for Dense {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        int8::workspace(self.sizes[1], self.sizes[2], threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, self.sizes.iter().product(), query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [rows, k, n] = self.sizes;
        let (x, weights, y) = (read!(o, 0, rows * k), read!(o, 1, k * n), write!(o, 0, rows * n));
        let finish = self.layer.finish(o, n);
        // SAFETY: the plan gives each step its own workspace, aligned and of the bytes above.
        unsafe { int8::dense(ctx, self.sizes, x, (weights, self.layer.zero), finish, y, o.workspace) };
        Ok(())
    }
}

struct Convert {
    grid: Grid,
    to_codes: bool,
    elements: usize,
}

impl Call for Convert {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (Grid { scale, zero }, n) = (self.grid, self.elements);
        match self.to_codes {
            true => int8::quantize(ctx, scale, zero, read!(o, 0, n), write!(o, 0, n)),
            false => int8::dequantize(ctx, scale, zero, read!(o, 0, n), write!(o, 0, n)),
        }
        Ok(())
    }
}

struct Add {
    operands: [(u8, Factor); 2],
    factor: Factor,
    output: Codes,
    elements: usize,
}

impl Call for Add {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, 0, query) * 2.0
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let operands = self.operands.map(|(zero, factor)| (i32::from(zero), factor.multiplier, factor.shift));
        let output = (self.output.zero, [self.output.low, self.output.high], ADD_SHIFT);
        let x = [read!(o, 0, self.elements), read!(o, 1, self.elements)];
        let factor = (self.factor.multiplier, self.factor.shift);
        int8::add(ctx, operands, factor, output, x, write!(o, 0, self.elements));
        Ok(())
    }
}

struct Mean {
    sizes: [usize; 3],
    zero: u8,
    factor: Factor,
    output: Codes,
}

impl Call for Mean {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        query.inputs[0].shape.elements() as f64 + cost(core, 0, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [examples, pixels, channels] = self.sizes;
        let from = (i32::from(self.zero), self.factor.multiplier, self.factor.shift);
        let output = (self.output.zero, [self.output.low, self.output.high]);
        let x = read!(o, 0, examples * pixels * channels);
        int8::mean(ctx, self.sizes, from, output, x, write!(o, 0, examples * channels));
        Ok(())
    }
}

struct MaxPool {
    windows: Windows,
    x: TensorType,
    y: TensorType,
}

impl Call for MaxPool {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let [h, w] = self.windows.largest([self.x.shape[1], self.x.shape[2]]);
        query.outputs[0].shape.elements() as f64 * (h * w) as f64 * 0.2 + core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (x, y) = (&self.x.shape, &self.y.shape);
        let (image, output) = ([x[1], x[2]], [y[1], y[2]]);
        // The first pixel after the start of a window along an axis, and one past the last.
        let span = |axis: usize, i: usize, tap: &mut dyn FnMut(usize)| match self.windows {
            Windows::Sliding(g) => {
                for k in 0..g.window[axis] {
                    let at = (i * g.stride[axis] + k * g.dilation[axis]).checked_sub(g.padding[axis][0]);
                    at.filter(|&at| at < image[axis]).into_iter().for_each(&mut *tap);
                }
            }
            Windows::Adaptive { .. } => {
                (i * image[axis] / output[axis]..((i + 1) * image[axis]).div_ceil(output[axis]))
                    .for_each(tap);
            }
        };
        let taps = |pixel: usize, tap: &mut dyn FnMut(usize)| {
            span(0, pixel / output[1], &mut |i| span(1, pixel % output[1], &mut |j| tap(i * image[1] + j)));
        };
        let sizes = [x[0], image[0] * image[1], output[0] * output[1], x[3]];
        int8::max_pool(ctx, sizes, &taps, read!(o, 0, x.elements()), write!(o, 0, y.elements()));
        Ok(())
    }
}
