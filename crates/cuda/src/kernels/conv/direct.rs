//! Convolutions whose groups read one channel, depthwise ones above all: every element is summed by a thread.

use super::weight_grad::{Parts, fold, parts};
use super::{CHUNK_BYTES, CallBuilder, Finish, Shape, define, parameters};
use crate::kernels::builder::index_type;
use crate::kernels::{Call, Operand, Parameter};
use plimsoll_graph::op::reach;
use plimsoll_tensor::DType;

/// Rows (output pixels) of a part of the kernels' gradient.
const PART_ROWS: usize = 2048;
/// Output channels of a block of the kernels' gradient.
const LANES: usize = 32;
/// The most blocks of a launch in the second direction.
const MOST_PARTS: usize = 65_535;

impl Shape {
    /// The type of indices into the operands, and of coordinates.
    fn index(&self) -> &'static str {
        let Self { examples, image, inputs, result, outputs, geometry, .. } = self;
        let reach = reach(geometry.window, geometry.dilation);
        let coordinates = (0..2).map(|a| {
            let padded = image[a].saturating_add(geometry.padding[a][0]);
            padded.max(geometry.stride[a]).max(reach[a])
        });
        let elements = [image[0] * image[1] * inputs, result[0] * result[1] * outputs].map(|e| e * examples);
        index_type(elements.into_iter().chain(coordinates).max().unwrap_or(0))
    }

    /// The sizes, in the kernels' order.
    fn parameters(&self) -> Vec<Parameter> {
        let Self { image, inputs, result, outputs, geometry, .. } = self;
        let padding = [0, 1].map(|axis| geometry.padding[axis][0]);
        let mut all = vec![image[0], image[1], *inputs, result[0], result[1], *outputs];
        all.extend([geometry.window, geometry.stride, padding, geometry.dilation].concat());
        all.extend([self.group_inputs(), self.group_outputs()]);
        all.into_iter().map(Parameter::from).collect()
    }
}

pub(super) fn forward(shape: &Shape, result: DType, finish: &Finish) -> Call {
    let [bias, epilogue] = finish.macros();
    let macros =
        [("T", shape.dtype.name()), ("OUT", result.name()), ("INDEX", shape.index()), bias, epilogue];
    let elements = shape.rows() * shape.outputs;
    let mut all =
        parameters![Operand::Read(0), Operand::Read(1), finish.operand(), Operand::Write(0), elements];
    all.extend(shape.parameters());
    let mut b = CallBuilder::default();
    b.each(elements, define(&macros, include_str!("direct_forward.cu")), all);
    b.finish()
}

pub(super) fn input_grad(shape: &Shape, result: DType) -> Call {
    let macros = [("T", shape.dtype.name()), ("OUT", result.name()), ("INDEX", shape.index())];
    let elements = shape.examples * shape.image[0] * shape.image[1] * shape.inputs;
    let mut all = parameters![Operand::Read(0), Operand::Read(1), Operand::Write(0), elements];
    all.extend(shape.parameters());
    let mut b = CallBuilder::default();
    b.each(elements, define(&macros, include_str!("direct_input.cu")), all);
    b.finish()
}

pub(super) fn weight_grad(shape: &Shape, block: usize, accumulate: bool) -> Call {
    let mut b = CallBuilder::default();
    let elements = shape.terms() * shape.outputs;
    if elements == 0 {
        return b.finish();
    }
    let bytes = elements * size_of::<f32>();
    let all = parts(shape.rows(), block, PART_ROWS, (CHUNK_BYTES / bytes).clamp(1, MOST_PARTS));
    let most = all.iter().map(|parts| parts.count).max().unwrap_or(0);
    let sums = b.scratch(most * bytes);
    let macros = [("T", shape.dtype.name()), ("INDEX", shape.index())];
    for (i, &Parts { first, rows, count }) in all.iter().enumerate() {
        let end = first + rows * count;
        let mut parameters = parameters![Operand::Read(0), Operand::Read(1), sums, first, end, rows];
        parameters.extend(shape.parameters());
        let tiles = shape.outputs.div_ceil(LANES) * shape.terms();
        let source = define(&macros, include_str!("direct_weight.cu"));
        b.kernel([tiles, count, 1], 256, source, parameters);
        fold(&mut b, shape, sums, count, accumulate || i > 0);
    }
    b.finish()
}
