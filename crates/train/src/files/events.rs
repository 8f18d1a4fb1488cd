//! Reads the events of a run that a [`RunLog`](super::RunLog) wrote. The file may be from anywhere, and may end anywhere.

use super::run_log::next_line;
use crate::TrainError;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// An event of a run, read from its file.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEvent {
    /// Steps done so far.
    pub step: u64,
    /// When it was written, in seconds since 1970; 0 where the file does not tell.
    pub time: f64,
    /// What happened.
    pub what: RunEventKind,
}

/// What happened. Figures that are not finite, for which JSON has no word, are read as NaN.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEventKind {
    /// The run begins, or goes on after a checkpoint.
    Begin {
        /// Steps of the whole run.
        steps: u64,
        /// The planned peak of host memory.
        planned_bytes: u64,
        /// Its line; `None` without one.
        line_bytes: Option<u64>,
        /// The planned peak of the device's memory, where kernels compute there.
        device_planned_bytes: Option<u64>,
        /// Its line.
        device_line_bytes: Option<u64>,
        /// The predicted time of a step.
        predicted_seconds: f64,
    },
    /// A step is done.
    Step {
        /// The epoch, from 0.
        epoch: u64,
        /// Its loss.
        loss: f64,
        /// Its examples.
        examples: u64,
        /// Its time, data included.
        seconds: f64,
        /// The part of it until the batch was there.
        data_seconds: f64,
        /// The resident set after it.
        resident_bytes: Option<u64>,
        /// Bytes in swap after it.
        swapped_bytes: Option<u64>,
        /// The loss scale, in f16.
        loss_scale: Option<f64>,
    },
    /// The validation part was evaluated.
    Validation {
        /// The epoch, from 0.
        epoch: u64,
        /// Validations since the best.
        since_best: u64,
        /// `train_loss`, `test_loss` (the evaluated part's), `accuracy`, and the run's metrics.
        figures: Vec<(String, f64)>,
    },
    /// The shortest time of each step of a plan.
    StepTimes {
        /// The plan's name.
        plan: String,
        /// By step; `None` for one that did not run.
        nanoseconds: Vec<Option<u64>>,
    },
    /// The loss was not finite.
    Diverged,
    /// The process held more than was planned.
    AbovePlan {
        /// What it held.
        held_bytes: u64,
    },
}

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    step: u64,
    #[serde(default)]
    time: f64,
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    loss: Option<f64>,
    examples: Option<u64>,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    data_seconds: f64,
    resident_bytes: Option<u64>,
    swapped_bytes: Option<u64>,
    loss_scale: Option<f64>,
    #[serde(default)]
    since_best: u64,
    validation: Option<Map<String, Value>>,
    begin: Option<Begin>,
    step_times: Option<Times>,
    diverged: Option<Value>,
    above_plan: Option<Above>,
}

#[derive(Deserialize)]
struct Begin {
    #[serde(default)]
    steps: u64,
    #[serde(default)]
    planned_bytes: u64,
    line_bytes: Option<u64>,
    device_planned_bytes: Option<u64>,
    device_line_bytes: Option<u64>,
    #[serde(default)]
    predicted_seconds: f64,
}

#[derive(Deserialize)]
struct Times {
    plan: String,
    nanoseconds: Vec<u64>,
}

#[derive(Deserialize)]
struct Above {
    held_bytes: u64,
}

impl Line {
    /// The event; `None` for a line of a kind that is not known here.
    fn event(self) -> Option<RunEvent> {
        let what = if let Some(begin) = self.begin {
            RunEventKind::Begin {
                steps: begin.steps,
                planned_bytes: begin.planned_bytes,
                line_bytes: begin.line_bytes,
                device_planned_bytes: begin.device_planned_bytes,
                device_line_bytes: begin.device_line_bytes,
                predicted_seconds: begin.predicted_seconds,
            }
        } else if let Some(figures) = self.validation {
            let figures = figures.into_iter().map(|(name, value)| (name, value.as_f64().unwrap_or(f64::NAN)));
            let (epoch, since_best) = (self.epoch, self.since_best);
            RunEventKind::Validation { epoch, since_best, figures: figures.collect() }
        } else if let Some(times) = self.step_times {
            let ran = |nanoseconds: u64| (nanoseconds != u64::MAX).then_some(nanoseconds);
            let nanoseconds = times.nanoseconds.into_iter().map(ran).collect();
            RunEventKind::StepTimes { plan: times.plan, nanoseconds }
        } else if self.diverged.is_some() {
            RunEventKind::Diverged
        } else if let Some(above) = self.above_plan {
            RunEventKind::AbovePlan { held_bytes: above.held_bytes }
        } else {
            RunEventKind::Step {
                epoch: self.epoch,
                loss: self.loss.unwrap_or(f64::NAN),
                examples: self.examples?,
                seconds: self.seconds,
                data_seconds: self.data_seconds,
                resident_bytes: self.resident_bytes,
                swapped_bytes: self.swapped_bytes,
                loss_scale: self.loss_scale,
            }
        };
        Some(RunEvent { step: self.step, time: self.time, what })
    }
}

/// The events of a file, one after the other: memory is that of one line.
pub struct RunEvents {
    path: PathBuf,
    file: Option<BufReader<File>>,
    line: Vec<u8>,
}

/// Opens the events of a run: a `.jsonl` file of a [`RunLog`](super::RunLog), as `train --out` leaves it in the run's folder
/// under the name [`EVENTS_FILE`](super::EVENTS_FILE). Reading ends quietly at a line that was cut off or is damaged, and lines
/// of unknown kinds are passed over.
pub fn read_events(path: impl AsRef<Path>) -> Result<RunEvents, TrainError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|source| TrainError::file(path, source))?;
    Ok(RunEvents { path: path.into(), file: Some(BufReader::new(file)), line: Vec::new() })
}

