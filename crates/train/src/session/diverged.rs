//! A loss that is not a number any more, or a gradient: who made it so.

use super::fit::Lookers;
use super::init::{clear, initialise};
use crate::files::Checkpoints;
use crate::{BatchKind, Control, Plateau, Schedule, Session, TrainError, TrainEvent, checkpoints};
use plimsoll_data::{Cursor, Dataset};
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Steps at most that are done again, from a checkpoint or from the start.
const MOST_AGAIN: u64 = 100;

/// The loss, a gradient or a parameter is not a number any more.
#[derive(Clone, Debug, Error, PartialEq)]
pub struct Diverged {
    /// Steps done before.
    pub step: u64,
    /// The loss of the step; that of the last good one where a parameter showed it first.
    pub loss: f64,
    /// Whether it was f16's gradients that were not finite, though the loss was not scaled any more.
    pub gradients: bool,
    /// Who made the first number that is not finite, where it could be found out.
    pub origin: Option<Origin>,
    /// The last good checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// Where the first number came from that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The layer.
    pub layer: String,
    /// The op that made it.
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
            None => write!(f, "; which layer did it is not known without a checkpoint shortly before")?,
        }
        match &self.checkpoint {
            Some(path) => write!(f, "; the last good checkpoint is {}", path.display())?,
            None => write!(f, "; there is no checkpoint")?,
        }
        write!(f, ": try a smaller learning rate, or clip gradients")
    }
}

impl Session<'_> {
    /// Finds out who made the first number that is not finite, where `error` says that there is one: goes back to the last
    /// checkpoint, or to the start if that is near, and does the steps since then again, looking at all they write. Nothing
    /// in a run is held for it. The session's states are of no use afterwards.
    pub(crate) fn explain(
        &mut self,
        data: &Dataset,
        error: TrainError,
        loss: f64,
        lookers: &mut Lookers<'_, '_>,
    ) -> TrainError {
        let (step, loss, gradients, until) = match error {
            TrainError::Diverged(found) => (found.step, found.loss, found.gradients, self.steps_done + 1),
            TrainError::NotFinite { .. } => (self.steps_done, loss, false, self.steps_done),
            other => return other,
        };
        self.spoilt = true;
        let mut checkpoint = None;
        let mut go_on = |lookers: &mut Lookers<'_, '_>, again| {
            let event = TrainEvent::Diverged { step, loss, again };
            lookers.tell(&event).is_ok_and(|wish| wish == Control::Continue)
        };
        let wanted = go_on(lookers, 0);
        let back = match self.go_back(&mut checkpoint) {
            Ok(true) if wanted => self.step_until_bad(data, until, lookers, &mut go_on),
            Ok(true) => Ok(None),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        self.spoilt = true;
        // Failing to find out is no worse than not looking.
        let origin = back.unwrap_or(None);
        TrainError::Diverged(Box::new(Diverged { step, loss, gradients, origin, checkpoint }))
    }

    /// Goes back to the newest good checkpoint of this run, or to the start; whether there was a way, and a short one.
    fn go_back(&mut self, checkpoint: &mut Option<PathBuf>) -> Result<bool, TrainError> {
        let steps_done = self.steps_done;
        if let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints {
            for path in checkpoints(folder)?.into_iter().rev() {
                if self.resume_from(&path).is_ok_and(|state| state.steps_done <= steps_done) {
                    *checkpoint = Some(path);
                    return Ok(steps_done - self.steps_done <= MOST_AGAIN);
                }
            }
        }
        if !self.from_seed || steps_done > MOST_AGAIN {
            return Ok(false);
        }
        let (prepared, buffer) = (self.prepared.as_mut(), self.buffer.get_mut());
        clear(prepared, &self.plans.states, buffer)?;
        initialise(prepared, &self.plans.states, self.trainer.seed, buffer)?;
        (self.steps_done, self.schedule_start, self.cursor) = (0, 0, Cursor::default());
        (self.plateau, self.validated) = (Plateau::default(), 0);
        Ok(true)
    }

    /// Does steps again up to the `until`th, looking at all they write, as long as `go_on` says so.
    fn step_until_bad(
        &mut self,
        data: &Dataset,
        until: u64,
        lookers: &mut Lookers<'_, '_>,
        go_on: &mut dyn FnMut(&mut Lookers<'_, '_>, u64) -> bool,
    ) -> Result<Option<Origin>, TrainError> {
        let mut batches = self.training_batches(data).start(self.cursor)?;
        let mut again = 0;
        let lowers = matches!(self.trainer.schedule, Schedule::Plateau { .. });
        while self.steps_done < until {
            let Some(batch) = batches.next()? else {
                self.cursor = batches.cursor();
                continue;
            };
            let plan = self.find(BatchKind::Train, batch)?;
            self.own_scale = lookers.scale(self.steps_done - self.schedule_start, self.total_steps);
            self.set_settings(plan)?;
            // Steps that f16 skips hold infinities by right, but for the last one.
            let look = self.scale()?.is_none() || self.steps_done + 1 == until;
            if let Some(node) = self.run(plan, batch, look)?.1 {
                let node = self.plans.plans[plan].graph.node(node);
                let (layer, op) = (node.layer.to_string(), node.op.name());
                return Ok(Some(Origin { layer, op, step: self.steps_done }));
            }
            self.steps_done += 1;
            self.cursor = batch.after();
            again += 1;
            if !go_on(lookers, again) {
                return Ok(None);
            }
            if lowers && self.is_due(self.steps_done - self.schedule_start) {
                let loss = self.evaluate(&data.test)?.loss;
                self.plateau.observe(self.trainer.schedule, loss);
            }
        }
        Ok(None)
    }
}
