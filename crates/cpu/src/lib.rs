//! The fast CPU executor.
//!
//! [`Cpu`] runs plans. Each layer below knows only those above it in this list:
//!
//! - [`isa`]: the instruction set, and the context that every kernel gets; [`threads`]: the thread pool;
//! - [`kernels`]: the computations, each usable by itself;
//! - `dispatch`: which kernel runs an op, how it is called and what it costs; [`CpuTarget`] is the planner's view of it,
//!   [`CpuDevice`] the runtime's.
//!
//! Results never depend on the number of threads, nor a row's on the rows beside it.

mod device;
mod dispatch;
mod executor;
pub mod isa;
pub mod kernels;
pub mod threads;

pub use device::{CpuCall, CpuDevice};
pub use dispatch::CpuTarget;
pub use executor::{Cpu, CpuError, DISK_STAGING_BYTES};
