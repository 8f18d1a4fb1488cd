//! What a run tells while it goes on.

use crate::Held;
use plimsoll_plan::Extra;
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
        /// Mean loss over the steps since the last validation; not a number where there were none.
        train_loss: f64,
        /// The test part's figures.
        evaluation: Evaluation,
        /// Those of the trainer's metrics, by name; tables of many figures are left out.
        figures: &'e [(String, f64)],
        /// Validations that were due since the best one: zero if this is the best so far.
        since_best: u64,
    },
    /// The loss, or a parameter, is not a number any more. Told before the steps are done again to find the layer, and after
    /// each of them: a listener that wants anything but to go on ends the search.
    Diverged {
        /// Steps done before.
        step: u64,
        /// The step's loss; that of the last good one where a parameter showed it first.
        loss: f64,
        /// Steps done again so far.
        again: u64,
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
    /// What a step did beside computing every node once for each micro-batch, in the mean of all but the first.
    pub extra: Extra,
    /// The time of that over the rest of a step's: what repeats and spilling cost; splitting has its own price.
    pub slowdown: f64,
    /// Examples per second over all steps but the first.
    pub samples_per_second: f64,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Why the run ended.
    pub ending: Ending,
    /// Why the checkpoint of the best validation was not gone back to, where it is damaged.
    pub refused: Option<String>,
    /// The loss scale at the end, in f16.
    pub scale: Option<Scale>,
}
