//! Convolution: patches of the image times the kernels. 16-bit floats are multiplied by a kernel that gathers patches as it needs them
//! (`implicit`), or by the library where the image itself is the matrix; else patches are gathered chunk by chunk into scratch memory,
//! for the library to multiply. A group that reads a single channel has no product worth the name, and is summed directly.
//!
//! Chunks are rows (output pixels), so they change no bit: a row of a product does not depend on those beside it.

mod direct;
mod gather;
mod implicit;
mod input_grad;
mod weight_grad;

use super::builder::{CallBuilder, define, parameters};
use super::{Call, Matrix, Operand, Product};
use gather::Gather;
use plimsoll_graph::op::{Conv, Epilogue, Geometry};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

/// Bytes that the patches of a chunk take at most, where that is a row. A device's second-level cache holds them.
const CHUNK_BYTES: usize = 32 << 20;

/// The sizes of a convolution.
#[derive(Clone, Copy)]
struct Shape {
    examples: usize,
    /// Height and width of the image.
    image: [usize; 2],
    /// Channels of the image.
    inputs: usize,
    /// Height and width of the result.
    result: [usize; 2],
    /// Channels of the result.
    outputs: usize,
    geometry: Geometry,
    groups: usize,
    /// The operands' type.
    dtype: DType,
}

impl Shape {
    fn new(conv: &Conv, dtype: DType, x: &[usize], y: &[usize]) -> Self {
        Self {
            examples: x[0],
            image: [x[1], x[2]],
            inputs: x[3],
            result: [y[1], y[2]],
            outputs: y[3],
            geometry: conv.geometry(),
            groups: conv.groups(),
            dtype,
        }
    }

    /// Pixels of all results.
    fn rows(&self) -> usize {
        self.examples * self.result[0] * self.result[1]
    }

    /// Channels of the image that a group reads.
    fn group_inputs(&self) -> usize {
        self.inputs / self.groups
    }

    /// Channels of the result that a group gives.
    fn group_outputs(&self) -> usize {
        self.outputs / self.groups
    }

    /// Terms of an element of the result.
    fn terms(&self) -> usize {
        self.geometry.window[0] * self.geometry.window[1] * self.group_inputs()
    }

    /// Whether the sums have no more terms than a window has places.
    fn is_direct(&self) -> bool {
        self.terms() == 0 || self.outputs == 0 || (self.groups > 1 && self.group_inputs() == 1)
    }

    /// The patches of the image under the windows.
    fn windows(&self) -> Gather {
        let Geometry { window, stride, padding, dilation } = self.geometry;
        Gather {
            dtype: self.dtype,
            source: self.image,
            channels: self.inputs,
            groups: self.groups,
            grid: self.result,
            taps: window,
            window_step: stride.map(|step| step as i64),
            tap_step: dilation.map(|step| step as i64),
            offset: [0, 1].map(|axis| -(padding[axis][0] as i64)),
        }
    }
}

pub(super) fn find(op: &Conv, query: &KernelQuery<'_>) -> Option<Call> {
    let (x, y) = (&query.inputs[..], &query.outputs[..]);
    let (dtype, result) = (x[0].dtype, y[0].dtype);
    if !dtype.is_low() && dtype != DType::F32 {
        return None;
    }
    Some(match op {
        Conv::Forward { epilogue, .. } => {
            let shape = Shape::new(op, dtype, &x[0].shape, &y[0].shape);
            let finish = Finish::new(*epilogue, query);
            if shape.is_direct() {
                direct::forward(&shape, result, &finish)
            } else if finish.is_none() && result == dtype {
                implicit::forward(&shape).unwrap_or_else(|| forward(&shape, result, &finish))
            } else {
                forward(&shape, result, &finish)
            }
        }
        Conv::InputGrad { .. } => {
            let shape = Shape::new(op, dtype, &y[0].shape, &x[0].shape);
            if shape.is_direct() {
                direct::input_grad(&shape, result)
            } else {
                input_grad::call(&shape, result)
            }
        }
        Conv::WeightGrad { .. } => {
            let shape = Shape::new(op, dtype, &x[0].shape, &x[1].shape);
            weight_grad::call(&shape, query)
        }
    })
}

/// What happens to sums before they are stored.
struct Finish {
    epilogue: Epilogue,
    bias: DType,
}

impl Finish {
    fn new(epilogue: Epilogue, query: &KernelQuery<'_>) -> Self {
        let bias = if epilogue.bias { query.inputs.last() } else { None };
        Self { epilogue, bias: bias.map_or(DType::F32, |ty| ty.dtype) }
    }

    fn is_none(&self) -> bool {
        self.epilogue == Epilogue::default()
    }

    /// The bias, or any address where there is none.
    fn operand(&self) -> Operand {
        Operand::Read(if self.epilogue.bias { 2 } else { 1 })
    }

    /// The macros that a kernel applies it by.
    fn macros(&self) -> [(&'static str, &'static str); 2] {
        let finish = match (self.epilogue.bias, self.epilogue.relu) {
            (false, false) => "(sum)",
            (true, false) => "((sum) + widen(bias[channel]))",
            (false, true) => "relu(sum)",
            (true, true) => "relu((sum) + widen(bias[channel]))",
        };
        [("BIAS", self.bias.name()), ("FINISH(sum, channel)", finish)]
    }
}

fn forward(shape: &Shape, result: DType, finish: &Finish) -> Call {
    let (patches, rows) = (shape.windows(), shape.rows());
    // Sums that are to be rounded after an epilogue.
    let sums_apart = result.is_low() && !finish.is_none();
    let sum_bytes = if sums_apart { shape.outputs * size_of::<f32>() } else { 0 };
    let chunk = patches.chunk_rows(sum_bytes).min(rows.max(1));
    let mut b = CallBuilder::default();
    let space = b.scratch(patches.bytes(chunk));
    let sums = b.scratch(sum_bytes * chunk);
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let y = Operand::Write(0).at(first * shape.outputs * result.bytes());
        let (start, dtype) = if sums_apart { (sums, DType::F32) } else { (y, result) };
        let (outputs, stride) = (shape.outputs, shape.group_outputs());
        let matrix = |start, dtype| Matrix { start, dtype, transposed: false, row_stride: outputs, stride };
        let a = patches.gather(&mut b, Operand::Read(0), first, count, space);
        b.product(Product {
            m: count,
            n: shape.group_outputs(),
            k: shape.terms(),
            a,
            b: matrix(Operand::Read(1).at(0), shape.dtype),
            c: matrix(start, dtype),
            accumulate: false,
            count: shape.groups,
            bias: None,
            tf32: false,
        });
        if !finish.is_none() {
            let [bias, macros] = finish.macros();
            let source = define(&[bias, macros, ("OUT", result.name())], include_str!("conv/finish.cu"));
            let elements = count * outputs;
            b.each(elements, source, parameters![start, finish.operand(), y, elements, outputs]);
        }
    }
    b.finish()
}
