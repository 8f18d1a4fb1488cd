//! Why a model could not be written or read.

use plimsoll_graph::GraphError;
use std::io;
use std::path::Path;
use thiserror::Error;

/// Why a model could not be exported or imported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// An op of the model has no counterpart in the format.
    #[error("{}{format} has no op for `{op}`{reason}", place(layer))]
    Unsupported {
        /// The format.
        format: &'static str,
        /// The layer's name.
        layer: String,
        /// The op.
        op: String,
        /// What of it is missing, with its punctuation; may be empty.
        reason: String,
    },
    /// The model's graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A weight is NaN or infinite.
    #[error("`{0}` holds numbers that are not finite: the model is not exported")]
    NotFinite(String),
    /// Weights that could not be read.
    #[error("{0}")]
    Weights(String),
    /// A file is not a model that can be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

fn place(layer: &str) -> String {
    if layer.is_empty() { String::new() } else { format!("layer `{layer}`: ") }
}

impl ExportError {
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.display().to_string(), source }
    }
}
