//! A file for what does not fit the arena, and the threads that read and write it while kernels run.
//!
//! A spill file has no name and takes its disk space before the first step, so a full disk shows early and a kill
//! leaves nothing behind. All of its traffic is direct I/O: spilled bytes are on the disk, not in the system's cache
//! of pages, which counts as memory of this process's group.

mod error;
mod file;
mod queue;
mod rates;
#[cfg_attr(target_os = "linux", path = "spill/linux.rs")]
#[cfg_attr(target_os = "macos", path = "spill/macos.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "macos")), path = "spill/elsewhere.rs")]
mod system;
#[cfg(all(test, target_os = "linux"))]
mod tests;

pub use error::SpillError;
pub use file::SpillFile;
pub use queue::{SpillQueue, Ticket};
pub use rates::{Rates, disk_rates};

/// What direct I/O moves: offsets of stores, and the room of each region of the file, are multiples of it.
pub const BLOCK: usize = 4096;

/// Memory of a [`SpillQueue`] for what cannot go straight between the disk and the caller's memory.
pub const STAGING_BYTES: usize = LANES * PIECE;

/// Threads of a queue: while one copies, the disk works for the other.
const LANES: usize = 2;

/// The most that one call of the system moves.
const PIECE: usize = 1 << 20;

/// A stretch of memory that takes part in a transfer.
#[derive(Clone, Copy)]
struct Part {
    start: *mut u8,
    bytes: usize,
}
