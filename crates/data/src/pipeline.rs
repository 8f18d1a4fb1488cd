//! From a source to batches, verb by verb.

use crate::buckets::Bucketing;
use crate::cache::{Cache, Cached};
use crate::index::{Join, Joined, View, Viewed};
use crate::stage::{Closure, Mapped, Stage, Step};
use crate::stream::{Generator, InOrder, Streamed};
use crate::verbs::{JoinedStreams, Shuffled, Verb, Verbed};
use crate::{Batches, Cursor, DataError, Prefetch, Record, Schema, Source, Workers};
use std::sync::Arc;

/// Where records come from.
#[derive(Clone)]
pub(crate) enum Head {
    /// By index, on every worker at once.
    Indexed(Arc<dyn Source>),
    /// One after another; the steps after it run on every worker at once.
    Streamed(Arc<dyn Streamed>, Vec<Step>),
}

/// What a pipeline does, verb by verb; it holds nothing but its source until [`Pipeline::start`]. The verbs mean what they
/// mean in tf.data, and each gives a new pipeline.
///
/// ```
/// use plimsoll_data::{Cursor, Field, Memory, Pipeline, Schema};
/// use plimsoll_tensor::HostTensor;
/// let tensor = |ty: &str| HostTensor::zeros(ty.parse().unwrap());
/// let points = Memory::new(vec![tensor("f32[1000,2]")], tensor("i32[1000]"), Some(10))?;
/// let sums = Schema::examples([Field::floats([1])], Field::below(10, []));
/// let pipeline = Pipeline::new(points)
///     .shuffle(10_000, 7) // by index: no memory
///     .map(sums, |point, sum| {
///         let values = point.bytes(0).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
///         sum.put_f32(0, &[values.sum()])?;
///         sum.put(1, point.bytes(1))
///     })?
///     .batch(32)
///     .workers(2);
/// let mut batches = pipeline.start(Cursor::default())?;
/// let mut examples = 0;
/// while let Some(batch) = batches.next()? {
///     examples += batch.examples();
/// }
/// assert_eq!(examples, 1000);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) head: Head,
    pub(crate) batch: usize,
    pub(crate) drop_remainder: bool,
    pub(crate) prefetch: Prefetch,
    pub(crate) workers: Workers,
    pub(crate) skip_bad: Option<u64>,
    /// Records of an epoch, where they were stated.
    counted: Option<usize>,
    shuffled: bool,
    pub(crate) cache_bytes: usize,
    pub(crate) buckets: Option<Arc<Bucketing>>,
}

