//! Kernels for the loss family.

use super::call::{Call, Found, Operands, block_rows, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, with_float};
use crate::kernels::loss::{self, LinearSpec};
use plimsoll_graph::op::Loss;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;
use std::marker::PhantomData;

/// Nanoseconds of a row's loss: its logarithm is scalar.
const ROW: f64 = 90.0;
/// Nanoseconds of a row's gradient.
const ROW_GRAD: f64 = 14.0;
/// Multiply-adds of vectors that a vector of logits takes.
const LOGITS: f64 = 40.0;
/// How often a chunk's logits pass through memory besides the products.
const PASSES: f64 = 3.0;

/// A loss or gradient over rows of logits: nanoseconds on one thread.
fn over_rows(core: &Core, rows: usize, classes: usize, row: f64) -> f64 {
    rows as f64 * (row + core.vectors(classes) as f64 * LOGITS * core.slot)
}

pub(super) fn find(op: &Loss, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    let in_f32 = match op {
        Loss::CrossEntropy | Loss::CrossEntropyGrad => x[0],
        // The kernel; features may be 16-bit floats.
        Loss::LinearCrossEntropy { .. }
        | Loss::LinearCrossEntropyGrad { .. }
        | Loss::LinearCrossEntropyWithGrad { .. } => x[1],
    };
    if in_f32.dtype != DType::F32 {
        return None;
    }
    let (rows, columns, accumulate) = (x[0].shape[0], x[0].shape[1], query.accumulate);
    let block_rows = block_rows(query, 1, rows);
    let spec = |transposed| {
        let classes = op.classes(x[1]);
        LinearSpec { rows, width: columns, classes, transposed, block_rows, accumulate }
    };
    match *op {
        Loss::CrossEntropy => found(CrossEntropy { rows, classes: columns, block_rows, accumulate }),
        Loss::CrossEntropyGrad => found(CrossEntropyGrad { rows, classes: columns }),
        Loss::LinearCrossEntropy { transposed } => {
            let spec = spec(transposed);
            with_float!(x[0].dtype, T => found(LinearCrossEntropy::<T> { spec, of: PhantomData }))
        }
        Loss::LinearCrossEntropyGrad { transposed } => {
            let spec = spec(transposed);
            with_float!(x[0].dtype, T => found(LinearCrossEntropyGrad::<T> { spec, of: PhantomData }))
        }
        Loss::LinearCrossEntropyWithGrad { transposed } => {
            let spec = spec(transposed);
            with_float!(x[0].dtype, T => found(LinearCrossEntropyWithGrad::<T> { spec, of: PhantomData }))
        }
    }
}

fn of_label(error: impl std::fmt::Display) -> String {
    format!("label: {error}")
}

struct CrossEntropy {
    rows: usize,
    classes: usize,
    block_rows: usize,
    accumulate: bool,
}

impl Call for CrossEntropy {
    fn workspace(&self, _: Isa, _: usize) -> usize {
        loss::cross_entropy_workspace(self.rows)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.rows, self.classes, ROW) + core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, classes, block_rows, accumulate } = self;
        let (logits, labels, weights) = (read!(o, 0, rows * classes), read!(o, 1, rows), read!(o, 2, rows));
        let (total, lse): (&mut [f32], _) = (write!(o, 0, 1), write!(o, 1, rows));
        let (total, scratch) = (&mut total[0], scratch!(o));
        loss::cross_entropy(
            ctx, rows, classes, block_rows, accumulate, logits, labels, weights, total, lse, scratch,
        )
        .map_err(of_label)
    }
}

struct CrossEntropyGrad {
    rows: usize,
    classes: usize,
}

impl Call for CrossEntropyGrad {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.rows, self.classes, ROW_GRAD) + core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, classes } = self;
        let (logits, labels, weights) = (read!(o, 0, rows * classes), read!(o, 1, rows), read!(o, 2, rows));
        let (lse, dloss): (_, &[f32]) = (read!(o, 3, rows), read!(o, 4, 1));
        let dlogits = write!(o, 0, rows * classes);
        loss::cross_entropy_grad(ctx, rows, classes, logits, labels, weights, lse, dloss[0], dlogits)
            .map_err(of_label)
    }
}

