//! What Linux and macOS have in common.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Creates a file and unlinks it at once.
pub fn open_unlinked(folder: &Path) -> io::Result<File> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let path = folder.join(format!(".plimsoll-spill-{}-{now}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).mode(0o600).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Bytes that the filesystem has left for this user, if it says.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let about = rustix::fs::fstatvfs(file)?;
    Ok((about.f_blocks > 0).then_some(about.f_bavail.saturating_mul(about.f_frsize)))
}

/// The longest file this process may write: writing beyond it ends the process.
pub fn max_file_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Processor time that this process has used so far.
pub fn process_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.max(0) as u64, used.tv_nsec as u32).as_nanos() as u64
}
