//! What can go wrong with a GPU.

use thiserror::Error;

/// Why a GPU, or a library that is needed to use it, does not work.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CudaError {
    /// A library is not on this machine.
    #[error("{what} ({name}) cannot be loaded: {reason}")]
    Library {
        /// What it is.
        what: &'static str,
        /// Its file.
        name: String,
        /// The loader's words.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{what} has no function `{symbol}`: it is too old; CUDA 12.8 or newer is needed")]
    Symbol {
        /// What it is.
        what: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than the libraries that are used with it.
    #[error("the NVIDIA driver runs CUDA {found} at most, {needed} or newer is needed: update the driver")]
    OldDriver {
        /// The newest CUDA that it runs.
        found: String,
        /// The oldest one that will do.
        needed: String,
    },
    /// The machine has no such GPU.
    #[error("there is no GPU {index}: this machine has {count}")]
    NoDevice {
        /// The index that was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A function failed.
    #[error("{call} failed: {error}")]
    Call {
        /// The function.
        call: &'static str,
        /// The error, by name and in words.
        error: String,
    },
    /// Too little device memory is free.
    #[error("{needed} bytes of memory are needed on GPU {index}, {free} are free{holders}")]
    Full {
        /// The GPU.
        index: usize,
        /// Bytes asked for.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// Who holds the rest, in words.
        holders: String,
    },
    /// A GPU does not multiply in TF32.
    #[error(
        "{gpu} does not multiply in TF32, which needs compute capability 8.0 or newer: use f32 or 16-bit floats"
    )]
    NoTf32 {
        /// Its name.
        gpu: String,
    },
    /// A kernel does not compile.
    #[error("a kernel does not compile: {0}")]
    Compile(String),
}
