//! Cross-entropy of `x · kernel` in chunks of rows.

use super::rows::{LossFold, gradient_rows, loss_and_gradient_rows, loss_rows};
use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::gemm::{Epilogue, GemmSpec, Mat, gemm, gemm_in, gemm_in_workspace, gemm_workspace};
use crate::kernels::index::{OutOfRange, check_indices};
use crate::kernels::math::whole_lines;
use std::ops::Range;

/// Rows of a chunk, at most: enough to pay for packing the kernel. Twice as many where their logits are small.
const CHUNK: usize = 256;
/// Logits of a chunk of twice as many rows, at most.
const SMALL_LOGITS: usize = 2 << 20;

/// The sizes of a linear layer under a cross-entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// Rows of x.
    pub rows: usize,
    /// Columns of x, rows of the kernel (as it multiplies).
    pub width: usize,
    /// Columns of the kernel.
    pub classes: usize,
    /// Whether the kernel is stored as `[classes, width]`.
    pub transposed: bool,
    /// Rows of a block: sums over rows fold block by block.
    pub block_rows: usize,
    /// Whether the sums are added to the results.
    pub accumulate: bool,
}

impl LinearSpec {
    /// Chunks are cut at multiples of this: as many blocks as fit, at least one.
    fn period(&self) -> usize {
        assert!(self.block_rows > 0, "a block has at least one row");
        let most = self.chunk();
        if self.block_rows > most { self.block_rows } else { most / self.block_rows * self.block_rows }
    }

    /// Rows of a chunk, at most.
    fn chunk(&self) -> usize {
        if 2 * CHUNK * self.classes <= SMALL_LOGITS { 2 * CHUNK } else { CHUNK }
    }

    /// The chunks. Where they are cut depends on the rows of a block and the classes only.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, period, chunk_rows) = (self.rows, self.period(), self.chunk());
        let mut start = 0;
        std::iter::from_fn(move || {
            let end = (start + chunk_rows).min(start - start % period + period).min(rows);
            let chunk = (start < rows).then_some(start..end);
            start = end;
            chunk
        })
    }

    /// Rows of the longest chunk.
    pub(crate) fn longest_chunk(&self) -> usize {
        self.period().min(self.chunk()).min(self.rows)
    }

    fn logits(&self, rows: usize) -> GemmSpec {
        GemmSpec::new(rows, self.classes, self.width)
    }

    fn dx(&self, rows: usize) -> GemmSpec {
        GemmSpec::new(rows, self.width, self.classes)
    }

    fn dkernel(&self, rows: usize, accumulate: bool) -> GemmSpec {
        let (m, n) = if self.transposed { (self.classes, self.width) } else { (self.width, self.classes) };
        GemmSpec { accumulate, block: self.block_rows, ..GemmSpec::new(m, n, rows) }
    }

    /// The kernel as `[width, classes]`.
    fn kernel<'a>(&self, kernel: &'a [f32]) -> Mat<'a> {
        if self.transposed { transposed(kernel, self.width) } else { matrix(kernel, self.classes) }
    }

    /// The kernel as `[classes, width]`.
    fn kernel_back<'a>(&self, kernel: &'a [f32]) -> Mat<'a> {
        if self.transposed { matrix(kernel, self.width) } else { transposed(kernel, self.classes) }
    }

    /// The largest need of a product over the chunks, whose lengths differ.
    fn product_floats(&self, need: impl Fn(usize) -> usize) -> usize {
        whole_lines(self.chunks().map(|chunk| need(chunk.len())).max().unwrap_or(0) / size_of::<f32>())
    }

    fn forward_floats<T: Float>(&self, isa: Isa, threads: usize) -> [usize; 3] {
        let chunk = self.longest_chunk();
        let product =
            self.product_floats(|rows| gemm_workspace::<T, f32, f32>(isa, threads, &self.logits(rows)));
        [whole_lines(chunk * self.classes), whole_lines(chunk), product]
    }

    fn backward_floats<T: Float>(&self, isa: Isa, threads: usize) -> [usize; 2] {
        let product = self.product_floats(|rows| {
            let products = [self.logits(rows), self.dkernel(rows, true)];
            let needs = products.iter().map(|spec| gemm_workspace::<T, f32, f32>(isa, threads, spec));
            let dx = gemm_in_workspace::<T>(T::DTYPE, isa, threads, &self.dx(rows));
            needs.max().unwrap_or(0).max(dx)
        });
        [whole_lines(self.longest_chunk() * self.classes), product]
    }

    /// Of losses and log-sum-exps, and of the gradient.
    fn both_floats<T: Float>(&self, isa: Isa, threads: usize) -> [usize; 2] {
        let gradient = self.backward_floats::<T>(isa, threads);
        [whole_lines(self.longest_chunk()), gradient.iter().sum()]
    }

    fn check<T>(&self, x: &[T], kernel: &[f32], labels: &[i32]) -> Result<(), OutOfRange> {
        let fits = x.len() >= self.rows * self.width && kernel.len() >= self.width * self.classes;
        assert!(fits, "operands are too short");
        check_indices(&labels[..self.rows], self.classes)
    }
}

