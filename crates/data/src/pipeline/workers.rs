//! The workers of a running pipeline: records are numbered one at a time, and rows are filled concurrently.

use super::Head;
use super::run_state::{Dispatcher, Filling, Shared, State, lock, wait};
use crate::core::batch::{Rows, row};
use crate::core::guard::guarded;
use crate::transforms::stage::Step;
use crate::{Cursor, DataError, Place, Record, Schema};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// Records that are read, in a trace.
pub(super) const INPUT: &str = "input";
pub(super) const RECORDS: &str = "records";

/// The outcome of [`Shared::make_record`].
pub(super) enum Progress {
    Made,
    /// No batch is free, or the pipeline ended.
    Nothing,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The loop of a worker thread.
    pub fn work(&self, worker: usize) {
        loop {
            let mut state = self.state();
            while worker >= state.active && !state.stopped {
                state = wait(&self.wake_workers, state);
            }
            if state.stopped {
                return;
            }
            drop(state);
            if let Progress::Nothing = self.make_record(worker, true) {
                return;
            }
        }
    }

    /// Takes the next record and fills its row. Where no batch is free, a worker waits.
    pub fn make_record(&self, worker: usize, waits: bool) -> Progress {
        let mut dispatcher = lock(&self.dispatcher);
        loop {
            let mut state = self.state();
            while dispatcher.slot.is_none() && state.free.is_empty() && !state.stopped {
                plimsoll_trace::repeats_over(INPUT, RECORDS);
                if !waits {
                    return Progress::Nothing;
                }
                state.idled = true;
                state = wait(&self.wake_workers, state);
            }
            if state.stopped || dispatcher.ended || state.fatal.is_some() {
                return Progress::Nothing;
            }
            dispatcher.slot = dispatcher.slot.or_else(|| state.free.pop());
            drop(state);
            let mut scratch = lock(&self.scratch[worker]);
            if let Err(error) = self.pipeline.fill_scratch(&mut scratch) {
                return self.fail(&dispatcher, error);
            }
            let scratch = &mut scratch[..];
            let Some(columns) = dispatcher.slot.and_then(|slot| self.columns[slot].get()) else {
                return Progress::Nothing;
            };
            let cursor = dispatcher.cursor;
            let place = Place { epoch: cursor.epoch, number: cursor.example, origin: cursor.example };
            let is_own = self.is_own(&dispatcher);
            // Records of other processes have no row.
            let mut output =
                if is_own { row_of(columns, &dispatcher) } else { Record::new(std::iter::empty()) };
            output.place = place;
            match &self.head {
                Head::Indexed(source) => {
                    if cursor.example >= source.len() as u64 {
                        self.end_epoch(&mut dispatcher);
                        continue;
                    }
                    let (slot, row) = self.assign_row(&mut dispatcher, is_own, false);
                    if !is_own {
                        continue;
                    }
                    drop(dispatcher);
                    let index = cursor.example as usize;
                    plimsoll_trace::repeat_begin(cursor.example);
                    let made = guarded(|| source.read(index, &mut output, scratch));
                    plimsoll_trace::repeat_end(INPUT, RECORDS);
                    let made = made.map_err(|e| e.of(|| source.origin(index, cursor.epoch)));
                    self.finish((slot, row, cursor.epoch), &mut output, made);
                }
                Head::Streamed(stream, steps) => {
                    let buckets = self.pipeline.buckets.as_deref();
                    let between = buckets.map(|b| &b.records).or(self.pipeline.between());
                    let (first, rest) = scratch.split_at_mut(between.map_or(0, Schema::capacity));
                    let mut input = between.map(|schema| Record::over(schema, first));
                    let record = input.as_mut().unwrap_or(&mut output);
                    record.stop = Some(&self.stop);
                    plimsoll_trace::repeat_begin(cursor.example);
                    let more = guarded(|| self.next_of_stream(&mut dispatcher, record, rest));
                    plimsoll_trace::repeat_end(INPUT, RECORDS);
                    let (origin, bucket) = (record.place.origin, record.bucket);
                    match more {
                        Ok(false) => {
                            plimsoll_trace::repeats_over(INPUT, RECORDS);
                            self.end_epoch(&mut dispatcher);
                            continue;
                        }
                        Err(error) if self.try_skip(cursor.epoch, &error) => {
                            dispatcher.skip_record();
                            continue;
                        }
                        Err(error) if !is_own => {
                            return self.fail(&dispatcher, self.beyond_skipped(error));
                        }
                        // Whose record it is depends on how many there are.
                        Ok(true) if self.is_past_end(cursor) => {
                            let (expected, found) = (cursor.example, cursor.example + 1);
                            return self.fail(&dispatcher, DataError::OtherCount { expected, found });
                        }
                        _ => {}
                    }
                    if buckets.is_some() && dispatcher.place == 0 && more.is_ok() {
                        dispatcher.bucket = bucket;
                    }
                    if buckets.is_some() && is_own {
                        // The row depends on the bucket, which is known now.
                        output = row_of(columns, &dispatcher);
                    }
                    let (slot, row) = self.assign_row(&mut dispatcher, is_own, more.is_err());
                    if !is_own {
                        continue;
                    }
                    drop(dispatcher);
                    let made = more.and_then(|_| match (&mut input, buckets) {
                        (None, _) => Ok(()),
                        (Some(input), Some(buckets)) => buckets.pad(input, &mut output),
                        (Some(input), None) => {
                            let made = guarded(|| run_steps(steps, input, &mut output, rest));
                            made.map_err(|e| e.of(|| stream.origin(origin)))
                        }
                    });
                    self.finish((slot, row, cursor.epoch), &mut output, made);
                }
            }
            return Progress::Made;
        }
    }

