//! Callbacks of the training loop.

use super::{Control, TrainEvent};
use crate::TrainError;
use std::cell::RefCell;
use std::rc::Rc;

/// Receives every event of a run; [`crate::Trainer::callback`] adds one. Closures are callbacks, too.
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
    /// Handles an event and answers with a request. An error ends the run, with a checkpoint.
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError>;

    /// The request at the start of a resumed run, `since_best` validations after the best one.
    fn on_resume(&mut self, _since_best: u64) -> Result<Control, TrainError> {
        Ok(Control::Continue)
    }

    /// Whether it reads the parameters after this step. They then come to [`Callback::on_parameter`] after the step's event.
    fn reads_parameters(&self, _step: u64) -> bool {
        false
    }

    /// The next values of a parameter, in their order; `last` if there are no more of it. An error ends the run, with a
    /// checkpoint.
    fn on_parameter(
        &mut self,
        _step: u64,
        _name: &str,
        _values: &mut dyn Iterator<Item = f64>,
        _last: bool,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Writes down what it keeps of the events so far. Called before validations and checkpoints, and when
    /// [`Session::fit`](crate::Session::fit) ends, in whatever way. An error ends the run.
    fn flush(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// A factor of the learning rate in step `step` (from 0) of `steps`, on top of the trainer's schedule.
    fn scale(&mut self, _step: u64, _steps: u64) -> f64 {
        1.0
    }
}

impl<F: FnMut(&TrainEvent<'_>) -> Control> Callback for F {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        Ok(self(event))
    }
}

/// Lets callbacks write down what they keep; the first error, when all have.
pub(super) fn flush(callbacks: &[Rc<RefCell<dyn Callback>>]) -> Result<(), TrainError> {
    callbacks.iter().map(|callback| callback.borrow_mut().flush()).fold(Ok(()), Result::and)
}

/// Everyone who receives the events of one `fit`.
pub(super) struct Listeners<'a> {
    listen: &'a mut dyn FnMut(&TrainEvent<'_>) -> Control,
    callbacks: &'a [Rc<RefCell<dyn Callback>>],
    /// Whether a callback returned an error.
    pub failed: bool,
}

impl<'a> Listeners<'a> {
    pub fn new(
        listen: &'a mut dyn FnMut(&TrainEvent<'_>) -> Control,
        callbacks: &'a [Rc<RefCell<dyn Callback>>],
    ) -> Self {
        Self { listen, callbacks, failed: false }
    }

    /// Sends an event to all of them; returns the greatest request.
    pub fn notify(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        let own = (self.listen)(event);
        let all = self.callbacks.iter().try_fold(own, |most, c| Ok(most.max(c.borrow_mut().on(event)?)));
        self.failed |= all.is_err();
        all
    }

    /// Lets them write down what they keep.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        let flushed = flush(self.callbacks);
        self.failed |= flushed.is_err();
        flushed
    }

    /// Whether a callback reads the parameters after a step.
    pub fn read_parameters(&self, step: u64) -> bool {
        self.callbacks.iter().any(|callback| callback.borrow().reads_parameters(step))
    }

    /// Gives values of a parameter to those who read them.
    pub fn show_parameter(
        &mut self,
        step: u64,
        name: &str,
        values: impl Iterator<Item = f64> + Clone,
        last: bool,
    ) -> Result<(), TrainError> {
        let readers = self.callbacks.iter().filter(|callback| callback.borrow().reads_parameters(step));
        for callback in readers {
            let shown = callback.borrow_mut().on_parameter(step, name, &mut values.clone(), last);
            self.failed |= shown.is_err();
            shown?;
        }
        Ok(())
    }

    /// The callbacks' factor of the learning rate in a step.
    pub fn scale(&mut self, step: u64, steps: u64) -> f64 {
        self.callbacks.iter().map(|callback| callback.borrow_mut().scale(step, steps)).product()
    }
}

/// A custom schedule: a factor of the learning rate as a function of the step (from 0) and the steps of the run, on top of
/// the trainer's schedule. A resumed run must add the same function.
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

/// Ends a run when validations stop improving, and restores the best one, if the trainer names a folder for checkpoints.
/// Checkpoints hold the count of validations since the best, so a resumed run stops at the same step.
///
/// ```
/// use plimsoll_train::EarlyStopping;
/// let patience_of_three = EarlyStopping::new(3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyStopping {
    patience: u64,
}

impl EarlyStopping {
    /// Stops after `patience` validations, at least one, without an improvement.
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
