//! Kernels for the reduce family.

use super::{Call, Found, Operands, all_f32, block_rows, found, read, scratch, write};
use crate::isa::{Context, Isa};
use crate::reduce;
use plimsoll_graph::op::Reduce;
use plimsoll_plan::KernelQuery;

pub(super) fn find(op: &Reduce, query: &KernelQuery<'_>) -> Found {
    let x = query.inputs[0];
    if !all_f32(&query.inputs) {
        return None;
    }
    match *op {
        Reduce::Sum { start, end } => {
            let product = |range: &[usize]| range.iter().product::<usize>();
            let (outer, reduce, inner) =
                (product(&x.shape[..start]), product(&x.shape[start..end]), product(&x.shape[end..]));
            if start == 0 && query.fold_rows > 0 {
                let block_rows = block_rows(query, product(&x.shape[1..end]), reduce);
                return found(SumFold { rows: reduce, inner, block_rows, accumulate: query.accumulate });
            }
            found(Sum { outer, reduce, inner })
        }
        Reduce::Argmax => {
            let width = *x.shape.last()?;
            found(Argmax { rows: x.shape.elements() / width, width })
        }
    }
}

struct Sum {
    outer: usize,
    reduce: usize,
    inner: usize,
}

impl Call for Sum {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { outer, reduce, inner } = self;
        let (x, y) = (read!(o, 0, outer * reduce * inner), write!(o, 0, outer * inner));
        reduce::sum(ctx, outer, reduce, inner, x, y);
        Ok(())
    }
}

struct SumFold {
    rows: usize,
    inner: usize,
    block_rows: usize,
    accumulate: bool,
}

impl Call for SumFold {
    fn workspace(&self, _: Isa, _: usize) -> usize {
        reduce::sum_fold_workspace(self.rows, self.inner, self.block_rows)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, inner, block_rows, accumulate } = self;
        let (x, y) = (read!(o, 0, rows * inner), write!(o, 0, inner));
        reduce::sum_fold(ctx, rows, inner, block_rows, accumulate, x, y, scratch!(o));
        Ok(())
    }
}

struct Argmax {
    rows: usize,
    width: usize,
}

impl Call for Argmax {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let &Self { rows, width } = self;
        reduce::argmax(ctx, rows, width, read!(o, 0, rows * width), write!(o, 0, rows));
        Ok(())
    }
}
