//! A running pipeline as its consumer sees it: batches in order.

use super::run_state::{Dispatcher, Filling, Shared, State, lock, wait, wait_for};
use super::workers::{INPUT, RECORDS};
use crate::core::schema::check_types;
use crate::{Batch, Cursor, DataError, Field, Pipeline, Schema, Workers};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Address space of a worker's stack; only touched pages are resident.
const STACK_SPACE: usize = 1 << 20;
/// The maximum number of workers.
const MAX_WORKERS: usize = 1 << 12;
/// The maximum number of batches ahead.
const MAX_AHEAD: usize = 1 << 16;
/// How many batches in a row the consumer waits for before another worker joins, and how many come unevenly before there
/// is another batch.
const PATIENCE: u32 = 2;
/// How often a wait looks whether it may go on.
const POLL: Duration = Duration::from_millis(1);

/// The batches of a running [`Pipeline`], epoch after epoch. Dropping it stops its threads.
///
/// ```
/// use plimsoll_data::{Cursor, OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let mut batches = digits.test.clone().shuffle(0, 1).batch(1000).start(Cursor::default())?;
/// let mut sizes = Vec::new();
/// while let Some(batch) = batches.next()? {
///     sizes.push(batch.examples());
/// }
/// assert_eq!(sizes, [1000, 1000, 500]);
/// assert_eq!(batches.cursor(), Cursor { epoch: 1, example: 0 });
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Batches {
    shared: Arc<Shared>,
    ring: Vec<Batch>,
    threads: Vec<JoinHandle<()>>,
    /// Sequence number of the next batch.
    sequence: u64,
    cursor: Cursor,
    /// Slot of the batch that is lent.
    lent: Option<usize>,
    failed: bool,
    waited: u32,
    uneven: u32,
}

