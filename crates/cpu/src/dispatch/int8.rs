//! Kernels for layers of bytes.

use super::call::{Call, Found, Operands, bytes, found, read, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::int8::{self, COLUMNS, ConvShape, Finish, PoolShape, Spans, Work};
use plimsoll_graph::op::{
    ADD_SHIFT, Codes, Factor, Grid, Int8, ResizeMode, SHARE_BITS, Windows, resize_taps,
};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

/// Multiply-adds of vectors that pass while a word of a row is multiplied with a panel, as a vector of its sums would be: with the instructions
/// for it, with products of pairs, and in plain code.
const WORD: [f64; 3] = [1.5, 2.5, 12.0];
/// The same of a word of four taps of a depthwise convolution, whose bytes are interleaved first.
const TAPS: [f64; 3] = [4.0, 16.0, 40.0];
/// The same while a row of a tile register is multiplied with another.
const TILE_ROW: f64 = 2.5;
/// The same for each call of a micro-kernel, of vectors and of tile registers.
const CALL: [f64; 2] = [40.0, 300.0];
/// The same while a vector of sums becomes codes.
const CODES: f64 = 18.0;
/// The same while words of weights are packed for a panel.
const PACK: f64 = 24.0;
/// The same while a vector of numbers becomes codes, or vectors of codes are added.
const CONVERT: f64 = 16.0;
const ADD: f64 = 20.0;
/// The same while vectors of codes are multiplied, and looked up in a table.
const MUL: f64 = 24.0;
const LOOK_UP: f64 = 4.0;
/// The same for each window of means.
const WINDOW: f64 = 40.0;
/// The same for each line of maxima.
const POOL_LINE: f64 = 350.0;

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
        Int8::Mul { zeros, factor, output } => {
            let (elements, channels) = (x.shape.elements(), x.shape.last().copied().unwrap_or(1));
            let gates = query.inputs[1].shape != x.shape;
            let second = if gates { query.inputs[1].shape.elements() } else { elements };
            let channels = gates.then_some(channels);
            found(Mul {
                zeros: *zeros,
                factor: *factor,
                output: *output,
                elements: [elements, second],
                channels,
            })
        }
        Int8::Sigmoid(_) | Int8::Swish { .. } => {
            op.table().and_then(|table| found(LookUp { table, elements: x.shape.elements() }))
        }
        Int8::MaxPool { windows } => {
            let (shape, spans) = pooled(*windows, query);
            found(MaxPool { shape, spans })
        }
        Int8::AveragePool { windows } => {
            let (shape, spans) = pooled(*windows, query);
            found(AveragePool { shape, spans })
        }
        Int8::Resize { mode, output } => {
            let image = [x.shape[1], x.shape[2]];
            let shape = PoolShape { examples: x.shape[0], image, output: *output, channels: x.shape[3] };
            found(Resize { shape, mode: *mode })
        }
    }
}

/// The sizes and windows of a pool.
fn pooled(windows: Windows, query: &KernelQuery<'_>) -> (PoolShape, [Spans; 2]) {
    let (x, y) = (query.inputs[0], query.outputs[0]);
    let shape = PoolShape {
        examples: x.shape[0],
        image: [x.shape[1], x.shape[2]],
        output: [y.shape[1], y.shape[2]],
        channels: x.shape[3],
    };
    let spans = [0, 1].map(|axis| match windows {
        Windows::Sliding(g) => Spans::Even {
            taps: g.window[axis],
            dilation: g.dilation[axis],
            stride: g.stride[axis],
            before: g.padding[axis][0],
        },
        Windows::Adaptive { .. } => Spans::Parts,
    });
    (shape, spans)
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

/// Which of the costs of dot products an instruction set has.
fn kind(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::Neon => 0,
        Isa::Avx2 => 1,
        Isa::Portable => 2,
    }
}

/// Nanoseconds of a layer whose word takes so long.
fn cost(core: &Core, work: Work, word: [f64; 3], query: &KernelQuery<'_>) -> f64 {
    let vectors = work.words * word[kind(core.isa)] + work.codes * CODES + work.packed * PACK;
    let calls = work.calls[0] * CALL[0] + work.calls[1] * CALL[1];
    let slots = vectors * core.vectors(COLUMNS) as f64 + work.tile_rows * TILE_ROW + calls;
    slots * core.slot + core.memory(bytes(query)) + core.memory(2.0 * work.copied)
}

/// Nanoseconds of elements, a vector of which takes so long.
fn elements(core: &Core, each: f64, query: &KernelQuery<'_>) -> f64 {
    core.vectors(query.outputs[0].shape.elements()) as f64 * each * core.slot + core.memory(bytes(query))
}

struct Conv {
    shape: ConvShape,
    layer: Layer,
}

