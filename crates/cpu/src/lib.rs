//! The fast CPU executor: arena, threads, kernels.

pub mod attention;
pub mod conv;
pub mod elementwise;
pub mod gemm;
pub mod index;
pub mod isa;
pub mod loss;
pub mod math;
pub mod norm;
pub mod pool;
pub mod pooling;
pub mod reduce;