impl Iterator for RunEvents {
    type Item = Result<RunEvent, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match next_line(self.file.as_mut()?, &mut self.line) {
                Ok(true) => {}
                Ok(false) => self.file = None,
                Err(source) => {
                    self.file = None;
                    return Some(Err(TrainError::file(&self.path, source)));
                }
            }
            self.file.as_ref()?;
            match serde_json::from_slice::<Line>(&self.line) {
                Ok(line) => {
                    if let Some(event) = line.event() {
                        return Some(Ok(event));
                    }
                }
                Err(_) => self.file = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Callback, Control, Held, RunLog, TrainEvent};
    use plimsoll_testing::Scratch;
    use std::fs;
    use std::time::Duration;

    fn step(step: u64, loss: f64) -> TrainEvent<'static> {
        let held = Some(Held { resident_bytes: 7 << 20, swapped_bytes: 0, droppable_bytes: 0 });
        let (time, data) = (Duration::from_millis(20), Duration::from_millis(3));
        TrainEvent::Step {
            step,
            steps: 9,
            epoch: 1,
            loss,
            examples: 64,
            time,
            data,
            held,
            learning_rate: None,
            scale: None,
        }
    }

    fn read(path: &Path) -> Vec<RunEvent> {
        read_events(path).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn events_come_back_as_they_were_written_up_to_a_cut() {
        let scratch = Scratch::new("events");
        let path = scratch.0.join(super::super::EVENTS_FILE);
        let mut log = RunLog::create(&path).unwrap();
        log.begin(&plimsoll_plan::LoadSheet { line_bytes: usize::MAX, ..Default::default() }, 0, 9).unwrap();
        log.on(&step(1, 0.1 + 0.2)).unwrap();
        log.on(&step(2, f64::NAN)).unwrap();
        drop(log);
        RunLog::append(&path).unwrap().step_times(2, "train × 64", &[5, u64::MAX]).unwrap();
        let whole = fs::read(&path).unwrap();
        let events = read(&path);
        assert_eq!(events.len(), 4, "{}", String::from_utf8_lossy(&whole));
        assert!(
            matches!(events[0].what, RunEventKind::Begin { steps: 9, line_bytes: None, .. }),
            "{events:?}"
        );
        let RunEventKind::Step { loss, seconds, data_seconds, resident_bytes, .. } = events[1].what else {
            panic!("{events:?}");
        };
        assert_eq!((loss, seconds, data_seconds), (0.1 + 0.2, 0.02, 0.003));
        assert_eq!(resident_bytes, Some(7 << 20));
        assert!(matches!(events[2].what, RunEventKind::Step { loss, .. } if loss.is_nan()));
        let times = RunEventKind::StepTimes { plan: "train × 64".into(), nanoseconds: vec![Some(5), None] };
        assert_eq!(events[3].what, times);
        // Wherever the file ends, the whole lines before are read.
        let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(i, _)| i + 1);
        let ends: Vec<usize> = ends.collect();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let lines = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(read(&path).len(), lines, "cut after {cut} bytes");
        }
    }

    #[test]
    fn steps_are_written_together_in_the_order_of_events_and_all_of_them_before_a_checkpoint() {
        let scratch = Scratch::new("together");
        let path = scratch.0.join("events.jsonl");
        let mut log = RunLog::create(&path).unwrap();
        let begun = std::time::Instant::now();
        (1..=3).for_each(|i| assert_eq!(log.on(&step(i, 1.0)).unwrap(), Control::Continue));
        let waited = fs::read(&path).unwrap().is_empty();
        assert!(waited || begun.elapsed() > Duration::from_millis(200), "every step was written alone");
        log.on(&TrainEvent::Diverged { step: 3, loss: 1.0, replayed: 0 }).unwrap();
        log.on(&step(4, 1.0)).unwrap();
        log.flush().unwrap();
        // As if the program were killed here: what was written is whole lines, up to the last flush.
        log.on(&step(5, 1.0)).unwrap();
        std::mem::forget(log);
        let steps = |events: &[RunEvent]| events.iter().map(|event| event.step).collect::<Vec<_>>();
        let events = read(&path);
        assert_eq!(&steps(&events)[..5], [1, 2, 3, 3, 4]);
        assert_eq!(events[3].what, RunEventKind::Diverged);
        // Those of a run that goes on after step 4 follow them, and however many there are, none is lost.
        let mut log = RunLog::resume(&path, 4).unwrap();
        (5..=1000).for_each(|i| assert_eq!(log.on(&step(i, 1.0)).unwrap(), Control::Continue));
        drop(log);
        let expected = [1, 2, 3, 3].into_iter().chain(4..=1000).collect::<Vec<u64>>();
        assert_eq!(steps(&read(&path)), expected);
    }

    #[test]
    fn damaged_and_foreign_lines_are_no_panic() {
        let scratch = Scratch::new("bad-events");
        let path = scratch.0.join("events.jsonl");
        let texts: [(&[u8], usize); 6] = [
            (b"", 0),
            (b"\xff\xfe\n", 0),
            (b"{\"step\":-1}\n", 0),
            (b"{\"step\":3,\"examples\":2,\"loss\":1}\n[[[[\n{\"step\":4,\"examples\":2}\n", 1),
            (b"{\"step\":3,\"of another version\":{}}\n{\"step\":4,\"examples\":2}\n", 1),
            (b"{\"step\":3,\"step_times\":{\"plan\":\"a\",\"nanoseconds\":[]}}\n", 1),
        ];
        for (text, count) in texts {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path).len(), count, "{}", String::from_utf8_lossy(text));
        }
    }
}
