//! A run's events as a CSV or JSON Lines file.

use crate::{Callback, Control, TrainError, TrainEvent};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes events to a file as they happen: a table of validations (`.csv`), or a JSON object per step and validation, each on
/// its own line (`.jsonl`).
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
}

impl RunLog {
    /// A new file; replaces an existing one.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let table = is_table(path)?;
        let file = File::create(path).map_err(|source| TrainError::file(path, source))?;
        Ok(Self { path: path.into(), file: BufWriter::new(file), table, headed: false })
    }

    /// Continues the file of a run resumed after `steps_done` steps. Lines of later steps are dropped, because they will be
    /// written again. Without a file, creates one.
    pub fn resume(path: impl AsRef<Path>, steps_done: u64) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let old = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Self::create(path),
            Err(source) => return Err(TrainError::file(path, source)),
        };
        let partial = path.with_extension("partial");
        let table = is_table(path)?;
        let file = File::create(&partial).map_err(|source| TrainError::file(&partial, source))?;
        let mut log = Self { path: path.into(), file: BufWriter::new(file), table, headed: false };
        for line in BufReader::new(old).lines() {
            let line = line.map_err(|source| TrainError::file(path, source))?;
            let step = log.step_of(&line);
            let head = table && !log.headed && step.is_none();
            if head || step.is_some_and(|step| step <= steps_done) {
                log.headed |= head;
                log.write(&line)?;
            }
        }
        log.flush()?;
        fs::rename(&partial, path).map_err(|source| TrainError::file(path, source))?;
        Ok(log)
    }

    /// The step of a line; `None` for a table's header, or a truncated line.
    fn step_of(&self, line: &str) -> Option<u64> {
        match self.table {
            true => line.split(',').next()?.parse().ok(),
            false => serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64(),
        }
    }

    fn write(&mut self, line: &str) -> Result<(), TrainError> {
        writeln!(self.file, "{line}").map_err(|source| TrainError::file(&self.path, source))
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.file.flush().map_err(|source| TrainError::file(&self.path, source))
    }
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
            TrainEvent::Step { step, epoch, loss, examples, time, .. } if !self.table => {
                let seconds = time.as_secs_f64();
                let line = json!({ "step": step, "epoch": epoch, "loss": loss, "examples": examples, "seconds": seconds });
                self.write(&line.to_string())?;
                // A checkpoint may come next, and a run resumed from it does not write this step again.
                self.flush()?;
            }
            TrainEvent::Validation { step, epoch, train_loss, evaluation, figures, since_best, .. } => {
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
                        "step": step, "epoch": epoch, "since_best": since_best, "validation": figures,
                    });
                    self.write(&line.to_string())?;
                }
                self.flush()?;
            }
            TrainEvent::Step { .. } | TrainEvent::Diverged { .. } | TrainEvent::AbovePlan { .. } => {}
        }
        Ok(Control::Continue)
    }
}
