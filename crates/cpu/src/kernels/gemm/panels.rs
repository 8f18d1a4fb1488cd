//! Products of tiles that are in cache: B is packed once for several of them, and A is read in place where it can be.

use super::kernel::{self, Finish, Form, Kernels, Packing, Tile, Walk};
use super::pack::{Strip, pack};
use super::{GemmSpec, Mat, product_type};
use crate::isa::Isa;
use crate::kernels::float::Float;

/// Whether products with an operand of this type are of f32, which [`gemm_panels`] takes.
pub(crate) fn takes_panels<T: Float>(isa: Isa) -> bool {
    Kernels::multiplying(isa, product_type::<T, T>()).packing == Packing::Wide
}

/// Floats of a B of `[k, n]` in panels.
pub(crate) fn panel_floats(isa: Isa, [k, n]: [usize; 2]) -> usize {
    k * n.next_multiple_of(Kernels::of(isa).lanes)
}

/// Packs a B of `[k, n]` for [`gemm_panels`].
///
/// # Panics
///
/// When the operand is shorter than the sizes say, or the panels are longer than their memory.
pub(crate) fn pack_panels<B: Float>(isa: Isa, b: Mat<'_, B>, [k, n]: [usize; 2], to: &mut [f32]) {
    b.check(k, n);
    assert!(to.len() >= panel_floats(isa, [k, n]), "the panels are too short");
    if k == 0 {
        return;
    }
    let kernels = Kernels::of(isa);
    for column in (0..n).step_by(kernels.nr()) {
        let lanes = (n - column).min(kernels.nr());
        let src = b.data[column * b.col_stride..].as_ptr();
        let strip = Strip { src, lane_step: b.col_stride, k_step: b.row_stride, lanes };
        let to = to[column * k..].as_mut_ptr();
        // SAFETY: the operand covers its shape; all panels before this one are full.
        unsafe { pack(isa, strip, to, kernels.panel_width(lanes), k) };
    }
}

/// Floats of workspace that [`gemm_panels`] needs.
pub(crate) fn gemm_panels_floats<A: Float>(isa: Isa, spec: &GemmSpec) -> usize {
    if A::LOW { spec.m.next_multiple_of(Kernels::of(isa).mr) * spec.k } else { 0 }
}

