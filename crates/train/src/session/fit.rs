//! The training loop: steps, validations, checkpoints.

use super::batch_plan::Run;
use super::callback::{Listeners, flush};
use super::log::StepLog;
use super::trace::TracedStep;
use super::watch::Guard;
use super::{Best, Control, Diverged, Ending, Evaluation, Plateau, Report, Saved, Session, TrainEvent};
use crate::TrainError;
use crate::metrics::reported_figures;
use crate::trainer::{agree, tell};
use plimsoll_data::{Batches, Cursor, Pipeline};
use plimsoll_plan::ExecuteError;
use std::time::Instant;

impl Session {
    /// Trains for the trainer's epochs or steps. Evaluates the validation part after every epoch, or as often as the trainer
    /// says, and the test part at the end. A second call continues with the data where the first stopped, and restarts the
    /// learning rate schedule. After [`Session::resume`] it does the steps that are left, and continues the schedule, too.
    pub fn fit(&mut self) -> Result<Report, TrainError> {
        self.fit_with(&mut |_| Control::Continue)
    }

    /// As [`Session::fit`], with a listener that borrows from its caller, beside the trainer's callbacks.
    pub fn fit_with(
        &mut self,
        listen: &mut dyn FnMut(&TrainEvent<'_>) -> Control,
    ) -> Result<Report, TrainError> {
        let callbacks = self.callbacks.clone();
        let since_best = self.best.waited;
        let resumed = callbacks.iter().filter(|_| self.resumed);
        let requests = resumed.map(|callback| callback.borrow_mut().on_resume(since_best));
        let request = requests.collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().max());
        let mut listeners = Listeners::new(listen, &callbacks);
        let result =
            request.and_then(|request| self.train(request.unwrap_or(Control::Continue), &mut listeners));
        let failed = listeners.failed;
        self.callback_scale = 1.0;
        if failed && result.is_err() {
            // A callback failed, not a step: the states are good.
            self.save_on_exit_alone();
        }
        let result = match result {
            // An evaluation was left. Where the run has a folder, its checkpoint is not saved yet.
            Err(TrainError::Interrupted { step, saved: Saved::Nowhere }) => {
                Err(TrainError::Interrupted { step, saved: self.save_on_exit() })
            }
            Err(TrainError::Execute(ExecuteError::Lost { device, reason })) => {
                self.poisoned = true;
                let (step, last_checkpoint) = (self.steps_done, self.last_checkpoint());
                Err(TrainError::DeviceLost { device, reason, step, last_checkpoint })
            }
            result => result,
        };
        // The error that ended a run says more than that of a log which has no more room.
        match (result, flush(&callbacks)) {
            (Ok(_), Err(error)) => Err(error),
            (result, _) => result,
        }
    }

