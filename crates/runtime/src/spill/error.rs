//! Why transfers fail, or a spill file cannot be used, and what to change.

use plimsoll_plan::in_words;
use std::path::PathBuf;
use thiserror::Error;

/// Why a transfer failed, or why a spill file could not be created.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TransferError {
    /// No file can be created in the folder.
    #[error("cannot spill to `{}`: {reason}; give --spill a folder that exists and can be written", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's answer.
        reason: String,
    },
    /// The folder's filesystem is in memory.
    #[error(
        "cannot spill to `{}`: it is a {filesystem}, whose files are memory; give --spill a folder on a disk",
        folder.display()
    )]
    Memory {
        /// The folder.
        folder: PathBuf,
        /// The type of filesystem.
        filesystem: &'static str,
    },
    /// The folder's filesystem has no direct I/O: what is written stays in the page cache.
    #[error(
        "cannot spill to `{}`: its filesystem has no direct I/O ({reason}), so spilled bytes would stay in memory; \
         give --spill a folder on a local disk",
        folder.display()
    )]
    Indirect {
        /// The folder.
        folder: PathBuf,
        /// What the filesystem refused or did.
        reason: String,
    },
    /// The disk has too little space.
    #[error(
        "cannot spill to `{}`: {} are needed and {} are free; free some, or give --spill another folder",
        folder.display(), words(*needed_bytes), words(*free_bytes)
    )]
    Full {
        /// The folder.
        folder: PathBuf,
        /// Length of the spill file.
        needed_bytes: u64,
        /// What the filesystem has left for this user.
        free_bytes: u64,
    },
    /// The process may not write files of this length.
    #[error(
        "cannot spill to `{}`: {} are needed and files of this process are limited to {}; raise `ulimit -f`",
        folder.display(), words(*needed_bytes), words(*limit_bytes)
    )]
    Limited {
        /// The folder.
        folder: PathBuf,
        /// Length of the spill file.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The disk is too slow.
    #[error(
        "cannot spill to `{}`: it {what}s {} per second and {} are needed; give --spill a folder on a faster disk, \
         or draw a higher line",
        folder.display(), words(*found), words(*needed)
    )]
    Slow {
        /// The folder.
        folder: PathBuf,
        /// `read` or `write`.
        what: &'static str,
        /// Bytes per second as measured.
        found: u64,
        /// The least bytes per second.
        needed: u64,
    },
    /// A copy between a device and host memory failed.
    #[error("a copy between the device and host memory failed: {0}")]
    Device(String),
    /// A transfer failed.
    #[error(
        "{what} {bytes} bytes at {offset} of the spill file in `{}` failed: {reason}; check the disk and its free \
         space, or give --spill another folder",
        folder.display()
    )]
    Transfer {
        /// The folder.
        folder: PathBuf,
        /// `reading`, `writing` or `reserving`.
        what: &'static str,
        /// Where in the file.
        offset: u64,
        /// How much.
        bytes: u64,
        /// The system's answer.
        reason: String,
    },
    /// The queue's memory or threads could not be created.
    #[error("the threads and buffers for spilling could not be had: {reason}")]
    Start {
        /// The system's answer.
        reason: String,
    },
}

fn words(bytes: u64) -> String {
    in_words(usize::try_from(bytes).unwrap_or(usize::MAX))
}
