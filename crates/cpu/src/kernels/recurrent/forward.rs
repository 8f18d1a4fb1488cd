//! From the projected inputs to the outputs.

use super::{BLOCK, GATES, LstmSpec, Panels, Rows, Steps, bytes, fetch, parts, sums_floats, whole};
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
    Steps::new(ctx, spec).run(spec.positions, |step, part, worker| {
        let (before, after) = (states[step % 2], states[(step + 1) % 2]);
        let position = spec.position(step);
        let sums = sums.at(worker * sums_floats(GATES));
        for gate in 0..GATES {
            for example in part.examples.clone() {
                let at = spec.at(example, position);
                fetch(o.x.wrapping_add(GATES * at + gate * units + part.first));
                match gate {
                    0 => fetch(o.cells.wrapping_add(at + part.first)),
                    1 => fetch(o.y.wrapping_add(at + part.first)),
                    _ => {}
                }
            }
            let (block, sums) = (part.block * GATES + gate, sums.wrapping_add(gate * BLOCK));
            // SAFETY: the state before is complete, and the sums are the worker's own.
            unsafe { panels.multiply(block, 0..units, before, &part.examples, sums, GATES * BLOCK) };
        }
        let gates =
            |example: usize, gate: usize| GATES * spec.at(example, position) + gate * units + part.first;
        let n = part.units;
        // SAFETY: the sums are the worker's own, and rows of them follow each other.
        let rows = unsafe {
            let sums = sums.cast::<[[f32; BLOCK]; GATES]>();
            std::slice::from_raw_parts_mut(sums, part.examples.len())
        };
        // The gates of all rows first: they wait for nothing, and each cell then waits for its row's alone.
        for (row, example) in rows.iter_mut().zip(part.examples.clone()) {
            // SAFETY: every task has its own units of its own examples, and reads x there before it writes gates.
            unsafe {
                let x = [0, 1, 2, 3].map(|gate| o.x.add(gates(example, gate)));
                let to = [0, 1, 2, 3].map(|gate| o.gates.add(gates(example, gate)));
                whole(n, x, to, |x, to| gates_forward(ctx.isa, x, row, to));
            }
        }
        for (row, example) in rows.iter().zip(part.examples.clone()) {
            let here = spec.at(example, position) + part.first;
            // SAFETY: likewise.
            unsafe {
                let earlier = match step {
                    0 => o.c.add(example * units + part.first),
                    _ => o.cells.add(spec.at(example, spec.position(step - 1)) + part.first).cast_const(),
                };
                let to = [o.cells.add(here), o.y.add(here), after.at(example, part.first)];
                whole(n, [earlier], to, |from, to| cell_forward(ctx.isa, row, from, to));
            }
        }
    });
}

simd_fn! {
    /// A block of units: products become activations of their sums with x, here and in memory.
    ///
    /// # Safety
    ///
    /// The pointers are good for blocks.
    unsafe fn gates_forward(
        isa: Isa, x: [*const f32; GATES], row: &mut [[f32; BLOCK]; GATES], to: [*mut f32; GATES],
    ) {
        for gate in 0..GATES {
            // SAFETY: the caller's contract.
            let x = unsafe { x[gate].cast::<[f32; BLOCK]>().read_unaligned() };
            let values = &mut row[gate];
            if gate == 2 {
                for j in 0..BLOCK {
                    values[j] = tanh::<FMA>(x[j] + values[j]);
                }
            } else {
                for j in 0..BLOCK {
                    values[j] = sigmoid::<FMA>(x[j] + values[j]);
                }
            }
            // SAFETY: likewise.
            unsafe { to[gate].cast::<[f32; BLOCK]>().write_unaligned(*values) };
        }
    }
}

simd_fn! {
    /// A block of units: the cell before becomes the cell, the output, and the state.
    ///
    /// # Safety
    ///
    /// The pointers are good for blocks.
    unsafe fn cell_forward(
        isa: Isa, gates: &[[f32; BLOCK]; GATES], earlier: [*const f32; 1], to: [*mut f32; 3],
    ) {
        let [input, forget, new, output] = gates;
        // SAFETY: the caller's contract.
        let mut cell = unsafe { earlier[0].cast::<[f32; BLOCK]>().read_unaligned() };
        let mut y = [0.0; BLOCK];
        for j in 0..BLOCK {
            cell[j] = forget[j] * cell[j] + input[j] * new[j];
            y[j] = output[j] * tanh::<FMA>(cell[j]);
        }
        // SAFETY: likewise.
        unsafe {
            to[0].cast::<[f32; BLOCK]>().write_unaligned(cell);
            to[1].cast::<[f32; BLOCK]>().write_unaligned(y);
            to[2].cast::<[f32; BLOCK]>().write_unaligned(y);
        }
    }
}
