//! Look-ups by index. An index out of range is a fault that names it.

use super::builder::{CallBuilder, define, parameters};
use super::movement::unit_type;
use super::{Call, Fault, Operand, Parameter};
use plimsoll_graph::op::Index;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, Tensor, TensorType};

/// Bytes of a column of the rows of a table that a block adds to: shared memory holds 256 columns.
const SCATTERED_BYTES: usize = 128;

pub(super) fn find(op: &Index, query: &KernelQuery<'_>) -> Option<Call> {
    let x = &query.inputs[..];
    let mut builder = CallBuilder::default();
    let bound = match *op {
        Index::Gather => {
            let (rows, row_bytes) = (x[0].shape[0], x[0].shape[1] * x[0].dtype.bytes());
            let unit = [16, 8, 4, 2, 1].into_iter().find(|unit| row_bytes.is_multiple_of(*unit))?;
            let (units, count) = (row_bytes / unit, x[1].shape.elements());
            let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0)];
            let source = define(&[("T", unit_type(unit))], include_str!("index/gather.cu"));
            builder.each(count * units.max(1), source, with_sizes(&operands, &[rows, units, count]));
            rows
        }
        Index::ScatterAdd { rows } => {
            let (width, count) = (query.outputs[0].shape[1], x[0].shape.elements());
            let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0)];
            let wide = x[1].dtype.wide();
            let block_rows = SCATTERED_BYTES / wide.bytes();
            let macros = [
                ("X", x[1].dtype.name()),
                ("W", wide.name()),
                ("ACCUMULATE", if query.accumulate { "true" } else { "false" }),
                ("ROWS", &*block_rows.to_string()),
            ];
            let source = define(&macros, include_str!("index/scatter_add.cu"));
            let blocks = rows.div_ceil(block_rows) * width.div_ceil(256);
            builder.kernel([blocks, 1, 1], 256, source, with_sizes(&operands, &[rows, width, count]));
            rows
        }
        Index::Take => {
            let (&extent, &per_row) = (x[0].shape.last()?, x[1].shape.last()?);
            let count = x[1].shape.elements();
            let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0)];
            let source = define(&[("T", unit_type(x[0].dtype.bytes()))], include_str!("index/take.cu"));
            builder.each(count, source, with_sizes(&operands, &[extent, per_row, count]));
            extent
        }
        Index::Put { extent } if matches!(x[1].dtype, DType::F32 | DType::F64) => {
            let (&per_row, outer) = x[0].shape.split_last()?;
            let rows: usize = outer.iter().product();
            let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0)];
            let source = define(&[("X", x[1].dtype.name())], include_str!("index/put.cu"));
            builder.each(rows * extent.max(1), source, with_sizes(&operands, &[rows, per_row, extent]));
            extent
        }
        Index::OneHot { classes, dtype } => {
            let one = Tensor::from_f64(TensorType::scalar(dtype), &[1.0]).ok()?;
            let mut bits = [0; 8];
            bits[..one.as_bytes().len()].copy_from_slice(one.as_bytes());
            let one = Parameter::Integer(i64::from_le_bytes(bits));
            let count = x[0].shape.elements();
            let parameters =
                parameters![Operand::Read(0), Operand::Write(0), Operand::Fault, one, classes, count];
            let source = define(&[("T", unit_type(dtype.bytes()))], include_str!("index/one_hot.cu"));
            builder.each(count * classes.max(1), source, parameters);
            classes
        }
        Index::Range { extent } => {
            let source = include_str!("index/range.cu").to_string();
            builder.each(extent, source, parameters![Operand::Write(0), extent]);
            return Some(builder.finish());
        }
        Index::Put { .. } => return None,
    };
    Some(Call { fault: Some(Fault::Index { what: "index", bound }), ..builder.finish() })
}

/// The parameters of a kernel: operands, the word of the fault, sizes.
fn with_sizes(operands: &[Operand], sizes: &[usize]) -> Vec<Parameter> {
    let operands = operands.iter().chain([&Operand::Fault]).map(|&operand| operand.into());
    operands.chain(sizes.iter().map(|&size| size.into())).collect()
}
