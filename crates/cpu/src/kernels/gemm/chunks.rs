//! Where the sum over k is cut.

use std::ops::Range;

/// The longest chunk: its part of a panel of B fills most of the first-level cache.
pub(crate) const KC: usize = 256;

/// Cuts `0..k` at every multiple of `fold`, and inside a fold at every multiple of [`KC`] from its start.
///
/// The cuts decide the bits of a sum, so they depend on nothing else. An empty sum is one empty chunk.
#[derive(Clone, Copy)]
pub(crate) struct Chunks {
    k: usize,
    fold: usize,
}

impl Chunks {
    pub(crate) fn new(k: usize, fold: usize) -> Self {
        assert!(fold > 0, "a fold has at least one term");
        Self { k, fold }
    }

    /// The end of the chunk that starts at `start`.
    fn chunk_end(self, start: usize) -> usize {
        let in_fold = start % self.fold;
        let left_in_fold = self.fold - in_fold;
        let left = KC - in_fold % KC;
        start + left.min(left_in_fold).min(self.k - start)
    }

    /// The chunks of a range that starts and ends at cuts.
    pub(crate) fn within(self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut next = Some(range.start);
        std::iter::from_fn(move || {
            let start = next?;
            let end = self.chunk_end(start);
            next = (end < range.end).then_some(end);
            Some(start..end)
        })
    }

    /// Runs of whole chunks of at most [`KC`] terms, in order: what is packed at a time.
    pub(crate) fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let start = next?;
            let mut end = self.chunk_end(start);
            while end < self.k {
                let further = self.chunk_end(end);
                if further - start > KC {
                    break;
                }
                end = further;
            }
            next = (end < self.k).then_some(end);
            Some(start..end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_follow_fold_and_kc() {
        let cuts = |k, fold| -> Vec<usize> {
            let chunks = Chunks::new(k, fold);
            chunks.blocks().flat_map(|b| chunks.within(b)).map(|c| c.end).collect()
        };
        assert_eq!(cuts(0, 3), [0]);
        assert_eq!(cuts(5, usize::MAX), [5]);
        assert_eq!(cuts(600, usize::MAX), [256, 512, 600]);
        assert_eq!(cuts(600, 300), [256, 300, 556, 600]);
        assert_eq!(cuts(100, 32), [32, 64, 96, 100]);
    }

    #[test]
    fn blocks_are_runs_of_whole_chunks() {
        let blocks: Vec<_> = Chunks::new(600, 100).blocks().collect();
        assert_eq!(blocks, [0..200, 200..400, 400..600]);
    }
}
