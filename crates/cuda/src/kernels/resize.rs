//! Resizing: a thread computes an element of the result, or gathers an element of the image's gradient.

use super::builder::{CallBuilder, define, index_type, parameters};
use super::{Call, Operand};
use plimsoll_graph::op::{Resize, ResizeMode};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const AXIS: &str = include_str!("resize/axis.cu");

pub(super) fn find(op: &Resize, query: &KernelQuery<'_>) -> Option<Call> {
    let (given, made) = (query.inputs[0], query.outputs[0]);
    if !given.dtype.is_low() && given.dtype != DType::F32 {
        return None;
    }
    let (mode, text, image, result) = match *op {
        Resize::Forward { mode, .. } => (mode, include_str!("resize/forward.cu"), given, made),
        Resize::Grad { mode, .. } => (mode, include_str!("resize/grad.cu"), made, given),
    };
    let (nearest, align_corners) = match mode {
        ResizeMode::Nearest => ("1", "0"),
        ResizeMode::Bilinear { align_corners: false } => ("0", "0"),
        ResizeMode::Bilinear { align_corners: true } => ("0", "1"),
    };
    let elements = made.shape.elements();
    let macros = [
        ("T", given.dtype.name()),
        ("INDEX", index_type(elements)),
        ("NEAREST", nearest),
        ("ALIGN_CORNERS", align_corners),
    ];
    let (x, y) = (&image.shape, &result.shape);
    let all = parameters![Operand::Read(0), Operand::Write(0), elements, x[3], x[1], x[2], y[1], y[2]];
    let mut b = CallBuilder::default();
    b.each(elements, define(&macros, &[AXIS, text].concat()), all);
    Some(b.finish())
}
