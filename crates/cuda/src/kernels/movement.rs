//! Moving elements: strided copies from places of an input to places of an output.

use super::builder::{CallBuilder, define};
use super::strided::{Axes, merge, signed};
use super::{Call, Operand, Parameter};
use plimsoll_graph::op::{Movement, Span};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{Tensor, TensorType};
use std::fmt::Write;

const FILL: &str = include_str!("movement/fill.cu");

pub(super) fn find(op: &Movement, query: &KernelQuery<'_>) -> Option<Call> {
    let (x, y) = (query.inputs[0], query.outputs[0]);
    let (all_of_x, all_of_y) = (Side::whole(Operand::Read(0), x), Side::whole(Operand::Write(0), y));
    let mut builder = CallBuilder::default();
    match op {
        Movement::Reshape(_) | Movement::Detach => {
            let all_of_x = Side { strides: signed(y.shape.strides()), ..all_of_x };
            copy(&mut builder, &y.shape, &all_of_x, &all_of_y);
        }
        Movement::Transpose(axes) => {
            let strides = axes.iter().map(|&axis| all_of_x.strides[axis]).collect();
            copy(&mut builder, &y.shape, &Side { strides, ..all_of_x }, &all_of_y);
        }
        Movement::Broadcast(shape) => {
            let strides = signed(x.shape.strides_in(shape));
            copy(&mut builder, &y.shape, &Side { strides, ..all_of_x }, &all_of_y);
        }
        Movement::Slice(spans) => copy(&mut builder, &y.shape, &all_of_x.at(spans), &all_of_y),
        Movement::Pad { spans, value, .. } => {
            fill(&mut builder, y, *value)?;
            copy(&mut builder, &x.shape, &all_of_x, &all_of_y.at(spans));
        }
        Movement::Concat { axis } => {
            let mut start = 0;
            for (i, x) in query.inputs.iter().enumerate() {
                let part = all_of_y.from(*axis, start);
                copy(&mut builder, &x.shape, &Side::whole(Operand::Read(i), x), &part);
                start += x.shape[*axis];
            }
        }
        Movement::Split { axis, .. } => {
            let mut start = 0;
            for (i, y) in query.outputs.iter().enumerate() {
                let part = all_of_x.from(*axis, start);
                copy(&mut builder, &y.shape, &part, &Side::whole(Operand::Write(i), y));
                start += y.shape[*axis];
            }
        }
    }
    Some(builder.finish())
}

/// Places of an operand.
#[derive(Clone)]
struct Side {
    operand: Operand,
    /// Bytes of the whole operand, and of an element.
    bytes: usize,
    element: usize,
    /// The first place, and the distance between places along each axis, in elements.
    start: usize,
    strides: Vec<i64>,
}

impl Side {
    fn whole(operand: Operand, ty: &TensorType) -> Self {
        let strides = signed(ty.shape.strides());
        Self { operand, bytes: ty.bytes(), element: ty.dtype.bytes(), start: 0, strides }
    }

    /// The places at a span of every axis.
    fn at(&self, spans: &[Span]) -> Self {
        let start = spans.iter().zip(&self.strides).map(|(span, stride)| span.start * *stride as usize);
        let strides = spans.iter().zip(&self.strides).map(|(span, stride)| span.step as i64 * stride);
        Self { start: start.sum(), strides: strides.collect(), ..self.clone() }
    }

    /// The places from one of an axis on.
    fn from(&self, axis: usize, start: usize) -> Self {
        Self { start: start * self.strides[axis] as usize, ..self.clone() }
    }
}

/// Copies as many elements as these extents have, each from its place to its place.
fn copy(builder: &mut CallBuilder, extents: &[usize], read: &Side, write: &Side) {
    if extents.contains(&0) {
        return;
    }
    let mut axes = merge(extents, &[read.strides.clone(), write.strides.clone()]);
    let unit = widen(&mut axes, read, write);
    let elements: usize = axes.extents.iter().product();
    let mut parameters: Vec<Parameter> =
        [read, write].map(|side| side.operand.at(side.start * side.element).into()).into();
    parameters.push(elements.into());
    parameters.extend(axes.extents.iter().skip(1).map(|&extent| Parameter::from(extent)));
    parameters.extend(axes.strides.iter().flatten().map(|&stride| Parameter::Integer(stride)));
    builder.each(elements, source(&axes, unit, elements), parameters);
}

