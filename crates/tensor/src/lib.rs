//! Element types, shapes, host tensors and counter-based random numbers.
//!
//! ```
//! use plimsoll_tensor::{DType, HostTensor, TensorType};
//! let x = HostTensor::from_f64(TensorType::new(DType::F32, [2, 3]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
//! assert_eq!(x.ty().bytes(), 24);
//! assert_eq!(x.to_f64()[4], 5.0);
//! ```

mod codes;
mod dtype;
mod field;
mod finite;
mod host;
pub mod random;
mod round;
mod shape;

pub use codes::{CODE_BLOCK, code_bounds, code_of, code_values};
pub use dtype::{DType, bf16, f16};
pub use field::Field;
pub use finite::{Finite, all_finite};
pub use host::{HostTensor, TensorError};
pub use round::round;
pub use shape::{Shape, TensorType};
