//! Rotary positions: a table of angles, then a thread for each pair of elements.

use crate::kernels::builder::{CallBuilder, define, index_type, parameters};
use crate::kernels::{Call, Operand};
use plimsoll_tensor::TensorType;

pub(super) fn call(x: &TensorType, base: f64, inverse: bool, start: usize) -> Call {
    let (positions, heads, pairs) = (x.shape[1], x.shape[2], x.shape[3] / 2);
    let mut b = CallBuilder::default();
    let (angles, elements) = (positions * pairs, x.shape.elements() / 2);
    if elements == 0 {
        return b.finish();
    }
    let table = b.scratch(angles * 2 * size_of::<f32>());
    let log_base = format!("({:?})", base.ln());
    let macros = [("LOG_BASE", &*log_base), ("INVERSE", if inverse { "true" } else { "false" })];
    let source = define(&macros, include_str!("angles.cu"));
    b.each(angles, source, parameters![table, angles, pairs, start]);
    let macros = [("T", x.dtype.name()), ("INDEX", index_type(elements))];
    let source = define(&macros, include_str!("rotate.cu"));
    let all = parameters![Operand::Read(0), table, Operand::Write(0), elements, positions, heads, pairs];
    b.each(elements, source, all);
    b.finish()
}
