//! Kernels for the elementwise family.

use super::{Call, Found, Operands, found};
use crate::elementwise::Program;
use crate::isa::{Context, Isa};
use plimsoll_graph::op::{Elementwise, Region};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::TensorType;

fn own(types: &[&TensorType]) -> Vec<TensorType> {
    types.iter().map(|t| (*t).clone()).collect()
}

pub(super) fn single(op: Elementwise, query: &KernelQuery<'_>) -> Found {
    Program::single(op, &own(&query.inputs), query.outputs[0]).ok().and_then(found)
}

pub(super) fn fused(region: &Region, query: &KernelQuery<'_>) -> Found {
    Program::new(region, &own(&query.inputs), &own(&query.outputs)).ok().and_then(found)
}

impl Call for Program {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        self.workspace(threads)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the pointers are the operands'; overlaps are as the target allows.
        unsafe { self.run(ctx, o.reads, o.writes, o.workspace) };
        Ok(())
    }
}
