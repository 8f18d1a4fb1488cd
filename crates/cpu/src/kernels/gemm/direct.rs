//! Products of a few rows, as in a step of a recurrence: packing would cost as much as multiplying, so the kernels read
//! both operands in place.

use super::chunks::{KC, chunks};
use super::kernel::{self, Finish, Form, Kernels, Tile, Walk};
use super::{Epilogue, GemmSpec, SharedMut, WORTH_SHARING};
use crate::isa::Context;

/// Rows up to which packing does not pay off.
const FEW_ROWS: usize = 16;

/// The same where the second operand has at most [`NEAR`] elements: it stays in a core's own cache.
const FEW_ROWS_NEAR: usize = 64;
const NEAR: usize = 1 << 18;

/// The columns of a vector in any instruction set divide this.
const WHOLE_VECTORS: usize = 16;

/// Whether [`gemm_direct`] takes a product of row-major operands, and takes less time than [`gemm`](super::gemm): few rows
/// and whole vectors of columns.
pub fn is_direct(spec: &GemmSpec) -> bool {
    let few = if spec.k.saturating_mul(spec.n) <= NEAR { FEW_ROWS_NEAR } else { FEW_ROWS };
    spec.m <= few && spec.n.is_multiple_of(WHOLE_VECTORS)
}

/// As [`gemm`](super::gemm) for row-major operands without gaps, with its bits and without a workspace.
///
/// # Panics
///
/// When an operand is shorter than the sizes say, or [`is_direct`] does not hold.
pub fn gemm_direct(
    ctx: Context<'_>,
    spec: &GemmSpec,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    epilogue: Epilogue<'_>,
) {
    let GemmSpec { m, n, k, .. } = *spec;
    let finish = epilogue.finish(n);
    assert!(is_direct(spec), "the columns are no whole vectors");
    assert!(
        a.len() >= m * k && b.len() >= k * n && c.len() >= m * n,
        "operands are shorter than their shapes"
    );
    kernel::assert_available(ctx.isa);
    let kernels = Kernels::of(ctx.isa);
    let strips =
        Strips { kernels, spec: *spec, a: a.as_ptr(), b: b.as_ptr(), c: SharedMut(c.as_mut_ptr()), finish };
    let panels = n.div_ceil(kernels.nr());
    let threads = if m * n * k < WORTH_SHARING { 1 } else { ctx.pool.threads() };
    let tasks = if threads == 1 { 1 } else { panels.min(4 * threads) };
    let task = |task: usize, _| {
        (task * panels / tasks..(task + 1) * panels / tasks).for_each(|panel| strips.multiply(panel));
    };
    if threads == 1 { task(0, 0) } else { ctx.pool.run(tasks, &task) }
}

/// A product by panels of columns.
struct Strips {
    kernels: &'static Kernels,
    spec: GemmSpec,
    a: *const f32,
    b: *const f32,
    c: SharedMut,
    finish: Finish,
}

// SAFETY: the operands outlive the product and are only read; tasks write disjoint panels of C.
unsafe impl Sync for Strips {}

impl Strips {
    /// All rows of one panel, in tiles as even as possible. They share a chunk of the panel while it is in cache.
    fn multiply(&self, panel: usize) {
        let GemmSpec { m, n, k, accumulate, block: _ } = self.spec;
        let col = panel * self.kernels.nr();
        let cols = (n - col).min(self.kernels.nr());
        let tiles = m.div_ceil(self.kernels.mr);
        for chunk in chunks(k, KC) {
            for index in 0..tiles {
                let (row, end) = (index * m / tiles, (index + 1) * m / tiles);
                let tile = Tile {
                    a: self.a.wrapping_add(row * k + chunk.start),
                    a_step: k,
                    walk: Walk::STRAIGHT,
                    k_start: 0,
                    k_len: chunk.len(),
                    b: self.b.wrapping_add(chunk.start * n + col),
                    b_step: n,
                    c: self.c.at(row * n + col),
                    ldc: n,
                    load: accumulate || chunk.start > 0,
                    ahead: std::ptr::null(),
                    cols,
                    finish: if chunk.end == k { self.finish.at_column(col) } else { Finish::NONE },
                };
                // SAFETY: the operands cover their shapes, whole vectors of columns lie inside B, and no two tasks share a
                // panel of C; an instruction set is only chosen on machines that have it.
                unsafe { self.kernels.micro(Form::Rows, end - row, cols)(&tile) };
            }
        }
    }
}
