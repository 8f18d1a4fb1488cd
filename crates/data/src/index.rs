//! Verbs on sources with random access: each computes another index, and holds nothing.

use crate::{DataError, Permutation, Record, Schema, Source};
use std::sync::Arc;

/// How places of a view become places of what it looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// `len` records from `start` on, every `step`th: take, skip, shard.
    Cut { start: usize, step: usize, len: usize },
    /// Another order each epoch.
    Shuffled { seed: u64 },
    /// `len` records of the source, spread evenly: those that are held out, or the others.
    Spread { len: usize, held_out: bool },
    /// The whole, several times; each time counts as an epoch of its own below.
    Repeated { times: usize },
    /// Every `every`th record for measuring, or all others.
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
            View::Cut { start, step, .. } => (start + index * step, epoch),
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

/// The place of a record of a part of `own` records that lies spread between `others`. Before kept record `i` come
/// `i · held / kept` of those held out, rounded down; the other way round follows from it.
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
            View::Cut { len, .. } | View::Spread { len, .. } => len,
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
            // The other part has it, and states it.
            View::Spread { held_out: true, .. } | View::Part { test: true, .. } => 0,
            _ => self.source.resident_bytes(),
        }
    }
    fn scratch_bytes(&self) -> usize {
        self.source.scratch_bytes()
    }
    fn decoder_bytes(&self) -> usize {
        self.source.decoder_bytes()
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        let (index, epoch) = self.find(index, epoch);
        self.source.origin(index, epoch)
    }
}

/// How two sources become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// One after the other.
    Concatenate,
    /// In turns, and then what is left of the longer.
    Interleave,
    /// Side by side: the columns of the one, then those of the other.
    Zip,
}

/// Two sources as one.
pub(crate) struct Joined {
    parts: [Arc<dyn Source>; 2],
    join: Join,
    schema: Schema,
}

impl Joined {
    pub fn new(join: Join, parts: [Arc<dyn Source>; 2]) -> Result<Self, DataError> {
        let schema = joined_schema(join, [parts[0].schema(), parts[1].schema()])?;
        Ok(Self { parts, join, schema })
    }

    /// Part and index there.
    fn find(&self, index: usize) -> (usize, usize) {
        let lens = self.lens();
        match self.join {
            Join::Concatenate if index < lens[0] => (0, index),
            Join::Concatenate => (1, index - lens[0]),
            Join::Interleave => {
                let turns = lens[0].min(lens[1]);
                match index < turns.saturating_mul(2) {
                    true => (index % 2, index / 2),
                    false => (usize::from(lens[1] > lens[0]), index - turns),
                }
            }
            Join::Zip => (0, index),
        }
    }

    fn lens(&self) -> [usize; 2] {
        [self.parts[0].len(), self.parts[1].len()]
    }

    fn most(&self, of: impl Fn(&dyn Source) -> usize) -> usize {
        of(&*self.parts[0]).max(of(&*self.parts[1]))
    }
}

/// The columns of two joined: those of both for a zip, else those of either.
pub(crate) fn joined_schema(join: Join, [one, other]: [&Schema; 2]) -> Result<Schema, DataError> {
    if join == Join::Zip {
        let columns = one.columns().iter().chain(other.columns());
        let schema =
            columns.fold(Schema::new(), |schema, column| schema.column(&column.name, column.kind.clone()));
        schema.check()?;
        return Ok(schema);
    }
    if one != other {
        return Err(DataError::OtherColumns { expected: one.in_words(), found: other.in_words() });
    }
    Ok(one.clone())
}

impl Source for Joined {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> usize {
        let lens = self.lens();
        match self.join {
            Join::Concatenate | Join::Interleave => lens[0].saturating_add(lens[1]),
            Join::Zip => lens[0].min(lens[1]),
        }
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if self.join != Join::Zip {
            let (part, index) = self.find(index);
            return self.parts[part].read(index, record, scratch);
        }
        let first = self.parts[0].schema().columns().len();
        let (mut front, mut back) = record.split_at(first);
        self.parts[0].read(index, &mut front, scratch)?;
        self.parts[1].read(index, &mut back, scratch)?;
        let lengths = [front.lengths(), back.lengths()];
        record.set_lengths(first, lengths);
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        self.parts[0].resident_bytes().saturating_add(self.parts[1].resident_bytes())
    }
    fn scratch_bytes(&self) -> usize {
        self.most(|part| part.scratch_bytes())
    }
    fn decoder_bytes(&self) -> usize {
        self.most(|part| part.decoder_bytes())
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        let (part, index) = self.find(index);
        self.parts[part].origin(index, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_parts_are_the_whole_and_even() {
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
