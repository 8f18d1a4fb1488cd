//! Several processes that train together, over the MPI that a cluster has.
//!
//! MPI is loaded when a process is one of several, and not before: a build needs none, and neither does a run of one process. Three
//! binary interfaces are known: the standard one (`libmpi_abi`), MPICH's and its relatives', and Open MPI's.
//!
//! - `library`: finding and loading it; `abi`: what differs between the three;
//! - `world`: the processes of a run, as the transport of exchange nodes and as [`plimsoll_plan::Ranks`];
//! - `limit`: a time-out for waits that cannot be left with an error, like those while MPI starts and ends;
//! - `speed`: how fast they pass messages to each other;
//! - `launch`: whether a process was started as one of several, and starting them with `mpirun`.

mod abi;
mod launch;
mod library;
mod limit;
mod speed;
mod world;

pub use launch::{LaunchError, launch, launched, start};
pub use library::LIBRARY_VARIABLE;
pub use speed::measure;
pub use world::World;

use thiserror::Error;

/// Why processes cannot be connected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MpiError {
    /// No library was found.
    #[error(
        "this process was started as one of several, but no MPI library was found ({reason}): put it where the loader looks \
         (LD_LIBRARY_PATH), or name it in {LIBRARY_VARIABLE}"
    )]
    Library {
        /// What the loader said.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{library} has no {symbol}: it is not an MPI library that can be used")]
    Symbol {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// A call failed.
    #[error("{call}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// What MPI says about it.
        reason: String,
    },
}
