//! One optimizer step, and the loss scale of f16.

use super::init::push;
use super::{Diverged, Scale, Session};
use crate::{BatchKind, TrainError};
use plimsoll_data::Batch;
use plimsoll_nn::MIN_LOSS_SCALE;
use plimsoll_tensor::DType;

impl Session {
    /// One training step on a batch; returns its loss.
    pub fn train_step(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        self.replayable = false;
        self.run_step(batch)
    }

    /// As [`Session::train_step`], of a run that follows from the trainer alone.
    pub(super) fn run_step(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let plan = self.find_plan(BatchKind::Train, batch)?;
        self.update_settings(plan)?;
        let (poisoned, before) = (self.poisoned, self.scale()?);
        self.run_plan(plan, batch, false)?;
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
            push(bytes, dtype, *value);
        }
        Ok(())
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
