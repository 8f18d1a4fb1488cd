//! The file: which folders it may be in, how it allocates its space, and complete transfers.

use super::{BLOCK, CHUNK_BYTES, Segment, TransferError, system};
use crate::arena::Arena;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The slowest disk that is accepted: 32 MB a second.
const MIN_BYTES_PER_NS: f64 = 0.032;

/// How often its speed is tried.
const SPEED_TRIES: usize = 4;

/// A file for what does not fit the arena: unlinked, its space allocated, read and written past the page cache.
///
/// It is gone when it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct SpillFile {
    pub(crate) file: File,
    pub(crate) folder: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) memory_alignment: usize,
}

impl SpillFile {
    /// Creates the file in a folder and allocates `bytes` (rounded up to whole blocks) of its disk. It reads as zeros.
    ///
    /// # Errors
    /// Everything that keeps a run from offloading to this folder: it cannot be written, its filesystem is in memory or
    /// has no direct I/O, or it has too little space.
    pub fn create(folder: &Path, bytes: u64) -> Result<Self, TransferError> {
        let bytes = bytes.next_multiple_of(BLOCK as u64);
        let unusable = |e: io::Error| TransferError::Folder { folder: folder.into(), reason: e.to_string() };
        let indirect = |reason| TransferError::Indirect { folder: folder.into(), reason };
        let file = system::open(folder).map_err(unusable)?;
        if let Some(filesystem) = system::in_memory(&file).map_err(unusable)? {
            return Err(TransferError::Memory { folder: folder.into(), filesystem });
        }
        system::set_direct(&file).map_err(|e| indirect(e.to_string()))?;
        let memory_alignment = system::memory_alignment(&file);
        let made = Self { file, folder: folder.into(), bytes, memory_alignment };
        if bytes > 0 {
            made.allocate()?;
            made.check_direct_and_speed()?;
        }
        Ok(made)
    }

    /// Length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The folder it was created in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The alignment that direct I/O needs of memory; unaligned memory is copied through the queue's staging buffers.
    pub fn memory_alignment(&self) -> usize {
        self.memory_alignment
    }

