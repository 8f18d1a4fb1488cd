//! The queues of the spill file, for memory of the host and for that of a device, and the speed of its disk.

mod rates;
mod request;
mod staged;
#[cfg(all(test, target_os = "linux"))]
mod staged_tests;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod worker;

pub use rates::{DISK, Rates, disk_rates};
pub use staged::{DEVICE_STAGING_BYTES, DeviceLane, StagedQueue};

use crate::arena::Arena;
use crate::queues::{Ticket, TransferQueue, failed};
use crate::spill::{BLOCK, CHUNK_BYTES, SpillFile, TransferError};
use plimsoll_plan::ExecuteError;
use request::{Failure, Kind, Request, Requests};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Memory of a [`FileQueue`] for what cannot move directly between the disk and the caller's memory.
pub const STAGING_BYTES: usize = WORKERS * CHUNK_BYTES;

/// Threads of a queue: while one copies, the disk works for the other.
const WORKERS: usize = 2;

/// A thread's stack holds only frames: its buffer is part of the staging memory.
const STACK_BYTES: usize = 64 * 1024;

/// Requests in flight at most in a run; a further one waits.
const MOST_REQUESTS: usize = 64;

/// Loads from and stores to a spill file. The rest of the last block of a store becomes zeros. A request's number is that of
/// its ticket: waiting for one waits for all earlier ones, too.
pub struct FileQueue {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    file: SpillFile,
    /// A chunk for each worker.
    staging: Arena,
    requests: Mutex<Requests>,
    /// There may be work for a worker.
    work: Condvar,
    /// Requests have completed.
    completed: Condvar,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    waited_ns: AtomicU64,
}

impl FileQueue {
    /// Starts the threads. At most `capacity` requests are in flight; a further one waits until one has completed.
    pub fn new(file: SpillFile, capacity: usize) -> Result<Self, TransferError> {
        Self::start(file, capacity).map_err(|e| TransferError::Start { reason: e.to_string() })
    }

    fn start(file: SpillFile, capacity: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            staging: Arena::new(STAGING_BYTES)?,
            requests: Mutex::new(Requests::new(capacity)),
            work: Condvar::new(),
            completed: Condvar::new(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        });
        // Built first, so that dropping it stops the thread already started when a later one fails to start.
        let mut queue = Self { shared, workers: Vec::with_capacity(WORKERS) };
        for worker in 0..WORKERS {
            let shared = Arc::clone(&queue.shared);
            let handle = thread::Builder::new()
                .name(format!("plimsoll-spill-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || shared.serve(worker))?;
            queue.workers.push(handle);
        }
        // A thread allocates while it starts: that is over before the first request.
        let mut requests = queue.shared.locked();
        while requests.workers_started < WORKERS {
            requests = queue.shared.completed.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
        drop(requests);
        Ok(queue)
    }

    /// A new file of so many bytes in a folder, with its queue; `None` for no bytes.
    pub fn for_run(
        folder: Option<&Path>,
        bytes: u64,
    ) -> Result<Option<Box<dyn TransferQueue>>, ExecuteError> {
        if bytes == 0 {
            return Ok(None);
        }
        let folder =
            folder.ok_or_else(|| ExecuteError::Transfer("this executor has no folder to spill to".into()))?;
        let queue = SpillFile::create(folder, bytes).and_then(|file| Self::new(file, MOST_REQUESTS));
        Ok(Some(Box::new(queue.map_err(failed)?)))
    }

    /// The file.
    pub fn file(&self) -> &SpillFile {
        &self.shared.file
    }

    /// Bytes read from the disk so far, in whole blocks.
    pub fn bytes_read(&self) -> u64 {
        self.shared.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes written to the disk so far, in whole blocks.
    pub fn bytes_written(&self) -> u64 {
        self.shared.bytes_written.load(Ordering::Relaxed)
    }

    /// Waits until a condition on the requests holds.
    fn until(&self, ready: impl Fn(&Requests) -> bool) -> MutexGuard<'_, Requests> {
        let mut requests = self.shared.locked();
        if !ready(&requests) {
            let start = Instant::now();
            requests.callers_waiting += 1;
            while !ready(&requests) {
                requests = self.shared.completed.wait(requests).unwrap_or_else(PoisonError::into_inner);
            }
            requests.callers_waiting -= 1;
            self.shared.waited_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        requests
    }

    /// # Safety
    /// Until the request has completed or the queue is dropped, the memory is valid, nobody writes it, and for a load
    /// nobody reads it.
    unsafe fn submit(&self, kind: Kind, offset: u64, memory: *mut u8, bytes: usize) -> Ticket {
        let (length, end) = (self.shared.file.bytes(), offset.checked_add(bytes as u64));
        assert!(end.is_some_and(|end| end <= length), "{offset} + {bytes} is outside the spill file");
        let mut requests = self.until(|requests| bytes == 0 || !requests.is_full());
        if bytes == 0 {
            return Ticket(requests.submitted);
        }
        let number = requests.submit(Request { kind, offset, memory, bytes, left: bytes });
        let asleep = requests.workers_asleep;
        drop(requests);
        // Waking a thread takes longer than all else here, even where none sleeps.
        match (asleep, bytes) {
            (0, _) => {}
            (_, ..=CHUNK_BYTES) => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
        Ticket(number + 1)
    }
}

impl TransferQueue for FileQueue {
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.submit(Kind::Load, offset, into, bytes) }
    }

    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        assert!(offset.is_multiple_of(BLOCK as u64), "a store at {offset} begins inside a block");
        // SAFETY: the caller's promise is passed on; a store only reads.
        unsafe { self.submit(Kind::Store, offset, from.cast_mut(), bytes) }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), TransferError> {
        let requests = self.until(|requests| requests.completed >= ticket.0);
        match &requests.failure {
            Some((request, failure)) if *request < ticket.0 => {
                let Failure { what, offset, bytes, error } = failure;
                Err(self.shared.file.failure(what, *offset, *bytes as u64, error))
            }
            _ => Ok(()),
        }
    }

    fn drain(&self) -> Result<(), TransferError> {
        let submitted = self.shared.locked().submitted;
        self.wait(Ticket(submitted))
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        // SAFETY: the bytes are borrowed until the wait is over.
        self.wait(unsafe { self.submit(Kind::Load, offset, into.as_mut_ptr(), into.len()) })
    }

    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        // SAFETY: the bytes are borrowed until the wait is over, and only read.
        self.wait(unsafe { self.submit(Kind::Patch, offset, from.as_ptr().cast_mut(), from.len()) })
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.shared.waited_ns.load(Ordering::Relaxed))
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        self.shared.locked().stop = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // Nothing in a worker panics; there is nothing left to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The requests are consistent between any two statements: poison means nothing here.
    fn locked(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
