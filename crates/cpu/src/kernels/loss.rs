//! Softmax cross-entropy, of logits or of a last layer whose logits are computed a chunk of rows at a time.

mod linear;
mod rows;
#[cfg(test)]
mod tests;

pub use linear::{
    LinearSpec, linear_cross_entropy, linear_cross_entropy_grad, linear_cross_entropy_grad_workspace,
    linear_cross_entropy_with_grad, linear_cross_entropy_with_grad_workspace, linear_cross_entropy_workspace,
};

use crate::isa::Context;
use crate::kernels::index::{OutOfRange, check_indices};
use crate::kernels::math::whole_lines;
use rows::{LossFold, gradient_rows, loss_rows};

/// The bytes of workspace that [`cross_entropy`] needs: a multiple of 64.
pub fn cross_entropy_workspace(rows: usize) -> usize {
    whole_lines(rows) * size_of::<f32>()
}

/// `loss = Σ_r weights[r] · (lse[r] - logits[r, labels[r]])` (`loss += ..` with `accumulate`), folded over blocks of
/// `block_rows` rows, and the rows' log-sum-exp.
///
/// Nothing is written if a label is out of range.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn cross_entropy(
    ctx: Context<'_>,
    rows: usize,
    classes: usize,
    block_rows: usize,
    accumulate: bool,
    logits: &[f32],
    labels: &[i32],
    weights: &[f32],
    loss: &mut f32,
    lse: &mut [f32],
    workspace: &mut [f32],
) -> Result<(), OutOfRange> {
    let labels = &labels[..rows];
    check_indices(labels, classes)?;
    let losses = &mut workspace[..rows];
    loss_rows(ctx, classes, logits, labels, &weights[..rows], &mut lse[..rows], losses);
    let mut fold = LossFold::new(block_rows, accumulate, *loss);
    fold.add(losses);
    *loss = fold.finish();
    Ok(())
}

/// `dlogits = (softmax - onehot) · weights · dloss`, from the rows' log-sum-exp.
///
/// Nothing is written if a label is out of range.
#[allow(clippy::too_many_arguments, reason = "sizes and operands")]
pub fn cross_entropy_grad(
    ctx: Context<'_>,
    rows: usize,
    classes: usize,
    logits: &[f32],
    labels: &[i32],
    weights: &[f32],
    lse: &[f32],
    dloss: f32,
    dlogits: &mut [f32],
) -> Result<(), OutOfRange> {
    let labels = &labels[..rows];
    check_indices(labels, classes)?;
    gradient_rows(
        ctx,
        classes,
        Some(logits),
        labels,
        &weights[..rows],
        &lse[..rows],
        dloss,
        &mut dlogits[..rows * classes],
    );
    Ok(())
}
