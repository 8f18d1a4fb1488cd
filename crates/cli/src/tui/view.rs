//! What is shown of a run, as plain data of a bounded size.

use plimsoll::memory::Watchdog;
use plimsoll::train::TrainEvent;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The largest terminal that is filled: larger ones stay empty beyond it, so that memory is known before.
pub const MOST_WIDTH: u16 = 200;
pub const MOST_HEIGHT: u16 = 60;
/// Bytes of a character on the screen.
pub const CELL_BYTES: usize = size_of::<ratatui::buffer::Cell>();
/// The most points of a curve, messages that are kept, and metrics.
const MOST_POINTS: usize = 1024;
pub const MOST_MESSAGES: usize = 256;
const MOST_FIGURES: usize = 16;
/// The longest message.
const MESSAGE_BYTES: usize = 256;
/// Bytes of all of it, and of the texts that are kept to be printed.
pub(super) const VIEW_BYTES: usize =
    3 * MOST_POINTS * size_of::<(f64, f64)>() + 2 * MOST_MESSAGES * (MESSAGE_BYTES + 48);

/// A memory space with its line.
pub struct SpaceView {
    pub name: &'static str,
    pub line: usize,
    pub planned: usize,
    pub measured: Option<usize>,
}

/// Points of a curve, one for every so many steps: a long run keeps the means of neighbours.
pub struct Curve {
    points: Vec<(f64, f64)>,
    every: u64,
    sum: f64,
    count: u64,
}

impl Curve {
    fn new() -> Self {
        Self { points: Vec::with_capacity(MOST_POINTS), every: 1, sum: 0.0, count: 0 }
    }

    fn push(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.sum += value;
        self.count += 1;
        if self.count < self.every {
            return;
        }
        if self.points.len() == MOST_POINTS {
            for i in 0..MOST_POINTS / 2 {
                let [(_, first), (at, second)] = [self.points[2 * i], self.points[2 * i + 1]];
                self.points[i] = (at, (first + second) / 2.0);
            }
            self.points.truncate(MOST_POINTS / 2);
            self.every *= 2;
        }
        self.points.push((step as f64, self.sum / self.count as f64));
        (self.sum, self.count) = (0.0, 0);
    }

    /// The points.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
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
    /// The first is that of host memory, which is measured here.
    pub spaces: Vec<SpaceView>,
    memory: Watchdog,
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
            memory: Watchdog::new(),
            swapped: 0,
            messages: VecDeque::with_capacity(MOST_MESSAGES),
            stopping: false,
        }
    }

    /// Changes by an event of the run.
    pub fn on(&mut self, event: &TrainEvent<'_>) {
        match *event {
            TrainEvent::Step { step, steps, epoch, loss, examples, time, learning_rate, .. } => {
                (self.step, self.steps, self.epoch, self.loss) = (step, steps, epoch, loss);
                self.learning_rate = learning_rate;
                self.first.get_or_insert((Instant::now(), step));
                self.losses.push(step, loss);
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

    /// Measures host memory.
    pub fn measure(&mut self) {
        if let (Some((resident, swapped)), Some(space)) =
            (self.memory.resident_and_swapped(), self.spaces.first_mut())
        {
            space.measured = Some(resident + swapped);
            self.swapped = swapped;
        }
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
    fn a_long_curve_keeps_its_mean_in_bounded_memory() {
        let mut curve = Curve::new();
        (1..=100_000).for_each(|step| curve.push(step, step as f64));
        curve.push(100_001, f64::NAN);
        assert!(curve.points.len() <= MOST_POINTS && curve.points.len() > MOST_POINTS / 4);
        assert_eq!(curve.points.capacity(), MOST_POINTS);
        assert!(curve.points.is_sorted());
        for (at, value) in &curve.points {
            // The mean of `every` steps up to this one.
            assert!((value - (at - (curve.every as f64 - 1.0) / 2.0)).abs() < 1e-6, "{at} {value}");
        }
    }

    #[test]
    fn messages_are_bounded() {
        let mut view = View::new("t".into(), Instant::now(), Vec::new());
        (0..1000).for_each(|i| view.message(format!("{i}{}", "ü".repeat(300))));
        assert_eq!(view.messages.len(), MOST_MESSAGES);
        assert!(view.messages.iter().all(|line| line.len() <= MESSAGE_BYTES));
    }
}
