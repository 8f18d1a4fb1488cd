//! How fast a folder's disk is, by a short trial.

use super::{BLOCK, PIECE, SpillError, SpillFile, SpillQueue, Ticket, system};
use crate::arena::Arena;
use plimsoll_plan::Disk;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most that the trial writes.
const TRIAL_BYTES: usize = 64 << 20;

/// The time of each of its three passes; what has begun is finished.
const PASS: Duration = Duration::from_millis(90);

/// Requests under way at a time: enough to keep the queue's threads busy.
const AHEAD: usize = 4;

/// Pieces of memory that the trial moves bytes in and out of, at least and at most: beyond these no cache holds them.
const PIECES: [usize; 2] = [AHEAD, 16];

/// The part of a run's memory that the trial takes.
const SHARE: usize = 4;

/// Requests whose latency is measured.
const ANSWERS: usize = 20;

/// Where memory begins within a page: as the values of an arena do.
const SKEW: usize = 512;

/// What a folder's disk gives through a [`SpillQueue`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read per nanosecond.
    pub read_bytes_per_ns: f64,
    /// Bytes written per nanosecond.
    pub write_bytes_per_ns: f64,
    /// Nanoseconds from a small request until it is done.
    pub latency_ns: u64,
    /// Nanoseconds that reading a MiB by itself takes beyond those and the time of its bytes.
    pub single_request_ns: u64,
    /// Nanoseconds of the processor that a piece of a request takes.
    pub request_cpu_ns: u64,
}

impl Rates {
    /// As planners know a disk, with so many bytes of memory that moving bytes needs.
    pub fn disk(&self, staging_bytes: usize) -> Disk {
        let ns_per_mib = |bytes_per_ns: f64| (f64::from(1 << 20) / bytes_per_ns) as u64;
        Disk {
            read_ns_per_mib: ns_per_mib(self.read_bytes_per_ns),
            write_ns_per_mib: ns_per_mib(self.write_bytes_per_ns),
            latency_ns: self.latency_ns,
            single_request_ns: self.single_request_ns,
            request_cpu_ns: self.request_cpu_ns,
            staging_bytes,
        }
    }
}

/// An error that names the folder, where its disk does not read and write so many bytes per nanosecond.
pub(super) fn demand(folder: &Path, [read, write]: [f64; 2], least: f64) -> Result<(), SpillError> {
    let per_second = |rate: f64| (rate * 1e9) as u64;
    for (what, rate) in [("read", read), ("write", write)] {
        if rate < least {
            let (found, needed) = (per_second(rate), per_second(least));
            return Err(SpillError::Slow { folder: folder.into(), what, found, needed });
        }
    }
    Ok(())
}

/// Measures the disk of a folder for steps that use so much memory: at most 64 MiB and, on a disk that deserves the name,
/// 0.3 seconds.
///
/// Bytes take longer to and from memory that no cache holds, so the trial uses a quarter of the steps' memory, from 4 to 16
/// MiB. Each place is written twice and the second time counts: the first use of a place takes longer on many filesystems,
/// and the steps of a run use the same places again and again.
pub fn disk_rates(folder: &Path, memory_bytes: usize) -> Result<Rates, SpillError> {
    let places = (memory_bytes / SHARE / PIECE).clamp(PIECES[0], PIECES[1]);
    let memory =
        Arena::new(places * PIECE + SKEW).map_err(|e| SpillError::Start { reason: e.to_string() })?;
    let file = match SpillFile::create(folder, TRIAL_BYTES as u64) {
        // A small disk has its rates, too.
        Err(SpillError::Full { free_bytes, .. }) if free_bytes > 2 * PIECE as u64 => {
            SpillFile::create(folder, free_bytes / 2)?
        }
        outcome => outcome?,
    };
    let queue = SpillQueue::new(file, AHEAD)?;
    let at = |piece: usize| memory.at(piece % places * PIECE + SKEW, PIECE);
    // SAFETY: the memory outlives the queue's use of it: every pass waits for its last request.
    let store = |piece: usize| unsafe { queue.store((piece * PIECE) as u64, at(piece), PIECE) };
    // SAFETY: as above.
    let load = |piece: usize| unsafe { queue.load((piece * PIECE) as u64, at(piece), PIECE) };
    let (reached, _) = pass(&queue, queue.file().bytes() as usize / PIECE, store)?;
    let (_, write_bytes_per_ns) = pass(&queue, reached, store)?;
    let (_, read_bytes_per_ns) = pass(&queue, reached, load)?;
    let busy_before = system::busy_ns();
    // SAFETY: as above.
    let latency_ns = answer_ns(&queue, |_| unsafe { queue.load(0, at(0), BLOCK) })?;
    let request_cpu_ns = system::busy_ns().saturating_sub(busy_before) / ANSWERS as u64;
    let among_others = (PIECE as f64 / read_bytes_per_ns) as u64;
    let single_request_ns =
        answer_ns(&queue, |i| load(i % reached))?.saturating_sub(latency_ns + among_others);
    Ok(Rates { read_bytes_per_ns, write_bytes_per_ns, latency_ns, single_request_ns, request_cpu_ns })
}

/// Nanoseconds from a request until it is done, while there is no other.
fn answer_ns(queue: &SpillQueue, request: impl Fn(usize) -> Ticket) -> Result<u64, SpillError> {
    let start = Instant::now();
    (0..ANSWERS).try_for_each(|i| queue.wait(request(i)))?;
    Ok(start.elapsed().as_nanos() as u64 / ANSWERS as u64)
}

/// Moves piece after piece until none is left or the time is over: how many, and bytes per nanosecond.
fn pass(
    queue: &SpillQueue,
    pieces: usize,
    request: impl Fn(usize) -> Ticket,
) -> Result<(usize, f64), SpillError> {
    let start = Instant::now();
    let mut tickets = [None; AHEAD];
    let mut moved = 0;
    let mut outcome = Ok(());
    while moved < pieces && outcome.is_ok() && (moved == 0 || start.elapsed() < PASS) {
        if let Some(ticket) = tickets[moved % AHEAD].take() {
            outcome = queue.wait(ticket);
        }
        tickets[moved % AHEAD] = Some(request(moved));
        moved += 1;
    }
    for ticket in tickets.into_iter().flatten() {
        outcome = outcome.and(queue.wait(ticket));
    }
    outcome?;
    Ok((moved, (moved * PIECE) as f64 / start.elapsed().as_nanos().max(1) as f64))
}
