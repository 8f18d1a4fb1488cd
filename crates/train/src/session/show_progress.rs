//! Progress for people: on a terminal a line that is rewritten, elsewhere a line every second; and a line per validation.

use super::{Callback, Control, TrainEvent};
use crate::TrainError;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The shortest time between two updates of the line on a terminal, and between two lines elsewhere.
const BETWEEN_UPDATES: Duration = Duration::from_millis(100);
const BETWEEN_LINES: Duration = Duration::from_millis(900);

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

    /// What to write after a step: nothing if it is too soon.
    fn line(&mut self, now: Instant, (step, steps): (u64, u64), epoch: u64, loss: f64) -> Option<String> {
        let (begun, first) = *self.begun.get_or_insert((now, step));
        let due = match (self.is_terminal, self.shown) {
            (true, None) => true,
            (true, Some(shown)) => step == steps || now.duration_since(shown) >= BETWEEN_UPDATES,
            (false, shown) => now.duration_since(shown.unwrap_or(begun)) >= BETWEEN_LINES,
        };
        if !due {
            return None;
        }
        self.shown = Some(now);
        let each = now.duration_since(begun).checked_div((step - first).max(1) as u32).unwrap_or_default();
        let left = each.saturating_mul(steps.saturating_sub(step).min(u64::from(u32::MAX)) as u32);
        let text =
            format!("epoch {}, step {step} of {steps}, loss {loss:.4}, {} left", epoch + 1, in_time(left));
        Some(if self.is_terminal { format!("\r\x1b[K{text}") } else { format!("{text}\n") })
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
            TrainEvent::Step { step, steps, epoch, loss, .. } => {
                let line = self.line(Instant::now(), (*step, *steps), *epoch, *loss);
                line.iter().for_each(|line| write(line));
            }
            TrainEvent::Validation { epoch, part, train_loss, evaluation, .. } => {
                let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
                write(&format!(
                    "{clear}epoch {}: training loss {train_loss:.4}; {part}: {evaluation}\n",
                    epoch + 1
                ));
                self.shown = Some(Instant::now());
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
    fn a_line_is_due_every_second_where_there_is_no_terminal() {
        let start = Instant::now();
        let mut progress = ShowProgress { is_terminal: false, begun: None, shown: None };
        let mut at = |ms: u64, step| progress.line(start + Duration::from_millis(ms), (step, 9), 0, 0.5);
        assert_eq!((at(0, 1), at(500, 2)), (None, None));
        assert_eq!(at(1000, 3).as_deref(), Some("epoch 1, step 3 of 9, loss 0.5000, 3 s left\n"));
        assert_eq!(at(1500, 4), None);
        assert!(at(2000, 5).is_some() && at(2100, 9).is_none());
        let mut progress = ShowProgress { is_terminal: true, begun: None, shown: None };
        let mut at = |ms: u64, step| progress.line(start + Duration::from_millis(ms), (step, 9), 0, 0.5);
        assert!(at(0, 1).is_some_and(|line| line.starts_with("\r\x1b[K") && !line.ends_with('\n')));
        assert!(
            at(50, 2).is_none() && at(100, 3).is_some() && at(110, 9).is_some(),
            "and the last one at once"
        );
    }

    #[test]
    fn times_have_the_units_that_people_use() {
        let of = |seconds| in_time(Duration::from_secs(seconds));
        assert_eq!(
            [of(0), of(59), of(61), of(3600), of(90_061)],
            ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "25 h 1 min"]
        );
    }
}