    /// The stream's next record. Starts a new stream where needed, and skips the records before the cursor.
    fn next_of_stream(
        &self,
        dispatcher: &mut Dispatcher,
        record: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<bool, DataError> {
        let Head::Streamed(of, _) = &self.head else { return Ok(false) };
        let Cursor { epoch, example } = dispatcher.cursor;
        let place = |number| Place { epoch, number, origin: number };
        let stream = match &mut dispatcher.stream {
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
                        Err(error) if self.try_skip(epoch, &error) => {
                            dispatcher.missing += u64::from(!stream.leave_out());
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

    /// Whether the next record is one that this process reads.
    fn is_own(&self, dispatcher: &Dispatcher) -> bool {
        let first = dispatcher.cursor.example - dispatcher.place as u64;
        let left = self.pipeline.len().map_or(u64::MAX, |len| (len as u64).saturating_sub(first));
        let examples = left.min(self.size as u64) as usize;
        let own = self.pipeline.own_rows_of(examples);
        own.is_none_or(|own| dispatcher.place < examples && own.has(dispatcher.place))
    }

    /// Whether an epoch has more records than it should have, where several processes share its batches.
    fn is_past_end(&self, cursor: Cursor) -> bool {
        let len = self.pipeline.len().filter(|_| self.pipeline.reads_own_rows());
        len.is_some_and(|len| cursor.example >= len as u64)
    }

    /// Ends the pipeline with an error in place of the batch that is being filled.
    fn fail(&self, dispatcher: &Dispatcher, error: DataError) -> Progress {
        self.state().fatal = Some((dispatcher.sequence, error));
        self.ready.notify_all();
        Progress::Nothing
    }

    /// Assigns the next place of the current batch, and a row, if the record is this process's. Closes the batch after its last place.
    fn assign_row(&self, dispatcher: &mut Dispatcher, is_own: bool, last: bool) -> (usize, usize) {
        let (slot, row) = (dispatcher.slot.unwrap_or_default(), dispatcher.row);
        let mut state = self.state();
        let filling = &mut state.filling[slot];
        if dispatcher.place == 0 {
            let (sequence, first, bucket) = (dispatcher.sequence, dispatcher.cursor, dispatcher.bucket);
            *filling = Filling { sequence, first, bucket, ..Filling::default() };
        }
        dispatcher.cursor.example += 1;
        dispatcher.place += 1;
        dispatcher.row += usize::from(is_own);
        (filling.examples, filling.rows) = (dispatcher.place, dispatcher.row);
        if dispatcher.place == self.size || last {
            (filling.closed, filling.after) = (true, dispatcher.cursor);
            (dispatcher.place, dispatcher.row) = (0, 0);
            (dispatcher.slot, dispatcher.sequence) = (None, dispatcher.sequence + 1);
            if filling.done == filling.rows {
                self.ready.notify_all();
            }
        }
        (slot, row)
    }

    fn end_epoch(&self, dispatcher: &mut Dispatcher) {
        let given = dispatcher.cursor.example;
        let mut state = self.state();
        let slot = dispatcher.slot.unwrap_or_default();
        let most = given.saturating_add(std::mem::take(&mut dispatcher.missing));
        let wrong = self.pipeline.len().filter(|len| !(given..=most).contains(&(*len as u64)));
        if dispatcher.place > 0 && self.pipeline.drop_remainder {
            // Its rows are reused, once no worker writes to them.
            state.draining = true;
            while state.filling[slot].done < dispatcher.row && !state.stopped {
                state = wait(&self.wake_workers, state);
            }
            state.draining = false;
        } else if dispatcher.place > 0 && (wrong.is_none() || !self.pipeline.reads_own_rows()) {
            // Which rows of a last batch are this process's depends on how many there are, so one of another size is none.
            let filling = &mut state.filling[slot];
            (filling.closed, filling.after) = (true, dispatcher.cursor);
            (dispatcher.slot, dispatcher.sequence) = (None, dispatcher.sequence + 1);
        }
        (dispatcher.place, dispatcher.row) = (0, 0);
        if let Some(expected) = wrong {
            let error = DataError::OtherCount { expected: expected as u64, found: given };
            state.fatal = Some((dispatcher.sequence, error));
        } else if given == 0 || (self.pipeline.drop_remainder && given < self.size as u64) {
            let error = DataError::Empty { what: "an epoch of the stream".into() };
            state.fatal = Some((dispatcher.sequence, error));
        } else {
            state.ends.push_back(dispatcher.sequence);
        }
        dispatcher.ended = self.last_epoch.is_some_and(|last| dispatcher.cursor.epoch >= last);
        state.end = dispatcher.ended.then_some(dispatcher.sequence);
        dispatcher.cursor = Cursor { epoch: dispatcher.cursor.epoch.wrapping_add(1), example: 0 };
        dispatcher.stream = None;
        self.ready.notify_all();
    }

    /// Whether a bad record of an epoch may be skipped; counts it if so.
    fn try_skip(&self, epoch: u64, error: &DataError) -> bool {
        let Some(most) = self.pipeline.skip_bad else { return false };
        let mut state = self.state();
        let bad = state.bad.entry(epoch).or_insert(0);
        if *bad >= most {
            return false;
        }
        *bad += 1;
        let bad = *bad;
        state.most_bad = state.most_bad.max(bad);
        // Each epoch has at least one batch, so no more epochs are in progress.
        if state.bad.len() > self.columns.len() + 1 {
            state.bad.pop_first();
        }
        state.first_bad.get_or_insert_with(|| error.to_string());
        true
    }

    /// The error of a bad record that is not skipped.
    fn beyond_skipped(&self, error: DataError) -> DataError {
        error.beyond(self.pipeline.skip_bad, self.pipeline.schema().classes().is_some())
    }

    /// Marks a row as done; a bad record that may be skipped becomes an empty row.
    fn finish(
        &self,
        (slot, row, epoch): (usize, usize, u64),
        output: &mut Record<'_>,
        made: Result<(), DataError>,
    ) {
        let error = match made {
            Ok(()) => None,
            Err(error) if self.try_skip(epoch, &error) => {
                let last = output.columns() - 1;
                (0..last).for_each(|column| output.buffer_mut(column).fill(0));
                // -1 as i32: no label.
                output.buffer_mut(last).fill(0xff);
                None
            }
            Err(error) => Some(self.beyond_skipped(error)),
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
            self.wake_workers.notify_all();
        }
    }
}

/// The row that the dispatcher assigns next.
fn row_of<'c>(columns: &'c [Vec<Rows>], dispatcher: &Dispatcher) -> Record<'c> {
    // SAFETY: under the dispatcher's lock each row of a free batch is assigned once. All rows of a batch are of one bucket,
    // so they do not overlap.
    unsafe { row(&columns[dispatcher.bucket], dispatcher.row) }
}

/// Runs the steps after a stream on a record.
fn run_steps(
    steps: &[Step],
    input: &mut Record<'_>,
    output: &mut Record<'_>,
    scratch: &mut [u8],
) -> Result<(), DataError> {
    match steps {
        [] => output.copy_from(input),
        [last] => last.apply(input, output, scratch),
        [step, rest @ ..] => {
            let (own, left) = scratch.split_at_mut(step.output.capacity());
            let mut between = Record::over(&step.output, own);
            between.place = input.place;
            step.apply(input, &mut between, left)?;
            run_steps(rest, &mut between, output, left)
        }
    }
}
