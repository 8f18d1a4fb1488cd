//! Watching the process's memory between steps.

use super::TrainEvent;
use crate::{TrainError, Trainer};
use plimsoll_plan::{LoadSheet, in_words};
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use thiserror::Error;

/// Measures what the process holds. `plimsoll::memory::Watchdog` asks the system.
pub trait Watch: Send + Sync {
    /// What the process holds, if that is more than `limit` bytes. Called after every step: must be cheap and allocate
    /// nothing.
    fn above(&self, limit: usize) -> Option<Held>;

    /// What the process holds, for those who listen to steps; `None` where nobody tells. As cheap as [`Watch::above`].
    fn held(&self) -> Option<Held> {
        None
    }

    /// Bytes by holder: the same names in the same order on every call.
    fn parts(&self) -> Vec<(String, usize)>;
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In memory.
    pub resident_bytes: usize,
    /// Moved to swap.
    pub swapped_bytes: usize,
    /// Part of the resident bytes: file pages beyond those declared, which the system drops when memory is short.
    pub droppable_bytes: usize,
}

impl Held {
    /// Resident and swapped, less what the system can drop.
    pub fn total_bytes(self) -> usize {
        self.resident_bytes.saturating_sub(self.droppable_bytes).saturating_add(self.swapped_bytes)
    }
}

/// Whether a stopped run saved a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Saved {
    /// In this folder.
    In(PathBuf),
    /// The trainer names no folder for it.
    Nowhere,
    /// It could not be written, for this reason.
    Failed(String),
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(folder) => write!(f, "the checkpoint is in {}", folder.display()),
            Self::Nowhere => write!(f, "no checkpoint was saved, because no folder was named for it"),
            Self::Failed(reason) => write!(f, "no checkpoint was saved: {reason}"),
        }
    }
}

/// Memory outside the plan came close to the line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "after step {step} the process holds {} ({} resident, {} swapped), {} more than the {} planned, and the line is {}: \
     {}; declare what your code holds (`--your-code SIZE`, `Trainer::outside`), or hold less; {saved}",
    in_words(held.total_bytes()), in_words(held.resident_bytes), in_words(held.swapped_bytes),
    in_words(held.total_bytes().saturating_sub(*planned_bytes)), in_words(*planned_bytes), in_words(*line_bytes),
    self.grown_in_words()
)]
pub struct Overload {
    /// Steps done.
    pub step: u64,
    /// What the process holds.
    pub held: Held,
    /// The load sheet's total.
    pub planned_bytes: usize,
    /// The line.
    pub line_bytes: usize,
    /// What grew since the run began, largest first.
    pub grown: Vec<(String, usize)>,
    /// Whether the run can be resumed from a checkpoint.
    pub saved: Saved,
}

impl Overload {
    fn grown_in_words(&self) -> String {
        let parts = self.grown.iter().map(|(name, bytes)| format!("{name} grew by {}", in_words(*bytes)));
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { "it did from the start".into() } else { parts.join(", ") }
    }
}

/// Growth below this is not listed.
const MIN_GROWTH_BYTES: usize = 64 << 10;

/// A run's guard: warns once when the process holds more than planned, and stops the run near the line.
pub(super) struct Guard {
    watch: Rc<dyn Watch>,
    planned_bytes: usize,
    line_bytes: usize,
    stop_bytes: usize,
    /// Above this the guard warns, once.
    warn_bytes: Option<usize>,
    /// Bytes by holder when the run began.
    before: Vec<(String, usize)>,
}

impl Guard {
    /// A guard, if the trainer has a watch and a line.
    pub fn new(trainer: &Trainer, sheet: &LoadSheet) -> Option<Self> {
        let (planned_bytes, line_bytes) = sheet.host_total_and_line();
        let watch = trainer.watch.clone().filter(|_| line_bytes != usize::MAX)?;
        // A measured peak is within 2 % or 4 MiB of the planned one; of the 2 %, only what the line leaves counts.
        let slack = line_bytes.saturating_sub(planned_bytes);
        let expected = planned_bytes.saturating_add((planned_bytes / 50).min(slack).max(4 << 20));
        // Below the line, because the next step may grow past it.
        let stop_bytes = (line_bytes - line_bytes / 16).max(expected);
        let warn_bytes = (stop_bytes > expected).then_some(expected);
        let before = watch.parts();
        Some(Self { watch, planned_bytes, line_bytes, stop_bytes, warn_bytes, before })
    }

    /// Measures once. Returns a warning the first time more is held than planned, and what is held if that is too close to
    /// the line.
    pub fn check(&mut self, step: u64) -> (Option<TrainEvent<'static>>, Option<Held>) {
        let Some(held) = self.watch.above(self.warn_bytes.unwrap_or(self.stop_bytes)) else {
            return (None, None);
        };
        let planned_bytes = self.planned_bytes;
        let event = self.warn_bytes.take().map(|_| TrainEvent::AbovePlan { step, planned_bytes, held });
        (event, Some(held).filter(|held| held.total_bytes() > self.stop_bytes))
    }

    /// The error that stops the run.
    pub fn error(&self, step: u64, held: Held, saved: Saved) -> TrainError {
        let parts = self.watch.parts();
        let grown = parts
            .into_iter()
            .zip(&self.before)
            .map(|((name, now), (_, then))| (name, now.saturating_sub(*then)));
        let mut grown: Vec<_> = grown.filter(|(_, bytes)| *bytes >= MIN_GROWTH_BYTES).collect();
        grown.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let (planned_bytes, line_bytes) = (self.planned_bytes, self.line_bytes);
        TrainError::Overload(Box::new(Overload { step, held, planned_bytes, line_bytes, grown, saved }))
    }
}
