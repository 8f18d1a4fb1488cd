//! Lists that were found before, by a hash of what they were found for.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use twox_hash::xxhash3_128;

/// Numbers of all lists together, at most: beyond them the oldest lists go.
const MOST: usize = 1 << 14;

/// Lists by what they were found for.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// The latest last.
    lists: VecDeque<(u128, List)>,
    /// Numbers of all.
    numbers: usize,
}

/// Numbers over the largest power of two that divides them all.
#[derive(Debug)]
struct List {
    shift: u32,
    parts: Box<[u32]>,
}

impl List {
    /// None if they are too large.
    fn new(numbers: &[usize]) -> Option<Self> {
        let bits = numbers.iter().fold(0, |bits, number| bits | number);
        let shift = if bits == 0 { 0 } else { bits.trailing_zeros() };
        u32::try_from(bits >> shift).ok()?;
        Some(Self { shift, parts: numbers.iter().map(|number| (number >> shift) as u32).collect() })
    }

    fn numbers(&self) -> Vec<usize> {
        self.parts.iter().map(|&part| (part as usize) << self.shift).collect()
    }
}

impl Memo {
    /// The list that was found for this, if it is still here.
    pub fn get(&self, key: u128) -> Option<Vec<usize>> {
        let found = self.lists.iter().rev().find(|(other, _)| *other == key);
        found.map(|(_, list)| list.numbers())
    }

    /// Keeps a list that is not here.
    pub fn put(&mut self, key: u128, list: &[usize]) {
        let Some(list) = List::new(list) else { return };
        self.numbers += list.parts.len();
        self.lists.push_back((key, list));
        while self.numbers > MOST
            && let Some((_, oldest)) = self.lists.pop_front()
        {
            self.numbers -= oldest.parts.len();
        }
    }
}

/// A hash that no two things share in practice.
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
    fn lists_come_back_and_the_oldest_go() {
        let mut lists = Memo::default();
        let lines = [vec![], vec![0, 64, 1 << 37], vec![3, 0, 5], vec![0, 0]];
        for (key, list) in lines.iter().enumerate() {
            lists.put(digest(key), list);
        }
        lists.put(digest("wide"), &[1, 1 << 40]);
        let found = |lists: &Memo| [0, 1, 2, 3].map(|key: usize| lists.get(digest(key)));
        assert_eq!(found(&lists), lines.clone().map(Some));
        assert_eq!(lists.get(digest("wide")), None);
        lists.put(digest("long"), &vec![7; MOST - 5]);
        assert_eq!(found(&lists)[..2], [None, None]);
        assert_eq!(found(&lists)[2..], lines.map(Some)[2..]);
    }
}
