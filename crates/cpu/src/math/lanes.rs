//! Sums and maxima over a row in a fixed tree: lane j takes the elements j, j + 64, .., and the lanes are then
//! combined in halves. The tree depends on the row's length only.

/// Lanes of a reduction: four vectors of the widest instruction set, which hides the latency of an addition.
pub(crate) const LANES: usize = 64;

#[inline(always)]
fn halves(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for j in 0..width {
            lanes[j] = combine(lanes[j], lanes[j + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Folds `f(i)` for `i` in `0..len` into lanes.
#[inline(always)]
fn fold_lanes<const N: usize>(
    len: usize,
    start: f32,
    f: impl Fn(usize) -> [f32; N],
    combine: impl Fn(f32, f32) -> f32,
) -> [f32; N] {
    let mut lanes = [[start; LANES]; N];
    let whole = len - len % LANES;
    let mut i = 0;
    while i < whole {
        for j in 0..LANES {
            let terms = f(i + j);
            for n in 0..N {
                lanes[n][j] = combine(lanes[n][j], terms[n]);
            }
        }
        i += LANES;
    }
    for j in 0..len - whole {
        let terms = f(whole + j);
        for n in 0..N {
            lanes[n][j] = combine(lanes[n][j], terms[n]);
        }
    }
    lanes.map(|lanes| halves(lanes, &combine))
}

/// The sum of `f(i)` for `i` in `0..len`; +0 if there are none.
#[inline(always)]
pub(crate) fn sum_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    fold_lanes(len, 0.0, |i| [f(i)], |a, b| a + b)[0]
}

/// Two sums at once.
#[inline(always)]
pub(crate) fn sum2_by(len: usize, f: impl Fn(usize) -> [f32; 2]) -> [f32; 2] {
    fold_lanes(len, 0.0, f, |a, b| a + b)
}

/// The largest `f(i)` that is a number; -infinity if there is none.
#[inline(always)]
pub(crate) fn max_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    fold_lanes(len, f32::NEG_INFINITY, |i| [f(i)], |a, b| if b > a { b } else { a })[0]
}

/// Writes `f(i)` to element `i` of a row, in blocks that are read before they are written.
///
/// # Safety
///
/// `dst` is good for writing `len` elements. `f(i)` may read element `i` of `dst`, no other.
#[inline(always)]
pub(crate) unsafe fn map_row(len: usize, dst: *mut f32, f: impl Fn(usize) -> f32) {
    const BLOCK: usize = 32;
    let mut i = 0;
    while i + BLOCK <= len {
        let mut block = [0.0; BLOCK];
        for (j, y) in block.iter_mut().enumerate() {
            *y = f(i + j);
        }
        // SAFETY: inside the row.
        unsafe { dst.add(i).cast::<[f32; BLOCK]>().write_unaligned(block) };
        i += BLOCK;
    }
    while i < len {
        // SAFETY: inside the row.
        unsafe { dst.add(i).write(f(i)) };
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_length_are_summed_whole() {
        for len in 0..300 {
            let x: Vec<f32> = (0..len).map(|i| (i % 7) as f32 - 2.0).collect();
            assert_eq!(sum_by(len, |i| x[i]), x.iter().sum::<f32>());
            assert_eq!(sum2_by(len, |i| [x[i], 1.0]), [x.iter().sum::<f32>(), len as f32]);
            assert_eq!(max_by(len, |i| x[i]), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
