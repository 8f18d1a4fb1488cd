//! What a spill file asks of macOS.

use super::Part;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file without a name: it has one for a moment.
pub fn open(folder: &Path) -> io::Result<File> {
    let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let path = folder.join(format!(".plimsoll-spill-{}-{moment}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).mode(0o600).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// No filesystem of the system keeps its files in memory.
pub fn in_memory(_: &File) -> io::Result<Option<&'static str>> {
    Ok(None)
}

/// What the filesystem has left for this user; nothing where it does not tell.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and a struct of the right type to fill.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut about) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let free = u64::from(about.f_bavail).saturating_mul(about.f_frsize);
    Ok((about.f_blocks > 0).then_some(free))
}

/// Nothing is known that would help.
pub fn hurry() {}

/// Processor time that this process has taken so far.
pub fn busy_ns() -> u64 {
    let mut busy = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of the right type to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut busy) };
    Duration::new(busy.tv_sec.max(0) as u64, busy.tv_nsec as u32).as_nanos() as u64
}

/// The longest file this process may write: beyond it, writing ends the process.
pub fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a struct of the right type to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Makes all later transfers go past the cache of pages.
pub fn go_direct(file: &File) -> io::Result<()> {
    // SAFETY: an open file; the command takes an integer.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Space is taken by writing.
pub fn reserve(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}

/// Transfers past the cache take any memory.
pub fn memory_alignment(_: &File) -> usize {
    1
}

/// The system keeps its word.
pub fn cached(_: &File, _: usize) -> io::Result<bool> {
    Ok(false)
}

/// Reads from `offset` into the first part that is not empty; returns how much was read.
///
/// # Safety
/// The parts are memory that nothing else uses.
pub unsafe fn read(file: &File, parts: [Part; 2], offset: u64) -> io::Result<usize> {
    let part = if parts[0].bytes > 0 { parts[0] } else { parts[1] };
    // SAFETY: the caller's promise.
    file.read_at(unsafe { std::slice::from_raw_parts_mut(part.start, part.bytes) }, offset)
}

/// Writes the first part that is not empty to `offset`; returns how much was written.
///
/// # Safety
/// The parts are memory that nothing else writes to.
pub unsafe fn write(file: &File, parts: [Part; 2], offset: u64) -> io::Result<usize> {
    let part = if parts[0].bytes > 0 { parts[0] } else { parts[1] };
    // SAFETY: the caller's promise.
    file.write_at(unsafe { std::slice::from_raw_parts(part.start, part.bytes) }, offset)
}
