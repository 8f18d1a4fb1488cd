//! What a run reports, and what listeners may ask of it.

use crate::Held;
use plimsoll_plan::Extra;
use std::fmt;
use std::time::Duration;

/// Loss and accuracy over a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss per row.
    pub loss: f64,
    /// Fraction of rows whose predicted class is the label; `None` for models that never hold all logits.
    pub accuracy: Option<f64>,
    /// Examples seen.
    pub examples: u64,
    /// Whether labels are classes, so that exp of a cross-entropy loss is the perplexity.
    pub classes: bool,
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(accuracy) = self.accuracy {
            write!(f, "accuracy {:.2} %, ", 100.0 * accuracy)?;
        }
        write!(f, "loss {:.4}", self.loss)
    }
}

/// The loss scale of a run in f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The scale of the next step.
    pub scale: f64,
    /// Steps skipped so far, because a gradient was not finite.
    pub skipped: u64,
}

/// Something that happened in a run.
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
        /// The part of it until the batch was there.
        data: Duration,
        /// What the process holds after the step, where the trainer watches it.
        held: Option<Held>,
        /// The learning rate of the step, where the optimizer has one.
        learning_rate: Option<f64>,
        /// The loss scale, in f16.
        scale: Option<Scale>,
    },
    /// The validation part was evaluated: after an epoch, every few steps, or at the end.
    Validation {
        /// Steps done so far.
        step: u64,
        /// The epoch, from 0.
        epoch: u64,
        /// What was evaluated: `validation`, or `test` in data without such a part.
        part: &'static str,
        /// Mean loss over the steps since the last validation; NaN where there were none.
        train_loss: f64,
        /// The part's figures.
        evaluation: Evaluation,
        /// The trainer's metrics, by name; metrics of many figures are left out.
        figures: &'e [(String, f64)],
        /// Validations that were due since the best one: zero if this is the best so far.
        since_best: u64,
    },
    /// The loss, a gradient or a parameter is not finite. Sent before steps are replayed to find the layer, and after each of
    /// them: any answer but [`Control::Continue`] ends the replay.
    Diverged {
        /// Steps done before.
        step: u64,
        /// The step's loss; that of the last good step where a parameter showed it first.
        loss: f64,
        /// Steps replayed so far.
        replayed: u64,
    },
    /// The process holds more than was planned, and is not yet close to the line. Sent once per run.
    AbovePlan {
        /// Steps done so far.
        step: u64,
        /// The load sheet's total.
        planned_bytes: usize,
        /// What the process holds.
        held: Held,
    },
}

/// What a listener asks for. Of several requests the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    /// Continue.
    Continue,
    /// End the run after this event, with a last evaluation.
    Stop,
    /// As `Stop`, then restore the best validation's checkpoint, if the trainer names a folder for checkpoints.
    Restore,
    /// Stop at once: [`crate::Session::fit`] saves a checkpoint, if the trainer names a folder, and returns
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
    /// A callback stopped it, and the session restored the best validation, which was after this step.
    Restored(u64),
    /// The time limit was reached.
    TimeLimit,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// Examples trained on, without those before a resume.
    pub examples: u64,
    /// Loss of the last step; NaN where a resumed run had no steps left.
    pub final_loss: f64,
    /// The test part's figures after the last step.
    pub evaluation: Evaluation,
    /// The validation part's figures, if it was evaluated after the last step.
    pub validation: Option<Evaluation>,
    /// Median time of a step, data included. The first step, which warms the caches, is left out where there are others.
    pub step_median: Duration,
    /// The same without the time until its batch was there.
    pub computing_median: Duration,
    /// Mean time per step until its batch was there, without the first step: what reading and making data adds to a step.
    pub data: Duration,
    /// Mean time per step that rematerialization and waiting for transfers took, without the first step.
    pub extra: Extra,
    /// `extra` over the rest of a step's time: what rematerialization and offload cost. The cost of micro-batches is not in it.
    pub slowdown: f64,
    /// Examples per second over all steps but the first.
    pub samples_per_second: f64,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Why the run ended.
    pub ending: Ending,
    /// Why the best validation's checkpoint was not restored, where it is damaged.
    pub refused: Option<String>,
    /// The loss scale at the end, in f16.
    pub scale: Option<Scale>,
}
