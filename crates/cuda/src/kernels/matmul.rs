//! Matrix products: by the library, with a kernel after them for what it does not do.

use super::builder::{CallBuilder, define, flag, parameters};
use super::{Call, Matrix, Operand, Product};
use plimsoll_graph::op::{Epilogue, MatMul};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const EPILOGUE: &str = include_str!("epilogue.cu");

pub(super) fn find(op: &MatMul, query: &KernelQuery<'_>) -> Option<Call> {
    let (m, n, k) = op.extents(&query.inputs).ok()?;
    let (operands, result) = (query.inputs[0].dtype, query.outputs[0].dtype);
    let shape = &query.outputs[0].shape;
    let count: usize = shape[..shape.rank() - 2].iter().product();
    let elements = count * m * n;
    if elements == 0 || (k == 0 && query.accumulate) {
        return Some(Call::default());
    }
    let epilogue = op.epilogue;
    let bias_type = query.inputs.last().filter(|_| epilogue.bias).map(|bias| bias.dtype);
    let folded = query.fold_rows > 0 && op.transpose_a && !op.transpose_b && count == 1;
    // The library adds a bias of the result's type itself, but not to f64.
    let joined =
        bias_type == Some(result) && !epilogue.relu && result != DType::F64 && k > 0 && count == 1 && !folded;
    let epilogue = Epilogue { bias: epilogue.bias && !joined, ..epilogue };
    // A bias or maximum comes before the rounding.
    let wide = epilogue != Epilogue::default() && result != result.wide();
    let product = if wide { Operand::Workspace } else { Operand::Write(0) };
    let c_type = if wide { result.wide() } else { result };
    let row_stride = |transposed: bool, rows: usize, columns: usize| if transposed { rows } else { columns };
    let matrix = |operand: Operand, dtype: DType, transposed, rows, columns| Matrix {
        start: operand.at(0),
        dtype,
        transposed,
        row_stride: row_stride(transposed, rows, columns),
        stride: rows * columns,
    };
    let whole = Product {
        m,
        n,
        k,
        a: matrix(Operand::Read(0), operands, op.transpose_a, m, k),
        b: matrix(Operand::Read(1), operands, op.transpose_b, k, n),
        c: matrix(product, c_type, false, m, n),
        accumulate: query.accumulate,
        count,
        bias: joined.then(|| Operand::Read(2).at(0)),
        tf32: false,
    };
    let mut builder = CallBuilder::default();
    if wide {
        builder.scratch(elements * c_type.bytes());
    }
    if k == 0 {
        builder.zero(product, elements, c_type);
    } else if folded {
        fold(&whole, query.fold_rows).for_each(|product| builder.product(product));
    } else {
        builder.product(whole);
    }
    if epilogue != Epilogue::default() {
        finish(&mut builder, epilogue, query, product, elements, n);
    }
    Some(builder.finish())
}

/// A product over rows in blocks, each added to those before it.
fn fold(whole: &Product, block: usize) -> impl Iterator<Item = Product> {
    let whole = *whole;
    (0..whole.k).step_by(block).map(move |start| {
        let rows = |matrix: Matrix| {
            let offset = matrix.start.offset + start * matrix.row_stride * matrix.dtype.bytes();
            Matrix { start: matrix.start.operand.at(offset), ..matrix }
        };
        Product {
            k: block.min(whole.k - start),
            a: rows(whole.a),
            b: rows(whole.b),
            accumulate: whole.accumulate || start > 0,
            ..whole
        }
    })
}

/// Adds the bias, takes the maximum and rounds.
fn finish(
    builder: &mut CallBuilder,
    epilogue: Epilogue,
    query: &KernelQuery<'_>,
    product: Operand,
    elements: usize,
    columns: usize,
) {
    let result = query.outputs[0].dtype;
    let wide = result.wide();
    let bias = query.inputs.last().filter(|_| epilogue.bias).map_or(wide, |bias| bias.dtype);
    let macros = [
        ("W", wide.name()),
        ("T", result.name()),
        ("B", bias.name()),
        ("BIAS", flag(epilogue.bias)),
        ("RELU", flag(epilogue.relu)),
    ];
    let bias = if epilogue.bias { Operand::Read(2) } else { product };
    let parameters = parameters![product, bias, Operand::Write(0), elements, columns];
    builder.each(elements, define(&macros, EPILOGUE), parameters);
}
