//! The queue between a device's memory and the spill file: bytes pass host memory, part by part, on a thread of the queue.

use super::{FileQueue, STAGING_BYTES};
use crate::arena::Arena;
use crate::queues::{Ticket, TransferQueue, failed};
use crate::spill::{BLOCK, SpillFile, TransferError};
use plimsoll_plan::{Direction, ExecuteError};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that pass host memory at a time: while the device copies a part, the disk reads or writes the other one.
const PART: usize = 2 << 20;
const PARTS: usize = 2;

/// Kernel-side records and resident stacks of the threads.
const THREAD_BYTES: usize = 64 << 10;

/// Host memory of a [`StagedQueue`].
pub const DEVICE_STAGING_BYTES: usize = PARTS * PART + STAGING_BYTES + THREAD_BYTES;

/// Requests in flight at most; a further one waits.
const MOST_REQUESTS: usize = 64;

/// How a device's memory and the host's exchange bytes that a [`StagedQueue`] moves.
pub trait DeviceLane: Send + Sync {
    /// Notes under a number, below the queue's [`StagedQueue::MARKS`], what the device has queued so far.
    fn mark(&self, number: usize) -> Result<(), String>;

    /// Waits until what was noted under a number has run.
    fn reach(&self, number: usize) -> Result<(), String>;

    /// Copies to the device's memory; it is there when this returns.
    ///
    /// # Safety
    /// The device's range is valid, and nothing else uses it meanwhile.
    unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), String>;

    /// Copies from the device's memory.
    ///
    /// # Safety
    /// The device's range is valid, and nothing writes to it meanwhile.
    unsafe fn copy_out(&self, from: *const u8, into: &mut [u8]) -> Result<(), String>;
}

/// Loads from and stores to a spill file by a device whose memory the host reaches by copies alone. A transfer comes after what the
/// device had queued when it was requested, and the host waits for it.
pub struct StagedQueue {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    file: FileQueue,
    lane: Box<dyn DeviceLane>,
    /// Two parts.
    staging: Arena,
    requests: Mutex<Requests>,
    changed: Condvar,
}

#[derive(Default)]
struct Requests {
    /// Those that have not completed, in order; the first may be in progress.
    waiting: VecDeque<Request>,
    issued: u64,
    done: u64,
    started: bool,
    closing: bool,
    failed: Option<TransferError>,
    waited: Duration,
}

#[derive(Clone, Copy)]
struct Request {
    direction: Direction,
    offset: u64,
    /// By the device's address.
    memory: *mut u8,
    bytes: usize,
    number: u64,
}

// SAFETY: the memory is valid until the request has completed, by the promise of who made it.
unsafe impl Send for Request {}

impl StagedQueue {
    /// Numbers that a [`DeviceLane`] notes what is queued under.
    pub const MARKS: usize = MOST_REQUESTS;

    /// A queue to a file.
    pub fn new(file: SpillFile, lane: Box<dyn DeviceLane>) -> Result<Self, TransferError> {
        let start = |e: std::io::Error| TransferError::Start { reason: e.to_string() };
        let staging = Arena::new(PARTS * PART).map_err(start)?;
        let waiting = VecDeque::with_capacity(MOST_REQUESTS);
        let requests = Mutex::new(Requests { waiting, ..Requests::default() });
        let file = FileQueue::new(file, PARTS)?;
        let inner = Arc::new(Inner { file, lane, staging, requests, changed: Condvar::new() });
        let works = inner.clone();
        let thread = std::thread::Builder::new().name("plimsoll-staged".into()).spawn(move || works.work());
        let queue = Self { inner, thread: Some(thread.map_err(start)?) };
        // A thread allocates while it starts: that is over before the first request.
        drop(queue.inner.until(|requests| requests.started));
        Ok(queue)
    }

    /// A new file of so many bytes in a folder, with its queue; `None` for no bytes.
    pub fn for_run(
        folder: Option<&Path>,
        bytes: u64,
        lane: impl FnOnce() -> Result<Box<dyn DeviceLane>, String>,
    ) -> Result<Option<Box<dyn TransferQueue>>, ExecuteError> {
        if bytes == 0 {
            return Ok(None);
        }
        let folder =
            folder.ok_or_else(|| ExecuteError::Transfer("this executor has no folder to spill to".into()))?;
        let lane = lane().map_err(ExecuteError::Device)?;
        let queue = SpillFile::create(folder, bytes).and_then(|file| Self::new(file, lane));
        Ok(Some(Box::new(queue.map_err(failed)?)))
    }

    fn request(&self, direction: Direction, offset: u64, memory: *mut u8, bytes: usize) -> Ticket {
        let (length, end) = (self.inner.file.file().bytes(), offset.checked_add(bytes as u64));
        assert!(end.is_some_and(|end| end <= length), "{offset} + {bytes} is outside the spill file");
        let mut requests = self.inner.until(|requests| requests.waiting.len() < MOST_REQUESTS);
        let number = requests.issued;
        // The mark of an earlier request with this number is free: that one has completed.
        if let Err(error) = self.inner.lane.mark(number as usize % MOST_REQUESTS) {
            requests.failed.get_or_insert(TransferError::Device(error));
        }
        requests.waiting.push_back(Request { direction, offset, memory, bytes, number });
        requests.issued = number + 1;
        drop(requests);
        self.inner.changed.notify_all();
        Ticket(number + 1)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a condition; the time is counted.
    fn until(&self, ready: impl Fn(&Requests) -> bool) -> MutexGuard<'_, Requests> {
        let mut requests = self.lock();
        if !ready(&requests) {
            let start = Instant::now();
            while !ready(&requests) {
                requests = self.changed.wait(requests).unwrap_or_else(PoisonError::into_inner);
            }
            requests.waited += start.elapsed();
        }
        requests
    }

