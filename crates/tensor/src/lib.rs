//! What every other crate agrees on about tensors: element types, shapes, host tensors, and random numbers.
//!
//! - [`DType`], [`Shape`] and [`TensorType`] (printed and parsed as `f32[2,3]`) describe a dense, row-major tensor;
//!   [`Field`] describes one input or target of one example.
//! - [`Tensor`] owns its elements in host memory, and is made of vectors and nested arrays of an [`Element`] without a
//!   copy; with the Cargo feature `ndarray` of arrays of that crate, too. [`round()`] is the one rounding from f64 to any element type.
//! - [`random::Stream`] is counter-based: a number is a function of (seed, step, stream, example, element), so the order of
//!   evaluation cannot change it. [`random::Lcg`] is a sequential generator for search heuristics and tests.
//! - [`code_values`] and [`code_of`] are the 8-bit code book of quantised optimizer states.
//! - [`kept_at`] and [`kept_elements`] are about masks of one bit per element, of pruned weights.
//! - [`all_finite`] and [`Finite`] find NaN and infinities in raw bytes.
//!
//! ```
//! use plimsoll_tensor::Tensor;
//! let x = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
//! assert_eq!((x.ty().to_string().as_str(), x.ty().bytes()), ("f32[2,3]", 24));
//! assert_eq!(x.as_slice::<f32>().unwrap()[4], 5.0);
//! ```

mod codes;
mod dtype;
mod element;
mod field;
mod finite;
mod host;
mod int8;
mod masks;
#[cfg(feature = "ndarray")]
mod ndarrays;
pub mod random;
mod round;
mod shape;

pub use codes::{CODE_BLOCK, code_bounds, code_of, code_values};
pub use dtype::{DType, bf16, f16};
pub use element::{Element, Nested};
pub use field::Field;
pub use finite::{Finite, all_finite};
pub use host::{Tensor, TensorError};
pub use int8::{SIGMOID_SCALE, fixed_point, fixed_point_of, grid_code, sigmoid_codes};
pub use masks::{is_kept, kept_at, kept_elements, mask_bytes};
pub use round::round;
pub use shape::{Shape, TensorType};
