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
//! | several devices, GPUs | [`Eager::logical`], [`EagerBuilder::on`], [`Tensor::to`], [`log_placement`] |
//! | models and layers on tensors | [`Network`] |
//! | training loops | [`Optimizer`] |
//! | a function as a planned step | [`compile`], [`Compiled`]; how it is traced: `trace.rs` |
//! | one with states, as a training step | [`compile_step`], [`States`] |
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
mod network;
mod ops;
mod optimizer;
mod placement;
mod pool;
mod program;
mod programs;
mod spill;
mod states;
mod tape;
mod tensor;
mod trace;

pub use compile::{Compiled, compile, compile_step};
pub use context::{Eager, EagerBuilder, PoolReport, Scope};
pub use error::{Error, OutOfMemory, Result};
pub use memory::LiveValue;
pub use network::{Inputs, Network};
pub use ops::{concat, op, stack};
pub use optimizer::{Optimizer, Variables};
pub use placement::log_placement;
pub use pool::{MOST_CACHED_BYTES, MOST_FREE_BYTES};
pub use states::{Part, States};
pub use tape::{Tape, checkpoint};
pub use tensor::{IntoOperand, Tensor, Value, tensor};
pub use trace::layer;
