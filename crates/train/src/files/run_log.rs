//! A run's events as a CSV or JSON Lines file.

use super::waiting::Waiting;
use crate::{Callback, Control, TrainError, TrainEvent};
use plimsoll_plan::LoadSheet;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file of events in a run's folder.
pub const EVENTS_FILE: &str = "events.jsonl";
/// The longest line that is kept on resuming, and read by [`read_events`](super::read_events).
pub(super) const MAX_LINE_BYTES: u64 = 16 << 20;

/// Steps that wait to be written at most, and bytes of the buffer, which holds their lines: they are one call of the system. Both are a part
/// of the load sheet's entry for the heap.
const MOST_STEPS: usize = 128;
const BUFFER_BYTES: usize = 32 << 10;

/// Writes events to a file as they happen: a table of validations (`.csv`), or a JSON object for each event, each on its own line
/// (`.jsonl`), which [`read_events`](super::read_events) reads again.
///
/// Short steps are written together, four times a second: a program that is killed loses at most those of its last quarter of a second. What
/// happened before a checkpoint is written before it, and all of it when [`Session::fit`](crate::Session::fit) ends, in whatever way.
///
/// ```no_run
/// # use plimsoll_train::{RunLog, Session, TrainError};
/// # fn log(session: &mut Session) -> Result<(), TrainError> {
/// session.add(RunLog::create("run/log.csv")?);
/// # Ok(())
/// # }
/// ```
pub struct RunLog {
    path: PathBuf,
    file: BufWriter<File>,
    table: bool,
    /// Whether the table's header line is written.
    headed: bool,
    steps: Waiting<StepLine>,
}

/// A step's line. What is not known is left out.
#[derive(Serialize)]
struct StepLine {
    step: u64,
    time: f64,
    epoch: u64,
    loss: f64,
    examples: usize,
    seconds: f64,
    data_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swapped_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<f64>,
}

impl RunLog {
    /// A new file; replaces an existing one.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let table = is_table(path)?;
        let file = File::create(path).map_err(|source| TrainError::file(path, source))?;
        Ok(Self::of(path, file, table))
    }

    fn of(path: &Path, file: File, table: bool) -> Self {
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let steps = Waiting::new(if table { 0 } else { MOST_STEPS });
        Self { path: path.into(), file, table, headed: false, steps }
    }

    /// Refuses a file whose name says no form: a table ends in `.csv`, a log of events in `.jsonl`.
    pub fn check_name(path: &Path) -> Result<(), TrainError> {
        is_table(path).map(drop)
    }

    /// Continues the file of a run resumed after `steps_done` steps. Lines of later steps are dropped, because they will be
    /// written again, and so are those that were cut off. Without a file, creates one.
    pub fn resume(path: impl AsRef<Path>, steps_done: u64) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let old = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Self::create(path),
            Err(source) => return Err(TrainError::file(path, source)),
        };
        let partial = path.with_extension("partial");
        let table = is_table(path)?;
        let file = File::create(&partial).map_err(|source| TrainError::file(&partial, source))?;
        let mut log = Self::of(path, file, table);
        let mut old = BufReader::new(old);
        let mut line = Vec::new();
        while next_line(&mut old, &mut line).map_err(|source| TrainError::file(path, source))? {
            let Ok(text) = std::str::from_utf8(&line) else { continue };
            let step = log.step_of(text);
            let head = table && !log.headed && step.is_none();
            if head || step.is_some_and(|step| step <= steps_done) {
                log.headed |= head;
                log.write(text)?;
            }
        }
        log.write_all()?;
        fs::rename(&partial, path).map_err(|source| TrainError::file(path, source))?;
        Ok(log)
    }

    /// Adds to the file of a run that has ended.
    pub fn append(path: impl AsRef<Path>) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let table = is_table(path)?;
        let file =
            File::options().append(true).open(path).map_err(|source| TrainError::file(path, source))?;
        let mut log = Self::of(path, file, table);
        log.headed = true;
        Ok(log)
    }

    /// Writes that a run of so many steps begins, or goes on after `steps_done` of them, under this load sheet. A table has no
    /// such line.
    pub fn begin(&mut self, sheet: &LoadSheet, steps_done: u64, steps: u64) -> Result<(), TrainError> {
        let line = |bytes: usize| (bytes != usize::MAX).then_some(bytes);
        let (planned_bytes, line_bytes) = sheet.host_total_and_line();
        let device = sheet.host.as_ref().map(|_| (sheet.total_bytes, line(sheet.line_bytes)));
        let begin = json!({
            "steps": steps,
            "planned_bytes": planned_bytes,
            "line_bytes": line(line_bytes),
            "device_planned_bytes": device.map(|(planned, _)| planned),
            "device_line_bytes": device.and_then(|(_, line)| line),
            "predicted_seconds": sheet.predicted_ms() / 1e3,
        });
        self.other(steps_done, "begin", begin)
    }

    /// Writes the shortest time of each step of a plan, by the plan's name. A table has no such line.
    pub fn step_times(&mut self, steps_done: u64, plan: &str, nanoseconds: &[u64]) -> Result<(), TrainError> {
        self.other(steps_done, "step_times", json!({ "plan": plan, "nanoseconds": nanoseconds }))
    }

    /// A line of another kind.
    fn other(&mut self, step: u64, kind: &str, fields: Value) -> Result<(), TrainError> {
        if self.table {
            return Ok(());
        }
        self.write(&json!({ "step": step, "time": now(), kind: fields }).to_string())?;
        self.write_all()
    }

    /// The step of a line; `None` for a table's header, or a truncated line.
    fn step_of(&self, line: &str) -> Option<u64> {
        match self.table {
            true => line.split(',').next()?.parse().ok(),
            false => serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64(),
        }
    }

    /// Adds a line behind those of the steps so far.
    fn write(&mut self, line: &str) -> Result<(), TrainError> {
        self.write_steps()?;
        writeln!(self.file, "{line}").map_err(|source| TrainError::file(&self.path, source))
    }

    /// Adds the lines of the steps that wait. Allocates nothing.
    fn write_steps(&mut self) -> Result<(), TrainError> {
        let Self { file, steps, .. } = self;
        let written = steps.take(|line| {
            serde_json::to_writer(&mut *file, &line)?;
            file.write_all(b"\n")
        });
        written.map_err(|source: io::Error| TrainError::file(&self.path, source))
    }

    /// Writes everything to the file.
    fn write_all(&mut self) -> Result<(), TrainError> {
        self.write_steps()?;
        self.file.flush().map_err(|source| TrainError::file(&self.path, source))
    }
}

