//! Settings of the training loop: checkpoints, validations, time limit, trace.

use super::Trainer;
use crate::Monitor;
use crate::metrics::MetricSpec;
use plimsoll_nn::step;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where checkpoints are saved, and how often.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointSettings {
    pub folder: PathBuf,
    /// Steps between two; `None` for one at the end and after the best validations.
    pub every: Option<u64>,
}

/// Where the trace of the first steps is written.
#[derive(Clone, Debug)]
pub(crate) struct TraceSettings {
    pub path: PathBuf,
    pub steps: u64,
}

impl Trainer {
    /// Writes a trace of the first `steps` steps of a session, at least one, to a file that Perfetto shows (ui.perfetto.dev):
    /// kernels of every thread, transfers, input workers, and memory. A process writes one trace at a time.
    ///
    /// ```no_run
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_train::Trainer;
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).trace("lenet.pftrace", 5);
    /// ```
    pub fn trace(self, path: impl Into<PathBuf>, steps: u64) -> Self {
        Self { trace: Some(TraceSettings { path: path.into(), steps: steps.max(1) }), ..self }
    }

    /// Saves checkpoints in this folder, which is made if it is not there: after every `every` steps, after the best validation so far, and when
    /// [`crate::Session::fit`] ends or is stopped.
    pub fn checkpoints(self, folder: impl Into<PathBuf>, every: Option<u64>) -> Self {
        Self { checkpoints: Some(CheckpointSettings { folder: folder.into(), every }), ..self }
    }

    /// The folder of checkpoints.
    pub(crate) fn checkpoint_folder(&self) -> Option<&Path> {
        self.checkpoints.as_ref().map(|settings| settings.folder.as_path())
    }

    /// How many of the last checkpoints to keep, at least one, besides the best. By default, two.
    pub fn keep(self, checkpoints: usize) -> Self {
        Self { keep: checkpoints.max(1), ..self }
    }

    /// The figure by which validations are compared; by default, the loss.
    pub fn monitor(self, monitor: Monitor) -> Self {
        Self { monitor, ..self }
    }

    /// Metrics of validations. Evaluations then output the model's scores or values, and the plan accounts for them. A metric of
    /// more than [`crate::metrics::MAX_REPORTED`] figures is not in events: read it in [`crate::Session::metrics`].
    pub fn metrics(self, metrics: &[MetricSpec]) -> Self {
        if metrics.is_empty() {
            return self;
        }
        Self { metrics: metrics.to_vec(), report: step::Report::Output, ..self }
    }

    /// Validates every `steps` steps, instead of after each epoch.
    pub fn validate_every(self, steps: u64) -> Self {
        Self { validate_every: Some(steps), ..self }
    }

    /// Counts `steps` steps as an epoch, independent of the data's length.
    pub fn steps_per_epoch(self, steps: u64) -> Self {
        Self { steps_per_epoch: Some(steps), ..self }
    }

    /// Ends [`crate::Session::fit`] after the step in which the limit is reached, with a checkpoint to resume from.
    pub fn time_limit(self, limit: Duration) -> Self {
        Self { time_limit: Some(limit), ..self }
    }
}
