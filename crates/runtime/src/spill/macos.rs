//! What a spill file needs from macOS.

pub use super::unix::{free_bytes, max_file_bytes, open_unlinked as open, process_cpu_ns};

use super::Segment;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// No filesystem of the system keeps its files in memory.
pub fn in_memory(_: &File) -> io::Result<Option<&'static str>> {
    Ok(None)
}

/// Does nothing: no such setting is known here.
pub fn prefer_latency() {}

/// Makes all later transfers bypass the page cache.
pub fn set_direct(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_nocache(file, true)?)
}

/// Space is allocated by writing.
pub fn reserve(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}

/// Uncached transfers take memory of any alignment.
pub fn memory_alignment(_: &File) -> usize {
    1
}

/// Uncached transfers leave nothing in the page cache.
pub fn cached(_: &File, _: usize) -> io::Result<bool> {
    Ok(false)
}

/// Reads from `offset` into the first segment that is not empty; returns how many bytes were read.
///
/// # Safety
/// The segments are valid memory that nothing else uses.
pub unsafe fn read(file: &File, segments: [Segment; 2], offset: u64) -> io::Result<usize> {
    let segment = if segments[0].len > 0 { segments[0] } else { segments[1] };
    // SAFETY: the caller's promise.
    file.read_at(unsafe { segment.bytes_mut() }, offset)
}

/// Writes the first segment that is not empty to `offset`; returns how many bytes were written.
///
/// # Safety
/// The segments are valid memory that nothing else writes to.
pub unsafe fn write(file: &File, segments: [Segment; 2], offset: u64) -> io::Result<usize> {
    let segment = if segments[0].len > 0 { segments[0] } else { segments[1] };
    // SAFETY: the caller's promise.
    file.write_at(unsafe { segment.bytes() }, offset)
}
