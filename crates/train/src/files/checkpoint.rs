//! A checkpoint: every state and where the run stands, in one safetensors file.

use super::checkpoint_folder::newest;
use super::tensor_file::{Opened, open, wrong};
use crate::{Best, Plateau, TrainError};
use plimsoll_data::Cursor;
use plimsoll_graph::Numerics;
use plimsoll_nn::Policy;
use plimsoll_transform::Reduction;
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the header's metadata.
const FORMAT: &str = "plimsoll checkpoint 2";
/// Bytes of a header at most: a name, a type and a shape take about 150. Headers are checked against it before the first
/// step.
pub(super) const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Bytes of a header at most for its notes, and for each state.
const MAX_NOTES_BYTES: u64 = 1 << 20;
const MAX_STATE_BYTES: u64 = 1 << 10;
/// Steps, epochs and examples at most, so that no sum of them overflows.
const MAX_COUNT: u64 = 1 << 48;
/// The prefix of a program's own notes.
const NOTE: &str = "note.";

/// Bytes of the header at most for a checkpoint of `states` states.
pub(crate) fn max_header_bytes(states: usize) -> u64 {
    (states as u64).saturating_mul(MAX_STATE_BYTES).saturating_add(MAX_NOTES_BYTES).min(MAX_HEADER_BYTES)
}

/// Where a run stands. With the states' elements, all that a checkpoint holds.
///
/// ```no_run
/// use plimsoll_train::TrainState;
/// let state = TrainState::read("run")?;
/// println!("{} of {} steps of {}", state.steps_done, state.total_steps, state.model);
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainState {
    /// Steps done: what the optimizer and random numbers count from.
    pub steps_done: u64,
    /// The step at which the learning rate schedule started.
    pub schedule_start: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// The position in the training data.
    pub cursor: Cursor,
    /// The seed of random numbers and of the order of examples.
    pub seed: u64,
    /// Examples per step.
    pub batch: u64,
    /// Micro-batches per step; may change when the run is resumed.
    pub micro_batches: u64,
    /// Examples of the training part.
    pub examples: u64,
    /// The training part's [`plimsoll_data::Pipeline::fingerprint`]; empty where it was not taken.
    pub data: String,
    /// The model's name.
    pub model: String,
    /// The optimizer with its settings.
    pub optimizer: String,
    /// The learning rate schedule.
    pub schedule: String,
    /// The precision, and the layers that stay f32.
    pub precision: String,
    /// The numerics of the target, as far as they decide graphs.
    pub numerics: String,
    /// The state of a plateau schedule.
    pub plateau: Plateau,
    /// The figure by which validations are compared.
    pub monitor: String,
    /// The best validation so far.
    pub best: Best,
    /// Steps done at the last validation.
    pub validated: u64,
    /// The instruction set that the run used.
    pub instructions: String,
    /// How sums were added up over processes, with their number where it decides bits.
    pub reduction: String,
    /// The version of Plimsoll that saved it.
    pub version: String,
    /// The notes of [`crate::Trainer::note`].
    pub notes: BTreeMap<String, String>,
}

