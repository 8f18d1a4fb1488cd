//! A pipeline that runs: numbered tickets, rows filled by many threads, batches in their order.

use crate::batch::{Rows, row};
use crate::budget::zeroed;
use crate::pipeline::{Head, Workers};
use crate::schema::check_types;
use crate::stream::Stream;
use crate::{Batch, Cursor, DataError, Pipeline, Place, Record};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Address space of a worker's stack; only what is touched counts.
const STACK_SPACE: usize = 1 << 20;
/// Batches in a row that were waited for before another worker joins.
const PATIENCE: u32 = 2;

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
    /// Of the thread that asks, where there are no workers.
    scratch: Vec<u8>,
    /// The batch that comes next.
    sequence: u64,
    cursor: Cursor,
    lent: bool,
    failed: bool,
    waited: u32,
}

/// What the threads of a running pipeline share.
struct Shared {
    pipeline: Pipeline,
    /// Columns of each batch of the ring.
    columns: Vec<Vec<Rows>>,
    size: usize,
    /// The epoch to end after.
    last_epoch: Option<u64>,
    ticket: Mutex<Ticket>,
    state: Mutex<State>,
    /// A batch was given back, a worker may join, or all is over.
    room: Condvar,
    /// A batch is complete, an epoch ended, or all is over.
    ready: Condvar,
}

/// The serial head: who gets which record.
struct Ticket {
    /// Of the next record.
    cursor: Cursor,
    /// The batch it goes to, and its row there.
    sequence: u64,
    row: usize,
    stream: Option<Box<dyn Stream>>,
    over: bool,
}

struct State {
    filling: Vec<Filling>,
    /// Batches that were given back.
    released: u64,
    /// An epoch ended before each of these batches.
    ends: VecDeque<u64>,
    /// The batch instead of which nothing comes any more.
    over: Option<u64>,
    /// The batch instead of which an error comes, and nothing after it.
    fatal: Option<(u64, DataError)>,
    bad: u64,
    first_bad: Option<String>,
    active: usize,
    /// Whether somebody waits for the rows of a remainder that is dropped.
    draining: bool,
    stopped: bool,
}

/// A batch in the making.
#[derive(Default)]
struct Filling {
    sequence: u64,
    first: Cursor,
    /// Rows given out and rows done; complete when they are equal and no more are given out.
    rows: usize,
    done: usize,
    closed: bool,
    after: Cursor,
    /// The first row that failed.
    error: Option<(usize, DataError)>,
}

/// What came of asking for a record.
enum Progress {
    Made,
    /// Every batch is full, or all is over.
    Nothing,
}