    /// The thread: one request after the other.
    fn work(&self) {
        self.lock().started = true;
        self.changed.notify_all();
        loop {
            let mut requests = self.lock();
            let request = loop {
                match requests.waiting.front().copied() {
                    Some(request) => break request,
                    None if requests.closing => return,
                    None => requests = self.changed.wait(requests).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let failed = requests.failed.is_some();
            drop(requests);
            let started = plimsoll_trace::now();
            let moved = if failed { Ok(()) } else { self.move_bytes(request) };
            if let Some(started) = started {
                let bytes = ("bytes", plimsoll_trace::Value::Count(request.bytes as u64));
                plimsoll_trace::span(started, "transfer", request.direction.name(), &[bytes]);
            }
            let mut requests = self.lock();
            if let Err(error) = moved {
                requests.failed.get_or_insert(error);
            }
            requests.waiting.pop_front();
            requests.done += 1;
            drop(requests);
            self.changed.notify_all();
        }
    }

    fn move_bytes(&self, request: Request) -> Result<(), TransferError> {
        self.lane.reach(request.number as usize % MOST_REQUESTS).map_err(TransferError::Device)?;
        let moved = match request.direction {
            Direction::Load => self.load(request),
            Direction::Store => self.store(request),
        };
        // Nothing uses the staging memory when the next request comes.
        moved.and(self.file.drain())
    }

    /// Loads part after part; the file is read one part ahead.
    fn load(&self, Request { offset, memory, bytes, .. }: Request) -> Result<(), TransferError> {
        let read = |at: usize| {
            let (slot, length) = (self.staging.at(at / PART % PARTS * PART, PART), PART.min(bytes - at));
            // SAFETY: the part's own memory, whose bytes the device has when it is read again.
            unsafe { self.file.load(offset + at as u64, slot, length) }
        };
        let mut next = (bytes > 0).then(|| read(0));
        for at in (0..bytes).step_by(PART) {
            let ticket = next.take();
            next = (at + PART < bytes).then(|| read(at + PART));
            ticket.map_or(Ok(()), |ticket| self.file.wait(ticket))?;
            let length = PART.min(bytes - at);
            // SAFETY: the part has been read, and the next one is in other memory; the device's is valid by the promise of who
            // made the request.
            let copied = unsafe {
                let part: &[u8] = self.staging.view(at / PART % PARTS * PART, length);
                self.lane.copy_in(memory.wrapping_add(at), part)
            };
            copied.map_err(TransferError::Device)?;
        }
        Ok(())
    }

    /// Stores part after part; the file is written while the device copies the next one.
    fn store(&self, Request { offset, memory, bytes, .. }: Request) -> Result<(), TransferError> {
        let mut written = [None; PARTS];
        for at in (0..bytes).step_by(PART) {
            let (slot, length) = (at / PART % PARTS, PART.min(bytes - at));
            written[slot].take().map_or(Ok(()), |ticket| self.file.wait(ticket))?;
            // SAFETY: what the part held is written; the rest as above.
            unsafe {
                let part: &mut [u8] = self.staging.view_mut(slot * PART, length);
                let copied = self.lane.copy_out(memory.wrapping_add(at), part);
                copied.map_err(TransferError::Device)?;
                written[slot] = Some(self.file.store(offset + at as u64, part.as_ptr(), length));
            }
        }
        Ok(())
    }

    fn outcome(&self, requests: &Requests) -> Result<(), TransferError> {
        requests.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until nothing is in transfer.
    fn idle(&self) -> Result<MutexGuard<'_, Requests>, TransferError> {
        let requests = self.until(|requests| requests.waiting.is_empty());
        self.outcome(&requests)?;
        Ok(requests)
    }
}

impl TransferQueue for StagedQueue {
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        self.request(Direction::Load, offset, into, bytes)
    }

    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        assert!(offset.is_multiple_of(BLOCK as u64), "a store at {offset} begins inside a block");
        self.request(Direction::Store, offset, from.cast_mut(), bytes)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), TransferError> {
        self.inner.outcome(&self.inner.until(|requests| requests.done >= ticket.0))
    }

    fn drain(&self) -> Result<(), TransferError> {
        self.inner.idle().map(drop)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        let _requests = self.inner.idle()?;
        self.inner.file.read_now(offset, into)
    }

    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        let _requests = self.inner.idle()?;
        self.inner.file.write_now(offset, from)
    }

    fn waited(&self) -> Duration {
        self.inner.lock().waited
    }
}

impl Drop for StagedQueue {
    fn drop(&mut self) {
        self.inner.lock().closing = true;
        self.inner.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic: it copies and takes locks that are never poisoned.
            let _ = thread.join();
        }
    }
}
