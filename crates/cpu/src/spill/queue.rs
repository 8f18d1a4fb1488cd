//! Requests in a row, served while the caller computes.

use super::file::NO_PART;
use super::{BLOCK, LANES, PIECE, Part, STAGING_BYTES, SpillError, SpillFile, system};
use crate::arena::Arena;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread's stack holds only frames: its buffer is part of the staging memory.
const STACK_BYTES: usize = 64 * 1024;

/// Loads from and stores to a spill file, in the order of their requests, beside the thread that asks for them.
///
/// A request sees the effects of all earlier ones, on the file and on memory; those that have nothing in common may
/// overlap. Making one, and waiting for it, allocates nothing. After a failed transfer nothing more is moved, and
/// every later request fails with it.
pub struct SpillQueue {
    shared: Arc<Shared>,
    lanes: Vec<JoinHandle<()>>,
}

/// A request's number: all earlier requests have smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// No request's: it is always done.
    pub const NONE: Self = Self(0);
}

struct Shared {
    file: SpillFile,
    /// A piece for each lane.
    staging: Arena,
    state: Mutex<State>,
    /// There may be something to do for a lane.
    work: Condvar,
    /// Requests have been done.
    done: Condvar,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    waited_ns: AtomicU64,
}

struct State {
    /// Request `n` lies at `n % ring.len()` until it is done.
    ring: Box<[Request]>,
    /// How many requests have been made.
    made: u64,
    /// All before this one are done.
    done: u64,
    /// The one that pieces are handed out of, from this position on.
    next: u64,
    position: usize,
    /// The earliest request that failed, and how.
    failure: Option<(u64, Failure)>,
    /// Lanes that run, and those of them that sleep until there is something to do.
    started: usize,
    asleep: usize,
    /// Callers that wait.
    waiting: usize,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Request {
    kind: Kind,
    offset: u64,
    memory: *mut u8,
    bytes: usize,
    /// Bytes not moved yet.
    left: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    /// The last block is filled up with zeros.
    Store,
    /// What lies around the bytes stays as it is.
    Patch,
}

/// Part of a request: what one lane moves at a time.
struct Piece {
    request: u64,
    kind: Kind,
    offset: u64,
    memory: *mut u8,
    bytes: usize,
}

struct Failure {
    what: &'static str,
    offset: u64,
    bytes: usize,
    error: io::Error,
}

// SAFETY: the pointers in requests are followed only between the request and its end, for which time the caller of
// the unsafe functions has given their memory to the queue.
unsafe impl Send for State {}

impl SpillQueue {
    /// Starts the threads. At most `capacity` requests are under way; a further one waits until one is done.
    pub fn new(file: SpillFile, capacity: usize) -> Result<Self, SpillError> {
        Self::start(file, capacity).map_err(|e| SpillError::Start { reason: e.to_string() })
    }

    fn start(file: SpillFile, capacity: usize) -> io::Result<Self> {
        let none = Request { kind: Kind::Load, offset: 0, memory: std::ptr::null_mut(), bytes: 0, left: 0 };
        let ring = vec![none; capacity.max(1)].into_boxed_slice();
        let shared = Arc::new(Shared {
            file,
            staging: Arena::new(STAGING_BYTES)?,
            state: Mutex::new(State {
                ring,
                made: 0,
                done: 0,
                next: 0,
                position: 0,
                failure: None,
                started: 0,
                asleep: 0,
                waiting: 0,
                stop: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        });
        // Built first, so that dropping it stops the thread already started when a later one fails to start.
        let mut queue = Self { shared, lanes: Vec::with_capacity(LANES) };
        for lane in 0..LANES {
            let shared = Arc::clone(&queue.shared);
            let handle = thread::Builder::new()
                .name(format!("plimsoll-spill-{lane}"))
                .stack_size(STACK_BYTES)
                .spawn(move || shared.serve(lane))?;
            queue.lanes.push(handle);
        }
        // A thread allocates while it starts: that is over before the first request.
        let mut state = queue.shared.locked();
        while state.started < LANES {
            state = queue.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Ok(queue)
    }

    /// The file.
    pub fn file(&self) -> &SpillFile {
        &self.shared.file
    }

    /// Starts reading `bytes` of the file from `offset` on into memory.
    ///
    /// # Safety
    /// The memory must be valid, and nobody may read or write it, until [`SpillQueue::wait`] has returned for the
    /// ticket or the queue is dropped.
    ///
    /// # Panics
    /// If the range is not inside the file.
    pub unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.make(Kind::Load, offset, into, bytes) }
    }

    /// Starts writing `bytes` of memory to the file from `offset` on, a multiple of [`BLOCK`]. What is left of the
    /// last block becomes zeros.
    ///
    /// # Safety
    /// The memory must be valid, and nobody may write it, until [`SpillQueue::wait`] has returned for the ticket or
    /// the queue is dropped.
    ///
    /// # Panics
    /// If the range is not inside the file, or the offset inside a block.
    pub unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        assert!(offset.is_multiple_of(BLOCK as u64), "a store at {offset} begins inside a block");
        // SAFETY: the caller's promise is passed on; a store only reads.
        unsafe { self.make(Kind::Store, offset, from.cast_mut(), bytes) }
    }

