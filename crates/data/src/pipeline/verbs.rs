//! The verbs: shuffle, map, filter, split, repeat, join, cache.

use super::cache::{Cache, Cached};
use super::{Head, Pipeline};
use crate::source::join::{Join, Joined};
use crate::source::mapped::Mapped;
use crate::source::view::{View, Viewed};
use crate::stream::join::JoinedStreams;
use crate::stream::shuffle::Shuffled;
use crate::stream::verbs::{Verb, Verbed};
use crate::transforms::stage::{Closure, Stage, Step};
use crate::{DataError, Record, Schema, Source, Streamed};
use std::sync::Arc;

impl Pipeline {
    /// A different order each epoch. With random access the order is computed over all records and takes no memory; a
    /// stream is shuffled through a buffer of `records` records.
    pub fn shuffle(self, records: usize, seed: u64) -> Self {
        let shuffled = self.with(
            |source| Arc::new(Viewed { source, view: View::Shuffled { seed } }),
            |of| Arc::new(Shuffled { of, records: records.max(1), seed }),
        );
        Self { shuffled: true, ..shuffled }
    }

    /// Maps each record by a closure, on all workers, in order.
    pub fn map<F>(self, schema: Schema, work: F) -> Result<Self, DataError>
    where
        F: Fn(&Record<'_>, &mut Record<'_>) -> Result<(), DataError> + Send + Sync + 'static,
    {
        self.apply(Closure { schema, work })
    }

    /// Maps each record by a stage, on all workers, in order.
    pub fn apply(mut self, stage: impl Stage + 'static) -> Result<Self, DataError> {
        let stage: Arc<dyn Stage> = Arc::new(stage);
        match &mut self.head {
            Head::Indexed(source) => *source = Arc::new(Mapped::new(source.clone(), stage)?),
            Head::Streamed(stream, steps) => {
                let input = steps.last().map_or(stream.schema(), |step| &step.output).clone();
                steps.push(Step::new(stage, &input)?);
            }
        }
        Ok(self)
    }

    /// Keeps the records that a closure accepts. From here on records are a stream: everything before the filter and the
    /// closure itself run on one worker at a time, because a record's row depends on all records before it; stages after
    /// it run on all workers. So filter early and put costly stages after it. A resumed run filters the epoch from its start.
    pub fn filter<F>(self, keeps: F) -> Self
    where
        F: Fn(&Record<'_>) -> Result<bool, DataError> + Send + Sync + 'static,
    {
        let of = self.streamed();
        let head = Head::Streamed(Arc::new(Verbed { of, verb: Verb::Filter(Arc::new(keeps)) }), Vec::new());
        Self { head, counted: None, ..self }
    }

    /// The first `records` records of each epoch.
    pub fn take(self, records: usize) -> Self {
        self.slice(0, 1, records)
    }

    /// All but the first `records` records of each epoch.
    pub fn skip(self, records: usize) -> Self {
        self.slice(records, 1, usize::MAX)
    }

    /// Every `world`th record, from the `rank`th on: the shard of one of `world` processes. After a shuffle, all shards are of
    /// the same order.
    pub fn shard(self, rank: usize, world: usize) -> Result<Self, DataError> {
        if rank >= world {
            let reason = format!("rank {rank} of {world}: ranks are counted from 0");
            return Err(DataError::Option { option: "shard", reason });
        }
        Ok(self.slice(rank, world, usize::MAX))
    }

    /// Two parts: every `every`th record is the second, for testing. The memory of the source counts with the first.
    ///
    /// ```
    /// let digits = plimsoll_data::datasets::mnist()?;
    /// let (train, test) = digits.train.split(10);
    /// assert_eq!((train.len(), test.len()), (Some(12_960), Some(1_440)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn split(self, every: usize) -> (Self, Self) {
        let every = every.max(2);
        let part = |test: bool| {
            let count = |all: usize| if test { all / every } else { all - all / every };
            let counted = self.counted.map(count);
            let part = self.clone().with(
                |source| Arc::new(Viewed { source, view: View::Part { every, test } }),
                |of| Arc::new(Verbed { of, verb: Verb::Part { every: every as u64, test } }),
            );
            // The memory of names counts with the first part, too.
            let preparation = part.preparation.clone().filter(|_| !test);
            Self { counted, preparation, ..part }
        };
        (part(false), part(true))
    }

