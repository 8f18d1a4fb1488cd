//! Kernels for the movement family.

use super::{Call, Found, Operands, bytes, found};
use crate::cost::Core;
use crate::isa::Context;
use crate::movement::Moves;
use plimsoll_graph::Op;
use plimsoll_graph::op::Movement;
use plimsoll_plan::KernelQuery;

/// Nanoseconds of a row that is copied by itself, and of an element of a row whose elements are apart.
const ROW: f64 = 3.0;
const ELEMENT: f64 = 0.8;

pub(super) fn find(op: &Movement, query: &KernelQuery<'_>) -> Found {
    Moves::new(op, &query.inputs, &query.outputs).and_then(found)
}

impl Call for Moves {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let (rows, apart) = self.rows();
        let moved = match query.op {
            // Of what lies outside of a slice nothing is read.
            Op::Movement(Movement::Slice(_)) => 2.0 * query.outputs[0].bytes() as f64,
            _ => bytes(query),
        };
        rows as f64 * ROW + apart as f64 * ELEMENT + core.memory(moved)
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        self.tasks()
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: inputs and outputs of the node, apart from each other.
        unsafe { self.run(ctx, o.reads, o.writes) };
        Ok(())
    }
}
