//! Why a machine file is refused.

use std::path::PathBuf;
use thiserror::Error;

/// Why a machine file is refused. Its text says what to change.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MachineError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why, and what there is instead.
        reason: String,
    },
    /// A line of it is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to change.
        message: String,
    },
}
