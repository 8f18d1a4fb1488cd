//! Kernels for the matmul family.

use super::call::{Call, Found, Operands, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, with_float};
use crate::kernels::gemm::{self, Activation, GemmSpec, Mat};
use plimsoll_graph::op::{Epilogue, MatMul};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;
use std::marker::PhantomData;

pub(super) fn find(op: &MatMul, query: &KernelQuery<'_>) -> Found {
    let (operands, result) = (query.inputs[0].dtype, query.outputs[0].dtype);
    takes_bias(op.epilogue, query).then_some(())?;
    let (m, n, k) = op.extents(&query.inputs).ok()?;
    let (shape, op) = (&query.outputs[0].shape, *op);
    if shape.rank() > 2 {
        let spec = GemmSpec::new(m, n, k);
        let count = shape[..shape.rank() - 2].iter().product();
        return with_float!((operands, result), (T, C) => {
            found(Products::<T, C> { count, spec, op, types: PhantomData })
        });
    }
    let spec = GemmSpec { accumulate: query.accumulate, block: query.fold_rows, ..GemmSpec::new(m, n, k) };
    let plain = !op.transpose_a && !op.transpose_b && (operands, result) == (DType::F32, DType::F32);
    if plain && gemm::is_direct(&spec) {
        return found(FewRows { spec, epilogue: op.epilogue });
    }
    with_float!((operands, result), (T, C) => found(Product::<T, C> { spec, op, types: PhantomData }))
}

/// Whether the kernels take an epilogue's bias: f32, if there is one.
pub(super) fn takes_bias(epilogue: Epilogue, query: &KernelQuery<'_>) -> bool {
    !epilogue.bias || query.inputs.last().is_some_and(|bias| bias.dtype == DType::F32)
}

/// The kernel's form of an op's epilogue.
pub(super) fn finish(epilogue: Epilogue, bias: Option<&[f32]>) -> gemm::Epilogue<'_> {
    gemm::Epilogue { bias, activation: if epilogue.relu { Activation::Relu } else { Activation::None } }
}

/// A dense matrix, read transposed or not.
fn matrix<T>(data: &[T], transposed: bool, rows: usize, columns: usize) -> Mat<'_, T> {
    let (row_stride, col_stride) = if transposed { (1, rows) } else { (columns, 1) };
    Mat { data, row_stride, col_stride }
}

/// Operands are stored as `T`, the result as `C`.
struct Product<T, C> {
    spec: GemmSpec,
    op: MatMul,
    types: PhantomData<(T, C)>,
}

impl<T: Float, C: Float> Call for Product<T, C> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        gemm::gemm_workspace::<T, T, C>(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let GemmSpec { m, n, k, .. } = self.spec;
        core.product_of::<T, C>([m, n, k], bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (spec, op) = (&self.spec, &self.op);
        let a = matrix::<T>(read!(o, 0, spec.m * spec.k), op.transpose_a, spec.m, spec.k);
        let b = matrix::<T>(read!(o, 1, spec.k * spec.n), op.transpose_b, spec.k, spec.n);
        let bias = if op.epilogue.bias { Some(read!(o, 2, spec.n)) } else { None };
        let y: &mut [C] = write!(o, 0, spec.m * spec.n);
        gemm::gemm(ctx, spec, a, b, y, finish(op.epilogue, bias), scratch!(o));
        Ok(())
    }
}

/// A product of row-major operands that needs no packing.
struct FewRows {
    spec: GemmSpec,
    epilogue: Epilogue,
}

impl Call for FewRows {
    fn workspace(&self, _: Isa, _: usize) -> usize {
        0
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let GemmSpec { m, n, k, .. } = self.spec;
        core.direct_product([m, n, k], bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (a, b) = (read!(o, 0, spec.m * spec.k), read!(o, 1, spec.k * spec.n));
        let bias = if self.epilogue.bias { Some(read!(o, 2, spec.n)) } else { None };
        let y = write!(o, 0, spec.m * spec.n);
        gemm::gemm_direct(ctx, spec, a, b, y, finish(self.epilogue, bias));
        Ok(())
    }
}

/// One product after another, all of the same sizes.
struct Products<T, C> {
    count: usize,
    spec: GemmSpec,
    op: MatMul,
    types: PhantomData<(T, C)>,
}

impl<T: Float, C: Float> Call for Products<T, C> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        gemm::gemm_batch_workspace::<T, T, C>(isa, threads, self.count, &self.spec)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let (GemmSpec { m, n, k, .. }, count) = (self.spec, self.count as f64);
        count * core.product_of::<T, C>([m, n, k], bytes(query) / count.max(1.0))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Self { count, spec, op, .. } = self;
        let a = matrix::<T>(read!(o, 0, count * spec.m * spec.k), op.transpose_a, spec.m, spec.k);
        let b = matrix::<T>(read!(o, 1, count * spec.k * spec.n), op.transpose_b, spec.k, spec.n);
        let y: &mut [C] = write!(o, 0, count * spec.m * spec.n);
        gemm::gemm_batch(ctx, *count, spec, a, b, y, scratch!(o));
        Ok(())
    }
}
