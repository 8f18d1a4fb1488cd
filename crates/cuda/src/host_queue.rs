//! The queue of transfers between the device's arena and page-locked host memory: a stream for each direction, ordered with the
//! kernels by events. The host waits for nothing.

use crate::driver::{Address, CudaError, Event, HostMemory, Stream};
use plimsoll_plan::{Direction, TIER_ALIGNMENT};
use plimsoll_runtime::spill::TransferError;
use plimsoll_runtime::{Ticket, TransferQueue};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests of a direction whose ranges are remembered. A request is ordered after all that are forgotten.
const REMEMBERED: usize = 256;

/// Streams and page-locked memory.
pub(crate) struct HostQueue {
    memory: HostMemory,
    /// The kernels' stream.
    compute: Arc<Stream>,
    lanes: Mutex<[Lane; 2]>,
}

/// The requests of a direction, in order.
struct Lane {
    stream: Stream,
    /// Happens when the request of its number has completed; a later request of the same remainder uses it again.
    done: Vec<Event>,
    /// Where the kernels' stream was at a request.
    computed: Event,
    issued: u64,
    recent: VecDeque<Request>,
}

#[derive(Clone)]
struct Request {
    number: u64,
    in_tier: Range<u64>,
    in_memory: Range<u64>,
}

impl HostQueue {
    /// A queue to so many bytes of page-locked memory, beside a stream of kernels.
    pub fn new(compute: &Arc<Stream>, bytes: usize) -> Result<Self, CudaError> {
        let context = &compute.context;
        let memory = HostMemory::new(context, bytes)?;
        let lane = || -> Result<Lane, CudaError> {
            let done = (0..REMEMBERED).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
            let (stream, computed) = (Stream::new(context)?, Event::new(context)?);
            Ok(Lane { stream, done, computed, issued: 0, recent: VecDeque::with_capacity(REMEMBERED + 1) })
        };
        Ok(Self { memory, compute: compute.clone(), lanes: Mutex::new([lane()?, lane()?]) })
    }

    fn lock(&self) -> MutexGuard<'_, [Lane; 2]> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page-locked memory at an offset.
    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes as u64);
        let inside = end.is_some_and(|end| end <= self.memory.bytes as u64);
        assert!(inside, "{offset} + {bytes} is outside the tier");
        self.memory.start.wrapping_add(offset as usize)
    }

    fn request(
        &self,
        direction: Direction,
        offset: u64,
        memory: Address,
        bytes: usize,
    ) -> Result<u64, CudaError> {
        let host = self.at(offset, bytes);
        let mut lanes = self.lock();
        let [loads, stores] = &mut *lanes;
        let (lane, other) = match direction {
            Direction::Load => (loads, stores),
            Direction::Store => (stores, loads),
        };
        // After the kernels so far, and after the last request of the other direction that it has to see.
        lane.computed.record(&self.compute)?;
        lane.stream.wait_for(&lane.computed)?;
        let number = lane.issued + 1;
        let request = Request {
            number,
            in_tier: offset..(offset + bytes as u64).next_multiple_of(TIER_ALIGNMENT),
            in_memory: memory..memory + bytes as u64,
        };
        if let Some(event) = other.last_to_wait_for(&request) {
            lane.stream.wait_for(event)?;
        }
        // SAFETY: the range of the tier is inside it; that of the device is the caller's promise.
        unsafe {
            match direction {
                Direction::Load => lane.stream.copy_in(memory, host, bytes)?,
                Direction::Store => lane.stream.copy_out(host, memory, bytes)?,
            }
        }
        lane.done[number as usize % REMEMBERED].record(&lane.stream)?;
        if let Some(started) = plimsoll_trace::now() {
            // The host waits for what a trace shows: the time is that of the copy, and of what it had to wait for.
            lane.stream.finish()?;
            let bytes = ("bytes", plimsoll_trace::Value::Count(bytes as u64));
            plimsoll_trace::span(started, "transfer", direction.name(), &[bytes]);
        }
        lane.issued = number;
        if lane.recent.len() == REMEMBERED {
            lane.recent.pop_front();
        }
        lane.recent.push_back(request);
        Ok(number)
    }
}

impl Lane {
    /// The event of the last request that touches the same bytes as another: of those remembered, or the oldest remembered,
    /// which comes after all that are forgotten.
    fn last_to_wait_for(&self, request: &Request) -> Option<&Event> {
        let last = self.recent.iter().rev().find(|earlier| earlier.meets(request));
        let forgotten = || self.recent.front().filter(|oldest| oldest.number > 1);
        last.or_else(forgotten).map(|request| &self.done[request.number as usize % REMEMBERED])
    }
}

impl Request {
    fn meets(&self, other: &Self) -> bool {
        let overlap = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        overlap(&self.in_tier, &other.in_tier) || overlap(&self.in_memory, &other.in_memory)
    }
}

impl HostQueue {
    /// The ticket of a request: its number, its direction, and whether it was queued at all.
    fn ticket(&self, direction: Direction, offset: u64, memory: Address, bytes: usize) -> Ticket {
        match self.request(direction, offset, memory, bytes) {
            Ok(number) => Ticket(number << 1 | u64::from(direction == Direction::Store)),
            // A device that refuses a copy is lost: waiting says so.
            Err(_) => Ticket(u64::MAX),
        }
    }
}

impl TransferQueue for HostQueue {
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        self.ticket(Direction::Load, offset, into as Address, bytes)
    }

    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        assert!(offset.is_multiple_of(TIER_ALIGNMENT), "a store to {offset}, which is not aligned");
        self.ticket(Direction::Store, offset, from as Address, bytes)
    }

    /// The kernels that are queued from now on wait, not the host.
    fn wait(&self, ticket: Ticket) -> Result<(), TransferError> {
        if ticket.0 == u64::MAX {
            return Err(TransferError::Device("it could not be queued".into()));
        }
        let (number, lane) = (ticket.0 >> 1, (ticket.0 & 1) as usize);
        let lanes = self.lock();
        self.compute.wait_for(&lanes[lane].done[number as usize % REMEMBERED]).map_err(failed)
    }

    fn drain(&self) -> Result<(), TransferError> {
        self.lock().iter().try_for_each(|lane| lane.stream.finish()).map_err(failed)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        self.drain()?;
        let from = self.at(offset, into.len());
        // SAFETY: inside the memory, and nothing is in transfer.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        self.drain()?;
        let to = self.at(offset, from.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// The host does not wait.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        // The memory is freed after the last copy.
        let _ = self.drain();
    }
}

fn failed(error: CudaError) -> TransferError {
    TransferError::Device(error.to_string())
}
