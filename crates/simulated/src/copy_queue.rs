//! A transfer queue of copy threads that move bytes at the speed of a link.

use crate::device::host_address;
use crate::store::Store;
use plimsoll_plan::{Direction, Link, TIER_ALIGNMENT};
use plimsoll_runtime::spill::TransferError;
use plimsoll_runtime::{Ticket, TransferQueue};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests of a lane at most; a further one waits for space.
const CAPACITY: usize = 64;

/// The system wakes a thread this much late: shorter times are not slept. What is left of them is not lost, since the next
/// transfer starts when the one before should have ended.
const SLEEP_NS: u64 = 60_000;

/// Bytes that a copy moves in a nanosecond, about. A copy starts as late as the link allows: a wait that is missing then shows.
const COPY_BYTES_PER_NS: u64 = 8;

/// Copy threads between device memory and a [`Store`]: a thread for each direction where the link is duplex, else one.
pub(crate) struct CopyQueue {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

struct Inner {
    store: Store,
    link: Link,
    lanes: Mutex<Lanes>,
    changed: Condvar,
}

#[derive(Default)]
struct Lanes {
    lanes: [Lane; 2],
    duplex: bool,
    /// Threads that have started.
    started: usize,
    closing: bool,
    failed: Option<TransferError>,
    waited: Duration,
}

/// The requests of one thread, in order.
#[derive(Default)]
struct Lane {
    /// Those that have not completed; the first may be in progress.
    requests: VecDeque<Request>,
    issued: u64,
    done: u64,
}

#[derive(Clone, Copy)]
struct Request {
    direction: Direction,
    offset: u64,
    /// By the device's address.
    memory: *mut u8,
    bytes: usize,
    issued_at: Instant,
    /// How many requests of the other lane come first.
    after: u64,
}

// SAFETY: the memory is valid until the request has completed, by the promise of who made it.
unsafe impl Send for Request {}

impl Request {
    /// Whether another request touches the same bytes of the tier or of memory.
    fn meets(&self, other: &Self) -> bool {
        let overlap = |a: Range<u64>, b: Range<u64>| a.start < b.end && b.start < a.end;
        let in_tier = |r: &Self| r.offset..(r.offset + r.bytes as u64).next_multiple_of(TIER_ALIGNMENT);
        let in_memory = |r: &Self| r.memory as u64..r.memory as u64 + r.bytes as u64;
        overlap(in_tier(self), in_tier(other)) || overlap(in_memory(self), in_memory(other))
    }
}

impl CopyQueue {
    /// Starts the threads.
    pub fn new(store: Store, link: Link) -> Result<Self, TransferError> {
        let duplex = matches!(store, Store::Memory(_));
        let mut lanes = Lanes { duplex, ..Lanes::default() };
        lanes.lanes.iter_mut().for_each(|lane| lane.requests.reserve_exact(CAPACITY));
        let inner = Arc::new(Inner { store, link, lanes: Mutex::new(lanes), changed: Condvar::new() });
        let mut queue = Self { inner, threads: Vec::new() };
        for lane in 0..if duplex { 2 } else { 1 } {
            let inner = queue.inner.clone();
            let thread = std::thread::Builder::new().name("copy".into()).spawn(move || inner.work(lane));
            queue.threads.push(thread.map_err(|e| TransferError::Start { reason: e.to_string() })?);
        }
        // A thread allocates while it starts: that is over before the first request.
        drop(queue.inner.wait_until(queue.inner.lock(), |lanes| lanes.started == queue.threads.len()));
        Ok(queue)
    }

    /// The lanes, locked, once nothing is in transfer.
    fn idle(&self) -> MutexGuard<'_, Lanes> {
        let idle = |lanes: &Lanes| lanes.lanes.iter().all(|lane| lane.requests.is_empty());
        self.inner.wait_until(self.inner.lock(), idle)
    }

    fn request(&self, direction: Direction, offset: u64, memory: *mut u8, bytes: usize) -> Ticket {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.inner.store.bytes()),
            "{offset} + {bytes} is outside the tier"
        );
        let mut lanes = self.inner.lock();
        let at = lanes.lane(direction);
        lanes = self.inner.wait_until(lanes, |lanes| lanes.lanes[at].requests.len() < CAPACITY);
        let mut request = Request { direction, offset, memory, bytes, issued_at: Instant::now(), after: 0 };
        let other = &lanes.lanes[1 - at];
        if let Some(last) = other.requests.iter().rposition(|earlier| request.meets(earlier)) {
            request.after = other.done + last as u64 + 1;
        }
        let lane = &mut lanes.lanes[at];
        lane.requests.push_back(request);
        lane.issued += 1;
        let ticket = Ticket(lane.issued << 1 | at as u64);
        drop(lanes);
        self.inner.changed.notify_all();
        ticket
    }
}

