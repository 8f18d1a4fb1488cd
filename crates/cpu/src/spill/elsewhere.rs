//! Systems without a way past the cache of pages that this crate knows: no spill file can be made there.

use super::{BLOCK, Part};
use std::fs::File;
use std::io;
use std::path::Path;

/// Always an error: everything else is never reached.
pub fn open(_: &Path) -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "spilling needs Linux or macOS"))
}

/// Not known.
pub fn in_memory(_: &File) -> io::Result<Option<&'static str>> {
    Ok(None)
}

/// Not known.
pub fn free_bytes(_: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Nothing is known that would help.
pub fn hurry() {}

/// Not known.
pub fn busy_ns() -> u64 {
    0
}

/// No limit is known.
pub fn longest_file() -> u64 {
    u64::MAX
}

/// Refused.
pub fn go_direct(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Nothing is promised.
pub fn reserve(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}

/// The most that any system asks for.
pub fn memory_alignment(_: &File) -> usize {
    BLOCK
}

/// To be assumed.
pub fn cached(_: &File, _: usize) -> io::Result<bool> {
    Ok(true)
}

/// Refused.
///
/// # Safety
/// Nothing is touched.
pub unsafe fn read(_: &File, _: [Part; 2], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refused.
///
/// # Safety
/// Nothing is touched.
pub unsafe fn write(_: &File, _: [Part; 2], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
