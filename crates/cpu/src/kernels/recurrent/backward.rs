//! From the gradient of the outputs to those of the projected inputs and of the first state.

use super::{BLOCK, GATES, LstmSpec, Panels, Part, Rows, Steps, bytes, fetch, parts, sums_floats, whole};
use crate::isa::Context;
use crate::kernels::gemm::pack::Strip;
use crate::kernels::math::{Shared, simd_fn, tanh, whole_lines};

/// Of the packed kernel, of the gates' gradients after and at a step, of the cells' gradient, and of the workers' sums.
fn floats(threads: usize, spec: &LstmSpec) -> [usize; 5] {
    let gates = Rows::floats(spec, GATES * spec.units);
    let packed = Panels::floats(GATES * spec.units, spec.blocks());
    [packed, gates, gates, whole_lines(spec.state()), threads * sums_floats(1)]
}

/// The bytes of workspace that [`lstm_grad`] needs: a multiple of 64.
pub fn lstm_grad_workspace(threads: usize, spec: &LstmSpec) -> usize {
    bytes(&floats(threads, spec))
}

/// The operands of [`lstm_grad`]: see `plimsoll_graph::op::Recurrent::LstmGrad`. dx may lie where the gates do, and one of dh and
/// dc where c does.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "named in the op")]
pub struct LstmGradOperands {
    pub kernel: *const f32,
    pub c: *const f32,
    pub cells: *const f32,
    pub gates: *const f32,
    pub dy: *const f32,
    /// The gradient of the cells, or null.
    pub dcells: *const f32,
    pub dx: *mut f32,
    pub dh: *mut f32,
    pub dc: *mut f32,
}

// SAFETY: tasks read and write disjoint parts; see `lstm_grad`.
unsafe impl Sync for LstmGradOperands {}

/// The gradient of the recurrence.
///
/// # Safety
///
/// Every operand is good for its shape, and the outputs overlap nothing but what [`LstmGradOperands`] allows.
///
/// # Panics
///
/// When the workspace is too small.
pub unsafe fn lstm_grad(ctx: Context<'_>, spec: &LstmSpec, o: &LstmGradOperands, workspace: &mut [f32]) {
    let (units, wide) = (spec.units, GATES * spec.units);
    if spec.state() == 0 {
        return;
    }
    let [packed, after, here, carry, sums] = parts(workspace, floats(ctx.pool.threads(), spec));
    let kernel = Shared::from_ptr(o.kernel.cast_mut());
    // The kernel transposed: a block's columns are units.
    let panels = Panels::pack(ctx, wide, spec.blocks(), packed, |block, column| {
        let first = block * BLOCK + column;
        let src = kernel.at(first.min(units - 1) * wide).cast_const();
        Strip { src, lane_step: wide, k_step: 1, lanes: units - first.min(units) }
    });
    carry.fill(0.0);
    let gradients = [after, here].map(|space| Rows::new(wide, space));
    let (carry, sums) = (Shared::new(carry), Shared::new(sums));
    // The last step is that of the first state.
    Steps::new(ctx, spec).run(spec.positions + 1, |done, part, worker| {
        let (after, here) = (gradients[done % 2], gradients[(done + 1) % 2]);
        let sums = sums.at(worker * sums_floats(1));
        if done == spec.positions {
            // SAFETY: the step after is complete, and the sums are the worker's own. Nobody reads these units of c any more.
            return unsafe { first_state(o, spec, &panels, after, carry, &part, sums) };
        }
        let step = spec.positions - 1 - done;
        let position = spec.position(step);
        let is_last = done == 0;
        for gate in 0..GATES {
            for example in part.examples.clone() {
                let at = spec.at(example, position);
                fetch(o.gates.wrapping_add(GATES * at + gate * units + part.first));
                match gate {
                    0 => fetch(o.cells.wrapping_add(at + part.first)),
                    1 => fetch(o.dy.wrapping_add(at + part.first)),
                    _ => {}
                }
            }
            if !is_last {
                let k = gate * units..(gate + 1) * units;
                // SAFETY: the step after is complete, and the sums are the worker's own.
                unsafe { panels.multiply(part.block, k, after, &part.examples, sums, BLOCK) };
            }
        }
        for (row, example) in part.examples.clone().enumerate() {
            let (n, first) = (part.units, part.first);
            let at = spec.at(example, position) + first;
            let gates = |gate: usize| GATES * spec.at(example, position) + gate * units + first;
            // SAFETY: every task has its own units of its own examples, and reads gates there before it writes dx.
            unsafe {
                let earlier = match step {
                    0 => o.c.add(example * units + first),
                    _ => o.cells.add(spec.at(example, spec.position(step - 1)) + first),
                };
                let carry = carry.at(example * units + first);
                // Zeros stand for the gradient of cells that is no operand.
                let dcells = if o.dcells.is_null() { ZEROS.as_ptr() } else { o.dcells.add(at) };
                let after = if is_last { ZEROS.as_ptr() } else { sums.add(row * BLOCK).cast_const() };
                let from = [
                    o.gates.add(gates(0)),
                    o.gates.add(gates(1)),
                    o.gates.add(gates(2)),
                    o.gates.add(gates(3)),
                    o.cells.add(at),
                    earlier,
                    o.dy.add(at),
                    carry.cast_const(),
                    dcells,
                    after,
                ];
                let dx = |gate: usize| o.dx.add(gates(gate));
                let here = |gate: usize| here.at(example, gate * units + first);
                let to = [dx(0), dx(1), dx(2), dx(3), here(0), here(1), here(2), here(3), carry];
                whole(n, from, to, |from, to| cell_backward(ctx.isa, from, to, !o.dcells.is_null()));
            }
        }
    });
}

