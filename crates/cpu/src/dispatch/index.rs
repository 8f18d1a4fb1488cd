//! Kernels for the index family.

use super::call::{Call, Found, Operands, found, read, write};
use super::cost::Core;
use crate::isa::Context;
use crate::kernels::float::{Float, with_float};
use crate::kernels::index;
use plimsoll_graph::op::Index;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, Tensor, TensorType};
use std::marker::PhantomData;

/// Times that memory takes for rows and table where rows are added to a table.
const SCATTER: f64 = 2.0;

pub(super) fn find(op: &Index, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    match *op {
        Index::Gather => {
            let (rows, row_bytes) = (x[0].shape[0], x[0].shape[1] * x[0].dtype.bytes());
            found(Gather { rows, row_bytes, indices: x[1].shape.elements() })
        }
        Index::ScatterAdd { rows } => {
            let (width, indices) = (query.outputs[0].shape[1], x[0].shape.elements());
            let accumulate = query.accumulate;
            with_float!(x[1].dtype, T => {
                found(ScatterAdd::<T> { rows, width, indices, accumulate, of: PhantomData })
            })
        }
        Index::Take => {
            let size = Rows::new(&x[1].shape, *x[0].shape.last()?)?;
            match x[0].dtype.bytes() {
                1 => found(Take::<u8>(size, PhantomData)),
                2 => found(Take::<u16>(size, PhantomData)),
                4 => found(Take::<u32>(size, PhantomData)),
                _ => found(Take::<u64>(size, PhantomData)),
            }
        }
        Index::Put { extent } if x[1].dtype == DType::F32 => found(Put(Rows::new(&x[0].shape, extent)?)),
        Index::OneHot { classes, dtype } => {
            let one = Tensor::from_f64(TensorType::scalar(dtype), &[1.0]).ok()?;
            found(OneHot { indices: x[0].shape.elements(), classes, one: one.as_bytes().to_vec() })
        }
        Index::Range { extent } => found(Range { extent }),
        Index::Put { .. } => None,
    }
}

struct Gather {
    rows: usize,
    row_bytes: usize,
    indices: usize,
}

impl Call for Gather {
    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        core.memory(2.0 * (self.indices * self.row_bytes) as f64)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, row_bytes, indices } = self;
        let (table, index) = (read!(o, 0, rows * row_bytes), read!(o, 1, indices));
        let y = write!(o, 0, indices * row_bytes);
        index::gather(ctx, rows, row_bytes, table, index, y).map_err(|e| e.to_string())
    }
}

/// Rows are stored as `T`.
struct ScatterAdd<T> {
    rows: usize,
    width: usize,
    indices: usize,
    accumulate: bool,
    of: PhantomData<T>,
}

impl<T: Float> Call for ScatterAdd<T> {
    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        SCATTER * core.memory(4.0 * ((2 * self.indices + self.rows) * self.width) as f64)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, width, indices, accumulate, .. } = self;
        let (index, dy, y) = (read!(o, 0, indices), read!(o, 1, indices * width), write!(o, 0, rows * width));
        index::scatter_add::<T>(ctx, rows, width, index, dy, accumulate, y).map_err(|e| e.to_string())
    }
}

/// The sizes of a look-up inside rows.
#[derive(Clone, Copy)]
struct Rows {
    rows: usize,
    /// Indices of a row.
    count: usize,
    /// Elements that they choose from.
    extent: usize,
}

impl Rows {
    fn new(indices: &[usize], extent: usize) -> Option<Self> {
        let (&count, rows) = indices.split_last()?;
        Some(Self { rows: rows.iter().product(), count, extent })
    }
}

/// For elements as wide as `T`.
struct Take<T>(Rows, PhantomData<T>);

impl<T: Copy + Send + Sync> Call for Take<T> {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Rows { rows, count, extent } = self.0;
        let (x, indices) = (read!(o, 0, rows * extent), read!(o, 1, rows * count));
        let y: &mut [T] = write!(o, 0, rows * count);
        index::take(ctx, extent, count, x, indices, y).map_err(|e| e.to_string())
    }
}

struct Put(Rows);

impl Call for Put {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Rows { rows, count, extent } = self.0;
        let (indices, dy) = (read!(o, 0, rows * count), read!(o, 1, rows * count));
        let y = write!(o, 0, rows * extent);
        index::put(ctx, rows, extent, count, indices, dy, y).map_err(|e| e.to_string())
    }
}

struct OneHot {
    indices: usize,
    classes: usize,
    /// The bytes of a one.
    one: Vec<u8>,
}

impl Call for OneHot {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let y = write!(o, 0, self.indices * self.classes * self.one.len());
        let indices = read!(o, 0, self.indices);
        index::one_hot(ctx, self.classes, &self.one, indices, y).map_err(|e| e.to_string())
    }
}

struct Range {
    extent: usize,
}

impl Call for Range {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        index::range(ctx, write!(o, 0, self.extent));
        Ok(())
    }
}
