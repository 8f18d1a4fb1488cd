//! Kernels for the movement family.

use super::{Call, Found, Operands, found};
use crate::isa::Context;
use crate::movement::StridedCopy;
use plimsoll_graph::op::Movement;
use plimsoll_plan::KernelQuery;

pub(super) fn find(op: &Movement, query: &KernelQuery<'_>) -> Found {
    let (x, y) = (query.inputs[0], query.outputs[0]);
    StridedCopy::new(op, &x.shape, &y.shape, x.dtype.bytes()).and_then(found)
}

impl Call for StridedCopy {
    unsafe fn run(&self, _: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: input and output of the node, apart from each other.
        unsafe { self.run(o.reads[0], o.writes[0]) };
        Ok(())
    }
}
