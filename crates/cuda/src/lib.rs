//! The executor for NVIDIA GPUs.

mod kernels;

pub use kernels::{Call, Kernel, Launch, Matrix, Operand, PRELUDE, Parameter, Pointer, Product, find};
