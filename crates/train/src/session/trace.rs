//! The trace of a run's first steps.

use crate::TrainError;
use crate::memory::Watchdog;
use crate::trainer::TraceSettings;
use plimsoll_trace::{Scope, Trace, Value, counter, span_of};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A trace that is being written. Nothing is recorded between steps: evaluations can be long.
pub(super) struct StepTrace {
    trace: Option<Trace>,
    path: PathBuf,
    steps_left: u64,
    memory: Watchdog,
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
    pub device_bytes: Option<usize>,
}

impl StepTrace {
    pub fn create(settings: &TraceSettings) -> Result<Self, TrainError> {
        let TraceSettings { path, steps } = settings.clone();
        let trace = Trace::create(&path).map_err(|source| TrainError::file(&path, source))?;
        Ok(Self { trace: Some(trace), path, steps_left: steps, memory: Watchdog::new() })
    }

    /// Records the step that starts now, if one is left to record.
    pub fn begin(&mut self) {
        if let Some(trace) = &self.trace {
            trace.record(true);
            self.count_memory(None);
        }
    }

    /// Ends the record of a step; after the last one the file is complete.
    pub fn end(&mut self, done: &TracedStep) -> Result<(), TrainError> {
        let Some(trace) = &self.trace else { return Ok(()) };
        let [time, data] = done.times;
        span_of(done.started, data, "input", "wait for data", &[]);
        let arguments = [
            ("step", Value::Count(done.step)),
            ("loss", Value::Number(done.loss)),
            ("examples", Value::Count(done.examples as u64)),
        ];
        span_of(done.started, time, "step", "training step", &arguments);
        self.count_memory(done.device_bytes);
        trace.record(false);
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left == 0 {
            let flushed = trace.flush();
            self.trace = None;
            flushed.map_err(|source| TrainError::file(&self.path, source))?;
        }
        Ok(())
    }

    fn count_memory(&self, device_bytes: Option<usize>) {
        if let Some((resident, swapped)) = self.memory.resident_and_swapped() {
            counter(Scope::Process, "resident set", resident as u64);
            counter(Scope::Process, "swapped", swapped as u64);
        }
        if let Some(bytes) = device_bytes {
            counter(Scope::Process, "device memory", bytes as u64);
        }
    }
}
