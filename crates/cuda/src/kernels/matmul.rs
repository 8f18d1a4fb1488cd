//! Matrix products: by the library, with a kernel after them for what it does not do.

use super::{Call, Kernel, Launch, Matrix, Operand, Product};
use plimsoll_graph::op::{Epilogue, MatMul};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const EPILOGUE: &str = include_str!("epilogue.cu");

/// Threads of a block.
const THREADS: usize = 256;

pub(super) fn find(op: &MatMul, query: &KernelQuery<'_>) -> Option<Call> {
    let (m, n, k) = op.extents(&query.inputs).ok()?;
    let (operands, result) = (query.inputs[0].dtype, query.outputs[0].dtype);
    let shape = &query.outputs[0].shape;
    let count: usize = shape[..shape.rank() - 2].iter().product();
    let elements = count * m * n;
    if elements == 0 || (k == 0 && query.accumulate) {
        return Some(Call::default());
    }
    // A bias or maximum comes before the rounding.
    let wide = op.epilogue != Epilogue::default() && result != result.wide();
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
    };
    let mut call = Call::default();
    if k == 0 {
        call.launches.push(zero(product, c_type, elements));
    } else if query.fold_rows > 0 && op.transpose_a && !op.transpose_b && count == 1 {
        call.launches.extend(fold(&whole, query.fold_rows));
    } else {
        call.launches.push(Launch::Product(whole));
    }
    if op.epilogue != Epilogue::default() {
        if wide {
            call.workspace = elements * c_type.bytes();
        }
        call.launches.push(finish(op.epilogue, query, product, c_type, elements, n));
    }
    Some(call)
}

/// A product over rows in blocks, each added to those before it.
pub(super) fn fold(whole: &Product, block: usize) -> impl Iterator<Item = Launch> {
    let whole = *whole;
    (0..whole.k).step_by(block).map(move |start| {
        let rows = |matrix: Matrix| {
            let offset = matrix.start.offset + start * matrix.row_stride * matrix.dtype.bytes();
            Matrix { start: matrix.start.operand.at(offset), ..matrix }
        };
        Launch::Product(Product {
            k: block.min(whole.k - start),
            a: rows(whole.a),
            b: rows(whole.b),
            accumulate: whole.accumulate || start > 0,
            ..whole
        })
    })
}

/// Adds the bias, takes the maximum and rounds.
fn finish(
    epilogue: Epilogue,
    query: &KernelQuery<'_>,
    product: Operand,
    wide: DType,
    elements: usize,
    columns: usize,
) -> Launch {
    let result = query.outputs[0].dtype;
    let bias = query.inputs.last().filter(|_| epilogue.bias).map_or(wide, |bias| bias.dtype);
    let defines = format!(
        "#define W {wide}\n#define T {result}\n#define B {bias}\n#define BIAS {}\n#define RELU {}\n",
        u8::from(epilogue.bias),
        u8::from(epilogue.relu),
    );
    let bias = if epilogue.bias { Operand::Read(2) } else { product };
    Launch::Kernel(Kernel {
        source: defines + EPILOGUE,
        blocks: [elements.div_ceil(THREADS) as u32, 1, 1],
        threads: THREADS as u32,
        parameters: vec![
            product.into(),
            bias.into(),
            Operand::Write(0).into(),
            elements.into(),
            columns.into(),
        ],
    })
}

/// Fills an operand with zeros.
pub(super) fn zero(operand: Operand, dtype: DType, elements: usize) -> Launch {
    let source = "extern \"C\" __global__ void kernel(u8 *y, i64 bytes) {\n    \
                  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < bytes) y[i] = 0;\n}\n";
    let bytes = elements * dtype.bytes();
    Launch::Kernel(Kernel {
        source: source.into(),
        blocks: [bytes.div_ceil(THREADS) as u32, 1, 1],
        threads: THREADS as u32,
        parameters: vec![operand.into(), bytes.into()],
    })
}
