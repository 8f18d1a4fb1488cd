//! The requests in flight, and the hazards between them.

use super::{BLOCK, CHUNK_BYTES};
use std::io;
use std::ops::Range;

/// The requests in flight: a ring buffer and how far it has been worked off.
pub struct Requests {
    /// Request `n` is at `n % ring.len()` until it has completed.
    ring: Box<[Request]>,
    /// How many requests have been submitted.
    pub submitted: u64,
    /// All before this one have completed.
    pub completed: u64,
    /// The request whose chunks are handed out, from this position on.
    next: u64,
    position: usize,
    /// The earliest request that failed, and how.
    pub failure: Option<(u64, Failure)>,
    pub workers_started: usize,
    /// Workers that sleep until there is work.
    pub workers_asleep: usize,
    pub callers_waiting: usize,
    pub stop: bool,
}

// SAFETY: the pointers in requests are followed only until the request has completed, for which time the caller of the
// queue's unsafe functions has given their memory to the queue.
unsafe impl Send for Requests {}

#[derive(Clone, Copy)]
pub struct Request {
    pub kind: Kind,
    pub offset: u64,
    pub memory: *mut u8,
    pub bytes: usize,
    /// Bytes not moved yet.
    pub left: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Load,
    /// The last block is filled up with zeros.
    Store,
    /// The bytes around the range stay as they are (read-modify-write of the blocks at its ends).
    Patch,
}

/// The part of a request that one worker moves at a time.
pub struct Chunk {
    pub request: u64,
    pub kind: Kind,
    pub offset: u64,
    pub memory: *mut u8,
    pub bytes: usize,
}

pub struct Failure {
    pub what: &'static str,
    pub offset: u64,
    pub bytes: usize,
    pub error: io::Error,
}

impl Requests {
    pub fn new(capacity: usize) -> Self {
        let none = Request { kind: Kind::Load, offset: 0, memory: std::ptr::null_mut(), bytes: 0, left: 0 };
        Self {
            ring: vec![none; capacity.max(1)].into_boxed_slice(),
            submitted: 0,
            completed: 0,
            next: 0,
            position: 0,
            failure: None,
            workers_started: 0,
            workers_asleep: 0,
            callers_waiting: 0,
            stop: false,
        }
    }

    pub fn is_full(&self) -> bool {
        self.submitted - self.completed == self.ring.len() as u64
    }

    /// Appends a request to a ring that is not full; its number.
    pub fn submit(&mut self, request: Request) -> u64 {
        let number = self.submitted;
        *self.request(number) = request;
        self.submitted += 1;
        number
    }

    fn request(&mut self, number: u64) -> &mut Request {
        let slots = self.ring.len() as u64;
        &mut self.ring[(number % slots) as usize]
    }

    /// The next chunk, if it can be moved now.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        if self.next == self.submitted || (self.position == 0 && self.next_has_hazard()) {
            return None;
        }
        let (number, position) = (self.next, self.position);
        let Request { kind, offset, memory, bytes, .. } = *self.request(number);
        let offset = offset + position as u64;
        // A chunk ends at a block's end, so that no two of a request share a block.
        let lead = (offset % BLOCK as u64) as usize;
        let taken = (bytes - position).min(CHUNK_BYTES - lead);
        self.position += taken;
        if self.position == bytes {
            (self.next, self.position) = (number + 1, 0);
        }
        Some(Chunk { request: number, kind, offset, memory: memory.wrapping_add(position), bytes: taken })
    }

    /// Whether the next request has a hazard with an earlier one that is still in flight.
    fn next_has_hazard(&mut self) -> bool {
        let next = *self.request(self.next);
        (self.completed..self.next).any(|earlier| self.request(earlier).has_hazard(&next))
    }

    /// Counts a chunk as moved; whether its request is now complete.
    pub fn finish(&mut self, chunk: &Chunk) -> bool {
        let request = self.request(chunk.request);
        request.left -= chunk.bytes;
        let complete = request.left == 0;
        if complete {
            self.advance();
        }
        complete
    }

    /// Drops all chunks that no worker has begun.
    pub fn skip(&mut self) {
        while self.next < self.submitted {
            let (number, position) = (self.next, self.position);
            let request = self.request(number);
            request.left -= request.bytes - position;
            (self.next, self.position) = (number + 1, 0);
        }
        self.advance();
    }

    /// Counts the completed requests, in order.
    fn advance(&mut self) {
        while self.completed < self.next && self.request(self.completed).left == 0 {
            self.completed += 1;
        }
    }
}

impl Request {
    /// Whether a later request must wait for this one: a RAW, WAR or WAW hazard on blocks of the file or on memory.
    fn has_hazard(&self, later: &Self) -> bool {
        let (first, second) = (self.kind == Kind::Load, later.kind == Kind::Load);
        let on_disk = !(first && second) && overlap(&self.blocks(), &later.blocks());
        let in_memory = (first || second) && overlap(&self.span(), &later.span());
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

/// The range of the file, in whole blocks, that holds some bytes.
pub fn in_blocks(offset: u64, bytes: usize) -> Range<u64> {
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
    fn requests_have_a_hazard_where_order_matters() {
        let request = |kind, offset: u64, address: usize, left| {
            let memory = std::ptr::without_provenance_mut(address);
            Request { kind, offset, memory, bytes: 100, left }
        };
        let (load, store, patch) = (Kind::Load, Kind::Store, Kind::Patch);
        // Kinds, then whether there is a hazard in the same block of the file, and in the same memory.
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
            assert_eq!(earlier.has_hazard(&request(second, 4000, 1100, 1)), on_disk);
            assert_eq!(earlier.has_hazard(&request(second, 4096, 1099, 1)), in_memory);
            assert!(!earlier.has_hazard(&request(second, 4096, 1100, 1)));
            assert!(!request(first, 0, 1000, 0).has_hazard(&request(second, 0, 1000, 1)), "it has completed");
        }
    }
}