impl Lanes {
    /// The lane of a direction.
    fn lane(&self, direction: Direction) -> usize {
        usize::from(self.duplex && direction == Direction::Store)
    }

    fn outcome(&self) -> Result<(), TransferError> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a condition; the time is counted.
    fn wait_until<'a>(
        &'a self,
        mut lanes: MutexGuard<'a, Lanes>,
        condition: impl Fn(&Lanes) -> bool,
    ) -> MutexGuard<'a, Lanes> {
        if condition(&lanes) {
            return lanes;
        }
        let started = Instant::now();
        while !condition(&lanes) {
            lanes = self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
        lanes.waited += started.elapsed();
        lanes
    }

    /// A copy thread.
    fn work(&self, at: usize) {
        let mut free_at = Instant::now();
        self.lock().started += 1;
        self.changed.notify_all();
        loop {
            let mut lanes = self.lock();
            let request = loop {
                let first = lanes.lanes[at].requests.front().copied();
                match first {
                    Some(request) if lanes.lanes[1 - at].done >= request.after => break request,
                    None if lanes.closing => return,
                    _ => lanes = self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let failed = lanes.failed.is_some();
            drop(lanes);
            let started = plimsoll_trace::now();
            let outcome = if failed { Ok(()) } else { self.move_bytes(request, &mut free_at) };
            if let Some(started) = started {
                let bytes = ("bytes", plimsoll_trace::Value::Count(request.bytes as u64));
                plimsoll_trace::span(started, "transfer", request.direction.name(), &[bytes]);
            }
            let mut lanes = self.lock();
            if let Err(error) = outcome {
                lanes.failed.get_or_insert(error);
            }
            let lane = &mut lanes.lanes[at];
            lane.requests.pop_front();
            lane.done += 1;
            drop(lanes);
            self.changed.notify_all();
        }
    }

    /// Moves the bytes of a request at the speed of the link, which is free at a moment.
    fn move_bytes(&self, request: Request, free_at: &mut Instant) -> Result<(), TransferError> {
        let Request { direction, offset, memory, bytes, issued_at, .. } = request;
        let per_mib = match direction {
            Direction::Load => self.link.load_ns_per_mib,
            Direction::Store => self.link.store_ns_per_mib,
        };
        let moving = u64::try_from((bytes as u128 * u128::from(per_mib)) >> 20).unwrap_or(u64::MAX);
        let moving = Duration::from_nanos(moving);
        let start = issued_at.max(*free_at);
        *free_at = start.checked_add(moving).unwrap_or(start);
        sleep_until(*free_at - Duration::from_nanos(bytes as u64 / COPY_BYTES_PER_NS).min(moving));
        let moved = match direction {
            // SAFETY: the promise of who made the request; what met these bytes before has completed.
            Direction::Load => unsafe { self.store.load(offset, host_address(memory), bytes) },
            // SAFETY: as above.
            Direction::Store => unsafe { self.store.store(offset, host_address(memory), bytes) },
        };
        sleep_until(*free_at + Duration::from_nanos(self.link.latency_ns));
        moved
    }
}

fn sleep_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if left > Duration::from_nanos(SLEEP_NS) {
        std::thread::sleep(left - Duration::from_nanos(SLEEP_NS));
    }
}

impl TransferQueue for CopyQueue {
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        self.request(Direction::Load, offset, into, bytes)
    }

    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        assert!(offset.is_multiple_of(TIER_ALIGNMENT), "a store to {offset}, which is not aligned");
        self.request(Direction::Store, offset, from.cast_mut(), bytes)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), TransferError> {
        let (number, lane) = (ticket.0 >> 1, (ticket.0 & 1) as usize);
        self.inner.wait_until(self.inner.lock(), |lanes| lanes.lanes[lane].done >= number).outcome()
    }

    fn drain(&self) -> Result<(), TransferError> {
        self.idle().outcome()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        let lanes = self.idle();
        lanes.outcome()?;
        // SAFETY: the slice is the caller's. Nothing is in transfer, and nothing is requested while the lanes are locked.
        unsafe { self.inner.store.load(offset, into.as_mut_ptr(), into.len()) }
    }

    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        let lanes = self.idle();
        lanes.outcome()?;
        // SAFETY: as above.
        unsafe { self.inner.store.store(offset, from.as_ptr(), from.len()) }
    }

    fn waited(&self) -> Duration {
        self.inner.lock().waited
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        self.inner.lock().closing = true;
        self.inner.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A copy thread does not panic: it copies, sleeps and takes locks that are never poisoned.
            let _ = thread.join();
        }
    }
}
