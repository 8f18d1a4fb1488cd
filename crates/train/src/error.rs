//! Errors of planning, training and files.

use crate::metrics::MetricError;
use crate::{Diverged, Overload, Saved};
use plimsoll_data::DataError;
use plimsoll_export::ExportError;
use plimsoll_graph::GraphError;
use plimsoll_plan::{ExecuteError, PlanError, VerifyError};
use plimsoll_transform::SplitError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a run could not start or continue.
#[derive(Error)]
pub enum TrainError {
    /// The model's graph cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The batch cannot be split as asked.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The step cannot be planned under the line.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that failed verification: a bug, never the user's fault.
    #[error("the plan failed its check, please report this: {0}")]
    Verify(#[from] VerifyError),
    /// The executor failed.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A model could not be exported or imported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A metric refused a batch.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// A weights file or a checkpoint does not hold what the model needs.
    #[error("{path}: {reason}")]
    Weights {
        /// The file.
        path: String,
        /// What is wrong, and with which tensor.
        reason: String,
    },
    /// The tensors of a weights file are not those of the model.
    #[error("{path} holds the weights of another model: {}", listed(differences))]
    WeightsDiffer {
        /// The file.
        path: String,
        /// What differs, a sentence for each tensor.
        differences: Vec<String>,
    },
    /// Model and data do not fit each other.
    #[error("model `{model}` and data `{data}` do not fit: {reason}")]
    Mismatch {
        /// The model.
        model: String,
        /// The data set.
        data: String,
        /// What differs, and what to change.
        reason: String,
    },
    /// The loss, a gradient or a parameter is not finite.
    #[error(transparent)]
    Diverged(Box<Diverged>),
    /// A state to be saved is not finite.
    #[error("`{state}` holds numbers that are not finite: nothing is saved")]
    NotFinite {
        /// The state.
        state: String,
    },
    /// A listener asked to stop at once.
    #[error("stopped after step {step}: {saved}")]
    Interrupted {
        /// Steps done.
        step: u64,
        /// Whether the run can be resumed from a checkpoint.
        saved: Saved,
    },
    /// A device of the run was lost: nothing can be read from it any more.
    #[error(
        "{device} was lost after step {step}: {reason}; {}",
        last_checkpoint.as_ref().map_or("there is no checkpoint".into(), |path| format!("the last checkpoint is {}", path.display()))
    )]
    DeviceLost {
        /// The device.
        device: String,
        /// The driver's words.
        reason: String,
        /// Steps done.
        step: u64,
        /// The run's newest checkpoint, which it can be resumed from.
        last_checkpoint: Option<PathBuf>,
    },
    /// Memory outside the plan came close to the line.
    #[error(transparent)]
    Overload(Box<Overload>),
    /// The system's error in a program's own code, so that `plimsoll::Result` can be that of `main`.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process of the run cannot go on.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The process.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// The connection to the other processes of the run failed.
    #[error("the connection to the other ranks failed: {0}")]
    Ranks(String),
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// A file could not be written; what was there before is untouched.
    #[error("{path} could not be saved, and what was there before is untouched: {source}")]
    Save {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// As the message: that is what a program shows whose `main` returns the error.
impl fmt::Debug for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The most differences that a message lists.
const MOST_LISTED: usize = 12;

/// A list that is not too long.
fn listed(sentences: &[String]) -> String {
    let listed = sentences[..sentences.len().min(MOST_LISTED)].join("; ");
    match sentences.len().saturating_sub(MOST_LISTED) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

impl TrainError {
    /// A file that could not be written.
    pub(crate) fn save(path: &Path, source: io::Error) -> Self {
        Self::Save { path: path.display().to_string(), source }
    }

    /// A file that could not be read.
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}