    fn train(&mut self, mut control: Control, listeners: &mut Listeners<'_>) -> Result<Report, TrainError> {
        let (begun, steps) = (Instant::now(), self.total_steps);
        if steps == 0 {
            return Err(TrainError::Setting(
                "a run needs at least one step: set epochs or steps to 1 or more".into(),
            ));
        }
        self.check_checkpoints(!self.resumed)?;
        self.check_ranks()?;
        if control >= Control::Stop {
            self.save_checkpoint()?;
        }
        if !std::mem::take(&mut self.resumed) {
            (self.schedule_start, self.validated) = (self.steps_done, self.steps_done);
            (self.plateau, self.best) = (Plateau::default(), Best::default());
        }
        let pipeline = self.prefetched_training_batches();
        let mut batches = pipeline.start(self.cursor)?;
        let mut log = StepLog::new(self.steps_done - self.schedule_start);
        let mut guard = Guard::new(&self.trainer, &self.plans.sheet);
        let (mut evaluation, mut ending, mut last_loss) = (None, Ending::Done, f64::NAN);
        // How the batch runs that was taken ahead of its step, if one was.
        let mut ahead = None;
        // The run was interrupted before a validation that was due.
        if control < Control::Stop && self.validated < self.steps_done && self.is_due(log.done()) {
            let (figures, request);
            (batches, (figures, request)) =
                self.validate_beside(&pipeline, batches, &mut log, listeners, Control::Continue)?;
            (evaluation, control) = (Some(figures), request);
            if control == Control::Leave {
                return Err(TrainError::Interrupted { step: log.done(), saved: self.save_on_exit() });
            }
            self.save_checkpoint()?;
        }
        while log.done() < steps && control < Control::Stop {
            if let Some(trace) = &mut self.trace {
                trace.begin(|| self.trainer.watch.as_ref().and_then(|watch| watch.held()));
            }
            let start = Instant::now();
            let how = ahead.take();
            let batch = if how.is_some() { Ok(batches.lent()) } else { batches.next() };
            let batch = match batch {
                Ok(batch) => batch,
                // The others have their rows, and wait for those of this rank.
                Err(error) if pipeline.reads_own_rows() => return Err(self.tell_failed(error.into())),
                Err(error) => return Err(error.into()),
            };
            let Some(batch) = batch else {
                self.cursor = batches.cursor();
                continue;
            };
            let (data, examples, after) = (start.elapsed(), batch.examples(), batch.after());
            self.callback_scale = listeners.scale(log.done(), steps);
            let running = self.begin_step(batch, how.unwrap_or(Run::Plain));
            let step = log.done() + 1;
            let taken = match running.is_ok() && step < steps && !self.is_due_at(step, after) {
                true => self.take_ahead(&mut batches),
                false => Ok(None),
            };
            // An error of the step comes before one of the next batch.
            let loss = running.and_then(|running| self.end_step(running));
            let loss = match loss.and_then(|loss| Ok((loss, taken?))) {
                Ok((loss, taken)) => {
                    ahead = taken;
                    loss
                }
                Err(error) => {
                    self.trace = None;
                    // The replay starts a pipeline of its own: two would hold more than was planned.
                    drop(batches);
                    return Err(self.explain(error, last_loss, listeners));
                }
            };
            (self.cursor, evaluation, last_loss) = (after, None, loss);
            let time = start.elapsed();
            log.step(loss, examples, [time, data], self.prepared.extra());
            let epoch = self.epoch(step);
            let scale = self.scale()?;
            let held = self.trainer.watch.as_ref().and_then(|watch| watch.held());
            self.end_trace(TracedStep {
                step,
                loss,
                examples,
                started: start,
                times: [time, data],
                held,
                device_bytes: None,
            })?;
            let learning_rate = self.learning_rate();
            let event = TrainEvent::Step {
                step,
                steps,
                epoch,
                loss,
                examples,
                time,
                data,
                held,
                learning_rate,
                scale,
            };
            control = listeners.notify(&event)?;
            if listeners.read_parameters(step) {
                self.show_parameters(step, listeners)?;
            }
            let mut overload = None;
            if let Some(guard) = &mut guard {
                let (event, held) = guard.check(step);
                if let Some(event) = event {
                    control = control.max(listeners.notify(&event)?);
                }
                overload = held;
            }
            let last = step == steps;
            if control == Control::Continue && !last {
                let is_over = |limit| begun.elapsed() >= limit;
                if self.trainer.time_limit.is_some_and(is_over) {
                    (control, ending) = (Control::Stop, Ending::TimeLimit);
                }
            }
            let (agreed, overloaded) = agree(self.trainer.connected(), control, overload.is_some())?;
            control = agreed;
            if let (Some(guard), Some(held)) = (&guard, overload) {
                return Err(guard.error(step, held, self.save_on_exit()));
            }
            if let Some(rank) = overloaded {
                let reason = format!("its memory came too close to its line; {}", self.save_on_exit());
                return Err(TrainError::Rank { rank, reason });
            }
            let mut best = false;
            if (last || self.is_due(step)) && control < Control::Leave {
                let (figures, request);
                (batches, (figures, request)) =
                    self.validate_beside(&pipeline, batches, &mut log, listeners, control)?;
                (evaluation, control, best) = (Some(figures), request, self.best.step == self.steps_done);
            }
            let every = self.trainer.checkpoints.as_ref().and_then(|c| c.every);
            let due = every.is_some_and(|every| step.is_multiple_of(every.max(1)));
            if control == Control::Leave {
                return Err(TrainError::Interrupted { step, saved: self.save_on_exit() });
            }
            if (due || last || best || control >= Control::Stop)
                && let Err(error) = self.save_checkpoint()
            {
                drop(batches);
                return Err(self.explain(error, loss, listeners));
            }
        }
        if control >= Control::Stop && ending == Ending::Done {
            ending = Ending::Stopped;
        }
        self.count_skipped(&batches);
        drop(batches);
        let mut refused = None;
        if control == Control::Restore {
            // The first rank has written the checkpoint that all read.
            agree(self.trainer.connected(), control, false)?;
            let (step, reason) = self.restore_best()?;
            refused = reason;
            if let Some(step) = step {
                (ending, evaluation) = (Ending::Restored(step), None);
            }
        }
        let validation = evaluation;
        let evaluation = match evaluation {
            // The last validation was of the test part.
            Some(evaluation) if self.data.validation.is_none() => evaluation,
            _ => {
                let data = self.data.clone();
                self.evaluate_part(&data.test)?.0
            }
        };
        if !evaluation.loss.is_finite() {
            let (step, loss) = (self.steps_done.saturating_sub(1), evaluation.loss);
            let error = Diverged { step, loss, gradients: false, origin: None, checkpoint: None };
            return Err(self.explain(TrainError::Diverged(Box::new(error)), last_loss, listeners));
        }
        let scale = self.scale()?;
        let report = log.report(evaluation, self.whole.plans[0].micro_batches, ending, scale);
        Ok(Report { refused, validation, ..report })
    }

    /// Tells the other ranks why this one cannot do the next step; returns the error.
    fn tell_failed(&self, error: TrainError) -> TrainError {
        let Some(ranks) = self.trainer.connected() else { return error };
        match tell(ranks.as_ref(), Err::<(), _>(error), |()| String::new()) {
            Err(error) => error,
            Ok(((), _)) => TrainError::Ranks("they do not answer".into()),
        }
    }