impl Batches {
    pub(crate) fn start(
        pipeline: &Pipeline,
        cursor: Cursor,
        last_epoch: Option<u64>,
    ) -> Result<Self, DataError> {
        let invalid = |option, reason: String| Err(DataError::Option { option, reason });
        let schema = pipeline.schema();
        let (inputs, label) = schema.fields()?;
        check_types(inputs.len(), &label.ty, label.bound)?;
        if pipeline.batch == 0 {
            return invalid("batch size", "must be at least 1".into());
        }
        if pipeline.skip_bad.is_some() && label.bound.is_none() {
            let reason = "needs labels that are classes: a row without a label stands for a bad record";
            return invalid("skip_bad", reason.into());
        }
        let (size, ring) = (pipeline.rows(), pipeline.ring());
        if schema.room().checked_mul(size).is_none_or(|bytes| bytes == usize::MAX) {
            let what = schema.in_words();
            return invalid(
                "batch size",
                format!("the bytes of {size} examples of {what} overflow; take fewer"),
            );
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
        let batches = (0..ring).map(|_| Batch::new(&inputs, label, size));
        let ring: Vec<Batch> = batches.collect::<Result<_, _>>()?;
        let columns = ring.iter().map(Batch::columns).collect();
        let workers = pipeline.workers.most();
        let scratch = || zeroed("the records that a worker reads", pipeline.scratch_bytes() as u64);
        let shared = Arc::new(Shared {
            pipeline: pipeline.clone(),
            columns,
            size,
            last_epoch,
            ticket: Mutex::new(Ticket { cursor, sequence: 0, row: 0, stream: None, over: false }),
            state: Mutex::new(State {
                filling: ring.iter().map(|_| Filling::default()).collect(),
                released: 0,
                ends: VecDeque::with_capacity(ring.len() + 2),
                over: None,
                fatal: None,
                bad: 0,
                first_bad: None,
                active: if let Workers::UpTo(_) = pipeline.workers { 1 } else { workers },
                draining: false,
                stopped: false,
            }),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut batches = Self {
            shared,
            ring,
            threads: Vec::with_capacity(workers),
            scratch: if workers == 0 { scratch()? } else { Vec::new() },
            sequence: 0,
            cursor,
            lent: false,
            failed: false,
            waited: 0,
        };
        for worker in 0..workers {
            let (shared, mut scratch) = (batches.shared.clone(), scratch()?);
            let work = move || shared.work(worker, &mut scratch);
            let thread = Builder::new().name("plimsoll-input".into()).stack_size(STACK_SPACE).spawn(work);
            // Those that run already are stopped when `batches` is dropped.
            let thread = thread.map_err(|source| DataError::Threads { workers, source })?;
            batches.threads.push(thread);
        }
        Ok(batches)
    }

    /// The next batch, lent until the next call. At the end of an epoch it is `None`, and the call after that goes on with
    /// the next epoch. After an error nothing more comes.
    #[allow(clippy::should_implement_trait, reason = "batches are lent")]
    pub fn next(&mut self) -> Result<Option<&Batch>, DataError> {
        if self.failed {
            return Err(DataError::Stopped);
        }
        let shared = self.shared.clone();
        let mut state = shared.state();
        if std::mem::take(&mut self.lent) {
            state.released += 1;
            shared.room.notify_all();
        }
        let slot = (self.sequence % self.ring.len() as u64) as usize;
        let mut waited = false;
        loop {
            if state.ends.front() == Some(&self.sequence) {
                state.ends.pop_front();
                self.cursor = Cursor { epoch: self.cursor.epoch.wrapping_add(1), example: 0 };
                return Ok(None);
            }
            let filling = &mut state.filling[slot];
            if filling.closed && filling.sequence == self.sequence && filling.done == filling.rows {
                break;
            }
            if let Some((_, error)) = state.fatal.take_if(|(sequence, _)| *sequence == self.sequence) {
                self.failed = true;
                return Err(error);
            }
            if state.over == Some(self.sequence) {
                return Ok(None);
            }
            if self.threads.is_empty() {
                drop(state);
                shared.make(&mut self.scratch, false);
                state = shared.state();
                continue;
            }
            waited = true;
            state = wait(&shared.ready, state);
        }
        self.waited = if waited { self.waited + 1 } else { 0 };
        if self.waited >= PATIENCE && state.active < self.threads.len() {
            (state.active, self.waited) = (state.active + 1, 0);
            shared.room.notify_all();
        }
        let filling = &mut state.filling[slot];
        if let Some((_, error)) = filling.error.take() {
            self.failed = true;
            return Err(error);
        }
        self.cursor = filling.after;
        let batch = &mut self.ring[slot];
        batch.set(filling.rows, filling.first.example, filling.first.epoch, filling.after);
        (self.lent, self.sequence) = (true, self.sequence + 1);
        Ok(Some(batch))
    }

    /// Where the next batch starts.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Bad records that were skipped so far, and what was wrong with the first.
    pub fn skipped(&self) -> (u64, Option<String>) {
        let state = self.shared.state();
        (state.bad, state.first_bad.clone())
    }

    /// Workers at work: as many as asked for, or as many as turned out to be needed.
    pub fn active_workers(&self) -> usize {
        self.shared.state().active
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A worker's panics were caught where its errors go.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Runs code that is not ours; a panic is an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    let message = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(DataError::Panic { message: message(panic) }),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A worker's life.
    fn work(&self, worker: usize, scratch: &mut [u8]) {
        loop {
            let mut state = self.state();
            while worker >= state.active && !state.stopped {
                state = wait(&self.room, state);
            }
            if state.stopped {
                return;
            }
            drop(state);
            if let Progress::Nothing = self.make(scratch, true) {
                return;
            }
        }
    }

    /// Takes the next ticket and makes its record. Where no batch has room, a worker waits.
    fn make(&self, scratch: &mut [u8], waits: bool) -> Progress {
        let mut ticket = lock(&self.ticket);
        loop {
            let mut state = self.state();
            while ticket.sequence >= state.released + self.columns.len() as u64 && !state.stopped {
                if !waits {
                    return Progress::Nothing;
                }
                state = wait(&self.room, state);
            }
            if state.stopped || ticket.over || state.fatal.is_some() {
                return Progress::Nothing;
            }
            drop(state);
            let cursor = ticket.cursor;
            let place = Place { epoch: cursor.epoch, number: cursor.example, origin: cursor.example };
            let slot = (ticket.sequence % self.columns.len() as u64) as usize;
            // SAFETY: under the lock each row of a batch that was given back is handed out once, here.
            let mut output = unsafe { row(&self.columns[slot], ticket.row) };
            output.place = place;
            match &self.pipeline.head {
                Head::Indexed(source) => {
                    if cursor.example >= source.len() as u64 {
                        self.end_epoch(&mut ticket);
                        continue;
                    }
                    let (slot, row) = self.hand_out(&mut ticket);
                    drop(ticket);
                    let index = cursor.example as usize;
                    let made = guarded(|| source.read(index, &mut output, scratch));
                    let made = made.map_err(|e| e.of(|| source.origin(index, cursor.epoch)));
                    self.finish(slot, row, &mut output, made);
                }
                Head::Streamed(stream, steps) => {
                    let (first, rest) = scratch.split_at_mut(steps.first().map_or(0, |s| s.input.room()));
                    let mut input = steps.first().map(|step| Record::over(&step.input, first));
                    let record = input.as_mut().unwrap_or(&mut output);
                    record.place = place;
                    let more = guarded(|| self.next_of_stream(&mut ticket, record, rest));
                    let origin = record.place.origin;
                    match more {
                        Ok(false) => {
                            self.end_epoch(&mut ticket);
                            continue;
                        }
                        Err(error) if self.skips(&error) => continue,
                        _ => {}
                    }
                    let (slot, row) = self.hand_out(&mut ticket);
                    drop(ticket);
                    let made = more.and_then(|_| match &mut input {
                        None => Ok(()),
                        Some(input) => {
                            let made = guarded(|| through(steps, input, &mut output, rest));
                            made.map_err(|e| e.of(|| stream.origin(origin)))
                        }
                    });
                    self.finish(slot, row, &mut output, made);
                }
            }
            return Progress::Made;
        }
    }

    /// The stream's next record. A stream that was not started yet starts, and lets pass what was given before.
    fn next_of_stream(
        &self,
        ticket: &mut Ticket,
        record: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<bool, DataError> {
        let Head::Streamed(of, _) = &self.pipeline.head else { return Ok(false) };
        let stream = match &mut ticket.stream {
            Some(stream) => stream,
            none => {
                let stream = none.insert(of.start(ticket.cursor.epoch)?);
                let mut passed = 0;
                while passed < ticket.cursor.example {
                    match stream.next(record, scratch) {
                        Ok(true) => passed += 1,
                        Ok(false) => {
                            return Err(DataError::Shorter { given: passed, wanted: ticket.cursor.example });
                        }
                        Err(_) if self.pipeline.skip_bad.is_some() => {}
                        Err(error) => return Err(error),
                    }
                }
                stream
            }
        };
        stream.next(record, scratch)
    }

    /// Gives out the next row of the batch at hand.
    fn hand_out(&self, ticket: &mut Ticket) -> (usize, usize) {
        let slot = (ticket.sequence % self.columns.len() as u64) as usize;
        let row = ticket.row;
        let mut state = self.state();
        let filling = &mut state.filling[slot];
        if row == 0 {
            let (sequence, first) = (ticket.sequence, ticket.cursor);
            *filling = Filling { sequence, first, ..Filling::default() };
        }
        filling.rows = row + 1;
        ticket.cursor.example += 1;
        ticket.row += 1;
        if ticket.row == self.size {
            (filling.closed, filling.after) = (true, ticket.cursor);
            (ticket.row, ticket.sequence) = (0, ticket.sequence + 1);
        }
        (slot, row)
    }

    fn end_epoch(&self, ticket: &mut Ticket) {
        let given = ticket.cursor.example;
        let mut state = self.state();
        let slot = (ticket.sequence % self.columns.len() as u64) as usize;
        if ticket.row > 0 && self.pipeline.drop_remainder {
            // Its rows are given out again, once nobody writes to them any more.
            state.draining = true;
            while state.filling[slot].done < ticket.row && !state.stopped {
                state = wait(&self.room, state);
            }
            state.draining = false;
        } else if ticket.row > 0 {
            let filling = &mut state.filling[slot];
            (filling.closed, filling.after) = (true, ticket.cursor);
            ticket.sequence += 1;
        }
        ticket.row = 0;
        let wrong = self.pipeline.len().filter(|len| *len as u64 != given);
        if let Some(expected) = wrong {
            let error = DataError::OtherCount { expected: expected as u64, found: given };
            state.fatal = Some((ticket.sequence, error));
        } else if given == 0 || (self.pipeline.drop_remainder && given < self.size as u64) {
            let error = DataError::Empty { what: "an epoch of the stream".into() };
            state.fatal = Some((ticket.sequence, error));
        } else {
            state.ends.push_back(ticket.sequence);
        }
        ticket.over = self.last_epoch.is_some_and(|last| ticket.cursor.epoch >= last);
        state.over = ticket.over.then_some(ticket.sequence);
        ticket.cursor = Cursor { epoch: ticket.cursor.epoch.wrapping_add(1), example: 0 };
        ticket.stream = None;
        self.ready.notify_all();
    }

    /// Counts a bad record if it may be skipped.
    fn skips(&self, error: &DataError) -> bool {
        let mut state = self.state();
        if self.pipeline.skip_bad.is_none_or(|most| state.bad >= most) {
            return false;
        }
        state.bad += 1;
        state.first_bad.get_or_insert_with(|| error.to_string());
        true
    }

    /// Counts a row as done.
    fn finish(&self, slot: usize, row: usize, output: &mut Record<'_>, made: Result<(), DataError>) {
        let error = match made {
            Ok(()) => None,
            Err(error) if self.skips(&error) => {
                let last = output.columns() - 1;
                (0..last).for_each(|column| output.room(column).fill(0));
                // -1 as i32: no label.
                output.room(last).fill(0xff);
                None
            }
            Err(error) => Some(error.beyond(self.pipeline.skip_bad)),
        };
        let mut state = self.state();
        let filling = &mut state.filling[slot];
        filling.done += 1;
        if let Some(error) = error
            && filling.error.as_ref().is_none_or(|(first, _)| row < *first)
        {
            filling.error = Some((row, error));
        }
        if filling.closed && filling.done == filling.rows {
            self.ready.notify_all();
        }
        if state.draining {
            self.room.notify_all();
        }
    }
}

/// A record through the steps after a stream.
fn through(
    steps: &[crate::stage::Step],
    input: &mut Record<'_>,
    output: &mut Record<'_>,
    scratch: &mut [u8],
) -> Result<(), DataError> {
    match steps {
        [] => output.copy_from(input),
        [last] => last.stage.apply(input, output, scratch),
        [step, rest @ ..] => {
            let (own, left) = scratch.split_at_mut(step.output.room());
            let mut between = Record::over(&step.output, own);
            between.place = input.place;
            step.stage.apply(input, &mut between, left)?;
            through(rest, &mut between, output, left)
        }
    }
}