impl Batches {
    pub(crate) fn start(
        pipeline: &Pipeline,
        cursor: Cursor,
        last_epoch: Option<u64>,
    ) -> Result<Self, DataError> {
        let invalid = |option, reason: String| Err(DataError::Option { option, reason });
        let head = pipeline.running()?;
        let types = types(pipeline)?;
        let schema = pipeline.batch_schemas().last().unwrap_or(pipeline.schema());
        if pipeline.batch == 0 {
            return invalid("batch size", "must be at least 1".into());
        }
        if pipeline.skip_bad.is_some() && schema.classes().is_none() {
            let reason = "needs labels that are classes: a row without a label stands for a bad record";
            return invalid("skip_bad", reason.into());
        }
        let (size, ring) = (pipeline.rows(), pipeline.ring());
        if pipeline.row_bytes().checked_mul(size).is_none_or(|bytes| bytes == usize::MAX) {
            let what = schema.in_words();
            return invalid(
                "batch size",
                format!("the bytes of {size} examples of {what} overflow; take fewer"),
            );
        }
        if pipeline.row_bytes().saturating_mul(size).checked_mul(ring).is_none_or(|bytes| bytes == usize::MAX)
        {
            let reason = format!("the bytes of {ring} batches overflow; have fewer ready");
            return invalid("prefetch", reason);
        }
        if pipeline.workers.most() > MAX_WORKERS {
            let reason = format!("at most {MAX_WORKERS}, not {}", pipeline.workers.most());
            return invalid("workers", reason);
        }
        match pipeline.len() {
            Some(0) => return Err(DataError::Empty { what: "the source".into() }),
            Some(len) if cursor.example > len as u64 => {
                let example = cursor.example;
                let reason =
                    format!("example {example} is past the {len} of an epoch; resume with the same data");
                return invalid("cursor", reason);
            }
            Some(len) if pipeline.drop_remainder && len < pipeline.batch => {
                let batch = pipeline.batch;
                let reason = format!("{len} examples never fill a batch of {batch}; take a smaller one");
                return invalid("batch size", reason);
            }
            _ => {}
        }
        if ring > MAX_AHEAD + 1 {
            return invalid("prefetch", format!("at most {MAX_AHEAD}, not {}", ring - 1));
        }
        let columns: Vec<OnceLock<_>> = (0..ring).map(|_| OnceLock::new()).collect();
        let at_first = ring.min(pipeline.prefetch.least() + 1);
        let batches = (0..at_first).map(|_| Batch::buffers(&types, pipeline.held_rows()));
        let mut ring: Vec<Batch> = Vec::with_capacity(ring);
        for (batch, columns) in batches.zip(&columns) {
            let batch = batch?;
            columns.get_or_init(|| batch.columns());
            ring.push(batch);
        }
        let workers = pipeline.workers.most();
        let shared = Arc::new(Shared {
            pipeline: pipeline.clone(),
            head,
            columns,
            size,
            scratch: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
            last_epoch,
            dispatcher: Mutex::new(Dispatcher {
                cursor,
                sequence: 0,
                slot: None,
                place: 0,
                row: 0,
                bucket: 0,
                stream: None,
                missing: 0,
                ended: false,
            }),
            state: Mutex::new(State {
                filling: ring.iter().map(|_| Filling::default()).collect(),
                free: (0..ring.len()).rev().collect(),
                released: 0,
                idled: false,
                ends: VecDeque::with_capacity(ring.capacity() + 2),
                end: None,
                fatal: None,
                bad: BTreeMap::new(),
                most_bad: 0,
                first_bad: None,
                active: if let Workers::UpTo(_) = pipeline.workers { 1 } else { workers },
                draining: false,
                stopped: false,
            }),
            wake_workers: Condvar::new(),
            ready: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut batches = Self {
            shared,
            ring,
            threads: Vec::with_capacity(workers),
            sequence: 0,
            cursor,
            lent: None,
            failed: false,
            waited: 0,
            uneven: 0,
        };
        for worker in 0..workers {
            let shared = batches.shared.clone();
            let work = move || shared.work(worker);
            let thread = Builder::new().name("plimsoll-input".into()).stack_size(STACK_SPACE).spawn(work);
            // Dropping `batches` stops the threads that run already.
            let thread = thread.map_err(|source| DataError::Threads { workers, source })?;
            batches.threads.push(thread);
        }
        Ok(batches)
    }

    /// The next batch, lent until the next call. At the end of an epoch it is `None`, and the call after that continues with
    /// the next epoch. After an error every call fails.
    #[allow(clippy::should_implement_trait, reason = "batches are lent")]
    pub fn next(&mut self) -> Result<Option<&Batch>, DataError> {
        if self.failed {
            return Err(DataError::Stopped);
        }
        let shared = self.shared.clone();
        let mut state = shared.state();
        if let Some(slot) = self.lent.take() {
            state.released += 1;
            state.free.push(slot);
            shared.wake_workers.notify_all();
        }
        let mut waited = false;
        let slot = loop {
            if state.ends.front() == Some(&self.sequence) {
                state.ends.pop_front();
                self.cursor = Cursor { epoch: self.cursor.epoch.wrapping_add(1), example: 0 };
                return Ok(None);
            }
            if let Some(slot) = state.complete(self.sequence) {
                break slot;
            }
            if let Some((_, error)) = state.fatal.take_if(|(sequence, _)| *sequence == self.sequence) {
                self.failed = true;
                return Err(error);
            }
            if state.end == Some(self.sequence) {
                return Ok(None);
            }
            if self.threads.is_empty() {
                drop(state);
                shared.make_record(0, false);
                state = shared.state();
                continue;
            }
            waited = true;
            state = wait(&shared.ready, state);
        };
        plimsoll_trace::repeats_over(INPUT, RECORDS);
        self.waited = if waited { self.waited + 1 } else { 0 };
        self.uneven += u32::from(waited && std::mem::take(&mut state.idled));
        if self.waited >= PATIENCE && state.active < self.threads.len() {
            (state.active, self.waited) = (state.active + 1, 0);
            shared.wake_workers.notify_all();
        }
        if self.uneven >= PATIENCE && self.ring.len() < shared.columns.len() {
            self.uneven = 0;
            self.add_batch(&mut state);
        }
        let filling = &mut state.filling[slot];
        if let Some((_, error)) = filling.error.take() {
            self.failed = true;
            return Err(error);
        }
        self.cursor = filling.after;
        let batch = &mut self.ring[slot];
        let own = shared.pipeline.own_rows_of(filling.examples);
        batch.set(filling.bucket, (filling.examples, own), filling.first, filling.after);
        (self.lent, self.sequence) = (Some(slot), self.sequence + 1);
        Ok(Some(batch))
    }

    /// The batch that is lent, if one is.
    pub fn lent(&self) -> Option<&Batch> {
        self.lent.map(|slot| &self.ring[slot])
    }

    /// Waits until workers have the next batch ready, as long as `may_wait` says, which is asked every millisecond. Returns whether it
    /// is ready: then [`Batches::next`] returns it at once. It is not at the end of an epoch, after an error, or where
    /// there are no workers.
    ///
    /// ```
    /// use plimsoll_data::{Cursor, OpenOptions, open};
    /// let digits = open("mnist", &OpenOptions::default())?;
    /// let mut batches = digits.test.clone().workers(1).batch(1250).start(Cursor::default())?;
    /// for start in [0, 1250] {
    ///     assert!(batches.wait_ready(|| true));
    ///     assert_eq!(batches.next()?.map(|batch| batch.first_example()), Some(start));
    /// }
    /// assert!(!batches.wait_ready(|| true)); // the epoch ends
    /// assert!(batches.next()?.is_none());
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn wait_ready(&self, mut may_wait: impl FnMut() -> bool) -> bool {
        if self.failed || self.threads.is_empty() {
            return false;
        }
        let mut state = self.shared.state();
        loop {
            if let Some(slot) = state.complete(self.sequence) {
                return state.filling[slot].error.is_none() && state.ends.front() != Some(&self.sequence);
            }
            let over = state.ends.front() == Some(&self.sequence) || state.end == Some(self.sequence);
            let failed = state.fatal.as_ref().is_some_and(|(sequence, _)| *sequence == self.sequence);
            if over || failed || !may_wait() {
                return false;
            }
            state = wait_for(&self.shared.ready, state, POLL);
        }
    }

    /// Adds a batch to the ring. Where the system has no memory for it, the ring stays as it is.
    fn add_batch(&mut self, state: &mut State) {
        let Ok(types) = types(&self.shared.pipeline) else { return };
        let Ok(batch) = Batch::buffers(&types, self.shared.pipeline.held_rows()) else { return };
        self.shared.columns[self.ring.len()].get_or_init(|| batch.columns());
        state.filling.push(Filling::default());
        state.free.push(self.ring.len());
        self.ring.push(batch);
        self.shared.wake_workers.notify_all();
    }

    /// Waits until every free batch is ready, so that workers and decoders are idle until the next call of
    /// [`Batches::next`], and frees their scratch until then.
    pub fn settle(&self) {
        let mut state = self.shared.state();
        while !self.threads.is_empty() && !state.is_idle() {
            state = wait(&self.shared.ready, state);
        }
        drop(state);
        self.shared.scratch.iter().for_each(|scratch| *lock(scratch) = Vec::new());
    }

    /// Where the next batch starts.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The most bad records that one epoch skipped so far, and the error of the first.
    pub fn skipped(&self) -> (u64, Option<String>) {
        let state = self.shared.state();
        (state.most_bad, state.first_bad.clone())
    }

    /// Batches beside the one in use: as many as requested, or as many as autotuning found useful.
    pub fn batches_ahead(&self) -> usize {
        self.ring.len() - 1
    }

    /// Active workers: as many as requested, or as many as autotuning found useful.
    pub fn active_workers(&self) -> usize {
        self.shared.state().active
    }
}

fn columns(schema: &Schema) -> Result<Vec<&Field>, DataError> {
    let (inputs, label) = schema.fields()?;
    check_types(inputs.len(), &label.ty, label.bound)?;
    Ok([inputs, vec![label]].concat())
}

/// The columns of each type of batch, the label last.
fn types(pipeline: &Pipeline) -> Result<Vec<Vec<&Field>>, DataError> {
    pipeline.batch_schemas().iter().map(columns).collect()
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.stop.store(true, Relaxed);
        self.shared.wake_workers.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of a worker were caught and reported as errors.
            let _ = thread.join();
        }
    }
}
