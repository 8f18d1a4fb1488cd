//! Verbs on sources with random access: each maps an index to another, and holds no memory.

use crate::{Counted, DataError, Permutation, Record, Schema, Source};
use std::sync::Arc;

/// How an index of the view maps to an index of its source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// `len` records from `start` on, every `step`th: take, skip, shard.
    Slice { start: usize, step: usize, len: usize },
    /// A different order each epoch.
    Shuffled { seed: u64 },
    /// `len` records of the source, spread evenly: those held out, or the others.
    Spread { len: usize, held_out: bool },
    /// The source, several times; each repetition is an epoch of the source.
    Repeated { times: usize },
    /// Every `every`th record for the test part, or all others.
    Part { every: usize, test: bool },
}

/// A source seen through a view.
pub(crate) struct Viewed {
    pub source: Arc<dyn Source>,
    pub view: View,
}

impl Viewed {
    /// Index and epoch of the source for an index and an epoch of the view.
    fn find(&self, index: usize, epoch: u64) -> (usize, u64) {
        match self.view {
            View::Slice { start, step, .. } => (start + index * step, epoch),
            View::Spread { len, held_out } => (spread(index, len, self.source.len() - len, held_out), epoch),
            View::Shuffled { seed } => {
                let order = Permutation::new(self.source.len() as u64, seed, epoch);
                (order.at(index as u64) as usize, epoch)
            }
            View::Repeated { times } => {
                let round = (index / self.source.len().max(1)) as u64;
                let epoch = epoch.wrapping_mul(times as u64).wrapping_add(round);
                (index % self.source.len().max(1), epoch)
            }
            View::Part { every, test: true } => (index * every + every - 1, epoch),
            View::Part { every, test: false } => (index + index / (every - 1), epoch),
        }
    }
}

/// The source index of record `index` of a part of `own` records spread evenly between `others`. Before kept record `i`
/// come `i · held / kept` held-out records, rounded down; the held-out indices are the complement.
fn spread(index: usize, own: usize, others: usize, held_out: bool) -> usize {
    let (i, own, others) = (index as u128, own.max(1) as u128, others as u128);
    let before = if held_out { ((i + 1) * others).div_ceil(own) } else { i * others / own };
    index + before as usize
}

impl Source for Viewed {
    fn schema(&self) -> &Schema {
        self.source.schema()
    }
    fn len(&self) -> usize {
        match self.view {
            View::Slice { len, .. } | View::Spread { len, .. } => len,
            View::Shuffled { .. } => self.source.len(),
            View::Repeated { times } => self.source.len().saturating_mul(times),
            View::Part { every, test: true } => self.source.len() / every,
            View::Part { every, test: false } => self.source.len() - self.source.len() / every,
        }
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        let outer = record.place.epoch;
        let (index, epoch) = self.find(index, outer);
        record.place.epoch = epoch;
        let result = self.source.read(index, record, scratch);
        record.place.epoch = outer;
        result
    }
    fn resident_bytes(&self) -> usize {
        match self.view {
            // Counted with the other part.
            View::Spread { held_out: true, .. } | View::Part { test: true, .. } => 0,
            _ => self.source.resident_bytes(),
        }
    }
    fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        counted.shared(&self.source)
    }
    fn scratch_bytes(&self) -> usize {
        self.source.scratch_bytes()
    }
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.source.decoder_bytes(readers)
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        let (index, epoch) = self.find(index, epoch);
        self.source.origin(index, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_split_partitions_the_source_evenly() {
        for (all, held) in [(10, 1), (10, 3), (7, 7), (100, 33), (5, 0), (3, 2), (1000, 999)] {
            let kept = (0..all - held).map(|i| spread(i, all - held, held, false));
            let kept: Vec<usize> = kept.collect();
            let out: Vec<usize> = (0..held).map(|i| spread(i, held, all - held, true)).collect();
            let mut both = [kept, out.clone()].concat();
            both.sort_unstable();
            assert_eq!(both, (0..all).collect::<Vec<_>>(), "{held} of {all}");
            let gaps = out.windows(2).map(|pair| pair[1] - pair[0]);
            let (least, most) =
                gaps.fold((usize::MAX, 0), |(least, most), gap| (least.min(gap), most.max(gap)));
            assert!(most <= least.saturating_add(1), "{held} of {all}: {out:?}");
        }
    }
}
