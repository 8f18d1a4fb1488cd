//! What can go wrong, and what to do about it.

use crate::LiveValue;
use plimsoll_cuda::CudaError;
use plimsoll_graph::GraphError;
use plimsoll_plan::{ExecuteError, PlanError, Unsupported, in_words};
use plimsoll_runtime::spill::TransferError;
use plimsoll_tensor::{DType, TensorError, TensorType};
use std::fmt;
use thiserror::Error;

/// The result of eager work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an op, a tape or a compiled function has no result.
#[derive(Error)]
pub enum Error {
    /// An op does not accept its operands; the message is the graph's.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The executor has no kernel for an op.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A kernel refused its operands, as for an index out of range.
    #[error("{op}: {reason}")]
    Kernel {
        /// The op.
        op: &'static str,
        /// Why.
        reason: String,
    },
    /// The values do not fit under the line, or in the device's memory.
    #[error(transparent)]
    OutOfMemory(#[from] Box<OutOfMemory>),
    /// Elements that do not fit a shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Elements were asked for as another type.
    #[error("{ty} has elements of {}, not {asked}: cast it first, or ask for {}", ty.dtype, ty.dtype)]
    Elements {
        /// The tensor's type.
        ty: TensorType,
        /// The type asked for.
        asked: DType,
    },
    /// One number was asked of a tensor that has another count.
    #[error("{0} is not one number: reduce it first, or read all of it with `to_vec`")]
    NotOneNumber(TensorType),
    /// A device failed, or a kernel that ran on it beside the program: an index out of range is told when a value is read next.
    #[error("{0}")]
    Device(String),
    /// A GPU cannot be used.
    #[error(transparent)]
    Gpu(#[from] CudaError),
    /// Operands of one op are on different devices.
    #[error(
        "{op}: operands are on two devices, {first} and {second}: copy one to the other with `tensor.to(&device)`"
    )]
    Devices {
        /// The op.
        op: &'static str,
        /// The device of one.
        first: String,
        /// The device of another.
        second: String,
    },
    /// Operands of one op are marked as batches of different sizes or blocks.
    #[error("{op}: operands are marked as batches of {0} and {1} examples (in blocks of {2} and {3}): mark them alike", first.0, second.0, first.1, second.1)]
    Batches {
        /// The op.
        op: &'static str,
        /// Examples and block of one.
        first: (usize, usize),
        /// Examples and block of another.
        second: (usize, usize),
    },
    /// The default context was configured after its first use.
    #[error("the default context is in use already: configure it before the first tensor is made")]
    Late,
    /// A tape that was used up.
    #[error(
        "this tape was used already: make it with `Tape::persistent()` to take several gradients from it"
    )]
    TapeUsed,
    /// A tensor that the tape does not know.
    #[error(
        "{what} ({ty}) was not watched: call `tape.watch(&tensor)` before it is computed with; a network's variables are watched when it is called after the tape was made"
    )]
    NotWatched {
        /// Which: the loss, or a variable by its index.
        what: String,
        /// Its type.
        ty: TensorType,
    },
    /// A value that is not there while a function is traced.
    #[error(
        "{what}: this is a tracing tensor ({ty}), which has no value: return it from the function, and read it outside"
    )]
    Tracing {
        /// What was tried.
        what: &'static str,
        /// Its type.
        ty: TensorType,
    },
    /// Inputs of a compiled function that are of other types than it was traced for.
    #[error(
        "the function was compiled for ({compiled}), not ({given}): compile it for these, or with `.trace_new_types()`"
    )]
    Signature {
        /// The types it was compiled for.
        compiled: String,
        /// The types given.
        given: String,
    },
    /// Something given to a function that does not fit it.
    #[error("{0}")]
    Argument(String),
    /// A compiled function does not fit under its line.
    #[error(transparent)]
    Plan(#[from] Box<PlanError>),
    /// A compiled function could not run.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Threads or memory could not be had from the system.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The spill file failed.
    #[error(transparent)]
    Spill(#[from] TransferError),
}

/// As the message: that is what a program shows whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An op that would have crossed the line, or for which the device has no memory.
#[derive(Debug, Error)]
#[error("{op} needs {} more for {shapes}: {} of values are held{}{}", in_words(*asked), in_words(*held), limit(*line, device.as_deref()), listed(holders))]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub asked: usize,
    /// The op.
    pub op: &'static str,
    /// The type of the value that did not fit.
    pub shapes: String,
    /// Bytes of all live values.
    pub held: usize,
    /// The line.
    pub line: usize,
    /// The device's words, if the line would have allowed it.
    pub device: Option<String>,
    /// Who holds them, the largest first.
    pub holders: Vec<LiveValue>,
}

/// What there is no more of.
fn limit(line: usize, device: Option<&str>) -> String {
    match device {
        Some(reason) => format!(", and the device gives no more ({reason})"),
        None => format!(" under a line of {}", in_words(line)),
    }
}

/// The largest holders, a line each.
fn listed(list: &[LiveValue]) -> String {
    let shown = list.iter().take(8).map(|value| format!("\n  {value}"));
    let rest = list.len().saturating_sub(8);
    let rest = (rest > 0).then(|| format!("\n  and {rest} more"));
    shown.chain(rest).collect()
}
