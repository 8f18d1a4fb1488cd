//! Divergence: a loss, gradient or parameter that is not finite, and the layer it came from.

use super::batch_plan::Run;
use super::callback::Listeners;
use super::init::{clear, initialize};
use super::{Control, Plateau, Schedule, Session, TrainEvent};
use crate::{BatchKind, TrainError, checkpoints};
use plimsoll_data::Cursor;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Steps at most that are replayed, from a checkpoint or from the start.
const MAX_REPLAYED: u64 = 100;

/// The loss, a gradient or a parameter is not finite.
#[derive(Clone, Debug, Error, PartialEq)]
pub struct Diverged {
    /// Steps done before.
    pub step: u64,
    /// The loss of the step; that of the last good step where a parameter showed it first.
    pub loss: f64,
    /// Whether f16's gradients were not finite at the smallest loss scale.
    pub gradients: bool,
    /// Where the first number that is not finite came from, if the replay found it.
    pub origin: Option<Origin>,
    /// The last good checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// The node that wrote the first number that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The layer.
    pub layer: String,
    /// The op.
    pub op: &'static str,
    /// Steps done before.
    pub step: u64,
}

impl fmt::Display for Diverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.loss.is_finite(), self.gradients) {
            (false, _) => write!(f, "the loss became {} in step {}", self.loss, self.step + 1)?,
            (_, true) => write!(
                f,
                "a gradient is not finite in step {}, with the smallest loss scale there is",
                self.step + 1
            )?,
            _ => write!(f, "a parameter is not finite after step {}", self.step)?,
        }
        match &self.origin {
            Some(Origin { layer, op, step }) => write!(
                f,
                "; the first number that is not finite came from layer `{layer}` ({op}) in step {}",
                step + 1
            )?,
            None => write!(f, "; the layer is unknown without a checkpoint shortly before")?,
        }
        match &self.checkpoint {
            Some(path) => write!(f, "; the last good checkpoint is {}", path.display())?,
            None => write!(f, "; there is no checkpoint")?,
        }
        write!(f, ": try a smaller learning rate, or clip gradients")
    }
}

impl Session {
    /// Finds the layer that wrote the first number that is not finite, if `error` says that there is one. Restores the last
    /// checkpoint, or the initial values if they are near, and replays the steps since then with a check of every node's
    /// outputs. Steps are reproducible, so a run keeps nothing for this. Afterwards the session's states are useless.
    pub(super) fn explain(
        &mut self,
        error: TrainError,
        loss: f64,
        listeners: &mut Listeners<'_>,
    ) -> TrainError {
        let (step, loss, gradients, until) = match error {
            TrainError::Diverged(found) => (found.step, found.loss, found.gradients, self.steps_done + 1),
            TrainError::NotFinite { .. } => (self.steps_done, loss, false, self.steps_done),
            other => return other,
        };
        self.poisoned = true;
        let mut checkpoint = None;
        let mut may_continue = |listeners: &mut Listeners<'_>, replayed| {
            let event = TrainEvent::Diverged { step, loss, replayed };
            listeners.notify(&event).is_ok_and(|request| request == Control::Continue)
        };
        // A rank that stops at its first bad number would leave the others waiting.
        let wanted = may_continue(listeners, 0) && self.trainer.connected().is_none();
        let origin = match self.rewind(&mut checkpoint) {
            Ok(true) if wanted => self.replay(until, listeners, &mut may_continue),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        self.poisoned = true;
        // A failed replay is no worse than none.
        let origin = origin.unwrap_or(None);
        TrainError::Diverged(Box::new(Diverged { step, loss, gradients, origin, checkpoint }))
    }

    /// Restores the newest good checkpoint of this run, or the initial values. Returns whether the steps since then are few
    /// enough to replay.
    fn rewind(&mut self, checkpoint: &mut Option<PathBuf>) -> Result<bool, TrainError> {
        let steps_done = self.steps_done;
        if let Some(folder) = self.trainer.clone().checkpoint_folder() {
            for path in checkpoints(folder)?.into_iter().rev() {
                if self.resume_from(&path).is_ok_and(|state| state.steps_done <= steps_done) {
                    *checkpoint = Some(path);
                    return Ok(steps_done - self.steps_done <= MAX_REPLAYED);
                }
            }
        }
        if !self.replayable || steps_done > MAX_REPLAYED {
            return Ok(false);
        }
        let (prepared, buffer) = (self.prepared.as_mut(), self.buffer.get_mut());
        clear(prepared, &self.whole.states, buffer)?;
        let values = self.trainer.model.initial_values();
        initialize(prepared, &self.whole.states, self.trainer.seed, values, buffer, |_, _| ())?;
        (self.steps_done, self.schedule_start, self.cursor) = (0, 0, Cursor::default());
        (self.plateau, self.validated) = (Plateau::default(), 0);
        Ok(true)
    }

    /// Replays steps up to the `until`th, checking all they write, as long as the listeners allow it.
    fn replay(
        &mut self,
        until: u64,
        listeners: &mut Listeners<'_>,
        may_continue: &mut dyn FnMut(&mut Listeners<'_>, u64) -> bool,
    ) -> Result<Option<Origin>, TrainError> {
        let mut batches = self.prefetched_training_batches().start(self.cursor)?;
        let mut replayed = 0;
        let has_plateau = matches!(self.trainer.schedule, Schedule::Plateau { .. });
        while self.steps_done < until {
            let Some(batch) = batches.next()? else {
                self.cursor = batches.cursor();
                continue;
            };
            let plan = self.find_plan(BatchKind::Train, batch)?;
            self.callback_scale = listeners.scale(self.steps_done - self.schedule_start, self.total_steps);
            self.update_settings(plan)?;
            // Steps that f16 skips hold infinities legitimately, except the last one.
            let check_finite = self.scale()?.is_none() || self.steps_done + 1 == until;
            let how = if check_finite { Run::UntilBad } else { Run::Plain };
            if let Some(node) = self.run_plan(plan, batch, how)?.1 {
                // Nodes are numbered device by device.
                let mut nodes = self.parts.iter().flat_map(|part| &part.plans[plan].graph.nodes);
                let origin = nodes.nth(node.index()).map(|node| {
                    let (layer, op) = (node.layer.to_string(), node.op.name());
                    Origin { layer, op, step: self.steps_done }
                });
                return Ok(origin);
            }
            self.steps_done += 1;
            self.cursor = batch.after();
            replayed += 1;
            if !may_continue(listeners, replayed) {
                return Ok(None);
            }
            if has_plateau && self.is_due(self.steps_done - self.schedule_start) {
                let data = self.data.clone();
                let loss = self.evaluate(data.evaluation_part())?.loss;
                self.plateau.observe(self.trainer.schedule, loss);
            }
        }
        Ok(None)
    }
}
