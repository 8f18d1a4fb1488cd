//! The fast CPU executor: arena, threads, kernels.
//!
//! [`Cpu`] runs plans; the modules below hold its kernels, each usable by itself. Results never depend on the number
//! of threads, nor a row's on the rows beside it.

mod arena;
pub mod attention;
mod call;
pub mod conv;
mod cost;
pub mod elementwise;
mod executor;
pub mod float;
pub mod gemm;
pub mod index;
pub mod isa;
pub mod loss;
pub mod math;
mod movement;
pub mod norm;
pub mod pool;
pub mod pooling;
pub mod quantise;
pub mod random;
pub mod reduce;
pub mod resize;
mod shadow;
pub mod spill;
mod stream;
mod target;

pub use executor::{Cpu, StepTimes};
pub use target::CpuTarget;
