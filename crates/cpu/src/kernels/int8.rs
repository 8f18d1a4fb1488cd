//! Layers of bytes: u8 codes times signed 8-bit weights, summed in 32 bits. Sums of integers are exact, so neither instruction sets nor
//! threads nor blocks change a bit.
//!
//! Convolutions and dense layers are products (`product`): micro-kernels read codes straight from the image, or, where windows reach over the
//! edge, from a copy of a few lines with codes of zero around them; a row of a window is then one run of bytes, and nothing is gathered per
//! pixel. Weights are packed as words of four k, and their sums are multiplied by the input's code of zero once, not each code. Sums become
//! codes in registers.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod depthwise;
mod elementwise;
mod kernel;
mod lines;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod pooling;
mod product;
#[cfg(test)]
mod tests;

pub(crate) use depthwise::depthwise_work;
pub use depthwise::{depthwise, depthwise_workspace};
pub use elementwise::{Operand, add, dequantize, look_up, mul, quantize};
pub use lines::ConvShape;
pub(crate) use pack::COLUMNS;
pub use pack::Finish;
pub use pooling::{PoolShape, Spans, average_pool, max_pool, max_pool_workspace, mean, resize};
pub(crate) use product::{Work, conv_work, dense_work};
pub use product::{conv, conv_workspace, dense, dense_workspace};
