//! Kernels for the index family.

use super::{Call, Found, Operands, found, read, write};
use crate::index;
use crate::isa::Context;
use plimsoll_graph::op::Index;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

pub(super) fn find(op: &Index, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    match *op {
        Index::Gather => {
            let (rows, row_bytes) = (x[0].shape[0], x[0].shape[1] * x[0].dtype.bytes());
            found(Gather { rows, row_bytes, indices: x[1].shape.elements() })
        }
        Index::ScatterAdd { rows } if x[1].dtype == DType::F32 => found(ScatterAdd {
            rows,
            width: query.outputs[0].shape[1],
            indices: x[0].shape.elements(),
            accumulate: query.accumulate,
        }),
        Index::ScatterAdd { .. } => None,
    }
}

struct Gather {
    rows: usize,
    row_bytes: usize,
    indices: usize,
}

impl Call for Gather {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, row_bytes, indices } = self;
        let (table, index) = (read!(o, 0, rows * row_bytes), read!(o, 1, indices));
        let y = write!(o, 0, indices * row_bytes);
        index::gather(ctx, rows, row_bytes, table, index, y).map_err(|e| e.to_string())
    }
}

struct ScatterAdd {
    rows: usize,
    width: usize,
    indices: usize,
    accumulate: bool,
}

impl Call for ScatterAdd {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, width, indices, accumulate } = self;
        let (index, dy, y) = (read!(o, 0, indices), read!(o, 1, indices * width), write!(o, 0, rows * width));
        index::scatter_add(ctx, rows, width, index, dy, accumulate, y).map_err(|e| e.to_string())
    }
}
