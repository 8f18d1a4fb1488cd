//! The progress of a run's steps.

use super::ending::accuracy;
use super::running::LoopOptions;
use super::setup::Setup;
use super::{hint, progress, say, signals, tui};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll::memory::measured_peak;
use plimsoll::plan::{in_words, time_in_words};
use plimsoll::train::{Control, TrainEvent};
use std::time::{Duration, Instant};

/// The most metrics of a validation that are printed; a confusion matrix has hundreds.
const MOST_FIGURES: usize = 8;

/// Steps that wait to be shown on the whole terminal at most.
const MOST_WAITING: usize = 64;
/// Time between two looks at a run's figures.
const BETWEEN: Duration = Duration::from_millis(100);

/// Memory of the steps that wait.
pub const WAITING_BYTES: usize = MOST_WAITING * size_of::<TrainEvent<'static>>();

/// A bar on a terminal, a line from time to time elsewhere, and a line per validation.
pub struct StepProgress {
    bar: Option<ProgressBar>,
    start: Instant,
    /// Time from the program's start to the end of the first step.
    pub first_step: Option<Duration>,
    /// The most bytes of this process in swap after a step.
    pub most_swapped: usize,
    /// When the bar was last updated, and when the first step ended, with its number.
    shown: Instant,
    first: Option<(Instant, u64)>,
    /// Examples and time since the bar was last updated.
    recent: (usize, Duration),
    /// The part of the data that validations use.
    part: &'static str,
    /// Whether validations are every so many steps, not after epochs.
    by_steps: bool,
    /// Whether the model is one of text.
    text: bool,
    /// Whether the run is shown on the whole terminal.
    tui: bool,
    /// Its steps that are to be shown there: together, since each drives out of the processor's caches what shows it.
    waiting: Vec<TrainEvent<'static>>,
}

impl StepProgress {
    /// For a run of a program that started then.
    pub fn new(start: Instant, running: &LoopOptions, setup: &Setup, tui: bool) -> Self {
        let part = if setup.data.validation.is_some() { "validation" } else { "test" };
        let (by_steps, text) = (running.validate_every.is_some(), setup.is_text());
        let (first_step, first, recent) = (None, None, (0, Duration::ZERO));
        Self {
            bar: None,
            start,
            first_step,
            most_swapped: 0,
            shown: start,
            first,
            recent,
            part,
            by_steps,
            text,
            tui,
            waiting: Vec::with_capacity(if tui { MOST_WAITING } else { 0 }),
        }
    }

    /// Shows what happened on the whole terminal.
    fn update_tui(&mut self, event: &TrainEvent<'_>) {
        let TrainEvent::Step { step, steps, epoch, loss, examples, time, data, held, learning_rate, scale } =
            *event
        else {
            return tui::update(|view| {
                self.waiting.drain(..).chain([*event]).for_each(|event| view.on(&event))
            });
        };
        self.waiting.push(TrainEvent::Step {
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
        });
        if self.waiting.len() == MOST_WAITING || self.is_due(step, steps) {
            tui::update(|view| self.waiting.drain(..).for_each(|event| view.on(&event)));
        }
    }

    /// Whether the figures of a step are to be shown.
    fn is_due(&self, step: u64, steps: u64) -> bool {
        step == steps || self.shown.elapsed() > BETWEEN
    }

    /// Shows what happened, and lets a signal end the run.
    pub fn on(&mut self, event: &TrainEvent<'_>) -> Control {
        if self.tui {
            self.update_tui(event);
        }
        match *event {
            TrainEvent::Step { step, steps, loss, examples, time, held, .. } => {
                self.most_swapped = self.most_swapped.max(held.map_or(0, |held| held.swapped_bytes));
                self.first_step.get_or_insert_with(|| self.start.elapsed());
                self.recent.0 += examples;
                self.recent.1 += time;
                if self.is_due(step, steps) {
                    self.show(step, steps, loss);
                }
            }
            TrainEvent::Validation { step, epoch, train_loss, evaluation, figures, .. } => {
                let when =
                    if self.by_steps { format!("step {step}") } else { format!("epoch {}", epoch + 1) };
                let trained = match train_loss.is_nan() {
                    true => String::new(),
                    false => format!("training loss {train_loss:.4}, "),
                };
                let mut line = format!("{when}: {trained}{}", accuracy(&evaluation, self.part, self.text));
                for (name, value) in figures.iter().filter(|(name, _)| name != "accuracy").take(MOST_FIGURES)
                {
                    line += &format!(", {name} {value:.4}");
                }
                say(&line);
            }
            TrainEvent::Diverged { step, loss, replayed: 0 } => {
                let what = match loss.is_finite() {
                    true => format!("a parameter is not finite after step {step}"),
                    false => format!("the loss became {loss} in step {}", step + 1),
                };
                hint(&format!("{what}; searching for the layer that caused it"));
            }
            TrainEvent::Diverged { .. } => {}
            TrainEvent::AbovePlan { step, planned_bytes, held } => {
                let (held, planned) = (in_words(held.total_bytes()), in_words(planned_bytes));
                let text =
                    format!("after step {step} the process holds {held}, more than the planned {planned}");
                hint(&text);
            }
        }
        if signals::received().is_some() { Control::Leave } else { Control::Continue }
    }

    fn show(&mut self, step: u64, steps: u64, loss: f64) {
        let now = Instant::now();
        let rate = self.recent.0 as f64 / self.recent.1.as_secs_f64().max(1e-9);
        let memory = measured_peak().map_or(String::new(), in_words);
        let (first, number) = *self.first.get_or_insert((now, step));
        let each = now.duration_since(first).as_secs_f64() / step.saturating_sub(number).max(1) as f64;
        let left = (each * steps.saturating_sub(step) as f64 * 1e9) as u64;
        let left = if step > number { format!("  {} left", time_in_words(left)) } else { String::new() };
        let figures = format!("loss {loss:.4}  {rate:.0} samples/s  {memory}{left}");
        if progress::on_terminal() && !self.tui {
            let bar = self.bar.get_or_insert_with(|| bar(steps));
            bar.set_position(step);
            bar.set_message(figures);
        } else {
            progress::detail(|| format!("step {step} of {steps}  {figures}"));
        }
        self.recent = (0, Duration::ZERO);
        self.shown = now;
    }
}

/// A bar of so many steps, on the terminal from now on.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
        bar.set_style(style);
    }
    progress::show_bar(&bar);
    bar
}