/// The logits, chunk by chunk, what is done with their rows, of so many nanoseconds each, and for a gradient two more products.
fn linear<T: Float>(core: &Core, spec: &LinearSpec, row: f64, grad: bool) -> f64 {
    let (rows, width, classes) = (spec.longest_chunk(), spec.width, spec.classes);
    let logits = 4.0 * (rows * classes) as f64;
    let kernel = 4.0 * (width * classes) as f64;
    let product = |sizes: [usize; 3]| core.product_of::<T, f32>(sizes, kernel + logits);
    let mut chunk =
        product([rows, classes, width]) + PASSES * core.memory(logits) + over_rows(core, rows, classes, row);
    if grad {
        chunk += product([rows, width, classes]) + product([width, classes, rows]);
    }
    chunk * spec.rows as f64 / rows.max(1) as f64
}

/// Features are stored as `T`.
struct LinearCrossEntropy<T> {
    spec: LinearSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for LinearCrossEntropy<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        loss::linear_cross_entropy_workspace::<T>(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        linear::<T>(core, &self.spec, ROW, false)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (x, kernel) = (read!(o, 0, spec.rows * spec.width), read!(o, 1, spec.width * spec.classes));
        let (labels, weights) = (read!(o, 2, spec.rows), read!(o, 3, spec.rows));
        let (total, lse): (&mut [f32], _) = (write!(o, 0, 1), write!(o, 1, spec.rows));
        let total = &mut total[0];
        loss::linear_cross_entropy::<T>(ctx, spec, x, kernel, labels, weights, total, lse, scratch!(o))
            .map_err(of_label)
    }
}

/// Features are stored as `T`.
struct LinearCrossEntropyGrad<T> {
    spec: LinearSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for LinearCrossEntropyGrad<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        loss::linear_cross_entropy_grad_workspace::<T>(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        linear::<T>(core, &self.spec, ROW_GRAD, true)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (inputs, kernel) = (spec.rows * spec.width, spec.width * spec.classes);
        let (x, w, labels) = (read!(o, 0, inputs), read!(o, 1, kernel), read!(o, 2, spec.rows));
        let (weights, lse, dloss): (_, _, &[f32]) =
            (read!(o, 3, spec.rows), read!(o, 4, spec.rows), read!(o, 5, 1));
        let (dx, dw, scratch) = (write!(o, 0, inputs), write!(o, 1, kernel), scratch!(o));
        let dloss = dloss[0];
        loss::linear_cross_entropy_grad::<T>(ctx, spec, x, w, labels, weights, lse, dloss, dx, dw, scratch)
            .map_err(of_label)
    }
}

/// Features are stored as `T`.
struct LinearCrossEntropyWithGrad<T> {
    spec: LinearSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for LinearCrossEntropyWithGrad<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        loss::linear_cross_entropy_with_grad_workspace::<T>(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        let spec = &self.spec;
        linear::<T>(core, spec, ROW_GRAD, true) + over_rows(core, spec.rows, spec.classes, ROW)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (inputs, kernel) = (spec.rows * spec.width, spec.width * spec.classes);
        let (x, w, labels) = (read!(o, 0, inputs), read!(o, 1, kernel), read!(o, 2, spec.rows));
        let (weights, dloss): (_, &[f32]) = (read!(o, 3, spec.rows), read!(o, 4, 1));
        let total: &mut [f32] = write!(o, 0, 1);
        let (dx, dw, scratch) = (write!(o, 1, inputs), write!(o, 2, kernel), scratch!(o));
        let (total, dloss) = (&mut total[0], dloss[0]);
        loss::linear_cross_entropy_with_grad::<T>(
            ctx, spec, x, w, labels, weights, dloss, total, dx, dw, scratch,
        )
        .map_err(of_label)
    }
}
