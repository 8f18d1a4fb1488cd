//! The threads that move chunks between the spill file and memory.

use super::request::{Chunk, Failure, Kind, in_blocks};
use super::{BLOCK, CHUNK_BYTES, Shared};
use crate::spill::{Segment, system};
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Shared {
    /// Moves chunks until the queue is dropped.
    pub fn serve(&self, worker: usize) {
        let staging = self.staging.at(worker * CHUNK_BYTES, CHUNK_BYTES);
        system::prefer_latency();
        self.locked().workers_started += 1;
        self.completed.notify_all();
        while let Some(chunk) = self.take() {
            let started = plimsoll_trace::now();
            // SAFETY: the chunk's memory is the queue's until its request has completed, no other chunk shares it, and
            // each worker has a staging buffer of its own.
            let outcome = unsafe { self.transfer(&chunk, staging) };
            if let Some(started) = started {
                let name = if chunk.kind == Kind::Load { "read" } else { "write" };
                let bytes = ("bytes", plimsoll_trace::Value::Count(chunk.bytes as u64));
                plimsoll_trace::span(started, "transfer", name, &[bytes]);
            }
            self.finish(&chunk, outcome);
        }
    }

    /// Waits for the next chunk; `None` when the queue is being dropped.
    fn take(&self) -> Option<Chunk> {
        let mut requests = self.locked();
        loop {
            if requests.stop {
                return None;
            }
            if requests.failure.is_some() {
                requests.skip();
                self.completed.notify_all();
            }
            if let Some(chunk) = requests.next_chunk() {
                return Some(chunk);
            }
            requests.workers_asleep += 1;
            requests = self.work.wait(requests).unwrap_or_else(PoisonError::into_inner);
            requests.workers_asleep -= 1;
        }
    }

    fn finish(&self, chunk: &Chunk, outcome: io::Result<()>) {
        let mut requests = self.locked();
        if let Err(error) = outcome
            && requests.failure.as_ref().is_none_or(|(first, _)| chunk.request < *first)
        {
            let what = if chunk.kind == Kind::Load { "reading" } else { "writing" };
            let failure = Failure { what, offset: chunk.offset, bytes: chunk.bytes, error };
            requests.failure = Some((chunk.request, failure));
        }
        if requests.finish(chunk) {
            let (waiting, asleep) = (requests.callers_waiting, requests.workers_asleep);
            drop(requests);
            if waiting > 0 {
                self.completed.notify_all();
            }
            // The other worker may wait for what this one has done.
            if asleep > 0 {
                self.work.notify_all();
            }
        }
    }

    /// # Safety
    /// The chunk's memory is this thread's alone (to read, for a store), and so is the staging buffer of
    /// [`CHUNK_BYTES`].
    unsafe fn transfer(&self, chunk: &Chunk, staging: *mut u8) -> io::Result<()> {
        let blocks = in_blocks(chunk.offset, chunk.bytes);
        let lead = (chunk.offset - blocks.start) as usize;
        let aligned = lead == 0 && chunk.memory.addr().is_multiple_of(self.file.memory_alignment());
        // Whole blocks of aligned memory move without a copy; a last, partial block never can.
        let body = if aligned { chunk.bytes / BLOCK * BLOCK } else { 0 };
        let staged = (blocks.end - blocks.start) as usize - body;
        let rest = chunk.bytes - body;
        let segments = [Segment { start: chunk.memory, len: body }, Segment { start: staging, len: staged }];
        // SAFETY: the chunk's memory is at least `body` long.
        let memory = unsafe { chunk.memory.add(body) };
        if chunk.kind == Kind::Load {
            // SAFETY: both segments are this thread's alone, by the caller's promise.
            unsafe { self.file.read(segments, blocks.start)? };
            // SAFETY: `lead + rest` is at most `staged`, which is at most a chunk.
            unsafe { std::ptr::copy_nonoverlapping(staging.add(lead), memory, rest) };
            self.bytes_read.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
            return Ok(());
        }
        if rest > 0 {
            if chunk.kind == Kind::Patch && rest < staged {
                // SAFETY: the staging buffer holds `staged` bytes.
                unsafe { self.read_edges(blocks.start + body as u64, staging, staged)? };
            } else {
                // SAFETY: the end of the buffer's last block.
                unsafe { staging.add(rest).write_bytes(0, staged - rest) };
            }
            // SAFETY: as for loads.
            unsafe { std::ptr::copy_nonoverlapping(memory, staging.add(lead), rest) };
        }
        // SAFETY: nobody writes to either segment, by the caller's promise.
        unsafe { self.file.write(segments, blocks.start)? };
        self.bytes_written.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the first and the last of some blocks into their places in the buffer.
    ///
    /// # Safety
    /// The buffer holds `bytes`, at least a block, and is this thread's alone.
    unsafe fn read_edges(&self, offset: u64, buffer: *mut u8, bytes: usize) -> io::Result<()> {
        let last = bytes - BLOCK;
        for from in [0, last].into_iter().take(if last == 0 { 1 } else { 2 }) {
            // SAFETY: inside the buffer.
            let block = Segment { start: unsafe { buffer.add(from) }, len: BLOCK };
            // SAFETY: the caller's promise.
            unsafe { self.file.read([block, Segment::EMPTY], offset + from as u64)? };
            self.bytes_read.fetch_add(BLOCK as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
