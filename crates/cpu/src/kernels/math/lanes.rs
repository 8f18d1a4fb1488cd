//! Sums and maxima over a row in a fixed tree: lane j takes the elements j, j + L, .., and the lanes are then combined
//! in halves. The tree depends on the row's length only.

/// Lanes of a reduction: four vectors of the widest instruction set, which hides the latency of an addition.
const LANES: usize = 64;

/// Lanes of a row shorter than that, most of which would stay empty.
const FEW_LANES: usize = 16;

#[inline(always)]
fn halves<const L: usize>(lanes: &mut [f32; L], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = L / 2;
    while width > 0 {
        for j in 0..width {
            lanes[j] = combine(lanes[j], lanes[j + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Folds `f(i)` for `i` in `0..len` into lanes, and those into one.
#[inline(always)]
fn fold<const N: usize>(
    len: usize,
    start: f32,
    f: impl Fn(usize) -> [f32; N],
    combine: impl Fn(f32, f32) -> f32,
) -> [f32; N] {
    if len < LANES {
        fold_lanes::<N, FEW_LANES>(len, start, f, combine)
    } else {
        fold_lanes::<N, LANES>(len, start, f, combine)
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "lanes and terms go side by side")]
fn fold_lanes<const N: usize, const L: usize>(
    len: usize,
    start: f32,
    f: impl Fn(usize) -> [f32; N],
    combine: impl Fn(f32, f32) -> f32,
) -> [f32; N] {
    let mut lanes = [[start; L]; N];
    let whole = len - len % L;
    let mut i = 0;
    while i < whole {
        for j in 0..L {
            let terms = f(i + j);
            for n in 0..N {
                lanes[n][j] = combine(lanes[n][j], terms[n]);
            }
        }
        i += L;
    }
    for j in 0..len - whole {
        let terms = f(whole + j);
        for n in 0..N {
            lanes[n][j] = combine(lanes[n][j], terms[n]);
        }
    }
    // Not `map`: its closure is compiled for no instruction set in particular.
    let mut results = [start; N];
    for n in 0..N {
        results[n] = halves(&mut lanes[n], &combine);
    }
    results
}

/// The sum of `f(i)` for `i` in `0..len`; +0 if there are none.
#[inline(always)]
pub(crate) fn sum_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    fold(len, 0.0, |i| [f(i)], |a, b| a + b)[0]
}

/// Two sums at once.
#[inline(always)]
pub(crate) fn sum2_by(len: usize, f: impl Fn(usize) -> [f32; 2]) -> [f32; 2] {
    fold(len, 0.0, f, |a, b| a + b)
}

/// The largest `f(i)` that is a number; -infinity if there is none.
#[inline(always)]
pub(crate) fn max_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    fold(len, f32::NEG_INFINITY, |i| [f(i)], |a, b| if b > a { b } else { a })[0]
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
