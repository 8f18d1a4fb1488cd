//! The kernels, each usable by itself: plain functions over slices, a [`Context`](crate::isa::Context) and scratch.
//!
//! A kernel's results do not depend on the number of threads, nor a row's on the rows beside it. [`math`] and [`float`]
//! are what the others share: vectorised functions, loops compiled for every instruction set, 16-bit floats.

pub mod attention;
pub mod conv;
pub mod elementwise;
pub mod float;
pub mod gemm;
pub mod index;
pub mod int8;
pub mod loss;
pub mod math;
pub(crate) mod movement;
pub mod norm;
pub mod pooling;
pub mod prune;
pub mod quantise;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod resize;
#[cfg(test)]
pub(crate) mod testing;
