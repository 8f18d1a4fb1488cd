//! A pipeline that runs, inside: numbered tickets, and rows filled by many threads.

use crate::batch::{Rows, row};
use crate::pipeline::Head;
use crate::stage::Step;
use crate::stream::Stream;
use crate::{Cursor, DataError, Pipeline, Place, Record, Schema};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the threads of a running pipeline share.
pub(crate) struct Shared {
    pub pipeline: Pipeline,
    /// Where records come from, in the order of the batches.
    pub head: Head,
    /// Columns of each batch of the ring, for each bucket, from when it is there.
    pub columns: Vec<OnceLock<Vec<Vec<Rows>>>>,
    pub size: usize,
    /// The epoch to end after.
    pub last_epoch: Option<u64>,
    pub ticket: Mutex<Ticket>,
    pub state: Mutex<State>,
    /// A batch was given back, a worker may join, or all is over.
    pub room: Condvar,
    /// A batch is complete, an epoch ended, or all is over.
    pub ready: Condvar,
    /// As [`State::stopped`], for those who are deep in a stream.
    pub stop: AtomicBool,
}

/// The serial head: who gets which record.
pub(crate) struct Ticket {
    /// Of the next record.
    pub cursor: Cursor,
    /// The batch it goes to, that batch's place in the ring once it has one, and the row there.
    pub sequence: u64,
    pub slot: Option<usize>,
    pub row: usize,
    /// The bucket of that batch.
    pub bucket: usize,
    pub stream: Option<Box<dyn Stream>>,
    /// Bad records of this epoch for which the stream gave nothing.
    pub missing: u64,
    pub over: bool,
}

pub(crate) struct State {
    /// The batches of the ring, and which of them nobody has.
    pub filling: Vec<Filling>,
    pub free: Vec<usize>,
    /// Batches that were given back.
    pub released: u64,
    /// Whether a worker found every batch full since somebody last waited for one.
    pub rested: bool,
    /// An epoch ended before each of these batches.
    pub ends: VecDeque<u64>,
    /// The batch instead of which nothing comes any more.
    pub over: Option<u64>,
    /// The batch instead of which an error comes, and nothing after it.
    pub fatal: Option<(u64, DataError)>,
    /// Bad records of each epoch at hand, and the most of one.
    pub bad: BTreeMap<u64, u64>,
    pub most_bad: u64,
    pub first_bad: Option<String>,
    pub active: usize,
    /// Whether somebody waits for the rows of a remainder that is dropped.
    pub draining: bool,
    pub stopped: bool,
}

/// A batch in the making.
#[derive(Default)]
pub(crate) struct Filling {
    pub sequence: u64,
    pub first: Cursor,
    pub bucket: usize,
    /// Rows given out and rows done; complete when they are equal and no more are given out.
    pub rows: usize,
    pub done: usize,
    pub closed: bool,
    pub after: Cursor,
    /// The first row that failed.
    pub error: Option<(usize, DataError)>,
}

/// What came of asking for a record.
pub(crate) enum Progress {
    Made,
    /// Every batch is full, or all is over.
    Nothing,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be caught here and become an error, so that a program's panic hook need say nothing of
/// it.
///
/// ```
/// let say = std::panic::take_hook();
/// std::panic::set_hook(Box::new(move |info| {
///     if !plimsoll_data::is_guarded() {
///         say(info);
///     }
/// }));
/// assert!(!plimsoll_data::is_guarded());
/// ```
pub fn is_guarded() -> bool {
    GUARDED.try_with(Cell::get).unwrap_or(false)
}

/// Runs code that is not ours; a panic is an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    let outer = GUARDED.replace(true);
    let message = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
    };
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    match done {
        Ok(result) => result,
        Err(panic) => Err(DataError::Panic { message: message(panic) }),
    }
}

