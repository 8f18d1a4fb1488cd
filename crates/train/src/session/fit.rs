//! The loop: steps, validations, checkpoints, and who may end it.

use super::log::Log;
use super::watch::Guard;
use crate::{
    Best, Callback, Control, Diverged, Ending, Evaluation, Plateau, Report, Session, TrainError, TrainEvent,
    metrics,
};
use plimsoll_data::Dataset;
use std::time::Instant;

/// Who looks on during a `fit`.
pub(crate) struct Lookers<'a, 't> {
    listen: &'a mut dyn FnMut(&TrainEvent<'_>) -> Control,
    callbacks: &'a mut [Box<dyn Callback + 't>],
    /// Whether one of them failed.
    failed: bool,
}

impl Lookers<'_, '_> {
    /// Gives an event to all of them, and returns the most that one of them wants.
    pub(crate) fn tell(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        let own = (self.listen)(event);
        let all = self.callbacks.iter_mut().try_fold(own, |most, c| Ok(most.max(c.on(event)?)));
        self.failed |= all.is_err();
        all
    }

    /// The factor of the learning rate in a step.
    pub(crate) fn scale(&mut self, step: u64, steps: u64) -> f64 {
        self.callbacks.iter_mut().map(|callback| callback.scale(step, steps)).product()
    }
}

impl<'t> Session<'t> {
    /// Adds something that looks on during every later [`Session::fit`].
    pub fn add(&mut self, callback: impl Callback + 't) {
        self.callbacks.push(Box::new(callback));
    }

    /// Trains for the trainer's epochs or steps, evaluating the test part after every epoch, or as often as the trainer says,
    /// and at the end. Called again, it goes on with the data where it stopped, and the learning rate's schedule starts
    /// anew. After [`Session::resume`] it does the steps that are left, and goes on with the schedule, too.
    pub fn fit(
        &mut self,
        data: &Dataset,
        listen: &mut dyn FnMut(&TrainEvent<'_>) -> Control,
    ) -> Result<Report, TrainError> {
        let mut callbacks = std::mem::take(&mut self.callbacks);
        let since_best = self.best.waited;
        let waits = callbacks.iter_mut().filter(|_| self.resumed);
        let wish = waits.map(|callback| callback.on_resume(since_best));
        let wish = wish.collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().max());
        let mut lookers = Lookers { listen, callbacks: &mut callbacks, failed: false };
        let result = wish.and_then(|wish| self.train(data, wish.unwrap_or(Control::Continue), &mut lookers));
        let failed = lookers.failed;
        (self.callbacks, self.own_scale) = (callbacks, 1.0);
        if failed && result.is_err() {
            // The steps are good, whatever became of who looked on.
            self.save_to_leave();
        }
        result
    }