    /// Ends the traced part of a step.
    fn end_trace(&mut self, done: TracedStep) -> Result<(), TrainError> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        let device_bytes = self.trainer.device_bytes();
        let ended = trace.end(&TracedStep { device_bytes, ..done });
        match &ended {
            Ok(true) => {}
            Ok(false) => self.trace = None,
            // The file of the trace failed, not the step: the states are good.
            Err(_) => drop(self.save_on_exit_alone()),
        }
        ended.map(|_| ())
    }

    /// Whether a validation is due after this many steps of the run.
    pub(super) fn is_due(&self, step: u64) -> bool {
        self.is_due_at(step, self.cursor)
    }

    /// As [`Session::is_due`], where the data is at this position then.
    fn is_due_at(&self, step: u64, cursor: Cursor) -> bool {
        match self.trainer.validate_every.or(self.trainer.steps_per_epoch) {
            Some(every) => step > 0 && step.is_multiple_of(every.max(1)),
            None => cursor.example >= self.train_examples,
        }
    }

    /// Takes the next batch while a device computes the step before, if workers have it ready before that is over, and copies its large
    /// inputs to the device. Returns how it is to run, if it was taken. For plans with memory for it.
    fn take_ahead(&mut self, batches: &mut Batches) -> Result<Option<Run>, TrainError> {
        let Some(least) = self.prefetches_from else { return Ok(None) };
        let prepared = &self.prepared;
        if !batches.wait_ready(|| prepared.is_running()) {
            return Ok(None);
        }
        batches.next()?.map(|batch| self.prefetch(batch, least)).transpose()
    }

    /// The epoch, from 0, of a step of the run, from 1.
    fn epoch(&self, step: u64) -> u64 {
        self.trainer.steps_per_epoch.map_or(self.cursor.epoch, |every| step.saturating_sub(1) / every.max(1))
    }

    /// As [`Session::validate_together`], while the training pipeline holds as little as it can: nothing at all, if it may start again
    /// afterwards. Returns its batches, which go on where they were.
    fn validate_beside(
        &mut self,
        pipeline: &Pipeline,
        batches: Batches,
        log: &mut StepLog,
        listeners: &mut Listeners<'_>,
        control: Control,
    ) -> Result<(Batches, (Evaluation, Control)), TrainError> {
        if !pipeline.restarts_freely() {
            batches.settle();
            let found = self.validate_together(log, listeners, control)?;
            return Ok((batches, found));
        }
        drop(batches);
        let found = self.validate_together(log, listeners, control)?;
        Ok((pipeline.start(self.cursor)?, found))
    }

    /// As [`Session::validate`]; the request is the strongest one of all ranks, and of `control`. A rank that leaves the validation
    /// takes the others with it.
    fn validate_together(
        &mut self,
        log: &mut StepLog,
        listeners: &mut Listeners<'_>,
        control: Control,
    ) -> Result<(Evaluation, Control), TrainError> {
        let found = self.validate(log, listeners);
        let request = match &found {
            Ok((_, request)) => control.max(*request),
            Err(TrainError::Interrupted { .. }) => Control::Leave,
            Err(_) => return found,
        };
        let (agreed, _) = agree(self.trainer.connected(), request, false)?;
        Ok((found?.0, agreed))
    }

    /// Evaluates the validation part, records the result, and notifies.
    fn validate(
        &mut self,
        log: &mut StepLog,
        listeners: &mut Listeners<'_>,
    ) -> Result<(Evaluation, Control), TrainError> {
        let data = self.data.clone();
        listeners.flush()?;
        let (evaluation, figures) = self.evaluate_part(data.evaluation_part())?;
        let (step, train_loss) = (log.done(), log.mean_loss());
        let cost = self.trainer.monitor.cost(&evaluation, &figures)?;
        let due = self.is_due(step);
        self.best.observe(cost, self.steps_done, due);
        if due {
            // A run resumed from here does not validate again.
            self.plateau.observe(self.trainer.schedule, evaluation.loss);
            self.validated = self.steps_done;
        }
        let (epoch, since_best) = (self.epoch(step), self.best.waited);
        let part = if data.validation.is_some() { "validation" } else { "test" };
        let event = TrainEvent::Validation {
            step,
            epoch,
            part,
            train_loss,
            evaluation,
            figures: &figures,
            since_best,
        };
        Ok((evaluation, listeners.notify(&event)?))
    }

    /// Evaluates a part with the trainer's metrics.
    fn evaluate_part(&mut self, part: &Pipeline) -> Result<(Evaluation, Vec<(String, f64)>), TrainError> {
        let mut metrics = std::mem::take(&mut self.metrics);
        metrics.iter_mut().for_each(|metric| metric.reset());
        let evaluation = self.evaluate_together(part, &mut metrics);
        self.metrics = metrics;
        let figures = reported_figures(&self.metrics);
        let mut evaluation = evaluation?;
        let accuracy = figures.iter().find(|(name, _)| name == "accuracy").map(|(_, value)| *value);
        evaluation.accuracy = accuracy.or(evaluation.accuracy);
        Ok((evaluation, figures))
    }
}
