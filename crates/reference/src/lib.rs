//! The plain-loop executor that defines every op.
//!
//! [`evaluate`] computes one op, in one file per family, as in `plimsoll_graph::op`; [`Reference`] runs whole graphs, node by
//! node, in every element type, by a plan, and [`run_graph`] without one. All arithmetic is f64, in the order the loops are written, and a result is rounded once, to
//! the output's element type. Other executors are right when they come close to it (`crates/conformance` has the cases and
//! the tolerances, and compares this crate with golden numbers of another framework).
//!
//! Where to look: what an op computes is in its family's file, accumulation and rounding in `evaluate`, micro-batches and
//! states in `executor`.
//!
//! Nothing here is fast, on purpose: no threads, no arena, no in-place, no schedule. The crate takes plans only for their
//! graphs and states, and knows nothing of buffers, lines or offloading.
//!
//! ```
//! use plimsoll_graph::{Op, op::{Elementwise, Unary}};
//! use plimsoll_reference::evaluate;
//! use plimsoll_tensor::{DType, Tensor, TensorType};
//! let ty = TensorType::new(DType::F32, [2]);
//! let x = Tensor::from_f64(ty.clone(), &[-1.0, 2.0]).unwrap();
//! let relu = Op::Elementwise(Elementwise::Unary(Unary::Relu));
//! let y = evaluate(&relu, &[&x], &[], &[&ty])?;
//! assert_eq!(y[0].to_f64(), [0.0, 2.0]);
//! # Ok::<(), plimsoll_reference::EvaluateError>(())
//! ```

mod attention;
mod conv;
mod elementwise;
mod error;
mod evaluate;
mod executor;
mod index;
mod int8;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pool;
mod prune;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod tensor;

pub use error::EvaluateError;
pub use evaluate::evaluate;
pub use executor::{GraphResults, Reference, run_graph};
