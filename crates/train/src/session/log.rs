//! Losses and step times of a run, for its report.

use super::{Ending, Evaluation, Report, Scale};
use plimsoll_plan::Extra;
use std::time::Duration;

/// Step times kept for the median.
const MAX_TIMES: usize = 4096;

/// Counts of the steps so far.
#[derive(Default)]
pub(super) struct StepLog {
    /// Steps done before the run was resumed.
    before: u64,
    steps: u64,
    examples: u64,
    last_loss: f64,
    /// Sum and number of the losses since the last call of `mean_loss`.
    recent_loss: f64,
    recent_steps: u64,
    warm_examples: u64,
    warm_time: Duration,
    warm_extra: Extra,
    warm_data: Duration,
    /// Of each step, all of it and what went by until its batch was there.
    times: Vec<[Duration; 2]>,
}

impl StepLog {
    /// An empty log of a run that had done `before` steps when it was resumed.
    pub fn new(before: u64) -> Self {
        Self { before, last_loss: f64::NAN, times: Vec::with_capacity(MAX_TIMES), ..Self::default() }
    }

    /// Steps of the whole run done so far.
    pub fn done(&self) -> u64 {
        self.before + self.steps
    }

    /// Counts a step, of whose time `data` went by until its batch was there.
    pub fn step(&mut self, loss: f64, examples: usize, times: [Duration; 2], extra: Extra) {
        let [time, data] = times;
        if self.steps > 0 {
            self.warm_examples += examples as u64;
            self.warm_time += time;
            self.warm_data += data;
            self.warm_extra.waiting += extra.waiting;
            self.warm_extra.again += extra.again;
        }
        // A ring buffer: a long run keeps its latest times.
        let slot = self.steps as usize % MAX_TIMES;
        if slot < self.times.len() {
            self.times[slot] = times
        } else {
            self.times.push(times)
        }
        self.steps += 1;
        self.examples += examples as u64;
        self.last_loss = loss;
        // A step that was skipped may have no loss.
        if loss.is_finite() {
            self.recent_loss += loss;
            self.recent_steps += 1;
        }
    }

    /// The mean loss since the last call; NaN where there was no step.
    pub fn mean_loss(&mut self) -> f64 {
        let mean = self.recent_loss / self.recent_steps as f64;
        (self.recent_loss, self.recent_steps) = (0.0, 0);
        mean
    }

    /// The report at the end of the run.
    pub fn report(
        mut self,
        evaluation: Evaluation,
        micro_batches: usize,
        ending: Ending,
        scale: Option<Scale>,
    ) -> Report {
        let warm = if self.times.len() > 1 { &mut self.times[1..] } else { &mut self.times[..] };
        let mut median = |of: fn(&[Duration; 2]) -> Duration| {
            warm.sort_unstable_by_key(of);
            warm.get(warm.len() / 2).map(of).unwrap_or_default()
        };
        let step_median = median(|[time, _]| *time);
        let computing_median = median(|[time, data]| time.saturating_sub(*data));
        let (examples, time) =
            if self.steps > 1 { (self.warm_examples, self.warm_time) } else { (self.examples, step_median) };
        let each = u32::try_from(self.steps.max(2) - 1).unwrap_or(u32::MAX);
        let Extra { waiting, again } = self.warm_extra;
        let computing = self.warm_time.saturating_sub(waiting + again);
        Report {
            steps: self.done(),
            examples: self.examples,
            final_loss: self.last_loss,
            evaluation,
            validation: None,
            step_median,
            computing_median,
            data: self.warm_data / each,
            extra: Extra { waiting: waiting / each, again: again / each },
            slowdown: (waiting + again).as_secs_f64() / computing.as_secs_f64().max(1e-9),
            samples_per_second: examples as f64 / time.as_secs_f64().max(1e-9),
            micro_batches,
            ending,
            refused: None,
            scale,
        }
    }
}
