//! How fast a folder's disk is, by a short trial.

use super::{BLOCK, CHUNK_BYTES, FileQueue, SpillFile, Ticket, TransferError, TransferQueue};
use crate::arena::Arena;
use crate::spill::system;
use plimsoll_plan::Link;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most that the trial writes.
const TRIAL_BYTES: usize = 64 << 20;

/// The time of each of its three passes; requests already made are completed.
const PASS: Duration = Duration::from_millis(90);

/// Requests in flight: enough to keep the queue's threads busy.
const IN_FLIGHT: usize = 4;

/// Chunks of memory that the trial transfers, at least and at most: more do not fit any cache.
const CHUNKS: [usize; 2] = [IN_FLIGHT, 16];

/// The trial uses a fraction of the run's memory: one part in so many.
const SHARE: usize = 4;

/// Requests whose latency is measured.
const SINGLE_REQUESTS: usize = 20;

/// Where memory begins within a page: buffers of an arena are aligned to this.
const SKEW: usize = 512;

/// The disk that plans assume by default: 2.5 GiB a second both ways, 0.1 ms latency, and another 0.1 ms for a MiB with
/// nothing else in flight.
pub const DISK: Link = Link {
    load_ns_per_mib: 400_000,
    store_ns_per_mib: 400_000,
    latency_ns: 100_000,
    single_request_ns: 100_000,
    request_cpu_ns: 20_000,
};

/// What a folder's disk does through a [`FileQueue`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read per nanosecond.
    pub read_bytes_per_ns: f64,
    /// Bytes written per nanosecond.
    pub write_bytes_per_ns: f64,
    /// Nanoseconds from a small request until it has completed.
    pub latency_ns: u64,
    /// Nanoseconds that reading a MiB with nothing else in flight takes beyond the latency and the time of its bytes.
    pub single_request_ns: u64,
    /// Processor nanoseconds for each chunk of a request.
    pub request_cpu_ns: u64,
}

impl Rates {
    /// Of a disk with the same bytes per nanosecond both ways and a typical latency.
    pub const fn both_ways(bytes_per_ns: f64) -> Self {
        let Link { latency_ns, single_request_ns, request_cpu_ns, .. } = DISK;
        let [read_bytes_per_ns, write_bytes_per_ns] = [bytes_per_ns; 2];
        Self { read_bytes_per_ns, write_bytes_per_ns, latency_ns, single_request_ns, request_cpu_ns }
    }

    /// The planner's description of the disk.
    pub fn link(&self) -> Link {
        let ns_per_mib = |bytes_per_ns: f64| (f64::from(1 << 20) / bytes_per_ns) as u64;
        Link {
            load_ns_per_mib: ns_per_mib(self.read_bytes_per_ns),
            store_ns_per_mib: ns_per_mib(self.write_bytes_per_ns),
            latency_ns: self.latency_ns,
            single_request_ns: self.single_request_ns,
            request_cpu_ns: self.request_cpu_ns,
        }
    }
}

/// Measures the disk of a folder for a run that uses so much memory: it writes at most 64 MiB and takes about 0.3 seconds.
///
/// Transfers take longer to and from memory that no cache holds, so the trial uses a quarter of the run's memory, from 4 to
/// 16 MiB. Each part of the file is written twice and the second time counts: on many filesystems the first write takes
/// longer, and a run writes the same parts over and over.
pub fn disk_rates(folder: &Path, memory_bytes: usize) -> Result<Rates, TransferError> {
    let chunks = (memory_bytes / SHARE / CHUNK_BYTES).clamp(CHUNKS[0], CHUNKS[1]);
    let memory = Arena::new(chunks * CHUNK_BYTES + SKEW)
        .map_err(|e| TransferError::Start { reason: e.to_string() })?;
    let file = match SpillFile::create(folder, TRIAL_BYTES as u64) {
        // A small disk is tried with half of its free space.
        Err(TransferError::Full { free_bytes, .. }) if free_bytes > 2 * CHUNK_BYTES as u64 => {
            SpillFile::create(folder, free_bytes / 2)?
        }
        outcome => outcome?,
    };
    let queue = FileQueue::new(file, IN_FLIGHT)?;
    let at = |chunk: usize| memory.at(chunk % chunks * CHUNK_BYTES + SKEW, CHUNK_BYTES);
    // SAFETY: the memory outlives the queue's use of it: every pass waits for its last request.
    let store = |chunk: usize| unsafe { queue.store((chunk * CHUNK_BYTES) as u64, at(chunk), CHUNK_BYTES) };
    // SAFETY: as above.
    let load = |chunk: usize| unsafe { queue.load((chunk * CHUNK_BYTES) as u64, at(chunk), CHUNK_BYTES) };
    let (reached, _) = pass(&queue, queue.file().bytes() as usize / CHUNK_BYTES, store)?;
    let (_, write_bytes_per_ns) = pass(&queue, reached, store)?;
    let (_, read_bytes_per_ns) = pass(&queue, reached, load)?;
    let cpu_before = system::process_cpu_ns();
    // SAFETY: as above.
    let latency_ns = request_ns(&queue, |_| unsafe { queue.load(0, at(0), BLOCK) })?;
    let request_cpu_ns = system::process_cpu_ns().saturating_sub(cpu_before) / SINGLE_REQUESTS as u64;
    let in_a_pass = (CHUNK_BYTES as f64 / read_bytes_per_ns) as u64;
    let single_request_ns = request_ns(&queue, |i| load(i % reached))?.saturating_sub(latency_ns + in_a_pass);
    Ok(Rates { read_bytes_per_ns, write_bytes_per_ns, latency_ns, single_request_ns, request_cpu_ns })
}

/// Nanoseconds from a request until it has completed, with nothing else in flight.
fn request_ns(queue: &FileQueue, request: impl Fn(usize) -> Ticket) -> Result<u64, TransferError> {
    let start = Instant::now();
    (0..SINGLE_REQUESTS).try_for_each(|i| queue.wait(request(i)))?;
    Ok(start.elapsed().as_nanos() as u64 / SINGLE_REQUESTS as u64)
}

/// Transfers chunk after chunk until none is left or the time is over: how many, and bytes per nanosecond.
fn pass(
    queue: &FileQueue,
    chunks: usize,
    request: impl Fn(usize) -> Ticket,
) -> Result<(usize, f64), TransferError> {
    let start = Instant::now();
    let mut tickets = [None; IN_FLIGHT];
    let mut moved = 0;
    let mut outcome = Ok(());
    while moved < chunks && outcome.is_ok() && (moved == 0 || start.elapsed() < PASS) {
        if let Some(ticket) = tickets[moved % IN_FLIGHT].take() {
            outcome = queue.wait(ticket);
        }
        tickets[moved % IN_FLIGHT] = Some(request(moved));
        moved += 1;
    }
    for ticket in tickets.into_iter().flatten() {
        outcome = outcome.and(queue.wait(ticket));
    }
    outcome?;
    Ok((moved, (moved * CHUNK_BYTES) as f64 / start.elapsed().as_nanos().max(1) as f64))
}