    fn train(
        &mut self,
        data: &Dataset,
        mut control: Control,
        lookers: &mut Lookers<'_, '_>,
    ) -> Result<Report, TrainError> {
        let (begun, steps) = (Instant::now(), self.total_steps);
        if steps == 0 {
            return Err(TrainError::Setting(
                "a run needs at least one step: set epochs or steps to 1 or more".into(),
            ));
        }
        self.check_checkpoints(!self.resumed)?;
        if control >= Control::Stop {
            self.save_checkpoint()?;
        }
        if !std::mem::take(&mut self.resumed) {
            (self.schedule_start, self.validated) = (self.steps_done, self.steps_done);
            (self.plateau, self.best) = (Plateau::default(), Best::default());
        }
        let mut batches = self.training_batches(data).start(self.cursor)?;
        let mut log = Log::new(self.steps_done - self.schedule_start);
        let mut guard = Guard::new(self.trainer, &self.plans.sheet);
        let (mut evaluation, mut ending, mut last_loss) = (None, Ending::Done, f64::NAN);
        // A run that left before a validation that was due.
        if control < Control::Stop && self.validated < self.steps_done && self.is_due(log.done()) {
            batches.settle();
            let (figures, wish) = self.validate(data, &mut log, lookers)?;
            (evaluation, control) = (Some(figures), wish);
            if control == Control::Leave {
                return Err(TrainError::Interrupted { step: log.done(), saved: self.save_to_leave() });
            }
            self.save_checkpoint()?;
        }
        while log.done() < steps && control < Control::Stop {
            let start = Instant::now();
            let Some(batch) = batches.next()? else {
                self.cursor = batches.cursor();
                continue;
            };
            let (examples, after) = (batch.examples(), batch.after());
            self.own_scale = lookers.scale(log.done(), steps);
            let loss = match self.step_on(batch) {
                Ok(loss) => loss,
                Err(error) => {
                    // Its memory is needed to look for who did it.
                    drop(batches);
                    return Err(self.explain(data, error, last_loss, lookers));
                }
            };
            (self.cursor, evaluation, last_loss) = (after, None, loss);
            let time = start.elapsed();
            log.step(loss, examples, time, self.prepared.extra());
            let step = log.done();
            let epoch = self.epoch(step);
            let scale = self.scale()?;
            control = lookers.tell(&TrainEvent::Step { step, steps, epoch, loss, examples, time, scale })?;
            if let Some(guard) = &mut guard {
                let (event, overload) = guard.look(step);
                if let Some(event) = event {
                    control = control.max(lookers.tell(&event)?);
                }
                if let Some(held) = overload {
                    return Err(guard.error(step, held, self.save_to_leave()));
                }
            }
            let last = step == steps;
            if control == Control::Continue && !last {
                let is_over = |limit| begun.elapsed() >= limit;
                if self.trainer.time_limit.is_some_and(is_over) {
                    (control, ending) = (Control::Stop, Ending::TimeLimit);
                }
            }
            let mut best = false;
            if (last || self.is_due(step)) && control < Control::Leave {
                batches.settle();
                let (figures, wish) = self.validate(data, &mut log, lookers)?;
                (evaluation, control, best) =
                    (Some(figures), control.max(wish), self.best.step == self.steps_done);
            }
            let every = self.trainer.checkpoints.as_ref().and_then(|c| c.every);
            let due = every.is_some_and(|every| step.is_multiple_of(every.max(1)));
            if control == Control::Leave {
                return Err(TrainError::Interrupted { step, saved: self.save_to_leave() });
            }
            if (due || last || best || control >= Control::Stop)
                && let Err(error) = self.save_checkpoint()
            {
                drop(batches);
                return Err(self.explain(data, error, loss, lookers));
            }
        }
        if control >= Control::Stop && ending == Ending::Done {
            ending = Ending::Stopped;
        }
        self.count_skipped(&batches);
        drop(batches);
        let mut refused = None;
        if control == Control::Restore {
            let (step, reason) = self.restore_best()?;
            refused = reason;
            if let Some(step) = step {
                (ending, evaluation) = (Ending::Restored(step), None);
            }
        }
        let evaluation = match evaluation {
            Some(evaluation) => evaluation,
            None => self.measure(data)?.0,
        };
        if !evaluation.loss.is_finite() {
            let (step, loss) = (self.steps_done.saturating_sub(1), evaluation.loss);
            let error = Diverged { step, loss, gradients: false, origin: None, checkpoint: None };
            return Err(self.explain(data, TrainError::Diverged(Box::new(error)), last_loss, lookers));
        }
        let scale = self.scale()?;
        let report = log.report(evaluation, self.plans.plans[0].graph.micro_batches, ending, scale);
        Ok(Report { refused, ..report })
    }

    /// Whether the test part is evaluated after so many steps of a run.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        match self.trainer.validate_every.or(self.trainer.steps_per_epoch) {
            Some(every) => step > 0 && step.is_multiple_of(every.max(1)),
            None => self.cursor.example >= self.train_examples,
        }
    }

    /// The epoch, from 0, of a step of a run; the first step is 1.
    fn epoch(&self, step: u64) -> u64 {
        self.trainer.steps_per_epoch.map_or(self.cursor.epoch, |every| step.saturating_sub(1) / every.max(1))
    }

    /// Evaluates the test part, takes note of it, and tells.
    fn validate(
        &mut self,
        data: &Dataset,
        log: &mut Log,
        lookers: &mut Lookers<'_, '_>,
    ) -> Result<(Evaluation, Control), TrainError> {
        let (evaluation, figures) = self.measure(data)?;
        let (step, train_loss) = (log.done(), log.mean_loss());
        let cost = self.trainer.monitor.cost(&evaluation, &figures)?;
        let due = self.is_due(step);
        self.best.observe(cost, self.steps_done, due);
        if due {
            // Seen once: a run that goes on from here does not look again.
            self.plateau.observe(self.trainer.schedule, evaluation.loss);
            self.validated = self.steps_done;
        }
        let (epoch, since_best) = (self.epoch(step), self.best.waited);
        let event =
            TrainEvent::Validation { step, epoch, train_loss, evaluation, figures: &figures, since_best };
        Ok((evaluation, lookers.tell(&event)?))
    }

    /// The test part's figures, those of the trainer's metrics included.
    fn measure(&mut self, data: &Dataset) -> Result<(Evaluation, Vec<(String, f64)>), TrainError> {
        let mut measures = std::mem::take(&mut self.metrics);
        measures.iter_mut().for_each(|metric| metric.reset());
        let evaluation = self.evaluate_with(&data.test, &mut measures);
        self.metrics = measures;
        let figures = metrics::told(&self.metrics);
        let mut evaluation = evaluation?;
        let accuracy = figures.iter().find(|(name, _)| name == "accuracy").map(|(_, value)| *value);
        evaluation.accuracy = evaluation.accuracy.or(accuracy);
        Ok((evaluation, figures))
    }
}
