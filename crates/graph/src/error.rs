//! Errors that name the op, the layer and the shapes.

use plimsoll_tensor::TensorType;
use thiserror::Error;

/// Why an op does not accept its inputs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct TypeError(pub String);

/// Why a graph could not be built, checked or parsed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GraphError {
    /// An op does not accept its inputs.
    #[error("{}{op}({}): {reason}", place(layer), types(inputs))]
    Type {
        /// The layer's name.
        layer: String,
        /// The op's name.
        op: &'static str,
        /// The types it was given.
        inputs: Vec<TensorType>,
        /// What is wrong, and what would be right.
        reason: TypeError,
    },
    /// A graph that breaks an invariant; `check` names it.
    #[error("the graph is not valid: {0}")]
    Broken(String),
    /// A model, loss or choice that does not fit the rest: what to change.
    #[error("{0}")]
    Choice(String),
    /// Text that is not a graph.
    #[error("line {line}: {reason}")]
    Parse {
        /// One-based line number.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// The layer's name, if it has one: a model's own nodes have none.
fn place(layer: &str) -> String {
    if layer.is_empty() { String::new() } else { format!("layer `{layer}`: ") }
}

fn types(list: &[TensorType]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
