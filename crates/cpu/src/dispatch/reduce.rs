//! Kernels for the reduce family.

use super::call::{Call, Found, Operands, all_f32, block_rows, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, with_float};
use crate::kernels::reduce::{self, Element, Extreme, Term};
use plimsoll_graph::op::Reduce;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};
use std::marker::PhantomData;

/// How much longer than memory a sum takes.
const SUM: f64 = 1.2;

pub(super) fn find(op: &Reduce, query: &KernelQuery<'_>) -> Found {
    let x = query.inputs[0];
    match *op {
        Reduce::Max { start, end } => extreme(Extreme::Largest, x, start, end),
        Reduce::Min { start, end } => extreme(Extreme::Smallest, x, start, end),
        Reduce::Sum { start: 0, end } if query.fold_rows > 0 => {
            let Middle { reduce, inner, .. } = Middle::new(x, 0, end);
            let block_rows = block_rows(query, x.shape[1..end].iter().product(), reduce);
            let (rows, accumulate) = (reduce, query.accumulate);
            with_float!(x.dtype, T => {
                found(SumFold::<T> { rows, inner, block_rows, accumulate, of: PhantomData })
            })
        }
        Reduce::Sum { start, end } => {
            with_float!(x.dtype, T => found(Sum::<T>(Term::Itself, Middle::new(x, start, end), PhantomData)))
        }
        _ if !all_f32(&query.inputs) => None,
        Reduce::SquareSum { start, end } => {
            found(Sum::<f32>(Term::Square, Middle::new(x, start, end), PhantomData))
        }
        Reduce::Product { start, end } => found(Product(Middle::new(x, start, end))),
        Reduce::ProductGrad { start, end } => found(ProductGrad(Middle::new(x, start, end))),
        Reduce::Argmax => found(ArgExtreme(Extreme::Largest, Middle::last(x)?)),
        Reduce::Argmin => found(ArgExtreme(Extreme::Smallest, Middle::last(x)?)),
        Reduce::CumulativeSum { axis, reverse } => {
            found(CumulativeSum { size: Middle::new(x, axis, axis + 1), reverse })
        }
        Reduce::TopK { k } => found(TopK { k, size: Middle::last(x)? }),
    }
}

fn extreme(which: Extreme, x: &TensorType, start: usize, end: usize) -> Found {
    let size = Middle::new(x, start, end);
    match x.dtype {
        DType::F32 => found(ExtremeOf::<f32>(which, size, PhantomData)),
        DType::I32 => found(ExtremeOf::<i32>(which, size, PhantomData)),
        DType::Bool => found(ExtremeOf::<u8>(which, size, PhantomData)),
        _ => None,
    }
}

/// The sizes before, in and behind the axes that are reduced.
#[derive(Clone, Copy)]
struct Middle {
    outer: usize,
    reduce: usize,
    inner: usize,
}

impl Middle {
    fn new(x: &TensorType, start: usize, end: usize) -> Self {
        let product = |range: &[usize]| range.iter().product::<usize>();
        Self {
            outer: product(&x.shape[..start]),
            reduce: product(&x.shape[start..end]),
            inner: product(&x.shape[end..]),
        }
    }

    /// With the last axis reduced; `None` for a scalar.
    fn last(x: &TensorType) -> Option<Self> {
        let rank = x.shape.rank();
        (rank > 0).then(|| Self::new(x, rank - 1, rank))
    }

    fn elements(self) -> usize {
        self.outer * self.reduce * self.inner
    }
}

/// Elements are stored as `T`.
struct Sum<T>(Term, Middle, PhantomData<T>);

impl<T: Float> Call for Sum<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        SUM * core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, inner } = self.1;
        let (x, y) = (read!(o, 0, self.1.elements()), write!(o, 0, outer * inner));
        reduce::sum::<T>(ctx, self.0, [outer, reduce, inner], x, y);
        Ok(())
    }
}

struct SumFold<T> {
    rows: usize,
    inner: usize,
    block_rows: usize,
    accumulate: bool,
    of: PhantomData<T>,
}

impl<T: Float> Call for SumFold<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        SUM * core.memory(bytes(query))
    }

    fn workspace(&self, _: Isa, _: usize) -> usize {
        reduce::sum_fold_workspace(self.rows, self.inner, self.block_rows)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, inner, block_rows, accumulate, .. } = self;
        let (x, y) = (read!(o, 0, rows * inner), write!(o, 0, inner));
        reduce::sum_fold::<T>(ctx, rows, inner, block_rows, accumulate, x, y, scratch!(o));
        Ok(())
    }
}

/// Elements are stored as `T`.
struct ExtremeOf<T>(Extreme, Middle, PhantomData<T>);

impl<T: Element> Call for ExtremeOf<T> {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, inner } = self.1;
        let (x, y): (&[T], _) = (read!(o, 0, self.1.elements()), write!(o, 0, outer * inner));
        reduce::extreme(ctx, self.0, outer, reduce, inner, x, y);
        Ok(())
    }
}

struct Product(Middle);

impl Call for Product {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, inner } = self.0;
        let (x, y) = (read!(o, 0, self.0.elements()), write!(o, 0, outer * inner));
        reduce::product(ctx, outer, reduce, inner, x, y);
        Ok(())
    }
}

struct ProductGrad(Middle);

impl Call for ProductGrad {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, inner } = self.0;
        let (x, dy) = (read!(o, 0, self.0.elements()), read!(o, 1, outer * inner));
        reduce::product_grad(ctx, outer, reduce, inner, x, dy, write!(o, 0, self.0.elements()));
        Ok(())
    }
}

struct ArgExtreme(Extreme, Middle);

impl Call for ArgExtreme {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, .. } = self.1;
        let (x, y) = (read!(o, 0, outer * reduce), write!(o, 0, outer));
        reduce::arg_extreme(ctx, self.0, outer, reduce, x, y);
        Ok(())
    }
}

struct CumulativeSum {
    size: Middle,
    reverse: bool,
}

impl Call for CumulativeSum {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Middle { outer, reduce, inner } = self.size;
        let (x, y) = (read!(o, 0, self.size.elements()), write!(o, 0, self.size.elements()));
        reduce::cumulative_sum(ctx, outer, reduce, inner, self.reverse, x, y);
        Ok(())
    }
}

struct TopK {
    k: usize,
    size: Middle,
}

impl Call for TopK {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (Middle { outer, reduce, .. }, k) = (self.size, self.k);
        let (values, indices) = (write!(o, 0, outer * k), write!(o, 1, outer * k));
        reduce::top_k(ctx, outer, reduce, k, read!(o, 0, outer * reduce), values, indices);
        Ok(())
    }
}
