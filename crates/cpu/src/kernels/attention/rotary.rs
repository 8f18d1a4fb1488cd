//! Rotary positions: a table of the cosines and sines of all positions, then the rotation of every head vector.

use crate::isa::Context;
use crate::kernels::math::{Shared, rows_per_task, simd_fn, whole_lines};
use std::ops::Range;

/// The sizes of x, `[examples, positions, heads, width]`, and the angles `position · base^(-2i / width)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotarySpec {
    /// Examples.
    pub examples: usize,
    /// Positions.
    pub positions: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head, an even number.
    pub width: usize,
    /// The base of the angles' frequencies.
    pub base: f64,
    /// Whether it rotates back.
    pub inverse: bool,
    /// The position of the first.
    pub start: usize,
}

/// Positions whose angles one task computes.
const POSITIONS: usize = 64;

/// Pairs that are rotated at a time.
const PAIRS: usize = 8;

/// The bytes of workspace that [`rotary`] needs: a multiple of 64.
pub fn rotary_workspace(spec: &RotarySpec) -> usize {
    whole_lines(spec.positions * spec.width) * size_of::<f32>()
}

/// Rotates the pairs `(i, i + width / 2)` of every head vector by the angle of its position.
///
/// # Safety
///
/// x and y have the elements that the sizes say; they are the same memory or do not overlap.
pub unsafe fn rotary(ctx: Context<'_>, spec: &RotarySpec, x: *const f32, y: *mut f32, workspace: &mut [f32]) {
    let &RotarySpec { examples, positions, heads, width, .. } = spec;
    assert!(width.is_multiple_of(2), "pairs need an even width");
    assert!(workspace.len() >= positions * width, "the workspace is too small");
    let table = Shared::new(workspace);
    ctx.pool.run(positions.div_ceil(POSITIONS), &|task, _| {
        let part = task * POSITIONS..((task + 1) * POSITIONS).min(positions);
        // SAFETY: the positions of a task are its own.
        let rows = unsafe { table.part(part.start * width, part.len() * width) };
        angles(spec, part.start, rows);
    });
    let table: &[f32] = workspace;
    let (x, y) = (Shared::from_ptr(x.cast_mut()), Shared::from_ptr(y));
    let (rows, each) = (examples * positions, rows_per_task(heads * width));
    ctx.pool.run(rows.div_ceil(each), &|task, _| {
        let part = task * each..((task + 1) * each).min(rows);
        // SAFETY: the caller's contract; the rows of a task are its own.
        unsafe { rotate(ctx.isa, spec, part, table, x.at(0), y.at(0)) };
    });
}

/// Rows of the table: the cosines of a position's angles, then the sines.
fn angles(spec: &RotarySpec, first: usize, rows: &mut [f32]) {
    let half = spec.width / 2;
    for i in 0..half {
        let frequency = spec.base.powf(-2.0 * i as f64 / spec.width as f64);
        for (position, row) in rows.chunks_exact_mut(spec.width).enumerate() {
            let angle = (spec.start + first + position) as f64 * frequency;
            let (sin, cos) = if spec.inverse { (-angle).sin_cos() } else { angle.sin_cos() };
            (row[i], row[half + i]) = (cos as f32, sin as f32);
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// The rows are inside x and y, which are the same memory or do not overlap; nobody else writes them.
    unsafe fn rotate(
        isa: Isa, spec: &RotarySpec, rows: Range<usize>, table: &[f32], x: *const f32, y: *mut f32,
    ) {
        let (heads, width, half) = (spec.heads, spec.width, spec.width / 2);
        let whole = half - half % PAIRS;
        for row in rows {
            let (cos, sin) = table[row % spec.positions * width..][..width].split_at(half);
            for start in (row * heads..(row + 1) * heads).map(|head| head * width) {
                // SAFETY: the head vector lies inside x and y.
                let (x, y) = unsafe { (x.add(start), y.add(start)) };
                for i in (0..whole).step_by(PAIRS) {
                    // SAFETY: i + PAIRS is at most half.
                    unsafe { pairs::<PAIRS>(half, i, cos, sin, x, y) };
                }
                for i in whole..half {
                    // SAFETY: i is below half.
                    unsafe { pairs::<1>(half, i, cos, sin, x, y) };
                }
            }
        }
    }
}

/// Rotates the pairs `i..i + N` of a head vector: reads all of them before it writes.
///
/// # Safety
///
/// `i + N` is at most `half`, cos and sin have `half` elements, and x and y twice as many.
#[inline(always)]
unsafe fn pairs<const N: usize>(half: usize, i: usize, cos: &[f32], sin: &[f32], x: *const f32, y: *mut f32) {
    // SAFETY: the caller's contract.
    let load = |from: *const f32, at: usize| unsafe { from.add(at).cast::<[f32; N]>().read() };
    let (a, b) = (load(x, i), load(x, half + i));
    let (cos, sin) = (load(cos.as_ptr(), i), load(sin.as_ptr(), i));
    let (mut low, mut high) = ([0.0; N], [0.0; N]);
    for j in 0..N {
        low[j] = a[j] * cos[j] - b[j] * sin[j];
        high[j] = b[j] * cos[j] + a[j] * sin[j];
    }
    // SAFETY: the caller's contract.
    unsafe {
        y.add(i).cast::<[f32; N]>().write(low);
        y.add(half + i).cast::<[f32; N]>().write(high);
    }
}