    /// Waits until all requests up to the ticket's are done.
    ///
    /// # Errors
    /// The first of theirs.
    pub fn wait(&self, ticket: Ticket) -> Result<(), SpillError> {
        let state = self.until(|state| state.done >= ticket.0);
        match &state.failure {
            Some((request, failure)) if *request < ticket.0 => {
                let Failure { what, offset, bytes, error } = failure;
                Err(self.shared.file.failure(what, *offset, *bytes as u64, error))
            }
            _ => Ok(()),
        }
    }

    /// Reads from any place, after all earlier requests.
    ///
    /// # Panics
    /// If the range is not inside the file.
    pub fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), SpillError> {
        // SAFETY: the bytes are borrowed until the wait is over.
        self.wait(unsafe { self.make(Kind::Load, offset, into.as_mut_ptr(), into.len()) })
    }

    /// Writes to any place, after all earlier requests, and leaves what lies around it alone.
    ///
    /// # Panics
    /// If the range is not inside the file.
    pub fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), SpillError> {
        // SAFETY: the bytes are borrowed until the wait is over, and only read.
        self.wait(unsafe { self.make(Kind::Patch, offset, from.as_ptr().cast_mut(), from.len()) })
    }

    /// Bytes read from the disk so far, in whole blocks.
    pub fn bytes_read(&self) -> u64 {
        self.shared.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes written to the disk so far, in whole blocks.
    pub fn bytes_written(&self) -> u64 {
        self.shared.bytes_written.load(Ordering::Relaxed)
    }

    /// How long callers have waited so far, for requests to be done or to be made.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.shared.waited_ns.load(Ordering::Relaxed))
    }

    /// Waits until requests are as they should be.
    fn until(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.shared.locked();
        if !ready(&state) {
            let start = Instant::now();
            state.waiting += 1;
            while !ready(&state) {
                state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
            self.shared.waited_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        state
    }

    /// # Safety
    /// Until the request is done or the queue is dropped, the memory is valid, nobody writes it, and for a load nobody
    /// reads it.
    unsafe fn make(&self, kind: Kind, offset: u64, memory: *mut u8, bytes: usize) -> Ticket {
        let (length, end) = (self.shared.file.bytes(), offset.checked_add(bytes as u64));
        assert!(end.is_some_and(|end| end <= length), "{offset} + {bytes} is outside the spill file");
        let mut state = self.until(|state| bytes == 0 || state.made - state.done < state.ring.len() as u64);
        if bytes == 0 {
            return Ticket(state.made);
        }
        let made = state.made;
        *state.request(made) = Request { kind, offset, memory, bytes, left: bytes };
        state.made += 1;
        let asleep = state.asleep;
        drop(state);
        // Waking somebody takes longer than all else here, even where nobody sleeps.
        match (asleep, bytes) {
            (0, _) => {}
            (_, ..=PIECE) => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
        Ticket(made + 1)
    }
}

impl Drop for SpillQueue {
    fn drop(&mut self) {
        self.shared.locked().stop = true;
        self.shared.work.notify_all();
        for lane in self.lanes.drain(..) {
            // A lane has nothing that panics; there is nothing left to report.
            let _ = lane.join();
        }
    }
}

impl Shared {
    /// What is kept under the lock is right between any two statements: poison means nothing here.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, lane: usize) {
        let staging = self.staging.at(lane * PIECE, PIECE);
        system::hurry();
        self.locked().started += 1;
        self.done.notify_all();
        while let Some(piece) = self.take() {
            // SAFETY: the piece's memory is the queue's until its request is done, no other piece shares it, and
            // each lane has a buffer of its own.
            let outcome = unsafe { self.transfer(&piece, staging) };
            self.finish(&piece, outcome);
        }
    }

    /// Waits for the next piece; nothing when the queue is being dropped.
    fn take(&self) -> Option<Piece> {
        let mut state = self.locked();
        loop {
            if state.stop {
                return None;
            }
            if state.failure.is_some() {
                state.skip();
                self.done.notify_all();
            }
            if let Some(piece) = state.piece() {
                return Some(piece);
            }
            state.asleep += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
        }
    }

    fn finish(&self, piece: &Piece, outcome: io::Result<()>) {
        let mut state = self.locked();
        if let Err(error) = outcome
            && state.failure.as_ref().is_none_or(|(first, _)| piece.request < *first)
        {
            let what = if piece.kind == Kind::Load { "reading" } else { "writing" };
            let failure = Failure { what, offset: piece.offset, bytes: piece.bytes, error };
            state.failure = Some((piece.request, failure));
        }
        let request = state.request(piece.request);
        request.left -= piece.bytes;
        if request.left == 0 {
            state.advance();
            let (waiting, asleep) = (state.waiting, state.asleep);
            drop(state);
            if waiting > 0 {
                self.done.notify_all();
            }
            // The other lane may wait for what this one has done.
            if asleep > 0 {
                self.work.notify_all();
            }
        }
    }

    /// # Safety
    /// The piece's memory is this thread's alone (to read, for a store), the staging buffer holds [`PIECE`] bytes and
    /// is too.
    unsafe fn transfer(&self, piece: &Piece, staging: *mut u8) -> io::Result<()> {
        let blocks = in_blocks(piece.offset, piece.bytes);
        let lead = (piece.offset - blocks.start) as usize;
        let straight = lead == 0 && piece.memory.addr().is_multiple_of(self.file.memory_alignment());
        // Whole blocks move without a copy where they can. The last, broken one never can.
        let body = if straight { piece.bytes / BLOCK * BLOCK } else { 0 };
        let staged = (blocks.end - blocks.start) as usize - body;
        let rest = piece.bytes - body;
        let parts = [Part { start: piece.memory, bytes: body }, Part { start: staging, bytes: staged }];
        // SAFETY: the piece's memory is longer than `body`.
        let memory = unsafe { piece.memory.add(body) };
        if piece.kind == Kind::Load {
            // SAFETY: both parts are this thread's alone, by the caller's promise.
            unsafe { self.file.read(parts, blocks.start)? };
            // SAFETY: `lead + rest` is at most `staged`, which is at most a piece.
            unsafe { std::ptr::copy_nonoverlapping(staging.add(lead), memory, rest) };
            self.bytes_read.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
            return Ok(());
        }
        if rest > 0 {
            if piece.kind == Kind::Patch && rest < staged {
                // SAFETY: the staging buffer holds `staged` bytes.
                unsafe { self.read_edges(blocks.start + body as u64, staging, staged)? };
            } else {
                // SAFETY: the end of the buffer's last block.
                unsafe { staging.add(rest).write_bytes(0, staged - rest) };
            }
            // SAFETY: as for loads.
            unsafe { std::ptr::copy_nonoverlapping(memory, staging.add(lead), rest) };
        }
        // SAFETY: nobody writes to either part, by the caller's promise.
        unsafe { self.file.write(parts, blocks.start)? };
        self.bytes_written.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the first and the last of some blocks into their places.
    ///
    /// # Safety
    /// The buffer holds `bytes`, at least a block, and is this thread's alone.
    unsafe fn read_edges(&self, offset: u64, buffer: *mut u8, bytes: usize) -> io::Result<()> {
        let last = bytes - BLOCK;
        for from in [0, last].into_iter().take(if last == 0 { 1 } else { 2 }) {
            // SAFETY: inside the buffer.
            let part = Part { start: unsafe { buffer.add(from) }, bytes: BLOCK };
            // SAFETY: the caller's promise.
            unsafe { self.file.read([part, NO_PART], offset + from as u64)? };
            self.bytes_read.fetch_add(BLOCK as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl State {
    fn request(&mut self, number: u64) -> &mut Request {
        let slots = self.ring.len() as u64;
        &mut self.ring[(number % slots) as usize]
    }

    /// The next piece that may be moved now.
    fn piece(&mut self) -> Option<Piece> {
        if self.next == self.made || (self.position == 0 && self.must_wait()) {
            return None;
        }
        let (number, position) = (self.next, self.position);
        let Request { kind, offset, memory, bytes, .. } = *self.request(number);
        let offset = offset + position as u64;
        // A piece ends at a block's end, so that no two of a request share a block.
        let lead = (offset % BLOCK as u64) as usize;
        let taken = (bytes - position).min(PIECE - lead);
        self.position += taken;
        if self.position == bytes {
            (self.next, self.position) = (number + 1, 0);
        }
        Some(Piece { request: number, kind, offset, memory: memory.wrapping_add(position), bytes: taken })
    }

    /// Whether the next request touches what an earlier one is still moving.
    fn must_wait(&mut self) -> bool {
        let next = *self.request(self.next);
        (self.done..self.next).any(|earlier| self.request(earlier).collides(&next))
    }

    /// Gives up all that no lane has begun.
    fn skip(&mut self) {
        while self.next < self.made {
            let (number, position) = (self.next, self.position);
            let request = self.request(number);
            request.left -= request.bytes - position;
            (self.next, self.position) = (number + 1, 0);
        }
        self.advance();
    }

    /// Counts the requests done in order.
    fn advance(&mut self) {
        while self.done < self.next && self.request(self.done).left == 0 {
            self.done += 1;
        }
    }
}

impl Request {
    /// Whether the other must wait until this one is done.
    fn collides(&self, other: &Self) -> bool {
        let (first, second) = (self.kind == Kind::Load, other.kind == Kind::Load);
        let on_disk = !(first && second) && overlap(&self.blocks(), &other.blocks());
        let in_memory = (first || second) && overlap(&self.span(), &other.span());
        self.left > 0 && (on_disk || in_memory)
    }

    fn blocks(&self) -> Range<u64> {
        in_blocks(self.offset, self.bytes)
    }

    fn span(&self) -> Range<usize> {
        let start = self.memory.addr();
        start..start + self.bytes
    }
}

/// The range of the file that holds some bytes, in whole blocks.
fn in_blocks(offset: u64, bytes: usize) -> Range<u64> {
    let block = BLOCK as u64;
    offset / block * block..(offset + bytes as u64).next_multiple_of(block)
}

fn overlap<T: PartialOrd>(a: &Range<T>, b: &Range<T>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_collide_where_order_matters() {
        let request = |kind, offset: u64, address: usize, left| {
            let memory = std::ptr::without_provenance_mut(address);
            Request { kind, offset, memory, bytes: 100, left }
        };
        let (load, store, patch) = (Kind::Load, Kind::Store, Kind::Patch);
        // Kinds, then whether they collide in the same block of the file, and in the same memory.
        let cases = [
            (load, load, false, true),
            (load, store, true, true),
            (store, load, true, true),
            (store, store, true, false),
            (patch, store, true, false),
            (patch, load, true, true),
        ];
        for (first, second, on_disk, in_memory) in cases {
            let earlier = request(first, 0, 1000, 1);
            assert_eq!(earlier.collides(&request(second, 4000, 1100, 1)), on_disk);
            assert_eq!(earlier.collides(&request(second, 4096, 1099, 1)), in_memory);
            assert!(!earlier.collides(&request(second, 4096, 1100, 1)));
            assert!(!request(first, 0, 1000, 0).collides(&request(second, 0, 1000, 1)), "it is done");
        }
    }
}
