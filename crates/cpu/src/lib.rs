//! The fast CPU executor.
//!
//! [`Cpu`] runs plans. Each layer below knows only those above it in this list:
//!
//! - [`isa`]: the instruction set, and the context that every kernel gets; [`threads`]: the thread pool;
//! - [`kernels`]: the computations, each usable by itself;
//! - `dispatch`: which kernel runs an op, how it is called and what it costs; [`CpuTarget`] is the planner's view of it;
//! - [`runtime`]: arena, step loop, transfer queue, spill file, checked mode.
//!
//! Results never depend on the number of threads, nor a row's on the rows beside it.

mod dispatch;
mod executor;
pub mod isa;
pub mod kernels;
pub mod runtime;
pub mod threads;

pub use dispatch::CpuTarget;
pub use executor::{Cpu, CpuError};
pub use runtime::StepTimes;
pub use runtime::transfer::{Rates, disk_rates};
