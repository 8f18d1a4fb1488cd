//! The spill file: offloaded bytes on a disk.
//!
//! It has no name and allocates its disk space before the first step, so a full disk shows early and a killed process
//! leaves nothing behind. All of its traffic is direct I/O: offloaded bytes are on the disk and not in the page cache,
//! which counts as memory of this process's group.

mod error;
mod file;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "macos")), path = "elsewhere.rs")]
pub(super) mod system;
#[cfg(all(test, target_os = "linux"))]
pub(super) mod tests;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod unix;

pub use error::TransferError;
pub use file::SpillFile;

/// The unit of direct I/O: offsets of stores, and the bytes of each region of the file, are multiples of it.
pub const BLOCK: usize = 4096;

/// The most bytes that one system call moves.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// A range of memory that a transfer reads or writes.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub start: *mut u8,
    pub len: usize,
}

impl Segment {
    /// No memory.
    pub const EMPTY: Self = Self { start: std::ptr::null_mut(), len: 0 };

    /// # Safety
    /// The memory is valid while the slice lives, and nothing writes to it.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.start, self.len) } }
    }

    /// # Safety
    /// The memory is valid while the slice lives, and nothing else uses it.
    unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        if self.len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.start, self.len) } }
    }
}
