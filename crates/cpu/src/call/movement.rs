//! Kernels for the movement family.

use super::{Call, Found, Operands, found};
use crate::isa::Context;
use crate::movement::Moves;
use plimsoll_graph::op::Movement;
use plimsoll_plan::KernelQuery;

pub(super) fn find(op: &Movement, query: &KernelQuery<'_>) -> Found {
    Moves::new(op, &query.inputs, &query.outputs).and_then(found)
}

impl Call for Moves {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: inputs and outputs of the node, apart from each other.
        unsafe { self.run(ctx, o.reads, o.writes) };
        Ok(())
    }
}