impl TrainState {
    /// Reads the newest good checkpoint of a folder; its checksum is checked over all bytes.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, TrainError> {
        let folder = folder.as_ref();
        Ok(Self::read_where(folder, |_| Ok(()))?.0)
    }

    /// As [`TrainState::read`], of the checkpoints that `accept` takes. Also returns why each newer one was refused.
    pub fn read_where(
        folder: &Path,
        accept: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<(Self, Vec<String>), TrainError> {
        newest(folder, |path| {
            let file = open(path, MAX_HEADER_BYTES)?;
            let state = Self::parse(&file, path)?;
            accept(&state).map_err(|reason| wrong(path, reason))?;
            file.check(path)?;
            Ok(state)
        })
    }

    /// Reads the header of one checkpoint, without checking the rest.
    pub fn read_file(path: &Path) -> Result<Self, TrainError> {
        Self::parse(&open(path, MAX_HEADER_BYTES)?, path)
    }

    fn numbers(&self) -> [(&'static str, u64); 16] {
        [
            ("step", self.steps_done),
            ("schedule_start", self.schedule_start),
            ("total_steps", self.total_steps),
            ("epoch", self.cursor.epoch),
            ("example", self.cursor.example),
            ("seed", self.seed),
            ("batch", self.batch),
            ("micro_batches", self.micro_batches),
            ("examples", self.examples),
            ("plateau_best", self.plateau.best_bits),
            ("plateau_waited", self.plateau.waited),
            ("plateau_lowered", self.plateau.lowered),
            ("best_cost", self.best.cost_bits),
            ("best_step", self.best.step),
            ("best_waited", self.best.waited),
            ("validated", self.validated),
        ]
    }

    /// What must be the same for a run to be resumed: key in the header, description, value.
    fn identity(&self) -> Vec<(&'static str, &'static str, String)> {
        vec![
            ("model", "model", self.model.clone()),
            ("optimizer", "optimizer", self.optimizer.clone()),
            ("schedule", "schedule", self.schedule.clone()),
            ("precision", "precision", self.precision.clone()),
            ("numerics", "numerics of the target", self.numerics.clone()),
            ("monitor", "monitor of validations", self.monitor.clone()),
            ("seed", "seed", self.seed.to_string()),
            ("batch", "batch", self.batch.to_string()),
            ("examples", "training examples", self.examples.to_string()),
        ]
    }

    pub(crate) fn to_notes(&self) -> BTreeMap<String, String> {
        let texts = [
            ("format", FORMAT),
            ("data", &self.data),
            ("instructions", &self.instructions),
            ("reduction", &self.reduction),
            ("version", &self.version),
        ];
        let texts = texts.into_iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let identity = self.identity().into_iter().map(|(key, _, value)| (key.to_string(), value));
        let numbers = self.numbers().into_iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let notes = self.notes.iter().map(|(key, value)| (format!("{NOTE}{key}"), value.clone()));
        texts.chain(identity).chain(numbers).chain(notes).collect()
    }

    pub(crate) fn parse(file: &Opened, path: &Path) -> Result<Self, TrainError> {
        let notes = file.tensors.metadata().as_ref();
        let notes = notes.ok_or_else(|| wrong(path, "the header has no notes: this is no checkpoint"))?;
        let text = |key: &str| {
            notes.get(key).cloned().ok_or_else(|| wrong(path, format!("the header has no \"{key}\"")))
        };
        let format = text("format")?;
        if format != FORMAT {
            return Err(wrong(path, format!("the format is `{format}`, this program reads `{FORMAT}`")));
        }
        let any = |key: &str| {
            let digits = text(key)?;
            digits.parse::<u64>().map_err(|_| wrong(path, format!("\"{key}\" is `{digits}`, not a number")))
        };
        let number = |key: &str| match any(key)? {
            value if value > MAX_COUNT => {
                Err(wrong(path, format!("\"{key}\" is {value}, more than {MAX_COUNT}")))
            }
            value => Ok(value),
        };
        let own =
            notes.iter().filter_map(|(key, value)| Some((key.strip_prefix(NOTE)?.into(), value.clone())));
        let state = Self {
            steps_done: number("step")?,
            schedule_start: number("schedule_start")?,
            total_steps: number("total_steps")?,
            cursor: Cursor { epoch: number("epoch")?, example: number("example")? },
            seed: any("seed")?,
            batch: number("batch")?,
            micro_batches: number("micro_batches")?,
            examples: number("examples")?,
            // Files from before there were fingerprints have none.
            data: notes.get("data").cloned().unwrap_or_default(),
            model: text("model")?,
            optimizer: text("optimizer")?,
            schedule: text("schedule")?,
            // Files from before mixed precision do not say.
            precision: notes.get("precision").cloned().unwrap_or_else(|| Policy::default().description()),
            // Files from before there were several numerics do not say either.
            numerics: notes.get("numerics").cloned().unwrap_or_else(|| Numerics::default().to_string()),
            plateau: Plateau {
                best_bits: any("plateau_best")?,
                waited: number("plateau_waited")?,
                lowered: number("plateau_lowered")?,
            },
            monitor: text("monitor")?,
            best: Best {
                cost_bits: any("best_cost")?,
                step: number("best_step")?,
                waited: number("best_waited")?,
            },
            validated: number("validated")?,
            instructions: text("instructions")?,
            // Files from before there was a choice do not say.
            reduction: notes.get("reduction").cloned().unwrap_or_else(|| Reduction::Chain.to_string()),
            version: text("version")?,
            notes: own.collect(),
        };
        if state.best.step.max(state.validated) > state.steps_done {
            return Err(wrong(path, "it was validated after more steps than it has done"));
        }
        if state.schedule_start > state.steps_done || state.cursor.example > state.examples {
            return Err(wrong(path, "the numbers of its steps and examples contradict each other"));
        }
        Ok(state)
    }

    /// Refuses to resume with settings that make it another run. Steps, micro-batches and notes may change.
    pub(crate) fn check_identity(&self, trainer: &Self, path: &Path) -> Result<(), TrainError> {
        match self.identity_mismatch(trainer) {
            Some(what) => Err(wrong(path, format!("{what}; resume with the same"))),
            None => Ok(()),
        }
    }

    /// What makes this another run's checkpoint than the trainer's, in words.
    pub(crate) fn identity_mismatch(&self, trainer: &Self) -> Option<String> {
        let mut both = self.identity().into_iter().zip(trainer.identity());
        if let Some(((_, what, saved), (_, _, given))) = both.find(|(saved, given)| saved.2 != given.2) {
            return Some(format!("{what}: the checkpoint has {saved}, the trainer {given}"));
        }
        let known = ![&self.data, &trainer.data].into_iter().any(String::is_empty);
        (known && self.data != trainer.data).then(|| {
            format!(
                "the training data is not what the run began with: the hash of its examples (of a sample, where there are \
                 many) was {}, now it is {}",
                self.data, trainer.data
            )
        })
    }

    /// Differences that let bits differ after a resume, in words.
    pub(crate) fn differences(&self, now: &Self) -> Option<String> {
        let differs = |what, then: &str, now: &str| {
            (then != now).then(|| format!("{what}: saved with {then}, resumed with {now}"))
        };
        let reasons = [
            differs("instructions", &self.instructions, &now.instructions),
            differs("reduction", &self.reduction, &now.reduction),
            differs("version", &self.version, &now.version),
        ];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        (!reasons.is_empty()).then(|| format!("{}; bits may differ", reasons.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The notes of a checkpoint after no step.
    fn notes() -> BTreeMap<String, String> {
        let mut notes: BTreeMap<String, String> =
            ["model", "optimizer", "schedule", "monitor", "instructions", "version"]
                .map(|key| (key.to_string(), key.to_string()))
                .into();
        let zeros = ["step", "schedule_start", "total_steps", "epoch", "example", "seed", "batch"];
        let more = ["micro_batches", "examples", "plateau_best", "plateau_waited", "plateau_lowered"];
        let rest = ["best_cost", "best_step", "best_waited", "validated"];
        notes
            .extend([&zeros[..], &more, &rest].concat().iter().map(|key| (key.to_string(), "0".to_string())));
        notes.insert("format".to_string(), FORMAT.to_string());
        notes
    }

    /// Reads a file with these notes and no states.
    fn read(name: &str, notes: &BTreeMap<String, String>) -> Result<TrainState, TrainError> {
        let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}.safetensors", std::process::id()));
        let header = serde_json::json!({ "__metadata__": notes }).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        std::fs::write(&path, bytes).unwrap();
        let state = TrainState::read_file(&path);
        std::fs::remove_file(&path).unwrap();
        state
    }

    #[test]
    fn files_that_name_no_numerics_have_the_default_ones() {
        let mut notes = notes();
        let older = read("numerics", &notes).unwrap().numerics;
        notes.insert("numerics".to_string(), "others".to_string());
        let newer = read("numerics", &notes).unwrap().numerics;
        assert_eq!((older, newer), (Numerics::default().to_string(), "others".to_string()));
    }

    #[test]
    fn another_reduction_is_told() {
        let mut notes = notes();
        let older = read("reduction", &notes).unwrap();
        notes.insert("reduction".to_string(), "fast over 3 processes".to_string());
        let newer = read("reduction", &notes).unwrap();
        assert_eq!(older.differences(&older), None);
        let told = newer.differences(&older).unwrap();
        assert_eq!(told, "reduction: saved with fast over 3 processes, resumed with chain; bits may differ");
    }

    #[test]
    fn numbers_that_no_run_has_are_refused() {
        for key in ["total_steps", "step", "examples", "epoch"] {
            let mut notes = notes();
            notes.insert(key.to_string(), (1_u64 << 63).to_string());
            let error = read("forged", &notes).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("more than"), "{error}");
        }
    }
}