/// Rows of a row-major matrix.
fn matrix<T>(data: &[T], columns: usize) -> Mat<'_, T> {
    Mat { data, row_stride: columns, col_stride: 1 }
}

/// A row-major matrix, transposed.
fn transposed<T>(data: &[T], columns: usize) -> Mat<'_, T> {
    Mat { data, row_stride: 1, col_stride: columns }
}

/// The bytes of workspace that [`linear_cross_entropy`] needs: a multiple of 64.
pub fn linear_cross_entropy_workspace<T: Float>(isa: Isa, threads: usize, spec: &LinearSpec) -> usize {
    spec.forward_floats::<T>(isa, threads).iter().sum::<usize>() * size_of::<f32>()
}

/// The cross-entropy of `x · kernel`, as [`cross_entropy`](super::cross_entropy) has it; logits are f32. Where x is bf16 and the
/// instruction set multiplies bf16, all products do: the kernel and the gradients of the logits are rounded first.
///
/// Nothing is written if a label is out of range.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn linear_cross_entropy<T: Float>(
    ctx: Context<'_>,
    spec: &LinearSpec,
    x: &[T],
    kernel: &[f32],
    labels: &[i32],
    weights: &[f32],
    loss: &mut f32,
    lse: &mut [f32],
    workspace: &mut [f32],
) -> Result<(), OutOfRange> {
    spec.check(x, kernel, labels)?;
    let [logits, losses, _] = spec.forward_floats::<T>(ctx.isa, ctx.pool.threads());
    let (logits, workspace) = workspace.split_at_mut(logits);
    let (losses, workspace) = workspace.split_at_mut(losses);
    let mut fold = LossFold::new(spec.block_rows, spec.accumulate, *loss);
    for chunk in spec.chunks() {
        let rows = chunk.len();
        let x = matrix(&x[chunk.start * spec.width..], spec.width);
        gemm(ctx, &spec.logits(rows), x, spec.kernel(kernel), logits, Epilogue::NONE, workspace);
        let (labels, weights) = (&labels[chunk.clone()], &weights[chunk.clone()]);
        loss_rows(ctx, spec.classes, logits, labels, weights, &mut lse[chunk], &mut losses[..rows]);
        fold.add(&losses[..rows]);
    }
    *loss = fold.finish();
    Ok(())
}

/// The bytes of workspace that [`linear_cross_entropy_grad`] needs: a multiple of 64.
pub fn linear_cross_entropy_grad_workspace<T: Float>(isa: Isa, threads: usize, spec: &LinearSpec) -> usize {
    spec.backward_floats::<T>(isa, threads).iter().sum::<usize>() * size_of::<f32>()
}

/// The gradients of x and of the kernel (added to what is there with `accumulate`), from the rows' log-sum-exp; the
/// logits are recomputed.
///
/// Nothing is written if a label is out of range.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn linear_cross_entropy_grad<T: Float>(
    ctx: Context<'_>,
    spec: &LinearSpec,
    x: &[T],
    kernel: &[f32],
    labels: &[i32],
    weights: &[f32],
    lse: &[f32],
    dloss: f32,
    dx: &mut [T],
    dkernel: &mut [f32],
    workspace: &mut [f32],
) -> Result<(), OutOfRange> {
    spec.check(x, kernel, labels)?;
    by_chunks(ctx, spec, x, kernel, dx, dkernel, workspace, |chunk, logits| {
        let (labels, weights, lse) = (&labels[chunk.clone()], &weights[chunk.clone()], &lse[chunk]);
        gradient_rows(ctx, spec.classes, None, labels, weights, lse, dloss, logits);
    });
    Ok(())
}

