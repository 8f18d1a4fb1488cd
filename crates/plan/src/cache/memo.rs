//! A memo of lists of numbers, by a hash of what they were computed from.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use twox_hash::xxhash3_128;

/// Numbers of all lists together, at most: beyond, the oldest lists are evicted.
const CAPACITY: usize = 1 << 14;

/// Lists by key.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// The newest last.
    lists: VecDeque<(u128, List)>,
    /// Numbers of all lists.
    numbers: usize,
}

/// Numbers divided by the largest power of two that divides them all.
#[derive(Debug)]
struct List {
    shift: u32,
    quotients: Box<[u32]>,
}

impl List {
    /// `None` if a quotient does not fit.
    fn new(numbers: &[usize]) -> Option<Self> {
        let bits = numbers.iter().fold(0, |bits, number| bits | number);
        let shift = if bits == 0 { 0 } else { bits.trailing_zeros() };
        u32::try_from(bits >> shift).ok()?;
        Some(Self { shift, quotients: numbers.iter().map(|number| (number >> shift) as u32).collect() })
    }

    fn numbers(&self) -> Vec<usize> {
        self.quotients.iter().map(|&quotient| (quotient as usize) << self.shift).collect()
    }
}

impl Memo {
    /// The list of a key, if it is cached.
    pub fn get(&self, key: u128) -> Option<Vec<usize>> {
        let found = self.lists.iter().rev().find(|(other, _)| *other == key);
        found.map(|(_, list)| list.numbers())
    }

    /// Caches a list under a key that is not cached yet.
    pub fn put(&mut self, key: u128, list: &[usize]) {
        let Some(list) = List::new(list) else { return };
        self.numbers += list.quotients.len();
        self.lists.push_back((key, list));
        while self.numbers > CAPACITY
            && let Some((_, oldest)) = self.lists.pop_front()
        {
            self.numbers -= oldest.quotients.len();
        }
    }
}

/// A 128-bit hash, practically without collisions.
pub(crate) fn digest(what: impl Hash) -> u128 {
    let mut hasher = Wide(xxhash3_128::Hasher::new());
    what.hash(&mut hasher);
    hasher.0.finish_128()
}

struct Wide(xxhash3_128::Hasher);

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.finish_128() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_cached_lists_and_evicts_the_oldest() {
        let mut memo = Memo::default();
        let lists = [vec![], vec![0, 64, 1 << 37], vec![3, 0, 5], vec![0, 0]];
        for (key, list) in lists.iter().enumerate() {
            memo.put(digest(key), list);
        }
        memo.put(digest("wide"), &[1, 1 << 40]);
        let found = |memo: &Memo| [0, 1, 2, 3].map(|key: usize| memo.get(digest(key)));
        assert_eq!(found(&memo), lists.clone().map(Some));
        assert_eq!(memo.get(digest("wide")), None);
        memo.put(digest("long"), &vec![7; CAPACITY - 5]);
        assert_eq!(found(&memo)[..2], [None, None]);
        assert_eq!(found(&memo)[2..], lists.map(Some)[2..]);
    }
}
