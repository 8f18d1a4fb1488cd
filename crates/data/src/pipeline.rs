//! From a source to batches: verbs that describe a pipeline, and the workers that run it.

pub(crate) mod autotune;
pub(crate) mod batches;
pub(crate) mod buckets;
pub(crate) mod cache;
mod columns;
mod fingerprint;
pub(crate) mod memory;
mod run_state;
mod verbs;
mod workers;

use crate::stream::generator::Generator;
use crate::stream::in_order::InOrder;
use crate::stream::verbs::{Verb, Verbed};
use crate::transforms::stage::Step;
use crate::{
    Batches, Cursor, DataError, InputPreparation, OwnRows, Prefetch, Preparation, Record, Schema, Source,
    Streamed, Workers,
};
use buckets::Bucketing;
use std::sync::Arc;

/// Where records come from.
#[derive(Clone)]
pub(crate) enum Head {
    /// By index, read by all workers concurrently.
    Indexed(Arc<dyn Source>),
    /// One after another, read by one worker at a time; all workers run the steps after it concurrently.
    Streamed(Arc<dyn Streamed>, Vec<Step>),
}

/// A description of a pipeline; it holds only its source until [`Pipeline::start`]. The verbs mean what they mean in tf.data,
/// and each returns a new pipeline.
///
/// ```
/// use plimsoll_data::{Cursor, Memory, Pipeline};
/// let points = Memory::classes(vec![[3u8, 4]; 1000], vec![1; 1000], 10)?;
/// let pipeline = Pipeline::new(points)
///     .shuffle(10_000, 7) // by index: no memory
///     .map_elements("input", |byte: u8| f32::from(byte) / 255.0)?
///     .map_column("input", |point: &mut [f32]| point.reverse())?
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
    /// Whether the number of workers was stated.
    workers_stated: bool,
    pub(crate) skip_bad: Option<u64>,
    /// Records of an epoch, if stated.
    counted: Option<usize>,
    shuffled: bool,
    pub(crate) cache_bytes: usize,
    pub(crate) buckets: Option<Arc<Bucketing>>,
    /// The rows that it reads of a full batch and of the last one, by their examples.
    pub(crate) own: Option<[(usize, OwnRows); 2]>,
    preparation: Option<Arc<Preparation>>,
}

