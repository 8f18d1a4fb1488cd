//! From the projected inputs to the outputs.

use super::{BLOCK, GATES, LstmSpec, Panels, Rows, Steps, bytes, fetch, load, parts, store, sums_floats};
use crate::isa::Context;
use crate::kernels::gemm::pack::Strip;
use crate::kernels::math::{Shared, sigmoid, simd_fn, tanh};

/// Of the packed kernel, of the states before and after a step, and of the workers' sums.
fn floats(threads: usize, spec: &LstmSpec) -> [usize; 4] {
    let state = Rows::floats(spec, spec.units);
    [Panels::floats(spec.units, GATES * spec.blocks()), state, state, threads * sums_floats(GATES)]
}

/// The bytes of workspace that [`lstm`] needs: a multiple of 64.
pub fn lstm_workspace(threads: usize, spec: &LstmSpec) -> usize {
    bytes(&floats(threads, spec))
}

/// The operands of [`lstm`]: see `plimsoll_graph::op::Recurrent::Lstm`. The gates may lie where x does.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "named in the op")]
pub struct LstmOperands {
    pub x: *const f32,
    pub kernel: *const f32,
    pub h: *const f32,
    pub c: *const f32,
    pub y: *mut f32,
    pub cells: *mut f32,
    pub gates: *mut f32,
}

// SAFETY: tasks read and write disjoint parts; see `lstm`.
unsafe impl Sync for LstmOperands {}

/// The recurrence.
///
/// # Safety
///
/// Every operand is good for its shape, and the outputs overlap nothing but, as a whole, the gates x.
///
/// # Panics
///
/// When the workspace is too small.
pub unsafe fn lstm(ctx: Context<'_>, spec: &LstmSpec, o: &LstmOperands, workspace: &mut [f32]) {
    let units = spec.units;
    if spec.state() == 0 {
        return;
    }
    let [packed, before, after, sums] = parts(workspace, floats(ctx.pool.threads(), spec));
    let kernel = Shared::from_ptr(o.kernel.cast_mut());
    let panels = Panels::pack(ctx, units, GATES * spec.blocks(), packed, |block, column| {
        let (first, gate) = (block / GATES * BLOCK + column, block % GATES);
        let first_inside = first.min(units - 1);
        let src = kernel.at(gate * units + first_inside).cast_const();
        Strip { src, lane_step: 1, k_step: GATES * units, lanes: units - first.min(units) }
    });
    let states = [before, after].map(|space| Rows::new(units, space));
    let sums = Shared::new(sums);
    for example in 0..spec.examples {
        // SAFETY: a row of the state, before any task runs.
        unsafe { std::ptr::copy_nonoverlapping(o.h.add(example * units), states[0].at(example, 0), units) };
    }
    let mut steps = Steps::new(ctx, spec);
    steps.run_all(|step, part, worker| {
        let (before, after) = (states[step % 2], states[(step + 1) % 2]);
        let position = spec.position(step);
        let sums = sums.at(worker * sums_floats(GATES));
        for example in part.examples.clone() {
            let at = spec.at(example, position);
            (0..GATES).for_each(|gate| fetch(o.x.wrapping_add(GATES * at + gate * units + part.first)));
            fetch(o.cells.wrapping_add(at + part.first));
            fetch(o.y.wrapping_add(at + part.first));
        }
        for gate in 0..GATES {
            let (block, sums) = (part.block * GATES + gate, sums.wrapping_add(gate * BLOCK));
            // SAFETY: the state before is complete, and the sums are the worker's own.
            unsafe { panels.multiply(block, before, &part.examples, sums, GATES * BLOCK) };
        }
        for (row, example) in part.examples.clone().enumerate() {
            let here = spec.at(example, position) + part.first;
            let gates = |gate: usize| GATES * spec.at(example, position) + gate * units + part.first;
            let n = part.units;
            // SAFETY: every task has its own units of its own examples, and reads x there before it writes gates.
            unsafe {
                let products: &[[f32; BLOCK]; GATES] = &*sums.add(row * GATES * BLOCK).cast();
                let mut all = [0, 1, 2, 3].map(|gate| load(o.x.add(gates(gate)), n));
                let earlier = match step {
                    0 => o.c.add(example * units + part.first),
                    _ => o.cells.add(spec.at(example, spec.position(step - 1)) + part.first).cast_const(),
                };
                let (mut cell, mut y) = (load(earlier, n), [0.0; BLOCK]);
                cell_forward(ctx.isa, products, &mut all, &mut cell, &mut y);
                for (gate, values) in all.iter().enumerate() {
                    store(values, o.gates.add(gates(gate)), n);
                }
                store(&cell, o.cells.add(here), n);
                store(&y, o.y.add(here), n);
                store(&y, after.at(example, part.first), n);
            }
        }
    });
}

simd_fn! {
    /// A block of units: gates become their activations, the cell the next one.
    fn cell_forward(
        isa: Isa, products: &[[f32; BLOCK]; GATES], gates: &mut [[f32; BLOCK]; GATES], cell: &mut [f32; BLOCK],
        y: &mut [f32; BLOCK],
    ) {
        let [input, forget, new, output] = gates;
        for j in 0..BLOCK {
            input[j] = sigmoid::<FMA>(input[j] + products[0][j]);
            forget[j] = sigmoid::<FMA>(forget[j] + products[1][j]);
            new[j] = tanh::<FMA>(new[j] + products[2][j]);
            output[j] = sigmoid::<FMA>(output[j] + products[3][j]);
            cell[j] = forget[j] * cell[j] + input[j] * new[j];
            y[j] = output[j] * tanh::<FMA>(cell[j]);
        }
    }
}
