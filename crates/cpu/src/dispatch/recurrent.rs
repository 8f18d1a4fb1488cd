//! Kernels for the recurrent family.

use super::call::{Call, Found, Operands, all_f32, bytes, found, scratch};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::recurrent::{self, LstmGradOperands, LstmOperands, LstmSpec};
use plimsoll_graph::op::Recurrent;
use plimsoll_plan::KernelQuery;

/// Multiply-adds of vectors that a vector of gates takes besides its product.
const GATE: f64 = 60.0;
/// Nanoseconds that threads wait for each other in a step.
const STEP: f64 = 2_000.0;

pub(super) fn find(op: Recurrent, query: &KernelQuery<'_>) -> Found {
    if !all_f32(&query.inputs) {
        return None;
    }
    let (sequence, reverse) = match op {
        Recurrent::Lstm { reverse } => (query.inputs[0], reverse),
        Recurrent::LstmGrad { reverse, .. } => (query.inputs[3], reverse),
    };
    let &[examples, positions, columns] = &sequence.shape[..] else { return None };
    let spec = LstmSpec { examples, positions, units: columns / 4, reverse };
    match op {
        Recurrent::Lstm { .. } => found(Lstm { spec }),
        Recurrent::LstmGrad { cells, .. } => found(LstmGrad { spec, cells }),
    }
}

/// The products and cells of all positions: nanoseconds on one thread.
fn cost(core: &Core, spec: &LstmSpec, query: &KernelQuery<'_>) -> f64 {
    let columns = 4 * spec.units;
    let products = core.tiles(core.even_tiles(spec.examples), columns, spec.units, 1).slots;
    let gates = GATE * core.vectors(columns) as f64 * spec.examples as f64;
    let meeting = if core.threads == 1 { 0.0 } else { STEP * core.threads as f64 };
    spec.positions as f64 * ((products + gates) * core.slot + meeting) + core.memory(bytes(query))
}

struct Lstm {
    spec: LstmSpec,
}

impl Call for Lstm {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        recurrent::lstm_workspace(threads, &self.spec)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, &self.spec, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, kernel, h, c] = [0, 1, 2, 3].map(|i| o.reads[i].cast());
        let [y, cells, gates] = [0, 1, 2].map(|i| o.writes[i].cast());
        let operands = LstmOperands { x, kernel, h, c, y, cells, gates };
        let scratch = scratch!(o);
        // SAFETY: the operands are the node's, of its types; in place, gates share the memory of x.
        unsafe { recurrent::lstm(ctx, &self.spec, &operands, scratch) };
        Ok(())
    }
}

struct LstmGrad {
    spec: LstmSpec,
    /// Whether the gradient of the cells is an operand.
    cells: bool,
}

impl Call for LstmGrad {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        recurrent::lstm_grad_workspace(threads, &self.spec)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost(core, &self.spec, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [kernel, c, cells, gates, dy] = [0, 1, 2, 3, 4].map(|i| o.reads[i].cast());
        let dcells = if self.cells { o.reads[5].cast() } else { std::ptr::null() };
        let [dx, dh, dc] = [0, 1, 2].map(|i| o.writes[i].cast());
        let operands = LstmGradOperands { kernel, c, cells, gates, dy, dcells, dx, dh, dc };
        let scratch = scratch!(o);
        // SAFETY: the operands are the node's, of its types; in place, dx shares the memory of the gates, and one gradient of a
        // first state that of the first cells.
        unsafe { recurrent::lstm_grad(ctx, &self.spec, &operands, scratch) };
        Ok(())
    }
}
