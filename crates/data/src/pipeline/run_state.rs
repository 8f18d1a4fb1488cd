//! The state of a running pipeline: which record goes to which row, and how far each batch is.

use super::{Head, Pipeline};
use crate::core::batch::Rows;
use crate::{Cursor, DataError, Stream};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What the consumer and the workers of a running pipeline share.
pub(super) struct Shared {
    pub pipeline: Pipeline,
    /// Where records come from, in the order of the batches.
    pub head: Head,
    /// Columns of each batch of the ring, for each bucket; set once the batch is allocated.
    pub columns: Vec<OnceLock<Vec<Vec<Rows>>>>,
    pub size: usize,
    /// Scratch of each worker, or of the consumer's thread where there are none; empty until it is needed, and while the
    /// pipeline is idle.
    pub scratch: Vec<Mutex<Vec<u8>>>,
    /// The last epoch to read, if any.
    pub last_epoch: Option<u64>,
    pub dispatcher: Mutex<Dispatcher>,
    pub state: Mutex<State>,
    /// Notified when a batch is released, a worker may join, or the pipeline stops.
    pub wake_workers: Condvar,
    /// Notified when a batch is complete, an epoch ended, or an error ends the pipeline.
    pub ready: Condvar,
    /// As [`State::stopped`], for polling inside a stream.
    pub stop: AtomicBool,
}

/// Assigns each record to a row of a batch, one record at a time.
pub(super) struct Dispatcher {
    /// The next record.
    pub cursor: Cursor,
    /// The batch that it goes to, the batch's slot in the ring once it has one, the place in the batch, and the row of its buffers,
    /// which hold this process's rows.
    pub sequence: u64,
    pub slot: Option<usize>,
    pub place: usize,
    pub row: usize,
    /// The bucket of that batch.
    pub bucket: usize,
    pub stream: Option<Box<dyn Stream>>,
    /// Skipped records of this epoch that the stream did not replace.
    pub missing: u64,
    pub ended: bool,
}

pub(super) struct State {
    /// The batches of the ring, and the slots that are free.
    pub filling: Vec<Filling>,
    pub free: Vec<usize>,
    /// Number of batches that the consumer released.
    pub released: u64,
    /// Whether a worker found no free batch since the consumer last waited.
    pub idled: bool,
    /// The batches before which an epoch ended.
    pub ends: VecDeque<u64>,
    /// The sequence number after the last batch, once it is known.
    pub end: Option<u64>,
    /// An error that ends the pipeline, and the sequence number of the batch it replaces.
    pub fatal: Option<(u64, DataError)>,
    /// Bad records of each recent epoch, and the maximum over all epochs.
    pub bad: BTreeMap<u64, u64>,
    pub most_bad: u64,
    pub first_bad: Option<String>,
    /// Workers that may run.
    pub active: usize,
    /// Whether a worker waits for the rows of a dropped remainder.
    pub draining: bool,
    pub stopped: bool,
}

/// A batch that workers fill.
#[derive(Default)]
pub(super) struct Filling {
    pub sequence: u64,
    pub first: Cursor,
    pub bucket: usize,
    /// Examples, with those of other processes.
    pub examples: usize,
    /// Rows assigned and rows done. A closed batch is complete once they are equal.
    pub rows: usize,
    pub done: usize,
    pub closed: bool,
    pub after: Cursor,
    /// The first row that failed.
    pub error: Option<(usize, DataError)>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// As [`wait`], for so long at most.
pub(super) fn wait_for<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

impl Dispatcher {
    /// Skips a bad record of the stream.
    pub fn skip_record(&mut self) {
        let replaced = self.stream.as_mut().is_some_and(|stream| stream.leave_out());
        self.missing += u64::from(!replaced);
    }
}

impl State {
    /// The slot of a batch that is complete.
    pub fn complete(&self, sequence: u64) -> Option<usize> {
        let is_complete = |f: &Filling| f.closed && f.sequence == sequence && f.done == f.rows;
        self.filling.iter().position(is_complete)
    }

    /// Whether no row is in progress, and none will be before a batch is released.
    pub fn is_idle(&self) -> bool {
        let full = || self.filling.iter().all(|f| f.closed && f.sequence >= self.released);
        self.filling.iter().all(|f| f.done == f.rows)
            && (full() || self.end.is_some() || self.fatal.is_some())
    }
}
