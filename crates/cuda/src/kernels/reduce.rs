//! Reductions, cumulative sums and the order of elements.

use super::builder::{CallBuilder, define, parameters};
use super::reduction::{Reduction, SUM, WHOLE, block_rows, each_row};
use super::{Call, Operand};
use plimsoll_graph::op::Reduce;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};

/// Sequences that are longer have a block each, if they lie side by side.
const LONG: usize = 256;

pub(super) fn find(op: &Reduce, query: &KernelQuery<'_>) -> Option<Call> {
    let x = query.inputs[0];
    let mut builder = CallBuilder::default();
    let single = matches!(x.dtype, DType::F32 | DType::F64);
    match *op {
        Reduce::Sum { start, end } if x.dtype.is_float() => {
            let inside = x.shape.get(1..end).map_or(1, |axes| axes.iter().product());
            let size = middle(x, start, end);
            let block_rows = if start == 0 { block_rows(query, inside, size[1]) } else { size[1] };
            let terms = "t[0] = e0;";
            let sum = Reduction { block_rows, accumulate: query.accumulate, ..reduction(query, size, terms) };
            sum.launch(&mut builder);
        }
        Reduce::SquareSum { start, end } if single => {
            let terms = "t[0] = e0 * e0;";
            reduction(query, middle(x, start, end), terms).launch(&mut builder);
        }
        Reduce::Max { start, end } => extreme(query, "Larger", start, end)?.launch(&mut builder),
        Reduce::Min { start, end } => extreme(query, "Smaller", start, end)?.launch(&mut builder),
        Reduce::Product { start, end } if single => {
            let plain = reduction(query, middle(x, start, end), "t[0] = e0;");
            Reduction { combine: "Multiply", identity: "1", finish: WHOLE, ..plain }.launch(&mut builder);
        }
        Reduce::ProductGrad { start, end } if single => {
            let [outer, extent, inner] = middle(x, start, end);
            let parameters =
                parameters![Operand::Read(0), Operand::Read(1), Operand::Write(0), outer, extent, inner];
            let source = define(&[("X", x.dtype.name())], include_str!("reduce/product_grad.cu"));
            builder.each(outer * inner, source, parameters);
        }
        Reduce::Argmax if single => argument(&mut builder, x, "+"),
        Reduce::Argmin if single => argument(&mut builder, x, "-"),
        Reduce::CumulativeSum { axis, reverse } if single => scan(&mut builder, x, axis, reverse),
        Reduce::TopK { k } if single => {
            let [rows, width] = rows(x);
            let macros = [("X", x.dtype.name()), ("W", x.dtype.name())];
            let parameters =
                parameters![Operand::Read(0), Operand::Write(0), Operand::Write(1), rows, width, k];
            each_row(&mut builder, rows, width, &macros, include_str!("reduce/top.cu"), parameters);
        }
        Reduce::Sum { .. }
        | Reduce::SquareSum { .. }
        | Reduce::Product { .. }
        | Reduce::ProductGrad { .. }
        | Reduce::Argmax
        | Reduce::Argmin
        | Reduce::CumulativeSum { .. }
        | Reduce::TopK { .. } => return None,
    }
    Some(builder.finish())
}

/// The sizes before, in and behind the axes that are reduced.
fn middle(x: &TensorType, start: usize, end: usize) -> [usize; 3] {
    [&x.shape[..start], &x.shape[start..end], &x.shape[end..]].map(|axes| axes.iter().product())
}

/// Rows and their length, along the last axis.
fn rows(x: &TensorType) -> [usize; 2] {
    let (&width, outer) = x.shape.split_last().unwrap_or((&1, &[]));
    [outer.iter().product(), width]
}

/// A sum that is not over the batch.
fn reduction<'a>(query: &KernelQuery<'a>, size: [usize; 3], terms: &'a str) -> Reduction<'a> {
    let (x, y) = (&query.inputs[0].dtype, query.outputs[0].dtype);
    Reduction {
        macros: Vec::new(),
        elements: std::slice::from_ref(x),
        wide: x.wide(),
        stored: y,
        combine: "Add",
        identity: "0",
        terms,
        finish: SUM,
        size,
        block_rows: size[1].max(1),
        accumulate: false,
        operands: &X,
        results: &[Operand::Write(0)],
    }
}

const X: [super::Parameter; 1] =
    [super::Parameter::Pointer(super::Pointer { operand: Operand::Read(0), offset: 0 })];

fn extreme<'a>(query: &KernelQuery<'a>, combine: &'a str, start: usize, end: usize) -> Option<Reduction<'a>> {
    let x = query.inputs[0];
    let plain = reduction(query, middle(x, start, end), "t[0] = e0;");
    let largest = combine == "Larger";
    let identity = match x.dtype {
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 if largest => "-INF",
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 => "INF",
        DType::I32 if largest => "(-0x7fffffff - 1)",
        DType::I32 => "0x7fffffff",
        DType::Bool if largest => "0",
        DType::Bool => "1",
        DType::I64 | DType::U8 => return None,
    };
    let wide = if x.dtype == DType::Bool { DType::U8 } else { x.dtype.wide() };
    Some(Reduction { combine, identity, finish: WHOLE, wide, ..plain })
}

fn argument(builder: &mut CallBuilder, x: &TensorType, sign: &str) {
    let [rows, width] = rows(x);
    let macros = [("X", x.dtype.name()), ("W", x.dtype.name()), ("SIGN", sign)];
    let parameters = parameters![Operand::Read(0), Operand::Write(0), rows, width];
    each_row(builder, rows, width, &macros, include_str!("reduce/argument.cu"), parameters);
}

fn scan(builder: &mut CallBuilder, x: &TensorType, axis: usize, reverse: bool) {
    let [outer, extent, inner] = middle(x, axis, axis + 1);
    let macros = [("X", x.dtype.name()), ("REVERSE", if reverse { "true" } else { "false" })];
    let parameters = parameters![Operand::Read(0), Operand::Write(0), outer, extent, inner];
    if extent > LONG && inner < 32 {
        let source = define(&macros, include_str!("reduce/long_scan.cu"));
        builder.kernel([outer * inner, 1, 1], 256, source, parameters);
    } else {
        builder.each(outer * inner, define(&macros, include_str!("reduce/scan.cu")), parameters);
    }
}