impl Call for Conv {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        int8::conv_workspace(isa, &self.shape, threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, int8::conv_work(core.isa, &self.shape, core.threads), WORD, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let s = &self.shape;
        let x = read!(o, 0, s.input_len());
        let weights = read!(o, 1, s.window[0] * s.window[1] * s.inputs * s.outputs);
        let y = write!(o, 0, s.output_len());
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
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        int8::depthwise_workspace(isa, &self.shape, threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, int8::depthwise_work(core.isa, &self.shape, core.threads), TAPS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let s = &self.shape;
        let x = read!(o, 0, s.input_len());
        let weights = read!(o, 1, s.window[0] * s.window[1] * s.inputs);
        let y = write!(o, 0, s.output_len());
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
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        int8::dense_workspace(isa, self.sizes, threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, int8::dense_work(core.isa, self.sizes, core.threads), WORD, query)
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
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        elements(core, CONVERT, query)
    }

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
        elements(core, ADD, query)
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

struct Mul {
    zeros: [u8; 2],
    factor: Factor,
    output: Codes,
    elements: [usize; 2],
    channels: Option<usize>,
}

impl Call for Mul {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        elements(core, MUL, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let output = (self.output.zero, [self.output.low, self.output.high]);
        let factor = (self.factor.multiplier, self.factor.shift);
        let x = [read!(o, 0, self.elements[0]), read!(o, 1, self.elements[1])];
        int8::mul(ctx, self.zeros, factor, output, self.channels, x, write!(o, 0, self.elements[0]));
        Ok(())
    }
}

struct LookUp {
    table: [u8; 256],
    elements: usize,
}

impl Call for LookUp {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        elements(core, LOOK_UP, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // In place both are the same memory.
        let x = (o.reads[0] != o.writes[0].cast_const()).then(|| read!(o, 0, self.elements));
        int8::look_up(ctx, &self.table, x, write!(o, 0, self.elements));
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
        core.vectors(query.inputs[0].shape.elements()) as f64 * core.slot + elements(core, CODES, query)
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
    shape: PoolShape,
    spans: [Spans; 2],
}

impl Call for MaxPool {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        // Bytes are compared as fast as they are read.
        let lines = self.shape.examples * self.shape.output[0];
        2.0 * core.memory(bytes(query)) + lines as f64 * POOL_LINE * core.slot
    }

    fn workspace(&self, _: Isa, threads: usize) -> usize {
        int8::max_pool_workspace(&self.shape, self.spans, threads)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let PoolShape { examples, image, output, channels } = self.shape;
        let len = |[h, w]: [usize; 2]| examples * h * w * channels;
        let (x, y) = (read!(o, 0, len(image)), write!(o, 0, len(output)));
        // SAFETY: the plan gives each step its own workspace, of the bytes above.
        unsafe { int8::max_pool(ctx, &self.shape, self.spans, x, y, o.workspace) };
        Ok(())
    }
}

struct AveragePool {
    shape: PoolShape,
    spans: [Spans; 2],
}

impl Call for AveragePool {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let PoolShape { examples, output, .. } = self.shape;
        let windows = (examples * output[0] * output[1]) as f64;
        let added = query.op.flops(&query.inputs, &query.outputs) as usize;
        (windows * WINDOW + 2.0 * core.vectors(added) as f64) * core.slot + elements(core, CODES, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let PoolShape { examples, image, output, channels } = self.shape;
        let len = |[h, w]: [usize; 2]| examples * h * w * channels;
        let (x, y) = (read!(o, 0, len(image)), write!(o, 0, len(output)));
        int8::average_pool(ctx, &self.shape, self.spans, x, y);
        Ok(())
    }
}

struct Resize {
    shape: PoolShape,
    mode: ResizeMode,
}

impl Call for Resize {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let PoolShape { examples, output, .. } = self.shape;
        let pixels = (examples * output[0] * output[1]) as f64;
        let each = if self.mode == ResizeMode::Nearest { 1.0 } else { MUL };
        pixels * WINDOW * core.slot + elements(core, each, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let PoolShape { examples, image, output, channels } = self.shape;
        let len = |[h, w]: [usize; 2]| examples * h * w * channels;
        let taps = |axis: usize, i: usize| resize_taps(self.mode, [image[axis], output[axis]], i);
        let (x, y) = (read!(o, 0, len(image)), write!(o, 0, len(output)));
        int8::resize(ctx, &self.shape, SHARE_BITS, &taps, x, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::CpuTarget;
    use plimsoll_graph::Op;
    use plimsoll_graph::op::Geometry;
    use plimsoll_plan::Target;
    use plimsoll_tensor::TensorType;

    fn microseconds(isa: Isa, op: Int8, inputs: &[&str]) -> f64 {
        let op = Op::Int8(op);
        let inputs: Vec<TensorType> = inputs.iter().map(|t| t.parse().unwrap()).collect();
        let inputs: Vec<&TensorType> = inputs.iter().collect();
        let outputs = op.infer(&inputs).unwrap();
        let query = KernelQuery {
            op: &op,
            inputs,
            outputs: outputs.iter().collect(),
            accumulate: false,
            fold_rows: 0,
            mixed: false,
        };
        CpuTarget::new(isa, 1).kernel(&query).unwrap().nanoseconds as f64 / 1e3
    }

    /// What is predicted follows the kernels: tiles are faster than dot products, those than products of pairs, and plain code is slowest.
    #[test]
    fn better_instructions_are_predicted_to_be_faster() {
        let output = Codes { zero: 0, low: 0, high: 255 };
        let geometry = Geometry { window: [3, 3], stride: [1, 1], padding: [[1, 1]; 2], dilation: [1, 1] };
        let conv = |groups| Int8::Conv { geometry, groups, zero: 3, output };
        let types = |channels: usize, inputs: usize| {
            let each = format!("i32[{channels}]");
            [
                format!("u8[8,16,16,{channels}]"),
                format!("u8[3,3,{inputs},{channels}]"),
                each.clone(),
                each.clone(),
                each,
            ]
        };
        let on = |isa: Isa, groups: usize, inputs: usize| {
            let types = types(64, inputs);
            microseconds(isa, conv(groups), &types.each_ref().map(String::as_str))
        };
        let whole = [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Portable].map(|isa| on(isa, 1, 64));
        assert!(whole.is_sorted_by(|a, b| a < b), "{whole:?}");
        let depthwise = [Isa::Avx512, Isa::Avx2, Isa::Portable].map(|isa| on(isa, 64, 1));
        assert!(depthwise.is_sorted_by(|a, b| a < b) && depthwise[0] < whole[1], "{depthwise:?} {whole:?}");
    }
}