/// Reads the next line that is whole and not too long; false at the end, or where the file was cut off.
pub(super) fn next_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)?;
    Ok(line.pop() == Some(b'\n'))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0.0, Duration::as_secs_f64)
}

fn is_table(path: &Path) -> Result<bool, TrainError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok(true),
        Some("jsonl") => Ok(false),
        _ => Err(TrainError::Setting(format!("the log {}: end it in .csv or .jsonl", path.display()))),
    }
}

impl Callback for RunLog {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        match *event {
            TrainEvent::Step { step, epoch, loss, examples, time, data, held, scale, .. } if !self.table => {
                self.steps.push(StepLine {
                    step,
                    time: now(),
                    epoch,
                    loss,
                    examples,
                    seconds: time.as_secs_f64(),
                    data_seconds: data.as_secs_f64(),
                    resident_bytes: held.map(|held| held.resident_bytes),
                    swapped_bytes: held.map(|held| held.swapped_bytes),
                    loss_scale: scale.map(|scale| scale.scale),
                });
                if self.steps.is_due(time, 1) {
                    self.write_all()?;
                }
            }
            TrainEvent::Validation { step, epoch, part, train_loss, evaluation, figures, since_best } => {
                let accuracy = evaluation.accuracy.map(|accuracy| ("accuracy", accuracy));
                let own =
                    [("train_loss", train_loss), ("test_loss", evaluation.loss)].into_iter().chain(accuracy);
                let own = own.map(|(name, value)| (name.to_string(), value));
                let more = figures.iter().filter(|(name, _)| name != "accuracy").cloned();
                let all: Vec<(String, f64)> = own.chain(more).collect();
                if self.table {
                    if !self.headed {
                        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                        self.write(&format!("step,epoch,since_best,{}", names.join(",")))?;
                        self.headed = true;
                    }
                    let values: Vec<String> = all.iter().map(|(_, value)| value.to_string()).collect();
                    self.write(&format!("{step},{epoch},{since_best},{}", values.join(",")))?;
                } else {
                    let figures: Map<String, Value> =
                        all.into_iter().map(|(name, value)| (name, json!(value))).collect();
                    let line = json!({
                        "step": step, "time": now(), "epoch": epoch, "since_best": since_best, "part": part,
                        "validation": figures,
                    });
                    self.write(&line.to_string())?;
                }
                self.write_all()?;
            }
            TrainEvent::Diverged { step, loss, replayed: 0 } => {
                self.other(step, "diverged", json!({ "loss": loss }))?;
            }
            TrainEvent::AbovePlan { step, planned_bytes, held } => {
                let fields = json!({ "planned_bytes": planned_bytes, "held_bytes": held.total_bytes() });
                self.other(step, "above_plan", fields)?;
            }
            TrainEvent::Step { .. } | TrainEvent::Diverged { .. } => {}
        }
        Ok(Control::Continue)
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.write_all()
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        // Nobody is left to hear of an error.
        let _ = self.write_all();
    }
}