impl Ticket {
    /// Goes on after a bad record of the stream.
    fn leave_out(&mut self) {
        let replaced = self.stream.as_mut().is_some_and(|stream| stream.leave_out());
        self.missing += u64::from(!replaced);
    }
}

impl State {
    /// Whether no row is in the making, and none will be before a batch is given back.
    pub fn is_at_rest(&self) -> bool {
        let full = || self.filling.iter().all(|f| f.closed && f.sequence >= self.released);
        self.filling.iter().all(|f| f.done == f.rows)
            && (full() || self.over.is_some() || self.fatal.is_some())
    }
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A worker's life.
    pub fn work(&self, worker: usize, scratch: &mut [u8]) {
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
    pub fn make(&self, scratch: &mut [u8], waits: bool) -> Progress {
        let mut ticket = lock(&self.ticket);
        loop {
            let mut state = self.state();
            while ticket.slot.is_none() && state.free.is_empty() && !state.stopped {
                if !waits {
                    return Progress::Nothing;
                }
                state.rested = true;
                state = wait(&self.room, state);
            }
            if state.stopped || ticket.over || state.fatal.is_some() {
                return Progress::Nothing;
            }
            ticket.slot = ticket.slot.or_else(|| state.free.pop());
            drop(state);
            let Some(columns) = ticket.slot.and_then(|slot| self.columns[slot].get()) else {
                return Progress::Nothing;
            };
            let cursor = ticket.cursor;
            let place = Place { epoch: cursor.epoch, number: cursor.example, origin: cursor.example };
            let mut output = row_of(columns, &ticket);
            output.place = place;
            match &self.head {
                Head::Indexed(source) => {
                    if cursor.example >= source.len() as u64 {
                        self.end_epoch(&mut ticket);
                        continue;
                    }
                    let (slot, row) = self.hand_out(&mut ticket, false);
                    drop(ticket);
                    let index = cursor.example as usize;
                    let made = guarded(|| source.read(index, &mut output, scratch));
                    let made = made.map_err(|e| e.of(|| source.origin(index, cursor.epoch)));
                    self.finish((slot, row, cursor.epoch), &mut output, made);
                }
                Head::Streamed(stream, steps) => {
                    let buckets = self.pipeline.buckets.as_deref();
                    let between = buckets.map(|b| &b.records).or(steps.first().map(|step| &step.input));
                    let (first, rest) = scratch.split_at_mut(between.map_or(0, Schema::room));
                    let mut input = between.map(|schema| Record::over(schema, first));
                    let record = input.as_mut().unwrap_or(&mut output);
                    record.stop = Some(&self.stop);
                    let more = guarded(|| self.next_of_stream(&mut ticket, record, rest));
                    let (origin, bucket) = (record.place.origin, record.bucket);
                    match more {
                        Ok(false) => {
                            self.end_epoch(&mut ticket);
                            continue;
                        }
                        Err(error) if self.skips(cursor.epoch, &error) => {
                            ticket.leave_out();
                            continue;
                        }
                        _ => {}
                    }
                    if buckets.is_some() {
                        if ticket.row == 0 && more.is_ok() {
                            ticket.bucket = bucket;
                        }
                        // The row is known now: batches of other buckets have others.
                        output = row_of(columns, &ticket);
                    }
                    let (slot, row) = self.hand_out(&mut ticket, more.is_err());
                    drop(ticket);
                    let made = more.and_then(|_| match (&mut input, buckets) {
                        (None, _) => Ok(()),
                        (Some(input), Some(buckets)) => buckets.pad(input, &mut output),
                        (Some(input), None) => {
                            let made = guarded(|| through(steps, input, &mut output, rest));
                            made.map_err(|e| e.of(|| stream.origin(origin)))
                        }
                    });
                    self.finish((slot, row, cursor.epoch), &mut output, made);
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
        let Head::Streamed(of, _) = &self.head else { return Ok(false) };
        let Cursor { epoch, example } = ticket.cursor;
        let place = |number| Place { epoch, number, origin: number };
        let stream = match &mut ticket.stream {
            Some(stream) => stream,
            none => {
                let stream = none.insert(of.start(epoch)?);
                let mut passed = 0;
                while passed < example && !self.stop.load(Relaxed) {
                    record.place = place(passed);
                    match stream.next(record, scratch) {
                        Ok(true) => passed += 1,
                        Ok(false) => {
                            return Err(DataError::Shorter { given: passed, wanted: example });
                        }
                        Err(error) if self.skips(epoch, &error) => {
                            ticket.missing += u64::from(!stream.leave_out());
                        }
                        Err(error) => return Err(error),
                    }
                }
                stream
            }
        };
        record.place = place(example);
        stream.next(record, scratch)
    }

    /// Gives out the next row of the batch at hand; after the last of it, that batch is complete.
    fn hand_out(&self, ticket: &mut Ticket, last: bool) -> (usize, usize) {
        let (slot, row) = (ticket.slot.unwrap_or_default(), ticket.row);
        let mut state = self.state();
        let filling = &mut state.filling[slot];
        if row == 0 {
            let (sequence, first, bucket) = (ticket.sequence, ticket.cursor, ticket.bucket);
            *filling = Filling { sequence, first, bucket, ..Filling::default() };
        }
        filling.rows = row + 1;
        ticket.cursor.example += 1;
        ticket.row += 1;
        if ticket.row == self.size || last {
            (filling.closed, filling.after) = (true, ticket.cursor);
            (ticket.row, ticket.slot, ticket.sequence) = (0, None, ticket.sequence + 1);
        }
        (slot, row)
    }

    fn end_epoch(&self, ticket: &mut Ticket) {
        let given = ticket.cursor.example;
        let mut state = self.state();
        let slot = ticket.slot.unwrap_or_default();
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
            (ticket.slot, ticket.sequence) = (None, ticket.sequence + 1);
        }
        ticket.row = 0;
        let most = given.saturating_add(std::mem::take(&mut ticket.missing));
        let wrong = self.pipeline.len().filter(|len| !(given..=most).contains(&(*len as u64)));
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

    /// Counts a bad record of an epoch if it may be skipped.
    fn skips(&self, epoch: u64, error: &DataError) -> bool {
        let Some(most) = self.pipeline.skip_bad else { return false };
        let mut state = self.state();
        let bad = state.bad.entry(epoch).or_insert(0);
        if *bad >= most {
            return false;
        }
        *bad += 1;
        let bad = *bad;
        state.most_bad = state.most_bad.max(bad);
        // An epoch has a batch at least, so that no more of them are in the making.
        if state.bad.len() > self.columns.len() + 1 {
            state.bad.pop_first();
        }
        state.first_bad.get_or_insert_with(|| error.to_string());
        true
    }

    /// Counts a row as done.
    fn finish(
        &self,
        (slot, row, epoch): (usize, usize, u64),
        output: &mut Record<'_>,
        made: Result<(), DataError>,
    ) {
        let error = match made {
            Ok(()) => None,
            Err(error) if self.skips(epoch, &error) => {
                let last = output.columns() - 1;
                (0..last).for_each(|column| output.room(column).fill(0));
                // -1 as i32: no label.
                output.room(last).fill(0xff);
                None
            }
            Err(error) => {
                Some(error.beyond(self.pipeline.skip_bad, self.pipeline.schema().classes().is_some()))
            }
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

/// The row that a ticket is for.
fn row_of<'c>(columns: &'c [Vec<Rows>], ticket: &Ticket) -> Record<'c> {
    // SAFETY: under the lock of the ticket each row of a batch that was given back is handed out once. A batch is of one
    // bucket from its first row on, so that rows do not overlap.
    unsafe { row(&columns[ticket.bucket], ticket.row) }
}

/// A record through the steps after a stream.
fn through(
    steps: &[Step],
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
