//! Masks of pruned weights: the threshold by counting, one bit per element.

use crate::isa::Context;
use crate::kernels::math::{Shared, TASK_ELEMENTS};
use plimsoll_tensor::{is_kept, kept_at, mask_bytes};

/// The digits of a magnitude's 31 bits: the lowest bit and the number of bits of each, the highest first.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

/// A counter for each value of a digit.
const COUNTERS: usize = 1 << 11;

/// The bytes of workspace that [`mask`] needs.
pub const MASK_WORKSPACE: usize = COUNTERS * size_of::<u32>();

/// The magnitude of a weight as an integer: in the order of magnitudes, with NaN above infinity.
fn magnitude(weight: f32) -> u32 {
    weight.to_bits() & 0x7fff_ffff
}

/// The magnitude that has `kept - 1` magnitudes before it, the largest first: found digit by digit, by counting. The counts are
/// exact, so there is one answer.
fn threshold(weights: &[f32], kept: usize, counters: &mut [u32]) -> u32 {
    assert!(counters.len() >= COUNTERS, "the workspace is too small");
    let (mut known, mut left) = (0, kept as u32);
    for (low, bits) in DIGITS {
        counters.fill(0);
        let same = |m: u32| low + bits == 31 || m >> (low + bits) == known >> (low + bits);
        for m in weights.iter().map(|&w| magnitude(w)).filter(|&m| same(m)) {
            counters[(m >> low) as usize & ((1 << bits) - 1)] += 1;
        }
        let mut digit = (1 << bits) - 1;
        while digit > 0 && counters[digit] < left {
            left -= counters[digit];
            digit -= 1;
        }
        known |= (digit as u32) << low;
    }
    known
}

/// A new mask: the weights of the largest magnitudes, as many as the sparsity says, and all others of the smallest of these
/// magnitudes. A sparsity below zero, or NaN, keeps the old mask.
///
/// # Safety
///
/// Both masks have the bytes of a mask of the weights; they are the same memory or do not overlap.
pub unsafe fn mask(weights: &[f32], sparsity: f32, old: *const u8, new: *mut u8, counters: &mut [u32]) {
    let bytes = mask_bytes(weights.len());
    if sparsity.is_nan() || sparsity < 0.0 || weights.is_empty() {
        // SAFETY: the caller's contract; the copy allows an overlap.
        unsafe { std::ptr::copy(old, new, bytes) };
        return;
    }
    let threshold = threshold(weights, kept_at(weights.len(), sparsity), counters);
    // SAFETY: the caller's contract; the old mask is not read any more.
    let new = unsafe { std::slice::from_raw_parts_mut(new, bytes) };
    for (weights, byte) in weights.chunks(8).zip(new) {
        let bits = weights.iter().enumerate().map(|(i, &w)| u8::from(magnitude(w) >= threshold) << i);
        *byte = bits.fold(0, |byte, bit| byte | bit);
    }
}

/// Copies the elements that the mask keeps; the others become zero.
///
/// # Safety
///
/// x and y have so many elements; they are the same memory or do not overlap.
pub unsafe fn apply(ctx: Context<'_>, elements: usize, x: *const f32, mask: &[u8], y: *mut f32) {
    assert!(mask.len() >= mask_bytes(elements), "the mask is shorter than its elements");
    let (x, y) = (Shared::from_ptr(x.cast_mut()), Shared::from_ptr(y));
    ctx.pool.run(elements.div_ceil(TASK_ELEMENTS), &|task, _| {
        let first = task * TASK_ELEMENTS;
        for i in first..elements.min(first + TASK_ELEMENTS) {
            // SAFETY: the caller's contract; the elements of a task are its own, and each is read before it is written.
            unsafe { *y.at(i) = if is_kept(mask, i) { *x.at(i) } else { 0.0 } };
        }
    });
}

/// Puts values, in order, where a mask has bits, and zeros elsewhere. An error if the mask has another number of bits.
pub fn expand<T: Copy + Default>(values: &[T], mask: &[u8], y: &mut [T]) -> Result<(), String> {
    let mut values = values.iter();
    for (i, y) in y.iter_mut().enumerate() {
        *y = match is_kept(mask, i) {
            true => *values.next().ok_or("the mask keeps more elements than there are values")?,
            false => T::default(),
        };
    }
    match values.next() {
        None => Ok(()),
        Some(_) => Err("there are more values than the mask keeps elements".into()),
    }
}

const _: () = assert!(TASK_ELEMENTS.is_multiple_of(8), "a task starts with a byte of the mask");

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::kept_elements;
    use plimsoll_tensor::random::Lcg;

    fn masked(weights: &[f32], sparsity: f32) -> Vec<u8> {
        let (old, mut new) = (vec![0xa5; mask_bytes(weights.len())], vec![0; mask_bytes(weights.len())]);
        let mut counters = vec![0; COUNTERS];
        // SAFETY: both masks have the bytes of the weights' mask.
        unsafe { mask(weights, sparsity, old.as_ptr(), new.as_mut_ptr(), &mut counters) };
        new
    }

    /// The threshold found by counting is the one that sorting finds, with ties, zeros, subnormals and numbers that are not finite.
    #[test]
    fn thresholds_are_those_of_sorting() {
        let mut random = Lcg::new(7);
        for n in [1usize, 7, 64, 1000] {
            let weights: Vec<f32> = (0..n)
                .map(|i| match random.below(12) {
                    0 => 0.0,
                    1 => 0.25,
                    2 => f32::from_bits(random.below(1 << 20) as u32),
                    3 if i % 50 == 3 => f32::NAN,
                    4 if i % 50 == 4 => f32::INFINITY,
                    _ => (random.below(2_000_001) as f32 - 1e6) * 1e-3,
                })
                .collect();
            let mut sorted: Vec<u32> = weights.iter().map(|&w| magnitude(w)).collect();
            sorted.sort_by(|a, b| b.cmp(a));
            for kept in [1, 2, n / 3, n / 2, n].into_iter().filter(|kept| (1..=n).contains(kept)) {
                let mut counters = vec![0; COUNTERS];
                assert_eq!(threshold(&weights, kept, &mut counters), sorted[kept - 1], "{n} {kept}");
            }
        }
    }

    #[test]
    fn masks_keep_ties_and_stay_where_no_sparsity_is_given() {
        let weights = [0.5f32, -0.5, 0.25, 3.0, 0.0, -0.5, 0.125, 0.1, 2.0];
        // Four of nine, and the two others of the same magnitude as the fourth.
        let mask = masked(&weights, 0.55);
        assert_eq!((mask[0], mask[1]), (0b10_1011, 1));
        assert_eq!(kept_elements(&mask, 9), 5);
        for none in [-1.0, f32::NAN] {
            assert_eq!(masked(&weights, none), [0xa5, 0xa5]);
        }
        assert_eq!(kept_elements(&masked(&weights, 1.0), 9), 1);
    }

    #[test]
    fn values_and_mask_must_match() {
        let mut codes = [1u8; 9];
        assert!(expand(&[5, 6], &[0b1000_0000, 1], &mut codes).is_ok());
        assert_eq!(codes, [0, 0, 0, 0, 0, 0, 0, 5, 6]);
        let mut y = [1.0; 9];
        assert!(expand(&[5.0, 6.0], &[0b1000_0000, 1], &mut y).is_ok());
        assert_eq!(y, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0]);
        assert!(expand(&[5.0], &[0b1000_0000, 1], &mut y).is_err());
        assert!(expand(&[5.0, 6.0, 7.0], &[0b1000_0000, 1], &mut y).is_err());
    }
}
