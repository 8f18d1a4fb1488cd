//! The shuffled order of an epoch, computed instead of stored.

use plimsoll_tensor::random::Stream;

/// Rounds of the Feistel network. Four make it pseudorandom; two more cost little next to reading the example, and cover
/// short sets, whose halves have only a bit or two.
const ROUNDS: u64 = 6;

/// A shuffled order of `0..len`, keyed by seed and epoch: a bijection with random access that stores nothing.
///
/// A Feistel network permutes the next power of four; a value outside `0..len` is permuted again until it is inside
/// (cycle walking, at most four times on average).
///
/// ```
/// use plimsoll_data::Permutation;
/// let order = Permutation::new(1_000_000_000_000, 7, 0);
/// assert!(order.at(123_456_789_012) < 1_000_000_000_000);
///
/// let mut seen: Vec<u64> = (0..5).map(|i| Permutation::new(5, 7, 0).at(i)).collect();
/// seen.sort();
/// assert_eq!(seen, [0, 1, 2, 3, 4]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: Stream,
}

impl Permutation {
    /// The order of epoch `epoch` in a run with seed `seed`.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = len.saturating_sub(1).checked_ilog2().map_or(0, |highest| highest + 1);
        Self { len, half_bits: bits.div_ceil(2), keys: Stream::new(seed, epoch, "epoch order") }
    }

    /// The example at position `i`. Positions past the end map to themselves.
    pub fn at(&self, i: u64) -> u64 {
        if i >= self.len {
            return i;
        }
        // The network is a bijection of a finite set, so walking from inside `0..len` comes back inside.
        let mut value = self.network(i);
        while value >= self.len {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let mixed = left ^ (u64::from(self.keys.word(right, round)) & mask);
            (left, right) = (right, mixed);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn order(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|i| permutation.at(i)).collect()
    }

    #[test]
    fn every_example_occurs_once() {
        for len in (0..70).chain([255, 256, 257, 1023, 4097, 60_000]) {
            for epoch in 0..3 {
                let mut seen = order(len, 11, epoch);
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..len), "len {len}, epoch {epoch}");
            }
        }
    }

    #[test]
    fn large_sets_have_no_collisions() {
        for len in [(1 << 32) - 1, 1 << 32, (1 << 40) + 12_345, u64::MAX] {
            let permutation = Permutation::new(len, 3, 1);
            let places = (0..20_000).map(|i| i * (len / 20_000));
            let seen: HashSet<u64> = places.map(|i| permutation.at(i)).collect();
            assert_eq!(seen.len(), 20_000, "len {len}");
            assert!(seen.iter().all(|&x| x < len), "len {len}");
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch() {
        assert_eq!(order(1000, 5, 2), order(1000, 5, 2));
        assert_ne!(order(1000, 5, 2), order(1000, 5, 3));
        assert_ne!(order(1000, 5, 2), order(1000, 6, 2));
    }

    #[test]
    fn positions_are_uniform_over_epochs() {
        // Three standard deviations of a binomial with 8000 trials are about 100 for a fifth, 72 for a tenth.
        for (len, tolerance) in [(5, 140), (10, 110)] {
            let mut counts = vec![0i64; len * len];
            for epoch in 0..8000 {
                for (position, example) in order(len as u64, 1, epoch).into_iter().enumerate() {
                    counts[position * len + example as usize] += 1;
                }
            }
            let expected = 8000 / len as i64;
            assert!(counts.iter().all(|c| (c - expected).abs() < tolerance), "{counts:?}");
        }
    }

    #[test]
    fn neighbours_are_separated() {
        let order = order(10_000, 9, 0);
        let kept = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(kept < 10, "{kept} neighbours stayed neighbours; about one is expected");
    }
}
