//! From the gradient of the outputs to those of the projected inputs and of the first state.

use super::{BLOCK, GATES, LstmSpec, Panels, Rows, Steps, bytes, fetch, load, parts, store, sums_floats};
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
    let mut steps = Steps::new(ctx, spec);
    let gradients = [after, here].map(|space| Rows::new(wide, space));
    let (carry, sums) = (Shared::new(carry), Shared::new(sums));
    steps.run_all(|done, part, worker| {
        let (after, here) = (gradients[done % 2], gradients[(done + 1) % 2]);
        let step = spec.positions - 1 - done;
        let position = spec.position(step);
        let is_last = done == 0;
        let sums = sums.at(worker * sums_floats(1));
        for example in part.examples.clone() {
            let at = spec.at(example, position);
            (0..GATES).for_each(|gate| fetch(o.gates.wrapping_add(GATES * at + gate * units + part.first)));
            fetch(o.cells.wrapping_add(at + part.first));
            fetch(o.dy.wrapping_add(at + part.first));
        }
        if !is_last {
            // SAFETY: the step after is complete, and the sums are the worker's own.
            unsafe { panels.multiply(part.block, after, &part.examples, sums, BLOCK) };
        }
        for (row, example) in part.examples.clone().enumerate() {
            let (n, first) = (part.units, part.first);
            let at = spec.at(example, position) + first;
            let gates = |gate: usize| GATES * spec.at(example, position) + gate * units + first;
            // SAFETY: every task has its own units of its own examples, and reads gates there before it writes dx.
            unsafe {
                let mut all = [0, 1, 2, 3].map(|gate| load(o.gates.add(gates(gate)), n));
                let earlier = match step {
                    0 => o.c.add(example * units + first),
                    _ => o.cells.add(spec.at(example, spec.position(step - 1)) + first),
                };
                let (cell, earlier) = (load(o.cells.add(at), n), load(earlier, n));
                let dy = load(o.dy.add(at), n);
                let mut dh = if is_last { [0.0; BLOCK] } else { *sums.add(row * BLOCK).cast() };
                dh.iter_mut().zip(dy).for_each(|(dh, dy)| *dh += dy);
                let mut dc = load(carry.at(example * units + first), n);
                if !o.dcells.is_null() {
                    let dcells = load(o.dcells.add(at), n);
                    dc.iter_mut().zip(dcells).for_each(|(dc, d)| *dc += d);
                }
                cell_backward(ctx.isa, &mut all, &cell, &earlier, &dh, &mut dc);
                for (gate, values) in all.iter().enumerate() {
                    store(values, o.dx.add(gates(gate)), n);
                    store(values, here.at(example, gate * units + first), n);
                }
                store(&dc, carry.at(example * units + first), n);
            }
        }
    });
    let after = gradients[spec.positions % 2];
    // The gradients of the first state. Nothing reads c any more.
    steps.run(|part, worker| {
        let sums = sums.at(worker * sums_floats(1));
        let n = part.units;
        // SAFETY: as above.
        unsafe {
            if spec.positions > 0 {
                panels.multiply(part.block, after, &part.examples, sums, BLOCK);
            }
            for (row, example) in part.examples.clone().enumerate() {
                let at = example * units + part.first;
                let dh = if spec.positions > 0 { *sums.add(row * BLOCK).cast() } else { [0.0; BLOCK] };
                store(&dh, o.dh.add(at), n);
                store(&load(carry.at(at), n), o.dc.add(at), n);
            }
        }
    });
}

simd_fn! {
    /// A block of units: gates become the gradients of what they are activations of, and the cell's gradient the one before.
    fn cell_backward(
        isa: Isa, gates: &mut [[f32; BLOCK]; GATES], cell: &[f32; BLOCK], earlier: &[f32; BLOCK], dh: &[f32; BLOCK],
        dc: &mut [f32; BLOCK],
    ) {
        let [input, forget, new, output] = gates;
        for j in 0..BLOCK {
            let squashed = tanh::<FMA>(cell[j]);
            let (i, f, n, o) = (input[j], forget[j], new[j], output[j]);
            let d = dc[j] + dh[j] * o * ((1.0 - squashed) * (1.0 + squashed));
            input[j] = d * n * (i * (1.0 - i));
            forget[j] = d * earlier[j] * (f * (1.0 - f));
            new[j] = d * i * ((1.0 - n) * (1.0 + n));
            output[j] = dh[j] * squashed * (o * (1.0 - o));
            dc[j] = d * f;
        }
    }
}
