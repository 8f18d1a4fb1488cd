//! Many products of the same sizes.

use super::{Epilogue, GemmSpec, Mat, SharedMut, gemm, gemm_serial, gemm_serial_workspace, gemm_workspace};
use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::math::Shared;

/// Products of fewer multiply-adds are not split between threads if there are several.
const SMALL: usize = 1 << 20;

/// Multiply-adds that one task takes, where products are smaller.
const TASK: usize = 1 << 16;

impl GemmSpec {
    fn work(&self) -> usize {
        self.m.saturating_mul(self.n).saturating_mul(self.k)
    }
}

/// Whether every product is computed by one thread: they are small, or many enough to balance the threads.
fn by_one_thread_each(threads: usize, count: usize, spec: &GemmSpec) -> bool {
    count > 1 && (spec.work() < SMALL || count >= 4 * threads)
}

/// The operand of product p, of `size` elements.
fn operand<'a, T>(all: &Mat<'a, T>, p: usize, size: usize) -> Mat<'a, T> {
    Mat { data: &all.data[p * size..(p + 1) * size], row_stride: all.row_stride, col_stride: all.col_stride }
}

/// The bytes of workspace that [`gemm_batch`] needs for operands and results of these types: a multiple of 64.
pub fn gemm_batch_workspace<A: Float, B: Float, C: Float>(
    isa: Isa,
    threads: usize,
    count: usize,
    spec: &GemmSpec,
) -> usize {
    if by_one_thread_each(threads, count, spec) {
        threads * gemm_serial_workspace::<A, B, C>(isa, spec)
    } else {
        gemm_workspace::<A, B, C>(isa, threads, spec)
    }
}

/// `count` products, without epilogue; their operands are contiguous. Each has the bits of the product by
/// itself.
///
/// # Panics
///
/// As [`gemm`].
pub fn gemm_batch<A: Float, B: Float, C: Float>(
    ctx: Context<'_>,
    count: usize,
    spec: &GemmSpec,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    c: &mut [C],
    workspace: &mut [f32],
) {
    let [a_size, b_size, c_size] = [spec.m * spec.k, spec.k * spec.n, spec.m * spec.n];
    assert!(
        a.data.len() >= count * a_size && b.data.len() >= count * b_size && c.len() >= count * c_size,
        "operands are shorter than their shapes"
    );
    if !by_one_thread_each(ctx.pool.threads(), count, spec) {
        for (p, c) in c.chunks_exact_mut(c_size.max(1)).take(count).enumerate() {
            let (a, b) = (operand(&a, p, a_size), operand(&b, p, b_size));
            gemm(ctx, spec, a, b, c, Epilogue::NONE, workspace);
        }
        return;
    }
    let each = gemm_serial_workspace::<A, B, C>(ctx.isa, spec) / size_of::<f32>();
    assert!(workspace.len() >= each * ctx.pool.threads(), "the workspace is too small");
    let (c, space) = (Shared::new(c), SharedMut(workspace.as_mut_ptr()));
    let group = (TASK / spec.work().max(1)).max(1);
    ctx.pool.run(count.div_ceil(group), &|task, worker| {
        // SAFETY: no two calls with one worker number overlap.
        let space = unsafe { std::slice::from_raw_parts_mut(space.at(worker * each), each) };
        for p in task * group..((task + 1) * group).min(count) {
            // SAFETY: every product has its own part of the result, whose length was checked above.
            let c = unsafe { c.part(p * c_size, c_size) };
            let (a, b) = (operand(&a, p, a_size), operand(&b, p, b_size));
            gemm_serial(ctx.isa, spec, a, b, c, spec.n, space);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{bits, on_all, uniform, with_workspace};

    /// However the products are split between threads, each has the bits that it has by itself.
    #[test]
    fn every_product_has_the_bits_of_the_product_alone() {
        for (count, m, n, k) in [
            (0, 3, 2, 4),
            (3, 0, 2, 4),
            (3, 4, 5, 0),
            (1, 7, 5, 3),
            (5, 1, 1, 1),
            (200, 3, 4, 5),
            (7, 33, 65, 70),
            (2, 130, 70, 300),
            (40, 64, 64, 300),
        ] {
            let spec = GemmSpec::new(m, n, k);
            let (a, b) = (uniform(1, count * m * k), uniform(2, count * k * n));
            for transposed in [false, true] {
                let mat = |data, rows: usize, columns: usize| {
                    let (row_stride, col_stride) = if transposed { (1, rows) } else { (columns, 1) };
                    Mat { data, row_stride, col_stride }
                };
                on_all(|ctx| {
                    let mut c = vec![f32::NAN; count * m * n];
                    let bytes = gemm_batch_workspace::<f32, f32, f32>(ctx.isa, ctx.threads(), count, &spec);
                    with_workspace(bytes, |space| {
                        gemm_batch(ctx, count, &spec, mat(&a, m, k), mat(&b, k, n), &mut c, space);
                    });
                    for p in 0..count {
                        let mut alone = vec![f32::NAN; m * n];
                        let (a, b) = (&a[p * m * k..][..m * k], &b[p * k * n..][..k * n]);
                        with_workspace(
                            gemm_workspace::<f32, f32, f32>(ctx.isa, ctx.threads(), &spec),
                            |space| {
                                gemm(
                                    ctx,
                                    &spec,
                                    mat(a, m, k),
                                    mat(b, k, n),
                                    &mut alone,
                                    Epilogue::NONE,
                                    space,
                                );
                            },
                        );
                        let what = format!("product {p} of {count} [{m},{n},{k}], {transposed}");
                        assert_eq!(bits(&c[p * m * n..][..m * n]), bits(&alone), "{what}");
                    }
                    c
                });
            }
        }
    }
}
