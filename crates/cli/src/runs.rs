//! Runs as `compare`, `plot` and `doctor` read them: the flags, the report and the events in a run's folder, any of which may be
//! missing or cut off.

use super::Failure;
use super::config::flags_in;
use super::curve::Curve;
use super::hint;
use super::run_folder::REPORT;
use super::text::escaped;
use plimsoll::train::{EVENTS_FILE, RunEventKind, read_events};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The largest report that is read.
const MOST_BYTES: u64 = 64 << 20;

/// What a folder tells of a run.
pub struct Run {
    pub folder: PathBuf,
    pub flags: BTreeMap<String, String>,
    /// `Null` for a run that has not ended.
    pub report: Value,
    pub events: Events,
}

/// What the events tell.
pub struct Events {
    pub steps: u64,
    pub total_steps: Option<u64>,
    pub losses: Curve,
    pub validation_losses: Curve,
    /// Resident bytes after steps, swap included.
    pub memory: Curve,
    pub last_loss: Option<f64>,
    /// Of the last validation, and the smallest loss of all.
    pub figures: Vec<(String, f64)>,
    pub best_validation_loss: Option<f64>,
    pub planned_bytes: Option<u64>,
    pub line_bytes: Option<u64>,
    pub device_planned_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub swapped_bytes: u64,
    /// Examples, time and time waiting for data of all steps but the first.
    pub examples: u64,
    pub seconds: f64,
    pub data_seconds: f64,
    pub predicted_seconds: Option<f64>,
}

impl Run {
    /// Reads a folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let wrong = |reason: String| Failure::usage(format!("{}: {reason}", escaped(folder.display())));
        if !folder.is_dir() {
            return Err(wrong("there is no such folder; name one that `train --out` made".into()));
        }
        let (report, events) = (folder.join(REPORT), folder.join(EVENTS_FILE));
        if !report.exists() && !events.exists() {
            return Err(wrong(format!("there is no run in it, neither {EVENTS_FILE} nor {REPORT}")));
        }
        let report = match read_json(&report) {
            // What the events tell of a run needs no report.
            Err(reason) if events.exists() => {
                let name = escaped(folder.display());
                hint(&format!("{name}: {REPORT}: {reason}; what follows is from {EVENTS_FILE} alone"));
                Value::Null
            }
            Err(reason) => return Err(wrong(format!("{REPORT}: {reason}"))),
            Ok(found) => found,
        };
        let events = if events.exists() { Events::read(&events)? } else { Events::none() };
        Ok(Self { folder: folder.into(), flags: flags_in(folder)?, report, events })
    }

    /// A figure of the report.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.report.get(field)?.as_f64()
    }

    /// Planned peak: of the report, or as the events began.
    pub fn planned_bytes(&self) -> Option<f64> {
        let begun = self.events.device_planned_bytes.or(self.events.planned_bytes);
        self.number("planned_peak_bytes").or(begun.map(|bytes| bytes as f64))
    }

    /// Measured peak: of the report, or the most after a step so far.
    pub fn measured_bytes(&self) -> Option<f64> {
        self.number("measured_peak_bytes").or(self.events.peak_bytes.map(|bytes| bytes as f64))
    }

    /// Examples per second.
    pub fn samples_per_second(&self) -> Option<f64> {
        let Events { examples, seconds, .. } = self.events;
        self.number("samples_per_second").or((seconds > 0.0).then(|| examples as f64 / seconds))
    }

    /// The folder's name, for headings.
    pub fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or(self.folder.as_os_str());
        escaped(name.display())
    }
}

fn read_json(path: &Path) -> Result<Value, String> {
    let file = match std::fs::File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        file => file.map_err(|e| e.to_string())?,
    };
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(|e| e.to_string())?;
    serde_json::from_slice(&text).map_err(|e| format!("this is not a report: {e}"))
}

impl Events {
    fn none() -> Self {
        Self {
            steps: 0,
            total_steps: None,
            losses: Curve::new(),
            validation_losses: Curve::new(),
            memory: Curve::new(),
            last_loss: None,
            figures: Vec::new(),
            best_validation_loss: None,
            planned_bytes: None,
            line_bytes: None,
            device_planned_bytes: None,
            peak_bytes: None,
            swapped_bytes: 0,
            examples: 0,
            seconds: 0.0,
            data_seconds: 0.0,
            predicted_seconds: None,
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let mut found = Self::none();
        let mut first = true;
        for event in read_events(path)? {
            let event = event?;
            match event.what {
                RunEventKind::Begin {
                    steps,
                    planned_bytes,
                    line_bytes,
                    device_planned_bytes,
                    predicted_seconds,
                    ..
                } => {
                    found.total_steps = Some(steps);
                    (found.planned_bytes, found.line_bytes) = (Some(planned_bytes), line_bytes);
                    found.device_planned_bytes = device_planned_bytes;
                    found.predicted_seconds = Some(predicted_seconds);
                    first = true;
                }
                RunEventKind::Step {
                    loss,
                    examples,
                    seconds,
                    data_seconds,
                    resident_bytes,
                    swapped_bytes,
                    ..
                } => {
                    found.steps = event.step;
                    found.last_loss = Some(loss);
                    found.losses.push(event.step, loss);
                    let swapped = swapped_bytes.unwrap_or(0);
                    if let Some(bytes) = resident_bytes.map(|bytes| bytes.saturating_add(swapped)) {
                        found.memory.push(event.step, bytes as f64);
                        found.peak_bytes = found.peak_bytes.max(Some(bytes));
                    }
                    found.swapped_bytes = found.swapped_bytes.max(swapped);
                    if !std::mem::take(&mut first) {
                        found.examples = found.examples.saturating_add(examples);
                        found.seconds += seconds;
                        found.data_seconds += data_seconds;
                    }
                }
                RunEventKind::Validation { figures, .. } => {
                    let loss = figures.iter().find(|(name, _)| name == "test_loss").map(|(_, loss)| *loss);
                    if let Some(loss) = loss.filter(|loss| loss.is_finite()) {
                        found.validation_losses.push(event.step, loss);
                        found.best_validation_loss =
                            Some(found.best_validation_loss.map_or(loss, |best: f64| best.min(loss)));
                    }
                    found.figures = figures;
                }
                RunEventKind::StepTimes { .. } | RunEventKind::Diverged | RunEventKind::AbovePlan { .. } => {}
            }
        }
        Ok(found)
    }
}
