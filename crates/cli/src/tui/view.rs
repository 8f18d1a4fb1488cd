//! What is shown of a run, as plain data of a bounded size.

use super::super::curve::{Curve, MOST_POINTS};
use plimsoll::train::TrainEvent;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most messages that are kept, and metrics.
pub const MOST_MESSAGES: usize = 256;
const MOST_FIGURES: usize = 16;
/// The longest message.
const MESSAGE_BYTES: usize = 256;
/// Bytes of all of it, and of the texts that are kept to be printed.
pub(super) const VIEW_BYTES: usize =
    2 * MOST_POINTS * size_of::<(f64, f64)>() + 2 * MOST_MESSAGES * (MESSAGE_BYTES + 48);

/// A memory space with its line.
pub struct SpaceView {
    pub name: &'static str,
    pub line: usize,
    pub planned: usize,
    pub measured: Option<usize>,
}

/// The run.
pub struct View {
    pub title: String,
    pub started: Instant,
    pub step: u64,
    pub steps: u64,
    pub epoch: u64,
    /// The step at which this program began, and when the first one ended.
    first: Option<(Instant, u64)>,
    pub loss: f64,
    pub learning_rate: Option<f64>,
    pub losses: Curve,
    pub validations: Curve,
    pub figures: Vec<(String, f64)>,
    /// Examples and time since the speed was last worked out, and the speed.
    recent: (usize, Duration),
    pub samples_per_second: f64,
    /// The first is that of host memory.
    pub spaces: Vec<SpaceView>,
    pub swapped: usize,
    pub messages: VecDeque<String>,
    pub stopping: bool,
}

impl View {
    /// A run of this title, in these spaces, of which the first is host memory.
    pub fn new(title: String, started: Instant, spaces: Vec<SpaceView>) -> Self {
        Self {
            title,
            started,
            step: 0,
            steps: 0,
            epoch: 0,
            first: None,
            loss: f64::NAN,
            learning_rate: None,
            losses: Curve::new(),
            validations: Curve::new(),
            figures: Vec::with_capacity(MOST_FIGURES),
            recent: (0, Duration::ZERO),
            samples_per_second: 0.0,
            spaces,
            swapped: 0,
            messages: VecDeque::with_capacity(MOST_MESSAGES),
            stopping: false,
        }
    }

    /// Changes by an event of the run.
    pub fn on(&mut self, event: &TrainEvent<'_>) {
        match *event {
            TrainEvent::Step { step, steps, epoch, loss, examples, time, held, learning_rate, .. } => {
                (self.step, self.steps, self.epoch, self.loss) = (step, steps, epoch, loss);
                self.learning_rate = learning_rate;
                self.first.get_or_insert((Instant::now(), step));
                self.losses.push(step, loss);
                if let (Some(held), Some(host)) = (held, self.spaces.first_mut()) {
                    host.measured = Some(held.resident_bytes.saturating_add(held.swapped_bytes));
                    self.swapped = held.swapped_bytes;
                }
                self.recent.0 += examples;
                self.recent.1 += time;
                if self.recent.1 >= Duration::from_millis(500) || self.samples_per_second == 0.0 {
                    self.samples_per_second = self.recent.0 as f64 / self.recent.1.as_secs_f64().max(1e-9);
                    self.recent = (0, Duration::ZERO);
                }
            }
            TrainEvent::Validation { step, evaluation, figures, .. } => {
                self.validations.push(step, evaluation.loss);
                self.figures.clear();
                self.figures.push(("validation loss".into(), evaluation.loss));
                let accuracy = evaluation.accuracy.map(|share| ("accuracy".to_string(), share));
                let others = figures.iter().filter(|(name, _)| name != "accuracy").cloned();
                self.figures.extend(accuracy.into_iter().chain(others).take(MOST_FIGURES - 1));
            }
            TrainEvent::Diverged { .. } | TrainEvent::AbovePlan { .. } => {}
        }
    }

    /// Adds a line to the messages.
    pub fn message(&mut self, mut line: String) {
        let end = (0..=MESSAGE_BYTES.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
        if self.messages.len() == MOST_MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(line);
    }

    /// The time that the steps that are left will take, as those of this program did.
    pub fn left(&self) -> Option<Duration> {
        let (since, first) = self.first?;
        let done = self.step.checked_sub(first).filter(|done| *done > 0)?;
        let each = since.elapsed().as_secs_f64() / done as f64;
        Duration::try_from_secs_f64(each * self.steps.saturating_sub(self.step) as f64).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded() {
        let mut view = View::new("t".into(), Instant::now(), Vec::new());
        (0..1000).for_each(|i| view.message(format!("{i}{}", "ü".repeat(300))));
        assert_eq!(view.messages.len(), MOST_MESSAGES);
        assert!(view.messages.iter().all(|line| line.len() <= MESSAGE_BYTES));
    }
}
