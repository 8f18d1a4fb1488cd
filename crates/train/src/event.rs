//! What a run tells while it goes on.

use crate::Held;
use std::time::Duration;

/// Loss and accuracy over a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss per row.
    pub loss: f64,
    /// Share of rows whose predicted class is the label; `None` for models that never hold all logits.
    pub accuracy: Option<f64>,
    /// Examples seen.
    pub examples: u64,
    /// Whether labels are classes, so that the loss may be one of which exp is a perplexity.
    pub classes: bool,
}

/// The loss scale of a run in f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The scale of the next step.
    pub scale: f64,
    /// Steps of the run that were skipped so far, because a gradient was not finite.
    pub skipped: u64,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainEvent<'e> {
    /// A step is done.
    Step {
        /// Steps done so far, those before a resume included.
        step: u64,
        /// Steps of the whole run.
        steps: u64,
        /// The epoch, from 0.
        epoch: u64,
        /// The step's loss.
        loss: f64,
        /// Examples of the step.
        examples: usize,
        /// Time of the step, data included.
        time: Duration,
        /// The loss scale and what it has come to, in f16.
        scale: Option<Scale>,
    },
    /// The test part was evaluated: after an epoch, every so many steps, or at the end.
    Validation {
        /// Steps done so far.
        step: u64,
        /// The epoch, from 0.
        epoch: u64,
        /// Mean loss over the steps since the last validation.
        train_loss: f64,
        /// The test part's figures.
        evaluation: Evaluation,
        /// Those of the trainer's metrics, by name.
        figures: &'e [(String, f64)],
        /// Validations since the best one: zero if this is the best so far.
        since_best: u64,
    },
    /// The process holds more than was planned, and is not yet close to the line. Told once in a run.
    AbovePlan {
        /// Steps done so far.
        step: u64,
        /// The load sheet's total.
        planned_bytes: usize,
        /// What the process holds.
        held: Held,
    },
}

/// What a listener wants; of two wishes, the later one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    /// Go on.
    Continue,
    /// End the run after this event, with a last evaluation.
    Stop,
    /// As `Stop`, and then go back to the best validation, if the trainer names a folder for checkpoints.
    Restore,
    /// Leave at once: [`crate::Session::fit`] saves a checkpoint, if the trainer names a folder, and returns
    /// [`crate::TrainError::Interrupted`].
    Leave,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    #[default]
    Done,
    /// A listener or a callback stopped it.
    Stopped,
    /// A callback stopped it, and the session went back to the best validation, after this step.
    Restored(u64),
    /// The time limit came.
    TimeLimit,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// Examples trained on since then.
    pub examples: u64,
    /// Loss of the last step; not a number where a resumed run had none left.
    pub final_loss: f64,
    /// The test part's figures after the last step.
    pub evaluation: Evaluation,
    /// Median time of a step, data included; the first, which warms the caches, is left out where there are others.
    pub step_median: Duration,
    /// Examples per second over all steps but the first.
    pub samples_per_second: f64,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Why the run ended.
    pub ending: Ending,
    /// The loss scale at the end, in f16.
    pub scale: Option<Scale>,
}
