//! Systems on which this crate knows no direct I/O: no spill file can be created there.

use super::{BLOCK, Segment};
use std::fs::File;
use std::io;
use std::path::Path;

/// Always an error: nothing below is reached.
pub fn open(_: &Path) -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "spilling needs Linux or macOS"))
}

/// Unknown.
pub fn in_memory(_: &File) -> io::Result<Option<&'static str>> {
    Ok(None)
}

/// Unknown.
pub fn free_bytes(_: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

/// No limit is known.
pub fn max_file_bytes() -> u64 {
    u64::MAX
}

/// Unknown.
pub fn process_cpu_ns() -> u64 {
    0
}

/// Does nothing.
pub fn prefer_latency() {}

/// Refused.
pub fn set_direct(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refused.
pub fn reserve(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}

/// The most that any system asks for.
pub fn memory_alignment(_: &File) -> usize {
    BLOCK
}

/// Assumed.
pub fn cached(_: &File, _: usize) -> io::Result<bool> {
    Ok(true)
}

/// Refused.
///
/// # Safety
/// Nothing is touched.
pub unsafe fn read(_: &File, _: [Segment; 2], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refused.
///
/// # Safety
/// Nothing is touched.
pub unsafe fn write(_: &File, _: [Segment; 2], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
