//! The file: where it may lie, how it takes its space, whole transfers.

use super::rates::demand;
use super::{BLOCK, PIECE, Part, SpillError, system};
use crate::arena::Arena;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The least that a disk must give: 32 MB a second.
const LEAST_BYTES_PER_NS: f64 = 0.032;

/// How often that is tried.
const SPEED_TRIES: usize = 4;

/// A file for what does not fit the arena: without a name, its space taken, past the system's cache of pages.
///
/// It is gone when it is dropped, or the process ends, in whatever way.
#[derive(Debug)]
pub struct SpillFile {
    pub(super) file: File,
    pub(super) folder: PathBuf,
    pub(super) bytes: u64,
    pub(super) memory_alignment: usize,
}

impl SpillFile {
    /// Creates the file in a folder and takes `bytes` (rounded up to whole blocks) of its disk. It reads as zeros.
    ///
    /// # Errors
    /// Everything that would keep a run from spilling there shows here: a folder that cannot be written, a
    /// filesystem in memory or without direct I/O, too little space.
    pub fn create(folder: &Path, bytes: u64) -> Result<Self, SpillError> {
        let bytes = bytes.next_multiple_of(BLOCK as u64);
        let unusable = |e: io::Error| SpillError::Folder { folder: folder.into(), reason: e.to_string() };
        let indirect = |reason| SpillError::Indirect { folder: folder.into(), reason };
        let file = system::open(folder).map_err(unusable)?;
        if let Some(filesystem) = system::in_memory(&file).map_err(unusable)? {
            return Err(SpillError::Memory { folder: folder.into(), filesystem });
        }
        system::go_direct(&file).map_err(|e| indirect(e.to_string()))?;
        let memory_alignment = system::memory_alignment(&file);
        let made = Self { file, folder: folder.into(), bytes, memory_alignment };
        if bytes > 0 {
            made.take_space()?;
            made.try_out()?;
        }
        Ok(made)
    }

    /// Length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The folder it was made in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Memory at multiples of this goes straight to and from the disk; other memory is copied by the queue's threads.
    pub fn memory_alignment(&self) -> usize {
        self.memory_alignment
    }

    fn take_space(&self) -> Result<(), SpillError> {
        let (folder, needed_bytes) = (self.folder.clone(), self.bytes);
        let limit_bytes = system::longest_file();
        if needed_bytes > limit_bytes {
            return Err(SpillError::Limited { folder, needed_bytes, limit_bytes });
        }
        let failed = |e: &io::Error| self.failure("reserving", 0, needed_bytes, e);
        let free = system::free_bytes(&self.file).map_err(|e| failed(&e))?;
        if let Some(free_bytes) = free.filter(|free| *free < needed_bytes) {
            return Err(SpillError::Full { folder, needed_bytes, free_bytes });
        }
        let taken = system::reserve(&self.file, needed_bytes)
            .and_then(|reserved| if reserved { Ok(()) } else { self.write_zeros() });
        taken.map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull => {
                SpillError::Full { folder, needed_bytes, free_bytes: free.unwrap_or(0) }
            }
            _ => failed(&e),
        })
    }

    pub(super) fn write_zeros(&self) -> io::Result<()> {
        let zeros = Arena::new(PIECE)?;
        for offset in (0..self.bytes).step_by(PIECE) {
            let bytes = (self.bytes - offset).min(PIECE as u64) as usize;
            // SAFETY: the part lies in the arena, which nobody else knows.
            unsafe { self.write([Part { start: zeros.at(0, bytes), bytes }, NO_PART], offset)? };
        }
        Ok(())
    }

    /// Moves a piece and a block both ways, looks whether they stayed in memory, and how long the piece took: a disk that is far
    /// too slow is refused, because steps would take many times what was predicted. One that something else keeps busy for a
    /// moment has other chances.
    fn try_out(&self) -> Result<(), SpillError> {
        let bytes = self.bytes.min(PIECE as u64) as usize;
        let failed = |what| {
            move |e: io::Error| match e.kind() {
                io::ErrorKind::InvalidInput => {
                    SpillError::Indirect { folder: self.folder.clone(), reason: e.to_string() }
                }
                _ => self.failure(what, 0, bytes as u64, &e),
            }
        };
        let zeros = Arena::new(bytes).map_err(failed("trying"))?;
        let part = |bytes| [Part { start: zeros.at(0, bytes), bytes }, NO_PART];
        // SAFETY: the part lies in the arena, which nobody else knows.
        let write = |at: usize| unsafe { self.write(part(bytes - at), at as u64) };
        // SAFETY: as above.
        let read = |at: usize| unsafe { self.read(part(bytes - at), at as u64) };
        let mut speed = Ok(());
        for _ in 0..SPEED_TRIES {
            let start = Instant::now();
            write(0).map_err(failed("writing"))?;
            let written = Instant::now();
            read(0).map_err(failed("reading"))?;
            let rate = |time: Duration| bytes as f64 / time.as_nanos().max(1) as f64;
            let (write_rate, read_rate) = (rate(written - start), rate(written.elapsed()));
            speed = demand(&self.folder, [read_rate, write_rate], LEAST_BYTES_PER_NS);
            if speed.is_ok() || bytes < PIECE {
                speed = Ok(());
                break;
            }
        }
        speed?;
        write(bytes - BLOCK).map_err(failed("writing"))?;
        read(bytes - BLOCK).map_err(failed("reading"))?;
        if system::cached(&self.file, bytes).map_err(failed("writing"))? {
            let reason = "what was written stays in the cache of pages".to_owned();
            return Err(SpillError::Indirect { folder: self.folder.clone(), reason });
        }
        Ok(())
    }

    /// The error of a transfer, in words.
    pub(super) fn failure(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
        error: &io::Error,
    ) -> SpillError {
        SpillError::Transfer { folder: self.folder.clone(), what, offset, bytes, reason: error.to_string() }
    }

    /// Reads from `offset` into the parts in turn.
    ///
    /// # Safety
    /// The parts are memory that nothing else uses. Offset and lengths are multiples of [`BLOCK`], addresses of the
    /// memory alignment; otherwise it is an error.
    pub(super) unsafe fn read(&self, parts: [Part; 2], offset: u64) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on.
        whole(parts, offset, |parts, offset| unsafe { system::read(&self.file, parts, offset) })
    }

    /// Writes the parts in turn to `offset`.
    ///
    /// # Safety
    /// The parts are memory that nothing else writes to; otherwise as for [`SpillFile::read`].
    pub(super) unsafe fn write(&self, parts: [Part; 2], offset: u64) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on.
        whole(parts, offset, |parts, offset| unsafe { system::write(&self.file, parts, offset) })
    }
}

/// Nothing to move.
pub(super) const NO_PART: Part = Part { start: std::ptr::null_mut(), bytes: 0 };

/// Repeats a transfer until all is moved: the system may stop between two blocks.
pub(super) fn whole(
    mut parts: [Part; 2],
    mut offset: u64,
    mut once: impl FnMut([Part; 2], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while parts[0].bytes + parts[1].bytes > 0 {
        let moved = match once(parts, offset) {
            Ok(moved) => moved,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if moved == 0 || !moved.is_multiple_of(BLOCK) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += moved as u64;
        let mut left = moved;
        for part in &mut parts {
            let gone = left.min(part.bytes);
            *part = Part { start: part.start.wrapping_add(gone), bytes: part.bytes - gone };
            left -= gone;
        }
    }
    Ok(())
}