impl<S: Source + 'static> From<S> for Pipeline {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl Pipeline {
    /// The records of a source by their index, one at a time, read by whoever asks for them.
    pub fn new(source: impl Source + 'static) -> Self {
        Self::of(Head::Indexed(Arc::new(source)))
    }

    /// The records of a stream.
    pub fn stream(stream: impl Streamed + 'static) -> Self {
        Self::of(Head::Streamed(Arc::new(stream), Vec::new()))
    }

    /// The records that a closure writes one after another; `start` makes one for each epoch. What the closures hold is
    /// declared as `held_bytes`.
    ///
    /// ```
    /// use plimsoll_data::{Cursor, Field, Pipeline, Schema};
    /// let schema = Schema::examples([Field::floats([])], Field::below(2, []));
    /// let numbers = Pipeline::generator(schema, 0, |epoch| {
    ///     let mut numbers = (0..5).map(move |i| i + 100 * epoch);
    ///     move |record| {
    ///         let Some(number) = numbers.next() else { return Ok(false) };
    ///         record.put_f32(0, &[number as f32])?;
    ///         record.put_i32(1, (number % 2) as i32)?;
    ///         Ok(true)
    ///     }
    /// });
    /// let mut batches = numbers.shuffle(3, 1).batch(2).start(Cursor::default())?;
    /// let mut sizes = Vec::new();
    /// while let Some(batch) = batches.next()? {
    ///     sizes.push(batch.examples());
    /// }
    /// assert_eq!(sizes, [2, 2, 1]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn generator<F, G>(schema: Schema, held_bytes: usize, start: F) -> Self
    where
        F: Fn(u64) -> G + Send + Sync + 'static,
        G: FnMut(&mut Record<'_>) -> Result<bool, DataError> + Send + 'static,
    {
        Self::stream(Generator { schema, start, held_bytes })
    }

    fn of(head: Head) -> Self {
        Self {
            head,
            batch: 1,
            drop_remainder: false,
            prefetch: Prefetch::Exactly(1),
            workers: Workers::Exactly(0),
            skip_bad: None,
            counted: None,
            shuffled: false,
            cache_bytes: 0,
            buckets: None,
        }
    }

    /// The columns of its records.
    pub fn schema(&self) -> &Schema {
        match &self.head {
            Head::Indexed(source) => source.schema(),
            Head::Streamed(stream, steps) => steps.last().map_or(stream.schema(), |step| &step.output),
        }
    }

    /// Its records by their index, where they have one.
    pub fn source(&self) -> Option<&dyn Source> {
        match &self.head {
            Head::Indexed(source) => Some(&**source),
            Head::Streamed(..) => None,
        }
    }

    /// Records of an epoch's batches: all of them, or, with [`Pipeline::drop_remainder`], those of whole batches.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let digits = open("mnist", &OpenOptions::default())?.test.batch(1000);
    /// assert_eq!((digits.batched_len(), digits.drop_remainder().batched_len()), (Some(2500), Some(2000)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn batched_len(&self) -> Option<usize> {
        let len = self.len()?;
        Some(if self.drop_remainder { len - len % self.batch.max(1) } else { len })
    }

    /// Records of an epoch; `None` for a stream that nobody counted.
    pub fn len(&self) -> Option<usize> {
        match &self.head {
            Head::Indexed(source) => Some(source.len()),
            Head::Streamed(..) => self.counted,
        }
    }

    /// Whether an epoch is known to have no records.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Whether its order is another each epoch.
    pub fn is_shuffled(&self) -> bool {
        self.shuffled
    }

    /// States how many records an epoch of a stream has, for those who must know before it runs. Another number is an
    /// error when it shows.
    pub fn counted(self, records: usize) -> Self {
        Self { counted: Some(records), ..self }
    }

    /// Another order each epoch. With random access the order is computed, all records are in it, and nothing is held; a
    /// stream passes through a buffer of so many records.
    pub fn shuffle(self, records: usize, seed: u64) -> Self {
        let shuffled = self.with(
            |source| Arc::new(Viewed { source, view: View::Shuffled { seed } }),
            |of| Arc::new(Shuffled { of, records: records.max(1), seed }),
        );
        Self { shuffled: true, ..shuffled }
    }

    /// Each record through a closure, on all workers, in order.
    pub fn map<F>(self, schema: Schema, work: F) -> Result<Self, DataError>
    where
        F: Fn(&Record<'_>, &mut Record<'_>) -> Result<(), DataError> + Send + Sync + 'static,
    {
        self.apply(Closure { schema, work })
    }

    /// Each record through a stage, on all workers, in order.
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

    /// Only the records that a closure keeps. From here on records come one after another: what is before it, and the closure,
    /// runs on one worker at a time, because which row a record gets follows from all before it; stages after it run on all.
    /// So decide by what is cheap to read, and put costly stages after it. A run that goes on filters the epoch from its start.
    pub fn filter<F>(self, keeps: F) -> Self
    where
        F: Fn(&Record<'_>) -> Result<bool, DataError> + Send + Sync + 'static,
    {
        let of = self.streamed();
        let head = Head::Streamed(Arc::new(Verbed { of, verb: Verb::Filter(Arc::new(keeps)) }), Vec::new());
        Self { head, counted: None, ..self }
    }

    /// The first so many records of each epoch.
    pub fn take(self, records: usize) -> Self {
        self.cut(0, 1, records)
    }

    /// All but the first so many records of each epoch.
    pub fn skip(self, records: usize) -> Self {
        self.cut(records, 1, usize::MAX)
    }

    /// Every `world`th record, from the `rank`th on: the part of one of `world` programs, of one order if it comes after a
    /// shuffle.
    pub fn shard(self, rank: usize, world: usize) -> Result<Self, DataError> {
        if rank >= world {
            let reason = format!("rank {rank} of {world}: ranks are counted from 0");
            return Err(DataError::Option { option: "shard", reason });
        }
        Ok(self.cut(rank, world, usize::MAX))
    }

    /// Two parts: the records to learn from, and every `every`th for measuring. What the source holds counts with the
    /// first.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let (train, test) = open("mnist", &OpenOptions::default())?.train.split(10);
    /// assert_eq!((train.len(), test.len()), (Some(14_400), Some(1_600)));
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
            Self { counted, ..part }
        };
        (part(false), part(true))
    }

    fn cut(self, start: usize, step: usize, most: usize) -> Self {
        let counted = self.counted.map(|all| all.saturating_sub(start).div_ceil(step).min(most));
        let cut = self.with(
            |source| {
                let len = source.len().saturating_sub(start).div_ceil(step).min(most);
                Arc::new(Viewed { source, view: View::Cut { start, step, len } })
            },
            |of| {
                let (start, step, len) = (start as u64, step as u64, most as u64);
                Arc::new(Verbed { of, verb: Verb::Cut { start, step, len } })
            },
        );
        Self { counted, ..cut }
    }

    /// Holds a share of the records out, spread evenly: what is left, and what is held out, at least one of each. It needs
    /// random access; put it before shuffle.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let digits = open("mnist", &OpenOptions::default())?;
    /// let (train, validation) = digits.train.hold_out(0.25)?;
    /// assert_eq!((train.len(), validation.len()), (Some(12_000), Some(4_000)));
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
            return invalid(format!("{} records cannot be parted", source.len()));
        }
        let held = ((source.len() as f64 * share).round() as usize).clamp(1, source.len() - 1);
        let part = |len, held_out| {
            let view = View::Spread { len, held_out };
            Self { head: Head::Indexed(Arc::new(Viewed { source: source.clone(), view })), ..self.clone() }
        };
        Ok((part(source.len() - held, false), part(held, true)))
    }

    /// Each epoch so many times the whole; a shuffle before it gives each time another order.
    pub fn repeat(self, times: usize) -> Self {
        let counted = self.counted.map(|all| all.saturating_mul(times));
        let repeated = self.with(
            |source| Arc::new(Viewed { source, view: View::Repeated { times } }),
            |of| Arc::new(Verbed { of, verb: Verb::Repeat { times: times as u64 } }),
        );
        Self { counted, ..repeated }
    }

    /// The records of this, then those of another with the same columns.
    pub fn concatenate(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Concatenate, other)
    }

    /// Records of this and of another with the same columns in turns, then what is left of the longer.
    pub fn interleave(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Interleave, other)
    }

    /// Records of this and of another side by side, as long as both have one: the columns of the one, then those of the
    /// other, whose last is the label.
    pub fn zip(self, other: Self) -> Result<Self, DataError> {
        self.join(Join::Zip, other)
    }

    fn join(self, join: Join, other: Self) -> Result<Self, DataError> {
        let head = match (&self.head, &other.head) {
            (Head::Indexed(one), Head::Indexed(two)) => {
                Head::Indexed(Arc::new(Joined::new(join, [one.clone(), two.clone()])?))
            }
            _ => {
                let parts = [self.streamed(), other.streamed()];
                Head::Streamed(Arc::new(JoinedStreams::new(join, parts)?), Vec::new())
            }
        };
        let counted = self.len().zip(other.len()).map(|(one, two)| match join {
            Join::Zip => one.min(two),
            Join::Concatenate | Join::Interleave => one.saturating_add(two),
        });
        let cache_bytes = self.cache_bytes.saturating_add(other.cache_bytes);
        Ok(Self { head, counted, cache_bytes, shuffled: self.shuffled || other.shuffled, ..self })
    }

    /// Keeps records after their first reading, so that what is before it happens once: in memory, at most so many bytes,
    /// or in a file. It needs random access; put it before shuffle and random stages.
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

    /// So many records to a batch; the last of an epoch may have fewer.
    pub fn batch(&self, records: usize) -> Self {
        Self { batch: records, ..self.clone() }
    }

    /// Leaves out a last batch that is not full.
    pub fn drop_remainder(self) -> Self {
        Self { drop_remainder: true, ..self }
    }

    /// Batches that workers may have ready or in the making beside the one in use; at least one. They never change what
    /// comes, nor its order.
    ///
    /// ```
    /// use plimsoll_data::{BATCHES, OpenOptions, Pipeline, Prefetch, open};
    /// let digits = open("mnist", &OpenOptions::default())?.train.batch(100).workers(2);
    /// let stated = |pipeline: Pipeline| {
    ///     pipeline.bytes().into_iter().find(|share| share.name == BATCHES).map(|share| share.bytes)
    /// };
    /// // Stated are the most batches that there may be.
    /// assert_eq!(stated(digits.clone().prefetch(Prefetch::UpTo(4))), stated(digits.prefetch(4)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn prefetch(self, batches: impl Into<Prefetch>) -> Self {
        Self { prefetch: batches.into(), ..self }
    }

    /// Bounds a prefetch that is found out ([`Prefetch::UpTo`]): besides the first batch ahead no more than so many bytes
    /// hold. Comes after [`Pipeline::batch`].
    pub fn prefetch_within(self, bytes: usize) -> Self {
        let prefetch = self.prefetch.within(bytes, self.batch_bytes());
        Self { prefetch, ..self }
    }

    /// Threads that read and map. They never change what comes, nor its order.
    pub fn workers(self, workers: impl Into<Workers>) -> Self {
        Self { workers: workers.into(), ..self }
    }

    /// Goes on where a record is bad, up to so many of an epoch. An empty row without a label (-1) takes its place, so that
    /// shapes and the places of the others stay; it counts nothing in a loss.
    pub fn skip_bad(self, records: u64) -> Self {
        Self { skip_bad: Some(records), ..self }
    }

    /// Records to a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// The most worker threads there may be.
    pub fn worker_count(&self) -> usize {
        self.workers.most()
    }

    /// The most batches there may be beside the one in use.
    pub fn batches_ahead(&self) -> usize {
        self.ring() - 1
    }

    /// Starts it: takes all of [`Pipeline::bytes`], and its threads begin. A cursor taken from
    /// [`Batches::cursor`] goes on with exactly the batches that would have come.
    pub fn start(&self, cursor: Cursor) -> Result<Batches, DataError> {
        Batches::start(self, cursor, None)
    }

    /// As [`Pipeline::start`], for the epoch of the cursor alone.
    pub fn start_epoch(&self, cursor: Cursor) -> Result<Batches, DataError> {
        Batches::start(self, cursor, Some(cursor.epoch))
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

    /// Its records one after another, stages included.
    pub(crate) fn streamed(&self) -> Arc<dyn Streamed> {
        match &self.head {
            Head::Indexed(source) => Arc::new(InOrder(source.clone())),
            Head::Streamed(stream, steps) => {
                let staged = |of, step: &Step| -> Arc<dyn Streamed> {
                    Arc::new(Verbed { of, verb: Verb::Stage(step.clone()) })
                };
                steps.iter().fold(stream.clone(), staged)
            }
        }
    }
}
