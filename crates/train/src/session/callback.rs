//! What looks on while a run goes, and may end it.

use crate::{Control, TrainError, TrainEvent};

/// Looks on while a run goes: [`crate::Session::add`] gives it every event of every later `fit`. A closure is one, too.
///
/// ```
/// use plimsoll_train::{Callback, Control, TrainError, TrainEvent};
///
/// /// Stops once the loss is low enough.
/// struct GoodEnough(f64);
///
/// impl Callback for GoodEnough {
///     fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
///         Ok(match event {
///             TrainEvent::Validation { evaluation, .. } if evaluation.loss < self.0 => Control::Stop,
///             _ => Control::Continue,
///         })
///     }
/// }
/// ```
pub trait Callback {
    /// Takes note of an event; says what it wants. An error ends the run, with a checkpoint.
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError>;

    /// What it wants of a run that goes on from a checkpoint, so many validations after the best one.
    fn on_resume(&mut self, _since_best: u64) -> Result<Control, TrainError> {
        Ok(Control::Continue)
    }

    /// The factor of the learning rate in step `step` (from 0) of `steps`, besides that of the trainer's schedule.
    fn scale(&mut self, _step: u64, _steps: u64) -> f64 {
        1.0
    }
}

impl<F: FnMut(&TrainEvent<'_>) -> Control> Callback for F {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        Ok(self(event))
    }
}

/// A schedule of your own: the factor of the learning rate from the step (from 0) and the steps of the run, besides that of
/// the trainer's schedule. A run that goes on from a checkpoint needs the same function again.
///
/// ```
/// use plimsoll_train::{Callback, OwnSchedule};
/// let mut halves = OwnSchedule(|step, steps| if 2 * step < steps { 1.0 } else { 0.1 });
/// assert_eq!((halves.scale(49, 100), halves.scale(50, 100)), (1.0, 0.1));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OwnSchedule<F>(pub F);

impl<F: FnMut(u64, u64) -> f64> Callback for OwnSchedule<F> {
    fn on(&mut self, _: &TrainEvent<'_>) -> Result<Control, TrainError> {
        Ok(Control::Continue)
    }

    fn scale(&mut self, step: u64, steps: u64) -> f64 {
        (self.0)(step, steps)
    }
}

/// Ends a run when validations got no better for a while, and goes back to the best of them, if the trainer names a folder
/// for checkpoints. What it waited for is in the checkpoint: a run that goes on stops where it would have.
///
/// ```
/// use plimsoll_train::EarlyStopping;
/// let three_without_a_better_one = EarlyStopping::new(3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyStopping {
    patience: u64,
}

impl EarlyStopping {
    /// Stops after so many validations, at least one, without a better one.
    pub fn new(patience: u64) -> Self {
        Self { patience: patience.max(1) }
    }
}

impl Callback for EarlyStopping {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        Ok(match event {
            TrainEvent::Validation { since_best, .. } => return self.on_resume(*since_best),
            _ => Control::Continue,
        })
    }

    fn on_resume(&mut self, since_best: u64) -> Result<Control, TrainError> {
        Ok(if since_best >= self.patience { Control::Restore } else { Control::Continue })
    }
}
