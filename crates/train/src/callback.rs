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
    /// Takes note of an event; says what it wants. An error ends the run.
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError>;
}

impl<F: FnMut(&TrainEvent<'_>) -> Control> Callback for F {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        Ok(self(event))
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
            TrainEvent::Validation { since_best, .. } if *since_best >= self.patience => Control::Restore,
            _ => Control::Continue,
        })
    }
}
