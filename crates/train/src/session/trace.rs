//! The trace of a run's first steps.

use crate::trainer::TraceSettings;
use crate::{Held, TrainError};
use plimsoll_trace::{Trace, Value, counter, span_of};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A trace that is being written. Nothing is recorded between steps: evaluations can be long.
pub(super) struct StepTrace {
    trace: Trace,
    path: PathBuf,
    steps_left: u64,
    /// Whether memory was counted: it is after every step, and before the first.
    counted: bool,
}

/// A step that was traced, as its event tells of it.
pub(super) struct TracedStep {
    pub step: u64,
    pub loss: f64,
    pub examples: usize,
    /// When it started.
    pub started: Instant,
    /// Its time, and the part of it until the batch was there.
    pub times: [Duration; 2],
    pub held: Option<Held>,
    pub device_bytes: Option<usize>,
}

impl StepTrace {
    pub fn create(settings: &TraceSettings) -> Result<Self, TrainError> {
        let TraceSettings { path, steps } = settings.clone();
        let trace = Trace::create(&path).map_err(|source| TrainError::file(&path, source))?;
        Ok(Self { trace, path, steps_left: steps, counted: false })
    }

    /// Records the step that starts now.
    pub fn begin(&mut self, held: impl FnOnce() -> Option<Held>) {
        self.trace.record(true);
        if !std::mem::replace(&mut self.counted, true) {
            count_memory(held(), None);
        }
    }

    /// Ends the record of a step; whether another one is left. After the last one the file is complete.
    pub fn end(&mut self, done: &TracedStep) -> Result<bool, TrainError> {
        let [time, data] = done.times;
        let arguments = [
            ("step", Value::Count(done.step)),
            ("loss", Value::Number(done.loss)),
            ("examples", Value::Count(done.examples as u64)),
        ];
        // Of two slices that begin together, the outer one comes first.
        span_of(done.started, time, "step", "training step", &arguments);
        span_of(done.started, data, "input", "wait for data", &[]);
        count_memory(done.held, done.device_bytes);
        self.trace.record(false);
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left == 0 {
            self.trace.flush().map_err(|source| TrainError::file(&self.path, source))?;
        }
        Ok(self.steps_left > 0)
    }
}

fn count_memory(held: Option<Held>, device_bytes: Option<usize>) {
    if let Some(held) = held {
        counter("resident set", held.resident_bytes as u64);
        counter("swapped", held.swapped_bytes as u64);
    }
    if let Some(bytes) = device_bytes {
        counter("device memory", bytes as u64);
    }
}