/// Joins elements to units of up to 16 bytes where both sides have them side by side, and returns the bytes of a unit. A unit
/// divides a whole operand, so it is aligned wherever an operand of its size starts after others.
fn widen(axes: &mut Axes, read: &Side, write: &Side) -> usize {
    let element = read.element;
    let Some(inner) = axes.extents.last().copied() else { return element };
    if axes.strides.iter().any(|strides| strides.last() != Some(&1)) {
        return element;
    }
    let outer = axes.strides.iter().flat_map(|strides| &strides[..strides.len() - 1]);
    let outer = outer.map(|stride| stride.unsigned_abs() as usize * element);
    let starts = [read, write].into_iter().flat_map(|side| [side.start * element, side.bytes]);
    let all: Vec<usize> = outer.chain(starts).chain([inner * element]).collect();
    let units = [16, 8, 4, 2].into_iter().filter(|unit| *unit > element);
    let Some(unit) = units.into_iter().find(|unit| all.iter().all(|bytes| bytes.is_multiple_of(*unit)))
    else {
        return element;
    };
    let joined = unit / element;
    if let Some(inner) = axes.extents.last_mut() {
        *inner /= joined;
    }
    for strides in &mut axes.strides {
        let last = strides.len() - 1;
        strides[..last].iter_mut().for_each(|stride| *stride /= joined as i64);
    }
    unit
}

/// A thread copies one element.
fn source(axes: &Axes, unit: usize, elements: usize) -> String {
    let reach = |strides: &Vec<i64>| -> u64 {
        strides.iter().zip(&axes.extents).map(|(stride, &n)| stride.unsigned_abs() * n as u64).sum()
    };
    let far = axes.strides.iter().map(reach).max().unwrap_or(0).max(elements as u64);
    // Threads past the end have larger indices.
    let (index, count) = if far < 1 << 30 { ("i32", "u32") } else { ("i64", "u64") };
    let rank = axes.extents.len();
    let extents = (1..rank).map(|a| format!(", i64 e{a}"));
    let strides = ["r", "w"].into_iter().flat_map(|side| (0..rank).map(move |a| format!(", i64 {side}{a}")));
    let parameters: String = extents.chain(strides).collect();
    let mut text = format!(
        "extern \"C\" __global__ void kernel(const T *x, T *y, i64 n{parameters}) {{\n\
         {count} rest = ({count})blockIdx.x * blockDim.x + threadIdx.x;\n\
         if (rest >= ({count})n) return;\n\
         {index} from = 0, to = 0;\n"
    );
    for a in (0..rank).rev() {
        let place = if a > 0 { format!("rest % ({count})e{a}") } else { "rest".into() };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{{\n{index} at = {place};");
        let _ = writeln!(text, "from += at * ({index})r{a};\nto += at * ({index})w{a};\n}}");
        if a > 0 {
            let _ = writeln!(text, "rest /= ({count})e{a};");
        }
    }
    text.push_str("y[to] = x[from];\n}\n");
    define(&[("T", unit_type(unit))], &text)
}

/// The C type of so many bytes.
pub(super) fn unit_type(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "uint4",
    }
}

/// Fills a result with a value, rounded to its type.
fn fill(builder: &mut CallBuilder, y: &TensorType, value: f64) -> Option<()> {
    let one = Tensor::from_f64(TensorType::scalar(y.dtype), &[value]).ok()?;
    let mut bytes = [0; 8];
    bytes[..one.as_bytes().len()].copy_from_slice(one.as_bytes());
    let parameters = vec![
        Operand::Write(0).into(),
        Parameter::Integer(i64::from_le_bytes(bytes)),
        y.shape.elements().into(),
    ];
    let source = define(&[("T", unit_type(y.dtype.bytes()))], FILL);
    builder.each(y.shape.elements(), source, parameters);
    Some(())
}