/// As [`gemm_serial`](super::gemm_serial), with its bits, for a B that [`pack_panels`] has packed. Rows or columns of an f32 A are
/// contiguous.
///
/// # Panics
///
/// As [`gemm_serial`](super::gemm_serial), and when neither rows nor columns of A are contiguous.
pub(crate) fn gemm_panels<A: Float>(
    isa: Isa,
    spec: &GemmSpec,
    a: Mat<'_, A>,
    panels: &[f32],
    (c, ldc): (&mut [f32], usize),
    workspace: &mut [f32],
) {
    let GemmSpec { m, n, k, accumulate, .. } = *spec;
    if m == 0 || n == 0 {
        return;
    }
    kernel::assert_available(isa);
    let kernels = Kernels::of(isa);
    a.check(m, k);
    assert!(panels.len() >= panel_floats(isa, [k, n]), "the panels are too short");
    assert!(workspace.len() >= gemm_panels_floats::<A>(isa, spec), "the workspace is too small");
    assert!(ldc >= n || m == 1, "rows of C overlap");
    assert!((m - 1) * ldc + n <= c.len(), "C is shorter than its shape");
    let mr = kernels.mr;
    // The form of A, the distance between its rows or columns, and that between tiles.
    let (first, form, step, between) = if A::LOW {
        for row in (0..m).step_by(mr) {
            let lanes = (m - row).min(mr);
            // Where there is no k, there need not be rows.
            let src = a.data.as_ptr().wrapping_add(row * a.row_stride);
            let strip = Strip { src, lane_step: a.row_stride, k_step: a.col_stride, lanes };
            // SAFETY: the operand covers its shape, and the workspace all tiles.
            unsafe { pack(isa, strip, workspace.as_mut_ptr().add(row * k), mr, k) };
        }
        (workspace.as_ptr(), Form::Columns, mr, mr * k)
    } else if a.col_stride == 1 {
        (a.data.as_ptr().cast(), Form::Rows, a.row_stride, mr * a.row_stride)
    } else {
        assert!(a.row_stride == 1, "neither rows nor columns of A are contiguous");
        (a.data.as_ptr().cast(), Form::Columns, a.col_stride, mr)
    };
    for column in (0..n).step_by(kernels.nr()) {
        let cols = (n - column).min(kernels.nr());
        for row in (0..m).step_by(mr) {
            let tile = Tile {
                a: first.wrapping_add(row / mr * between),
                a_step: step,
                walk: Walk::STRAIGHT,
                k_start: 0,
                k_len: k,
                b: panels.as_ptr().wrapping_add(column * k),
                b_step: kernels.panel_width(cols),
                c: c[row * ldc + column..].as_mut_ptr(),
                ldc,
                load: accumulate,
                ahead: std::ptr::null(),
                cols,
                finish: Finish::NONE,
            };
            // SAFETY: A and C cover their shapes, B its panels; an instruction set is only chosen on machines that have it. A
            // type that is not low is f32.
            unsafe { kernels.micro(form, (m - row).min(mr), cols)(&tile) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::gemm::{gemm_serial, gemm_serial_workspace};
    use crate::kernels::testing::{bits, on_all, uniform, with_workspace};
    use plimsoll_tensor::bf16;

    fn turned<T>(data: &[T], turned: bool, [rows, columns]: [usize; 2]) -> Mat<'_, T> {
        let (row_stride, col_stride) = if turned { (1, rows) } else { (columns, 1) };
        Mat { data, row_stride, col_stride }
    }

    fn check<T: Float>(
        isa: Isa,
        spec: &GemmSpec,
        a: &[T],
        b: &[T],
        a_turned: bool,
        b_turned: bool,
    ) -> Vec<f32> {
        let GemmSpec { m, n, k, .. } = *spec;
        let (a, b) = (turned(a, a_turned, [m, k]), turned(b, b_turned, [k, n]));
        let ldc = n + 3;
        let start: Vec<f32> = uniform(3, m * ldc);
        let (mut wanted, mut found) = (start.clone(), start);
        with_workspace(gemm_serial_workspace::<T, T, f32>(isa, spec), |space| {
            gemm_serial(isa, spec, a, b, &mut wanted, ldc, space);
        });
        let mut panels = vec![f32::NAN; panel_floats(isa, [k, n])];
        pack_panels(isa, b, [k, n], &mut panels);
        let mut space = vec![f32::NAN; gemm_panels_floats::<T>(isa, spec)];
        gemm_panels(isa, spec, a, &panels, (&mut found, ldc), &mut space);
        assert_eq!(bits(&found), bits(&wanted), "{spec:?} {a_turned} {b_turned}");
        found
    }

    #[test]
    fn products_have_the_bits_of_packed_ones() {
        for (m, n, k) in
            [(1, 1, 1), (64, 64, 64), (5, 33, 7), (29, 16, 64), (64, 70, 9), (3, 4, 0), (0, 3, 2)]
        {
            let (a, b): (Vec<f32>, Vec<f32>) = (uniform(1, m * k), uniform(2, k * n));
            let narrow = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
            let (low_a, low_b) = (narrow(&a), narrow(&b));
            on_all(|ctx| {
                let mut all = Vec::new();
                for (a_turned, b_turned, accumulate) in
                    [(false, false, false), (true, false, true), (false, true, true), (true, true, false)]
                {
                    let spec = GemmSpec { accumulate, ..GemmSpec::new(m, n, k) };
                    all.extend(check(ctx.isa, &spec, &a, &b, a_turned, b_turned));
                    if takes_panels::<bf16>(ctx.isa) {
                        check(ctx.isa, &spec, &low_a, &low_b, a_turned, b_turned);
                    }
                }
                all
            });
        }
    }
}