    fn slice(self, start: usize, step: usize, most: usize) -> Self {
        let counted = self.counted.map(|all| all.saturating_sub(start).div_ceil(step).min(most));
        let cut = self.with(
            |source| {
                let len = source.len().saturating_sub(start).div_ceil(step).min(most);
                Arc::new(Viewed { source, view: View::Slice { start, step, len } })
            },
            |of| {
                let (start, step, len) = (start as u64, step as u64, most as u64);
                Arc::new(Verbed { of, verb: Verb::Slice { start, step, len } })
            },
        );
        Self { counted, ..cut }
    }

    /// Holds out a share of the records, spread evenly. Returns the remaining and the held-out records, at least one of
    /// each. It needs random access; put it before shuffle.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let digits = open("mnist", &OpenOptions::default())?;
    /// let (train, validation) = digits.train.hold_out(0.25)?;
    /// assert_eq!((train.len(), validation.len()), (Some(10_800), Some(3_600)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn hold_out(&self, share: f64) -> Result<(Self, Self), DataError> {
        let invalid = |reason: String| Err(DataError::Option { option: "hold_out", reason });
        let Head::Indexed(source) = &self.head else {
            return invalid("needs a source with random access, not a stream".into());
        };
        if !(share > 0.0 && share < 1.0) {
            return invalid(format!("the share must be above 0 and below 1, not {share}"));
        }
        if source.len() < 2 {
            return invalid(format!("{} records cannot be split", source.len()));
        }
        let held = ((source.len() as f64 * share).round() as usize).clamp(1, source.len() - 1);
        let part = |len, held_out| {
            let view = View::Spread { len, held_out };
            let preparation = self.preparation.clone().filter(|_| !held_out);
            let head = Head::Indexed(Arc::new(Viewed { source: source.clone(), view }));
            Self { head, preparation, ..self.clone() }
        };
        Ok((part(source.len() - held, false), part(held, true)))
    }

    /// Repeats the records `times` times in each epoch; with a shuffle before it, each repetition has its own order.
    pub fn repeat(self, times: usize) -> Self {
        let counted = self.counted.map(|all| all.saturating_mul(times));
        let repeated = self.with(
            |source| Arc::new(Viewed { source, view: View::Repeated { times } }),
            |of| Arc::new(Verbed { of, verb: Verb::Repeat { times: times as u64 } }),
        );
        Self { counted, ..repeated }
    }

    /// The records of this pipeline, then those of another with the same columns.
    pub fn concatenate(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Concatenate, other)
    }

    /// Alternates between records of this and of another pipeline with the same columns, then gives the rest of the longer.
    pub fn interleave(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Interleave, other)
    }

    /// Pairs records of this and of another pipeline, up to the shorter: the columns of the first, then those of the
    /// second, whose last is the label.
    pub fn zip(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Zip, other)
    }

    fn join(self, join: Join, other: Self) -> Result<Self, DataError> {
        let head = match (&self.head, &other.head) {
            (Head::Indexed(first), Head::Indexed(second)) => {
                Head::Indexed(Arc::new(Joined::new(join, [first.clone(), second.clone()])?))
            }
            _ => {
                let parts = [self.streamed(), other.streamed()];
                Head::Streamed(Arc::new(JoinedStreams::new(join, parts)?), Vec::new())
            }
        };
        let counted = self.len().zip(other.len()).map(|(first, second)| match join {
            Join::Zip => first.min(second),
            Join::Concatenate | Join::Interleave => first.saturating_add(second),
        });
        let cache_bytes = self.cache_bytes.saturating_add(other.cache_bytes);
        Ok(Self { head, counted, cache_bytes, shuffled: self.shuffled || other.shuffled, ..self })
    }

    /// Caches records after their first reading, in bounded memory or in a file, so that everything before it runs once per
    /// record. It needs random access; put it before shuffle and random stages.
    pub fn cache(mut self, cache: Cache) -> Result<Self, DataError> {
        let Head::Indexed(source) = &self.head else {
            let reason = "needs a source with random access, not a stream";
            return Err(DataError::Option { option: "cache", reason: reason.into() });
        };
        let cached = Cached::new(source.clone(), &cache)?;
        self.cache_bytes = self.cache_bytes.saturating_add(cached.own_bytes());
        self.head = Head::Indexed(Arc::new(cached));
        Ok(self)
    }

    fn with(
        self,
        indexed: impl FnOnce(Arc<dyn Source>) -> Arc<dyn Source>,
        streamed: impl FnOnce(Arc<dyn Streamed>) -> Arc<dyn Streamed>,
    ) -> Self {
        let head = match &self.head {
            Head::Indexed(source) => Head::Indexed(indexed(source.clone())),
            Head::Streamed(..) => Head::Streamed(streamed(self.streamed()), Vec::new()),
        };
        Self { head, ..self }
    }
}
