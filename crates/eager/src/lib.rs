//! Tensors that compute at once, under a line.
//!
//! The ops, their types, errors, random numbers and gradients are those of graphs: a method is prepared once for operands of
//! some types, from the graph builder's method of the same name, and looked up afterwards. Kernels are an executor's, run
//! one by one ([`plimsoll_runtime::KernelExecutor`]).
//!
//! | to find | look at |
//! |---|---|
//! | tensors, operators, methods | [`Tensor`], [`Value`], `ops.rs` |
//! | how a method is prepared, and what runs in place | `program.rs`; how it is looked up: `call.rs` |
//! | memory under a line, fragmentation | `pool.rs`; who holds it, and what is offloaded: `memory.rs` |
//! | gradients | [`Tape`], [`checkpoint`] |
//! | several devices | [`Eager::logical`], [`Tensor::to`], [`log_placement`] |
//! | a function as a planned step | [`compile`], [`Compiled`] |
//! | training loops | [`Optimizer`] |
//!
//! ```
//! use plimsoll_eager::tensor;
//! let x = tensor([[1.0f32, -2.0], [3.0, 0.5]])?;
//! let y = (x.relu() * 2.0 + &x).get()?;
//! assert_eq!(y.to_string(), "[[ 3.  -2. ]\n [ 9.   1.5]]");
//! # Ok::<(), plimsoll_eager::Error>(())
//! ```

mod call;
mod compile;
mod context;
mod display;
mod error;
mod memory;
mod ops;
mod optimizer;
mod placement;
mod pool;
mod program;
mod spill;
mod tape;
mod tensor;

pub use compile::{Compiled, compile, layer};
pub use context::{Eager, EagerBuilder, PoolReport, Scope};
pub use error::{Error, OutOfMemory, Result};
pub use memory::LiveValue;
pub use ops::{concat, op, stack};
pub use optimizer::Optimizer;
pub use placement::log_placement;
pub use pool::{MOST_CACHED_BYTES, MOST_FREE_BYTES};
pub use tape::{Tape, checkpoint};
pub use tensor::{IntoOperand, Tensor, Value, tensor};
