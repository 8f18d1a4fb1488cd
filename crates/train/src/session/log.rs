//! Figures that a run collects on its way.

use crate::{Ending, Evaluation, Report, Scale};
use plimsoll_plan::Extra;
use std::time::Duration;

/// Step times kept for the median.
const TIMES_KEPT: usize = 4096;

/// How many predictions were right.
#[derive(Default)]
pub(crate) struct Hits {
    right: u64,
    rows: u64,
}

impl Hits {
    /// Counts predictions beside labels, both i32; a negative label is none.
    pub fn count(&mut self, predictions: &[i32], labels: &[u8]) {
        let labels = labels.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        for (&prediction, label) in predictions.iter().zip(labels).filter(|(_, label)| *label >= 0) {
            self.rows += 1;
            self.right += u64::from(prediction == label);
        }
    }

    /// The share that was right, of rows with labels.
    pub fn accuracy(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.right as f64 / self.rows as f64)
    }
}

/// Figures of a run in the making.
#[derive(Default)]
pub(crate) struct Log {
    /// Steps of the run that a resumed one had done before.
    before: u64,
    steps: u64,
    examples: u64,
    last_loss: f64,
    /// Sum and number of losses since the mean was last asked for.
    recent_loss: f64,
    recent_steps: u64,
    warm_examples: u64,
    warm_time: Duration,
    warm_extra: Extra,
    times: Vec<Duration>,
}

impl Log {
    /// An empty log of a run that had done so many steps before.
    pub fn new(before: u64) -> Self {
        Self { before, last_loss: f64::NAN, times: Vec::with_capacity(TIMES_KEPT), ..Self::default() }
    }

    /// Steps of the whole run done so far.
    pub fn done(&self) -> u64 {
        self.before + self.steps
    }

    /// Counts a step.
    pub fn step(&mut self, loss: f64, examples: usize, time: Duration, extra: Extra) {
        if self.steps > 0 {
            self.warm_examples += examples as u64;
            self.warm_time += time;
            self.warm_extra.waiting += extra.waiting;
            self.warm_extra.again += extra.again;
        }
        // A long run keeps its latest times.
        let place = self.steps as usize % TIMES_KEPT;
        if place < self.times.len() {
            self.times[place] = time
        } else {
            self.times.push(time)
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

    /// The mean loss since this was last asked; not a number where there was no step.
    pub fn mean_loss(&mut self) -> f64 {
        let mean = self.recent_loss / self.recent_steps as f64;
        (self.recent_loss, self.recent_steps) = (0.0, 0);
        mean
    }

    /// What the run came to.
    pub fn report(
        mut self,
        evaluation: Evaluation,
        micro_batches: usize,
        ending: Ending,
        scale: Option<Scale>,
    ) -> Report {
        let warm = if self.times.len() > 1 { &mut self.times[1..] } else { &mut self.times[..] };
        warm.sort_unstable();
        let step_median = warm.get(warm.len() / 2).copied().unwrap_or_default();
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
            step_median,
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
