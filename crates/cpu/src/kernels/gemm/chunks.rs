//! Where a sum over k is cut, so that what is read again stays in a cache. Cuts do not change the result: a sum goes on
//! from what was stored.

use std::ops::Range;

/// The longest chunk of an operand that is read in place: its part of a panel of B fills most of the first-level cache.
pub(crate) const KC: usize = 256;

/// Cuts `0..k` into as few parts as have at most `most` terms each, as even as possible, at multiples of 16. An empty sum
/// is one empty part.
pub(crate) fn chunks(k: usize, most: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let len = longest(k, most);
    (0..k.div_ceil(len).max(1)).map(move |i| i * len..((i + 1) * len).min(k))
}

/// The length of the longest part, in whole sixteens.
pub(crate) fn longest(k: usize, most: usize) -> usize {
    k.div_ceil(k.div_ceil(most).max(1)).next_multiple_of(16).max(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_cover_the_sum() {
        let ends = |k, most| -> Vec<usize> { chunks(k, most).map(|part| part.end).collect() };
        assert_eq!(ends(0, 256), [0]);
        assert_eq!(ends(5, 256), [5]);
        assert_eq!(ends(256, 256), [256]);
        assert_eq!(ends(600, 256), [208, 416, 600]);
        assert_eq!(ends(784, 384), [272, 544, 784]);
        for k in 1..2000 {
            let parts: Vec<_> = chunks(k, 384).collect();
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, k));
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
            assert!(parts.iter().all(|part| !part.is_empty() && part.len() <= longest(k, 384)));
            assert!(longest(k, 384) <= 384);
        }
    }
}