/// The bytes of workspace that [`linear_cross_entropy_with_grad`] needs: a multiple of 64.
pub fn linear_cross_entropy_with_grad_workspace<T: Float>(
    isa: Isa,
    threads: usize,
    spec: &LinearSpec,
) -> usize {
    let [rows, gradient] = spec.both_floats::<T>(isa, threads);
    (2 * rows + gradient) * size_of::<f32>()
}

/// As [`linear_cross_entropy`] and then [`linear_cross_entropy_grad`], with their bits; the logits are computed once.
///
/// Nothing is written if a label is out of range.
#[allow(clippy::too_many_arguments, reason = "operands")]
pub fn linear_cross_entropy_with_grad<T: Float>(
    ctx: Context<'_>,
    spec: &LinearSpec,
    x: &[T],
    kernel: &[f32],
    labels: &[i32],
    weights: &[f32],
    dloss: f32,
    loss: &mut f32,
    dx: &mut [T],
    dkernel: &mut [f32],
    workspace: &mut [f32],
) -> Result<(), OutOfRange> {
    spec.check(x, kernel, labels)?;
    let [rows, _] = spec.both_floats::<T>(ctx.isa, ctx.pool.threads());
    let (losses, workspace) = workspace.split_at_mut(rows);
    let (lse, workspace) = workspace.split_at_mut(rows);
    let mut fold = LossFold::new(spec.block_rows, spec.accumulate, *loss);
    by_chunks(ctx, spec, x, kernel, dx, dkernel, workspace, |chunk, logits| {
        let rows = chunk.len();
        let (labels, weights) = (&labels[chunk.clone()], &weights[chunk]);
        let (lse, losses) = (&mut lse[..rows], &mut losses[..rows]);
        loss_and_gradient_rows(ctx, spec.classes, labels, weights, dloss, lse, losses, logits);
        fold.add(losses);
    });
    *loss = fold.finish();
    Ok(())
}

/// The gradients of x and of the kernel, by chunks of rows, whose logits `differentiate` replaces by their gradients.
#[allow(clippy::too_many_arguments, reason = "operands")]
fn by_chunks<T: Float>(
    ctx: Context<'_>,
    spec: &LinearSpec,
    x: &[T],
    kernel: &[f32],
    dx: &mut [T],
    dkernel: &mut [f32],
    workspace: &mut [f32],
    mut differentiate: impl FnMut(Range<usize>, &mut [f32]),
) {
    let (width, classes) = (spec.width, spec.classes);
    let [logits, _] = spec.backward_floats::<T>(ctx.isa, ctx.pool.threads());
    let (logits, workspace) = workspace.split_at_mut(logits);
    if spec.rows == 0 && !spec.accumulate {
        dkernel[..width * classes].fill(0.0);
    }
    for chunk in spec.chunks() {
        let rows = chunk.len();
        let x = &x[chunk.start * width..chunk.end * width];
        gemm(
            ctx,
            &spec.logits(rows),
            matrix(x, width),
            spec.kernel(kernel),
            logits,
            Epilogue::NONE,
            workspace,
        );
        differentiate(chunk.clone(), logits);
        let dlogits = &logits[..rows * classes];
        let dx = &mut dx[chunk.start * width..chunk.end * width];
        gemm_in(
            T::DTYPE,
            ctx,
            &spec.dx(rows),
            matrix(dlogits, classes),
            spec.kernel_back(kernel),
            dx,
            Epilogue::NONE,
            workspace,
        );
        let sums = spec.dkernel(rows, spec.accumulate || chunk.start > 0);
        if spec.transposed {
            let (a, b) = (transposed(dlogits, classes), matrix(x, width));
            gemm(ctx, &sums, a, b, dkernel, Epilogue::NONE, workspace);
        } else {
            let (a, b) = (transposed(x, width), matrix(dlogits, classes));
            gemm(ctx, &sums, a, b, dkernel, Epilogue::NONE, workspace);
        }
    }
}