    fn allocate(&self) -> Result<(), TransferError> {
        let (folder, needed_bytes) = (self.folder.clone(), self.bytes);
        let limit_bytes = system::max_file_bytes();
        if needed_bytes > limit_bytes {
            return Err(TransferError::Limited { folder, needed_bytes, limit_bytes });
        }
        let failed = |e: &io::Error| self.failure("reserving", 0, needed_bytes, e);
        let free = system::free_bytes(&self.file).map_err(|e| failed(&e))?;
        if let Some(free_bytes) = free.filter(|free| *free < needed_bytes) {
            return Err(TransferError::Full { folder, needed_bytes, free_bytes });
        }
        let taken = system::reserve(&self.file, needed_bytes)
            .and_then(|reserved| if reserved { Ok(()) } else { self.write_zeros() });
        taken.map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull => {
                TransferError::Full { folder, needed_bytes, free_bytes: free.unwrap_or(0) }
            }
            _ => failed(&e),
        })
    }

    pub(super) fn write_zeros(&self) -> io::Result<()> {
        let zeros = Arena::new(CHUNK_BYTES)?;
        for offset in (0..self.bytes).step_by(CHUNK_BYTES) {
            let len = (self.bytes - offset).min(CHUNK_BYTES as u64) as usize;
            // SAFETY: the segment is in the arena, which nobody else knows.
            unsafe { self.write([Segment { start: zeros.at(0, len), len }, Segment::EMPTY], offset)? };
        }
        Ok(())
    }

    /// Writes and reads a chunk and a block, checks that they are not in the page cache, and times the chunk: a disk that
    /// is far too slow is refused, because steps would take many times their prediction. The time is taken several times,
    /// because something else may keep the disk busy for a while.
    fn check_direct_and_speed(&self) -> Result<(), TransferError> {
        let bytes = self.bytes.min(CHUNK_BYTES as u64) as usize;
        let failed = |what| {
            move |e: io::Error| match e.kind() {
                io::ErrorKind::InvalidInput => {
                    TransferError::Indirect { folder: self.folder.clone(), reason: e.to_string() }
                }
                _ => self.failure(what, 0, bytes as u64, &e),
            }
        };
        let zeros = Arena::new(bytes).map_err(failed("trying"))?;
        let segment = |len| [Segment { start: zeros.at(0, len), len }, Segment::EMPTY];
        // SAFETY: the segment is in the arena, which nobody else knows.
        let write = |at: usize| unsafe { self.write(segment(bytes - at), at as u64) };
        // SAFETY: as above.
        let read = |at: usize| unsafe { self.read(segment(bytes - at), at as u64) };
        let mut speed = Ok(());
        for _ in 0..SPEED_TRIES {
            let start = Instant::now();
            write(0).map_err(failed("writing"))?;
            let written = Instant::now();
            read(0).map_err(failed("reading"))?;
            let rate = |time: Duration| bytes as f64 / time.as_nanos().max(1) as f64;
            let (write_rate, read_rate) = (rate(written - start), rate(written.elapsed()));
            speed = check_rates(&self.folder, [read_rate, write_rate], MIN_BYTES_PER_NS);
            if speed.is_ok() || bytes < CHUNK_BYTES {
                speed = Ok(());
                break;
            }
        }
        speed?;
        write(bytes - BLOCK).map_err(failed("writing"))?;
        read(bytes - BLOCK).map_err(failed("reading"))?;
        if system::cached(&self.file, bytes).map_err(failed("writing"))? {
            let reason = "what was written stays in the page cache".to_owned();
            return Err(TransferError::Indirect { folder: self.folder.clone(), reason });
        }
        Ok(())
    }

    /// The error of a transfer.
    pub(crate) fn failure(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
        error: &io::Error,
    ) -> TransferError {
        TransferError::Transfer {
            folder: self.folder.clone(),
            what,
            offset,
            bytes,
            reason: error.to_string(),
        }
    }

    /// Reads from `offset` into the segments in turn.
    ///
    /// # Safety
    /// The segments are valid memory that nothing else uses. Offset and lengths are multiples of [`BLOCK`], addresses of
    /// the memory alignment; otherwise it is an error.
    pub(crate) unsafe fn read(&self, segments: [Segment; 2], offset: u64) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on.
        complete(segments, offset, |segments, offset| unsafe { system::read(&self.file, segments, offset) })
    }

    /// Writes the segments in turn to `offset`.
    ///
    /// # Safety
    /// The segments are valid memory that nothing else writes to; otherwise as for [`SpillFile::read`].
    pub(crate) unsafe fn write(&self, segments: [Segment; 2], offset: u64) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on.
        complete(segments, offset, |segments, offset| unsafe { system::write(&self.file, segments, offset) })
    }
}

/// Repeats a transfer until everything is moved: the system may stop between two blocks.
pub(super) fn complete(
    mut segments: [Segment; 2],
    mut offset: u64,
    mut once: impl FnMut([Segment; 2], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while segments[0].len + segments[1].len > 0 {
        let moved = match once(segments, offset) {
            Ok(moved) => moved,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if moved == 0 || !moved.is_multiple_of(BLOCK) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += moved as u64;
        let mut left = moved;
        for segment in &mut segments {
            let done = left.min(segment.len);
            *segment = Segment { start: segment.start.wrapping_add(done), len: segment.len - done };
            left -= done;
        }
    }
    Ok(())
}

/// An error that names the folder if its disk is slower than `least` bytes per nanosecond.
pub(super) fn check_rates(folder: &Path, [read, write]: [f64; 2], least: f64) -> Result<(), TransferError> {
    let per_second = |rate: f64| (rate * 1e9) as u64;
    for (what, rate) in [("read", read), ("write", write)] {
        if rate < least {
            let (found, needed) = (per_second(rate), per_second(least));
            return Err(TransferError::Slow { folder: folder.into(), what, found, needed });
        }
    }
    Ok(())
}
