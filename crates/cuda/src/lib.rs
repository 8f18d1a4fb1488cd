//! The executor for NVIDIA GPUs.

#[cfg(feature = "emulator")]
pub mod emulator;
mod kernels;
pub mod target;

pub use kernels::{Call, Fault, Kernel, Launch, Matrix, Operand, PRELUDE, Parameter, Pointer, Product, find};