/// The gradients of a part of the first state.
///
/// # Safety
///
/// As for [`lstm_grad`]; the gradients of the gates `after` it are complete, and nobody else touches this part or the sums.
unsafe fn first_state(
    o: &LstmGradOperands,
    spec: &LstmSpec,
    panels: &Panels,
    after: Rows,
    carry: Shared<f32>,
    part: &Part,
    sums: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if spec.positions > 0 {
            panels.multiply(part.block, 0..GATES * spec.units, after, &part.examples, sums, BLOCK);
        }
        for (row, example) in part.examples.clone().enumerate() {
            let at = example * spec.units + part.first;
            let dh = if spec.positions > 0 { sums.add(row * BLOCK).cast_const() } else { ZEROS.as_ptr() };
            std::ptr::copy_nonoverlapping(dh, o.dh.add(at), part.units);
            std::ptr::copy_nonoverlapping(carry.at(at), o.dc.add(at), part.units);
        }
    }
}

/// A block of zeros.
static ZEROS: [f32; BLOCK] = [0.0; BLOCK];

simd_fn! {
    /// A block of units: from the gates, the cells, those before, the gradients of y, of the cells after and here, and of the state
    /// after, to those of what the gates are activations of, twice, and of the cells before.
    ///
    /// # Safety
    ///
    /// The pointers are good for blocks.
    unsafe fn cell_backward(isa: Isa, from: [*const f32; 10], to: [*mut f32; 9], dcells: bool) {
        // SAFETY: the caller's contract.
        let read = |row: usize| unsafe { from[row].cast::<[f32; BLOCK]>().read_unaligned() };
        let (mut input, mut forget, mut new, mut output) = (read(0), read(1), read(2), read(3));
        let (cell, earlier, dy, mut dc, here, after) = (read(4), read(5), read(6), read(7), read(8), read(9));
        for j in 0..BLOCK {
            let squashed = tanh::<FMA>(cell[j]);
            let (i, f, n, o) = (input[j], forget[j], new[j], output[j]);
            let dh = after[j] + dy[j];
            let carried = if dcells { dc[j] + here[j] } else { dc[j] };
            let d = carried + dh * o * ((1.0 - squashed) * (1.0 + squashed));
            input[j] = d * n * (i * (1.0 - i));
            forget[j] = d * earlier[j] * (f * (1.0 - f));
            new[j] = d * i * ((1.0 - n) * (1.0 + n));
            output[j] = dh * squashed * (o * (1.0 - o));
            dc[j] = d * f;
        }
        // SAFETY: likewise.
        let write = |row: usize, values: &[f32; BLOCK]| unsafe {
            to[row].cast::<[f32; BLOCK]>().write_unaligned(*values);
        };
        for half in [0, GATES] {
            write(half, &input);
            write(half + 1, &forget);
            write(half + 2, &new);
            write(half + 3, &output);
        }
        write(2 * GATES, &dc);
    }
}
