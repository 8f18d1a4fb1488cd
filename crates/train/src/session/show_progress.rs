//! Progress for people: a line that is rewritten on a terminal, a line per validation elsewhere.

use super::{Callback, Control, TrainEvent};
use crate::TrainError;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The shortest time between two updates of the line.
const BETWEEN: Duration = Duration::from_millis(100);

/// A callback that shows a run's progress on standard error; [`crate::Trainer::progress`] adds one.
#[derive(Debug)]
pub struct ShowProgress {
    is_terminal: bool,
    begun: Option<(Instant, u64)>,
    shown: Option<Instant>,
}

impl ShowProgress {
    /// Progress of one run.
    pub fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), begun: None, shown: None }
    }

    /// Rewrites the line, unless it is too soon.
    fn step(&mut self, step: u64, steps: u64, epoch: u64, loss: f64) {
        let (begun, first) = *self.begun.get_or_insert((Instant::now(), step));
        if !self.is_terminal || self.shown.is_some_and(|shown| shown.elapsed() < BETWEEN) && step < steps {
            return;
        }
        self.shown = Some(Instant::now());
        let each = begun.elapsed().checked_div((step - first).max(1) as u32).unwrap_or_default();
        let left = each.saturating_mul(steps.saturating_sub(step).min(u64::from(u32::MAX)) as u32);
        let text =
            format!("epoch {}, step {step} of {steps}, loss {loss:.4}, {} left", epoch + 1, in_time(left));
        write(&format!("\r\x1b[K{text}"));
    }
}

impl Default for ShowProgress {
    fn default() -> Self {
        Self::new()
    }
}

impl Callback for ShowProgress {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        match event {
            TrainEvent::Step { step, steps, epoch, loss, .. } => self.step(*step, *steps, *epoch, *loss),
            TrainEvent::Validation { epoch, part, train_loss, evaluation, .. } => {
                let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
                write(&format!(
                    "{clear}epoch {}: training loss {train_loss:.4}; {part}: {evaluation}\n",
                    epoch + 1
                ));
            }
            TrainEvent::Diverged { .. } | TrainEvent::AbovePlan { .. } => {}
        }
        Ok(Control::Continue)
    }
}

/// A closed standard error must not end a run.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// A time as people say it.
fn in_time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_units_that_people_use() {
        let of = |seconds| in_time(Duration::from_secs(seconds));
        assert_eq!(
            [of(0), of(59), of(61), of(3600), of(90_061)],
            ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "25 h 1 min"]
        );
    }
}
