//! Inputs of a step on their way to the device: several threads copy them, part by part, into page-locked memory, from where the device
//! fetches them at the link's full speed, and beside the threads. Those of the next step come on a stream of their own, beside the
//! kernels.

use crate::device::words;
use crate::driver::{Address, Context, CudaError, Event, HostMemory, Stream};
use plimsoll_runtime::InputLane;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a part.
const PART: usize = 1 << 20;
/// Threads that copy, each with some parts of its own: it fills one while the device fetches another.
const THREADS: usize = 8;
const PARTS: usize = 2;
/// Inputs that are smaller are left to the driver, and copied before their step.
pub(crate) const LEAST: usize = 8 * PART;

/// Page-locked bytes.
pub(crate) const STAGING_BYTES: usize = THREADS * PARTS * PART;

/// The page-locked memory.
pub(crate) struct Staging {
    memory: HostMemory,
    /// When the device has fetched what is in each part.
    fetched: Vec<Event>,
    /// Held by whoever copies.
    turn: Mutex<()>,
}

impl Staging {
    /// Page-locks the memory.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let fetched = (0..THREADS * PARTS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { memory: HostMemory::new(context, STAGING_BYTES)?, fetched, turn: Mutex::default() })
    }

    /// Queues a copy to the device. The bytes have been read when this returns.
    ///
    /// # Safety
    /// The device's range is valid, and nothing else uses it until the copy is done.
    pub unsafe fn copy_in(&self, stream: &Stream, to: Address, from: &[u8]) -> Result<(), CudaError> {
        if from.len() < LEAST {
            // SAFETY: the caller's promise; memory that is not page-locked is read before this returns.
            return unsafe { stream.copy_in(to, from.as_ptr(), from.len()) };
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let next = AtomicUsize::new(0);
        let work = |thread: usize| -> Result<(), CudaError> {
            for round in 0.. {
                let start = next.fetch_add(1, Ordering::Relaxed) * PART;
                let Some(rest) = from.get(start..).filter(|rest| !rest.is_empty()) else { break };
                let bytes = rest.len().min(PART);
                let slot = thread * PARTS + round % PARTS;
                self.fetched[slot].finish()?;
                // SAFETY: the part is this thread's, and the device has fetched what it held; the rest is the caller's promise.
                unsafe {
                    let part = self.memory.start.add(slot * PART);
                    part.copy_from_nonoverlapping(rest.as_ptr(), bytes);
                    stream.copy_in(to + start as Address, part, bytes)?;
                }
                self.fetched[slot].record(stream)?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|thread| {
                    scope.spawn({
                        let work = &work;
                        move || work(thread)
                    })
                })
                .collect();
            let own = work(0);
            let panicked =
                |_| Err(CudaError::Call { call: "copying an input", error: "a thread panicked".into() });
            others.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).fold(own, Result::and)
        })
    }
}

/// A stream for inputs of the next step.
pub(crate) struct StagedLane {
    staging: Arc<Staging>,
    stream: Stream,
    /// The kernels' stream.
    compute: Arc<Stream>,
    /// Where each of the streams was when the other had to wait for it.
    arrived: Event,
    released: Event,
}

impl StagedLane {
    /// Beside a stream of kernels.
    pub fn new(staging: &Arc<Staging>, compute: &Arc<Stream>) -> Result<Self, CudaError> {
        let context = &compute.context;
        Ok(Self {
            staging: staging.clone(),
            stream: Stream::new(context)?,
            compute: compute.clone(),
            arrived: Event::new(context)?,
            released: Event::new(context)?,
        })
    }

    /// What is queued on a stream from now on waits for all that is on another.
    fn order(event: &Event, before: &Stream, after: &Stream) -> Result<(), String> {
        event.record(before).and_then(|()| after.wait_for(event)).map_err(words)
    }
}

impl InputLane for StagedLane {
    unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.staging.copy_in(&self.stream, to as Address, from) }.map_err(words)
    }

    fn join(&mut self) -> Result<(), String> {
        Self::order(&self.arrived, &self.stream, &self.compute)
    }

    fn release(&mut self) -> Result<(), String> {
        Self::order(&self.released, &self.compute, &self.stream)
    }
}

impl Drop for StagedLane {
    fn drop(&mut self) {
        // An error is that of a lost device, which every other call reports.
        let _ = self.stream.finish();
    }
}
