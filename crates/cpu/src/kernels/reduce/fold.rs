//! Sums over examples: a left fold over blocks of rows.
//!
//! A block is cut into units whose rows are summed together; the block's partial sum is the fold of its units from
//! +0, and the result the fold of its blocks. Blocks and units follow from the number of columns and the rows of a
//! block, so neither the threads nor the number of rows in a call change the bits.

use super::STRIP;
use crate::isa::Context;
use crate::kernels::math::{Shared, TASK_ELEMENTS, whole_lines};
use std::ops::Range;

/// From this many columns on, tasks are columns and need no memory for partial sums.
const WIDE: usize = 1024;

/// Floats of partial sums that are kept at a time.
const PARTIALS: usize = 64 * 1024;

/// The sizes of a fold.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    /// Rows in this call.
    pub rows: usize,
    /// Columns.
    pub inner: usize,
    /// Rows of a block.
    pub block_rows: usize,
    /// Whether the sums are added to the results.
    pub accumulate: bool,
}

/// A unit's sums: `(rows, columns, out)` overwrites `out[n]` with the sums of these rows in these columns.
pub(crate) type Unit<'a, const N: usize> = &'a (dyn Fn(Range<usize>, Range<usize>, [&mut [f32]; N]) + Sync);

/// Rows of a unit: a first-level cache's worth of elements.
fn unit_rows(inner: usize) -> usize {
    (8192 / inner.max(1)).max(64)
}

impl Fold {
    fn unit_rows(&self) -> usize {
        unit_rows(self.inner).min(self.block_rows)
    }

    fn units_per_block(&self) -> usize {
        self.block_rows.div_ceil(self.unit_rows())
    }

    /// Units of all rows.
    pub fn units(&self) -> usize {
        assert!(self.block_rows > 0, "a block has at least one row");
        let whole = self.rows / self.block_rows * self.units_per_block();
        whole + (self.rows % self.block_rows).div_ceil(self.unit_rows())
    }

    /// The rows of a unit.
    pub fn unit(&self, unit: usize) -> Range<usize> {
        let (block, inside) = (unit / self.units_per_block(), unit % self.units_per_block());
        let block_start = block * self.block_rows;
        let start = block_start + inside * self.unit_rows();
        start..(start + self.unit_rows()).min(block_start + self.block_rows).min(self.rows)
    }

    fn is_first_of_block(&self, unit: usize) -> bool {
        unit.is_multiple_of(self.units_per_block())
    }

    fn is_last_of_block(&self, unit: usize) -> bool {
        self.is_first_of_block(unit + 1) || unit + 1 == self.units()
    }

    /// Units whose partial sums are kept at a time.
    fn units_per_pass(&self, outputs: usize) -> usize {
        (PARTIALS / (outputs * self.inner).max(1)).clamp(1, self.units().max(1))
    }

    /// Folds a unit's sums into the block's, and those, where the block ends, into the result.
    fn add_unit(&self, unit: usize, partial: &[f32], block: &mut [f32], y: &mut [f32]) {
        if self.is_first_of_block(unit) {
            block.fill(0.0);
        }
        block.iter_mut().zip(partial).for_each(|(a, b)| *a += b);
        if self.is_last_of_block(unit) {
            y.iter_mut().zip(block).for_each(|(a, b)| *a += *b);
        }
    }
}

/// The bytes of workspace that [`fold`] needs for so many results at once: a multiple of 64.
pub(crate) fn fold_workspace(outputs: usize, spec: &Fold) -> usize {
    if spec.inner >= WIDE {
        return 0;
    }
    let floats = (spec.units_per_pass(outputs) + 1) * outputs * spec.inner;
    whole_lines(floats) * size_of::<f32>()
}

/// Folds `N` sums over rows into `y`.
pub(crate) fn fold<const N: usize>(
    ctx: Context<'_>,
    spec: &Fold,
    mut y: [&mut [f32]; N],
    workspace: &mut [f32],
    unit: Unit<'_, N>,
) {
    let inner = spec.inner;
    if inner == 0 {
        return;
    }
    if inner >= WIDE {
        let y = y.each_mut().map(|y| Shared::new(y));
        ctx.pool.run(inner.div_ceil(STRIP), &|strip, _| {
            let columns = strip * STRIP..((strip + 1) * STRIP).min(inner);
            // SAFETY: every task has its own columns.
            let y = y.each_ref().map(|y| unsafe { y.part(columns.start, columns.len()) });
            fold_strip(spec, columns, y, unit);
        });
        return;
    }
    if !spec.accumulate {
        y.iter_mut().for_each(|y| y[..inner].fill(0.0));
    }
    let units = spec.units();
    let per_pass = spec.units_per_pass(N);
    assert!(workspace.len() >= (per_pass + 1) * N * inner, "the workspace is too small");
    let (blocks, partials) = workspace.split_at_mut(N * inner);
    let group = (TASK_ELEMENTS / (spec.unit_rows() * inner).max(1)).max(1);
    for first in (0..units).step_by(per_pass) {
        let pass = first..(first + per_pass).min(units);
        let shared = Shared::new(partials);
        ctx.pool.run(pass.len().div_ceil(group), &|task, _| {
            for u in pass.start + task * group..(pass.start + (task + 1) * group).min(pass.end) {
                let at = (u - pass.start) * N * inner;
                // SAFETY: every unit has its own partial sums.
                let out = std::array::from_fn(|n| unsafe { shared.part(at + n * inner, inner) });
                unit(spec.unit(u), 0..inner, out);
            }
        });
        for (u, partial) in pass.zip(partials.chunks_exact((N * inner).max(1))) {
            for (n, y) in y.iter_mut().enumerate() {
                let range = n * inner..(n + 1) * inner;
                spec.add_unit(u, &partial[range.clone()], &mut blocks[range], &mut y[..inner]);
            }
        }
    }
}

/// The whole fold for at most [`STRIP`] columns, on the calling thread.
pub(crate) fn fold_strip<const N: usize>(
    spec: &Fold,
    columns: Range<usize>,
    mut y: [&mut [f32]; N],
    unit: Unit<'_, N>,
) {
    let width = columns.len();
    let (mut partials, mut blocks) = ([[0.0; STRIP]; N], [[0.0; STRIP]; N]);
    if !spec.accumulate {
        y.iter_mut().for_each(|y| y.fill(0.0));
    }
    for u in 0..spec.units() {
        unit(spec.unit(u), columns.clone(), partials.each_mut().map(|p| &mut p[..width]));
        for n in 0..N {
            spec.add_unit(u, &partials[n][..width], &mut blocks[n][..width], y[n]);
        }
    }
}
