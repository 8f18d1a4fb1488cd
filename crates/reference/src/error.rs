//! Why an op could not be evaluated.

use plimsoll_graph::TypeError;
use plimsoll_tensor::TensorType;
use thiserror::Error;

/// Why an op could not be evaluated.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EvaluateError {
    /// The op does not accept its inputs.
    #[error("{op}({}): {reason}", types(inputs))]
    Type {
        /// The op's name.
        op: &'static str,
        /// The types it was given.
        inputs: Vec<TensorType>,
        /// What is wrong.
        reason: TypeError,
    },
    /// The outputs asked for are not the ones the op gives.
    #[error("{op} gives ({}), not ({})", types(given), types(asked))]
    Outputs {
        /// The op's name.
        op: &'static str,
        /// The types that the op gives.
        given: Vec<TensorType>,
        /// The types that were asked for.
        asked: Vec<TensorType>,
    },
    /// The accumulators do not belong to the op's folding outputs.
    #[error("{op} folds into ({}), not into accumulators ({})", types(folds), types(accumulators))]
    Accumulators {
        /// The op's name.
        op: &'static str,
        /// The types of the outputs that fold.
        folds: Vec<TensorType>,
        /// The types of the accumulators given.
        accumulators: Vec<TensorType>,
    },
    /// An index or label outside its range.
    #[error("{op}: {what} {value} at position {position} is outside 0..{range}")]
    OutOfRange {
        /// The op's name.
        op: &'static str,
        /// What the value is, like `label`.
        what: &'static str,
        /// The value.
        value: i64,
        /// Which element of its tensor it is, in row-major order.
        position: usize,
        /// One past the largest value allowed.
        range: usize,
    },
    /// A mask does not have as many bits as there are values.
    #[error("the mask keeps another number of elements than there are values")]
    Mask,
    /// The op passes values between devices, so it means nothing by itself.
    #[error("{op} runs in a plan of several devices")]
    Devices {
        /// The op's name.
        op: &'static str,
    },
}

fn types(list: &[TensorType]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
