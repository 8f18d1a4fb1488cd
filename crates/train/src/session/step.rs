//! One optimizer step, and the loss scale of f16.

use super::batch_plan::Run;
use super::{Diverged, Scale, Session};
use crate::{BatchKind, TrainError};
use plimsoll_data::Batch;
use plimsoll_nn::{MIN_LOSS_SCALE, gradient_name, push_number};
use plimsoll_tensor::{DType, Tensor};

/// A step that a device may still compute.
pub(super) struct BegunStep {
    plan: usize,
    /// From before the step.
    poisoned: bool,
    before: Option<Scale>,
}

impl Session {
    /// One training step on a batch; returns its loss.
    pub fn train_step(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        self.replayable = false;
        let begun = self.begin_step(batch, Run::Plain)?;
        self.end_step(begun)
    }

    /// Multiplies the learning rate of the optimizer and its schedule from the next step on, for a loop of your own; a
    /// [`Session::fit`] has its callbacks for that, and starts at 1 again.
    ///
    /// ```
    /// use plimsoll_data::{Batch, Dataset, Memory};
    /// use plimsoll_nn::{Dense, Sequential, Sgd};
    /// use plimsoll_train::Trainer;
    /// let (x, y) = ([[1.0f32, 2.0]], [[1.0f32]]);
    /// let data = Dataset::new("point", Memory::values(x, y)?, Memory::values(x, y)?);
    /// let model = Sequential::regression([2], [1]).push(Dense::new(1));
    /// let mut run = Trainer::new(model, Sgd::new(0.1)).batch(1).plan(&data)?.start()?;
    /// let before = run.state("dense/kernel")?;
    /// run.scale_learning_rate(0.0);
    /// run.train_step(&Batch::of([x], y)?)?;
    /// assert_eq!(run.state("dense/kernel")?, before);
    /// run.scale_learning_rate(1.0);
    /// run.train_step(&Batch::of([x], y)?)?;
    /// assert_ne!(run.state("dense/kernel")?, before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scale_learning_rate(&mut self, scale: f64) {
        self.callback_scale = scale;
    }

    /// Begins a step on a batch, which is not needed any more when this returns. A device may compute it beside the host, until
    /// [`Session::end_step`] waits for it.
    pub(super) fn begin_step(&mut self, batch: &Batch, how: Run) -> Result<BegunStep, TrainError> {
        let plan = self.find_plan(BatchKind::Train, batch)?;
        self.update_settings(plan)?;
        let (poisoned, before) = (self.poisoned, self.scale()?);
        self.run_plan(plan, batch, how)?;
        Ok(BegunStep { plan, poisoned, before })
    }

    /// Ends a step; returns its loss.
    pub(super) fn end_step(&mut self, begun: BegunStep) -> Result<f64, TrainError> {
        let BegunStep { plan, poisoned, before } = begun;
        let loss = self.read_loss(plan)?;
        // The loss itself is not scaled. A skipped step means a gradient overflowed, which half the scale may cure, unless
        // the scale was already the smallest.
        let skipped = |(before, after): (Scale, Scale)| before.skipped < after.skipped;
        let at_least = before.is_some_and(|found| found.scale <= MIN_LOSS_SCALE);
        let gradients = at_least && before.zip(self.scale()?).is_some_and(skipped);
        if !loss.is_finite() || gradients {
            let step = self.steps_done;
            let diverged = Diverged { step, loss, gradients, origin: None, checkpoint: None };
            return Err(TrainError::Diverged(Box::new(diverged)));
        }
        self.poisoned = poisoned;
        self.steps_done += 1;
        Ok(loss)
    }

    /// The gradient of a parameter in the training step that ran last: of the mean loss over the whole batch, before clipping.
    /// The optimizer must keep it ([`plimsoll_nn::Recipe::read_gradients`]).
    ///
    /// ```
    /// use plimsoll_data::{Batch, Dataset, Memory};
    /// use plimsoll_nn::{Dense, Recipe, Sequential, Sgd};
    /// use plimsoll_train::Trainer;
    /// let (x, y) = ([[1.0f32, 2.0]], [[1.0f32]]);
    /// let data = Dataset::new("point", Memory::values(x, y)?, Memory::values(x, y)?);
    /// let model = Sequential::regression([2], [1]).push(Dense::new(1));
    /// let optimizer = Recipe::new(Sgd::new(0.1)).read_gradients("dense");
    /// let mut run = Trainer::new(model, optimizer).batch(1).plan(&data)?.start()?;
    /// run.train_step(&Batch::of([x], y)?)?;
    /// let [kernel, bias] = [run.gradient("dense/kernel")?, run.gradient("dense/bias")?];
    /// let (kernel, bias) = (kernel.as_f32().unwrap(), bias.as_f32().unwrap());
    /// assert_eq!(kernel, [bias[0], 2.0 * bias[0]]); // the inputs times the error
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gradient(&self, parameter: &str) -> Result<Tensor, TrainError> {
        let ran = self.ran.filter(|&plan| self.batch_plans[plan].batch.kind == BatchKind::Train);
        let Some(plan) = ran else {
            let reason =
                "no training step ran last: read gradients after `train_step`, before anything else runs";
            return Err(TrainError::Setting(reason.into()));
        };
        let (outputs, name) = (&self.whole.plans[plan].outputs, gradient_name(parameter));
        let Some(output) = outputs.iter().position(|output| output.name == name) else {
            self.state_index(parameter)?;
            return Err(TrainError::Setting(format!(
                "the gradient of `{parameter}` is not kept: name the parameter in `Recipe::read_gradients`"
            )));
        };
        let mut tensor = Tensor::zeros(outputs[output].ty.clone());
        self.prepared.read_output(plan, output, tensor.as_bytes_mut())?;
        Ok(tensor)
    }

    /// Sets the optimizer's settings for the next step.
    pub(super) fn update_settings(&mut self, plan: usize) -> Result<(), TrainError> {
        let (schedule, step) = (self.trainer.schedule, self.steps_done - self.schedule_start);
        let scale = schedule.scale_after(self.trainer.warmup, step, self.total_steps);
        let scale = scale * self.plateau.scale(schedule) * self.callback_scale;
        // The optimizer does not count steps that f16 skipped.
        let done = self.steps_done.saturating_sub(self.scale()?.map_or(0, |found| found.skipped));
        self.trainer.optimizer.settings(done, scale, &mut self.settings);
        let dtype = self.batch_plans[plan].loss.map_or(DType::F32, |loss| loss.dtype);
        for (value, bytes) in self.settings.iter().zip(&mut self.setting_bytes) {
            bytes.clear();
            push_number(bytes, dtype, *value);
        }
        Ok(())
    }

    /// The learning rate of the step that ran last, where the optimizer has one.
    pub(super) fn learning_rate(&self) -> Option<f64> {
        self.learning_rate_setting.and_then(|setting| self.settings.get(setting).copied())
    }

    /// The loss scale and the number of skipped steps, in f16.
    pub fn scale(&self) -> Result<Option<Scale>, TrainError> {
        let Some(states) = self.loss_scale_states else { return Ok(None) };
        let mut numbers = [0.0; 2];
        for (number, state) in numbers.iter_mut().zip(states) {
            let mut bytes = [0; 4];
            self.prepared.read_state(state, 0, &mut bytes)?;
            *number = f64::from(f32::from_ne_bytes(bytes));
        }
        Ok(Some(Scale { scale: numbers[0], skipped: numbers[1] as u64 }))
    }
}