impl<S: Source + 'static> From<S> for Pipeline {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl Pipeline {
    /// The records of a source, in index order, in batches of one, read on the thread that asks for a batch.
    pub fn new(source: impl Source + 'static) -> Self {
        Self::of(Head::Indexed(Arc::new(source)))
    }

    /// The records of a stream.
    pub fn stream(stream: impl Streamed + 'static) -> Self {
        Self::of(Head::Streamed(Arc::new(stream), Vec::new()))
    }

    /// The records that a closure writes one after another; `start` returns one for each epoch. `held_bytes` declares the
    /// heap bytes of the closures.
    ///
    /// ```
    /// use plimsoll_data::{Cursor, Field, Pipeline, Schema};
    /// let schema = Schema::examples([Field::floats([])], Field::below(2, []));
    /// let numbers = Pipeline::generator(schema, 0, |_epoch| {
    ///     let mut numbers = 0..5;
    ///     move |record| {
    ///         let Some(number) = numbers.next() else { return Ok(false) }; // the epoch is over
    ///         record.put_f32(0, &[number as f32])?;
    ///         record.put_i32(1, number % 2).map(|()| true)
    ///     }
    /// });
    /// let mut batches = numbers.batch(3).start(Cursor::default())?;
    /// assert_eq!(batches.next()?.map(|batch| batch.examples()), Some(3));
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
            workers_stated: false,
            skip_bad: None,
            counted: None,
            shuffled: false,
            cache_bytes: 0,
            buckets: None,
            own: None,
            preparation: None,
        }
    }

    /// Whether records come one after another, not by index.
    pub fn is_stream(&self) -> bool {
        matches!(self.head, Head::Streamed(..))
    }

    /// The columns of its records.
    pub fn schema(&self) -> &Schema {
        match &self.head {
            Head::Indexed(source) => source.schema(),
            Head::Streamed(stream, steps) => steps.last().map_or(stream.schema(), |step| &step.output),
        }
    }

    /// What the format did to its records, so that the same can be done to others; the default where it stated nothing.
    pub fn preparation(&self) -> &Preparation {
        static NONE: Preparation =
            Preparation { classes: Vec::new(), input: InputPreparation::None, notes: Vec::new() };
        self.preparation.as_deref().unwrap_or(&NONE)
    }

    /// States what was done to the records.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, Preparation, open};
    /// let digits = open("mnist", &OpenOptions::default())?.train;
    /// let classes = ["zero", "one"].map(String::from).to_vec();
    /// let named = digits.prepared(Preparation { classes, ..Preparation::default() });
    /// assert_eq!((named.preparation().class(1), named.preparation().class(2)), ("one".into(), "2".into()));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn prepared(self, preparation: Preparation) -> Self {
        Self { preparation: Some(Arc::new(preparation)), ..self }
    }

    /// The source, where records have random access.
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

    /// Records of an epoch; `None` for a stream of unknown length.
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

    /// Whether the order differs from epoch to epoch.
    pub fn is_shuffled(&self) -> bool {
        self.shuffled
    }

    /// States how many records an epoch of a stream has, where that must be known before it runs. A different number is an
    /// error at the end of the epoch.
    pub fn counted(self, records: usize) -> Self {
        Self { counted: Some(records), ..self }
    }

    /// Sets the records of a batch; the last batch of an epoch may have fewer.
    pub fn batch(&self, records: usize) -> Self {
        Self { batch: records, own: None, ..self.clone() }
    }

    /// Reads only some rows of each batch, where other processes read the others: `of` tells which rows of a batch of so many examples.
    /// Order, epochs, cursors and the examples' numbers stay those of the whole batches. Records that are read by index are read for
    /// these rows alone; of a stream all records are read, and the stages after it run for these rows alone. Call it last.
    ///
    /// A pipeline that skips bad records, or whose number of records is not known, reads whole batches all the same
    /// ([`Pipeline::reads_own_rows`]): there a row depends on what others found.
    ///
    /// ```
    /// use plimsoll_data::{Cursor, OpenOptions, OwnRows, open};
    /// let digits = open("mnist", &OpenOptions::default())?.test.batch(4);
    /// let half = |first| digits.clone().own_rows(move |examples| OwnRows { first, rows: 2, stride: examples });
    /// let whole = digits.start(Cursor::default())?.next()?.map(|batch| batch.label_tensor());
    /// let second = half(2).start(Cursor::default())?.next()?.map(|batch| (batch.examples(), batch.label_tensor()));
    /// let (examples, second) = second.expect("the first batch");
    /// assert_eq!((examples, second.as_i32()), (4, Some(&whole.expect("the first batch").as_i32().unwrap()[2..])));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn own_rows(self, of: impl Fn(usize) -> OwnRows) -> Self {
        let rows = self.rows();
        let own = [rows, self.len().unwrap_or(0) % rows].map(|examples| (examples, of(examples)));
        Self { own: Some(own), ..self }
    }

    /// Whether it reads only some rows of each batch.
    pub fn reads_own_rows(&self) -> bool {
        self.own.is_some() && self.skip_bad.is_none() && self.len().is_some()
    }

    /// The rows that it reads of a batch of so many examples, unless it reads all.
    pub(crate) fn own_rows_of(&self, examples: usize) -> Option<OwnRows> {
        let own = self.own.filter(|_| self.reads_own_rows())?;
        let found = own.into_iter().find(|(of, _)| *of == examples).map(|(_, own)| own);
        Some(found.unwrap_or(OwnRows { first: 0, rows: 0, stride: 1 }))
    }

    /// The columns of what the stream gives, where that is not written straight into the batch: stages run after it, or the record may be
    /// another process's.
    pub(crate) fn between(&self) -> Option<&Schema> {
        let Head::Streamed(stream, steps) = &self.head else { return None };
        steps.first().map(|step| &step.input).or_else(|| self.reads_own_rows().then(|| stream.schema()))
    }

    /// Drops a last batch that is not full.
    pub fn drop_remainder(self) -> Self {
        Self { drop_remainder: true, ..self }
    }

    /// Batches that workers may have ready or in progress beside the one in use; at least one. It never changes batches or
    /// their order. Where no number of workers is stated, it takes one; with [`workers`](Self::workers)`(0)` nothing is
    /// ready before it is asked for.
    ///
    /// ```
    /// use plimsoll_data::{BATCHES, OpenOptions, Pipeline, Prefetch, open};
    /// let digits = open("mnist", &OpenOptions::default())?.train.batch(100).workers(2);
    /// let stated = |pipeline: Pipeline| {
    ///     pipeline.bytes().into_iter().find(|share| share.name == BATCHES).map(|share| share.bytes)
    /// };
    /// // The maximum is what is stated.
    /// assert_eq!(stated(digits.clone().prefetch(Prefetch::UpTo(4))), stated(digits.prefetch(4)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn prefetch(self, batches: impl Into<Prefetch>) -> Self {
        let workers = if self.workers_stated { self.workers } else { Workers::Exactly(1) };
        Self { prefetch: batches.into(), workers, ..self }
    }

    /// Bounds an autotuned prefetch ([`Prefetch::UpTo`]): the batches ahead, apart from the first, take at most `bytes`. Call
    /// it after [`Pipeline::batch`].
    pub fn prefetch_within(self, bytes: usize) -> Self {
        let prefetch = self.prefetch.within(bytes, self.batch_bytes());
        Self { prefetch, ..self }
    }

    /// Threads that read and map. They never change batches or their order. With 0 the thread that asks for a batch reads
    /// it; so it is, too, where neither workers nor [`prefetch`](Self::prefetch) are stated.
    pub fn workers(self, workers: impl Into<Workers>) -> Self {
        Self { workers: workers.into(), workers_stated: true, ..self }
    }

    /// Skips up to `records` bad records of an epoch. An empty row without a label (-1) replaces each, so that shapes and the
    /// positions of other records stay; it has no weight in a loss.
    pub fn skip_bad(self, records: u64) -> Self {
        Self { skip_bad: Some(records), ..self }
    }

    /// Records of a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// The maximum number of worker threads.
    pub fn worker_count(&self) -> usize {
        self.workers.most()
    }

    /// Whether it can be stopped and started again at its cursor at no cost: it reads by index, on the thread that asks, and counts no bad
    /// records. Then it need not hold a batch while nobody asks for one.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let digits = open("mnist", &OpenOptions::default())?;
    /// assert!(digits.train.restarts_freely());
    /// assert!(!digits.train.workers(2).restarts_freely());
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn restarts_freely(&self) -> bool {
        let by_index = matches!(self.head, Head::Indexed(_)) && self.buckets.is_none();
        by_index && self.workers.most() == 0 && self.skip_bad.is_none()
    }

    /// The maximum number of batches beside the one in use.
    pub fn batches_ahead(&self) -> usize {
        self.ring() - 1
    }

    /// Starts it: allocates the memory of [`Pipeline::bytes`] and starts the threads. With a cursor from [`Batches::cursor`]
    /// it continues with exactly the batches that would have followed.
    pub fn start(&self, cursor: Cursor) -> Result<Batches, DataError> {
        Batches::start(self, cursor, None)
    }

    /// As [`Pipeline::start`], for the epoch of the cursor alone.
    pub fn start_epoch(&self, cursor: Cursor) -> Result<Batches, DataError> {
        Batches::start(self, cursor, Some(cursor.epoch))
    }

    /// The records as one stream, stages included.
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
