//! Rows of logits: their log-sum-exp, loss and gradient.

use crate::isa::Context;
use crate::kernels::math::{Shared, exp, rows_per_task, simd_fn};
use crate::kernels::norm::log_sum_exp_rows;

/// The sum of row losses: a left fold over blocks of rows.
pub(super) struct LossFold {
    block_rows: usize,
    /// Rows of the unfinished block, and their sum.
    rows: usize,
    block: f32,
    total: f32,
}

impl LossFold {
    /// Starts from zero, or from `before` with `accumulate`.
    pub(super) fn new(block_rows: usize, accumulate: bool, before: f32) -> Self {
        assert!(block_rows > 0, "a block has at least one row");
        Self { block_rows, rows: 0, block: 0.0, total: if accumulate { before } else { 0.0 } }
    }

    pub(super) fn add(&mut self, losses: &[f32]) {
        for loss in losses {
            self.block += loss;
            self.rows += 1;
            if self.rows == self.block_rows {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.total += self.block;
        (self.rows, self.block) = (0, 0.0);
    }

    pub(super) fn finish(mut self) -> f32 {
        if self.rows > 0 {
            self.close();
        }
        self.total
    }
}

/// Log-sum-exp and weighted loss of every row.
pub(super) fn loss_rows(
    ctx: Context<'_>,
    classes: usize,
    logits: &[f32],
    labels: &[i32],
    weights: &[f32],
    lse: &mut [f32],
    losses: &mut [f32],
) {
    let rows = labels.len();
    let logits = &logits[..rows * classes];
    let group = rows_per_task(classes);
    let (lse, losses) = (Shared::new(lse), Shared::new(losses));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        let part = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows.
        let (lse, losses) =
            unsafe { (lse.part(part.start, part.len()), losses.part(part.start, part.len())) };
        log_sum_exp_rows(ctx.isa, classes, &logits[part.start * classes..part.end * classes], lse);
        for (r, (loss, lse)) in part.zip(losses.iter_mut().zip(lse)) {
            *loss = weights[r] * (*lse - logits[r * classes + labels[r] as usize]);
        }
    });
}

/// Log-sum-exp and weighted loss of every row, as [`loss_rows`]; then the gradients of its logits in place, as
/// [`gradient_rows`], while they are in cache.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub(super) fn loss_and_gradient_rows(
    ctx: Context<'_>,
    classes: usize,
    labels: &[i32],
    weights: &[f32],
    dloss: f32,
    lse: &mut [f32],
    losses: &mut [f32],
    logits: &mut [f32],
) {
    let rows = labels.len();
    assert!(logits.len() >= rows * classes, "operands are too short");
    let group = rows_per_task(classes);
    let (lse, losses, logits) = (Shared::new(lse), Shared::new(losses), Shared::new(logits));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        for r in task * group..((task + 1) * group).min(rows) {
            // SAFETY: every task has its own rows.
            let (lse, loss, row) =
                unsafe { (lse.part(r, 1), losses.part(r, 1), logits.part(r * classes, classes)) };
            let label = labels[r] as usize;
            log_sum_exp_rows(ctx.isa, classes, row, lse);
            loss[0] = weights[r] * (lse[0] - row[label]);
            gradient_row_in_place(ctx.isa, label, lse[0], weights[r] * dloss, row);
        }
    });
}

/// The gradients of logits, in place or not: `(e^(logit - lse) - onehot) · (weight · dloss)`.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub(super) fn gradient_rows(
    ctx: Context<'_>,
    classes: usize,
    logits: Option<&[f32]>,
    labels: &[i32],
    weights: &[f32],
    lse: &[f32],
    dloss: f32,
    dlogits: &mut [f32],
) {
    let rows = labels.len();
    let group = rows_per_task(classes);
    assert!(dlogits.len() >= rows * classes, "operands are too short");
    let dlogits = Shared::new(dlogits);
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        for r in task * group..((task + 1) * group).min(rows) {
            // SAFETY: every task has its own rows.
            let dlogits = unsafe { dlogits.part(r * classes, classes) };
            let scale = weights[r] * dloss;
            let label = labels[r] as usize;
            match logits {
                Some(logits) => {
                    gradient_row(
                        ctx.isa,
                        &logits[r * classes..(r + 1) * classes],
                        label,
                        lse[r],
                        scale,
                        dlogits,
                    );
                }
                None => gradient_row_in_place(ctx.isa, label, lse[r], scale, dlogits),
            }
        }
    });
}

simd_fn! {
    fn gradient_row(isa: Isa, logits: &[f32], label: usize, lse: f32, scale: f32, dlogits: &mut [f32]) {
        for (d, x) in dlogits.iter_mut().zip(logits) {
            *d = exp::<FMA>(x - lse) * scale;
        }
        dlogits[label] = (exp::<FMA>(logits[label] - lse) - 1.0) * scale;
    }
}

simd_fn! {
    fn gradient_row_in_place(isa: Isa, label: usize, lse: f32, scale: f32, row: &mut [f32]) {
        let correct = row[label];
        for x in row.iter_mut() {
            *x = exp::<FMA>(*x - lse) * scale;
        }
        row[label] = (exp::<FMA>(correct - lse) - 1.0) * scale;
    }
}
