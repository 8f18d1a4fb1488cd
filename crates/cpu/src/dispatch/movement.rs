//! Kernels for the movement family.

use super::call::{Call, Found, Operands, bytes, found};
use super::cost::Core;
use crate::isa::Context;
use crate::kernels::movement::Moves;
use plimsoll_graph::op::Movement;
use plimsoll_plan::KernelQuery;

/// Nanoseconds of a row that is copied by itself, and of an element of a row that is not contiguous.
const ROW: f64 = 3.0;
const ELEMENT: f64 = 0.8;

pub(super) fn find(op: &Movement, query: &KernelQuery<'_>) -> Found {
    let moved = match op {
        // Nothing outside of the slice is read.
        Movement::Slice(_) => 2.0 * query.outputs[0].bytes() as f64,
        Movement::Reshape(_)
        | Movement::Transpose(_)
        | Movement::Broadcast(_)
        | Movement::Pad { .. }
        | Movement::Concat { .. }
        | Movement::Split { .. }
        | Movement::Detach => bytes(query),
    };
    Moves::new(op, &query.inputs, &query.outputs).and_then(|moves| found(Move { moves, moved }))
}

struct Move {
    moves: Moves,
    /// Bytes read and written.
    moved: f64,
}

impl Call for Move {
    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        let (rows, apart) = self.moves.rows();
        rows as f64 * ROW + apart as f64 * ELEMENT + core.memory(self.moved)
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        self.moves.tasks()
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: inputs and outputs of the node, which do not overlap.
        unsafe { self.moves.run(ctx, o.reads, o.writes) };
        Ok(())
    }
}
