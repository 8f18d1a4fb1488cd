//! The flags of the training loop: epochs, validation, early stopping, checkpoints and logs.

use super::run_folder::RunFolder;
use super::{Failure, out_file};
use clap::{Args, ValueEnum};
use plimsoll::data::{DataError, ValidationSplit};
use plimsoll::train::metrics::MetricSpec;
use plimsoll::train::{EVENTS_FILE, EarlyStopping, Monitor, Names, RunLog, Session, Trainer};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightNames {
    /// As the load sheet has them: stage1/conv/kernel
    Own,
    /// As PyTorch does: stage1.conv.weight, outputs first
    Torch,
    /// As Keras does: stage1/norm/gamma
    Keras,
}

impl WeightNames {
    /// The library's value.
    pub fn names(self) -> Names {
        match self {
            Self::Own => Names::Own,
            Self::Torch => Names::Torch,
            Self::Keras => Names::Keras,
        }
    }
}

/// The training loop.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Validation, checkpoints and ends")]
pub struct LoopOptions {
    /// Steps that count as an epoch, independent of the data's length
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub steps_per_epoch: Option<u64>,
    /// Validate on this share of the training examples, spread evenly; 0: validate on the test part [default: 0.1]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub validation_split: Option<f64>,
    /// Validate every this many steps, instead of after each epoch
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub validate_every: Option<u64>,
    /// Metrics of validations besides the loss, as for evaluate; comma-separated
    #[arg(long, value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// The metric that decides which validation is the best: loss, accuracy, or one of --metrics [default: loss]
    #[arg(long, value_name = "FIGURE")]
    pub monitor: Option<String>,
    /// End the run after this many validations without a better one, and restore the best, if --out names a folder
    #[arg(long, value_name = "PATIENCE", allow_negative_numbers = true)]
    pub early_stop: Option<u64>,
    /// End the run after the step in which this time runs out, like 90s, 30m or 2h; --resume continues it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub time_limit: Option<Duration>,
    /// How many of the last checkpoints to keep, besides the best [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub keep: Option<usize>,
    /// Names and layouts in weights.safetensors; `evaluate` and `predict` read them all
    #[arg(long, value_name = "WHOSE", value_enum, default_value = "own")]
    pub weight_names: WeightNames,
    /// Log file: a table of validations (.csv), or a JSON object for every event (.jsonl); the folder of --out has the latter
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// A time like `90s`, `30m`, `2h` or `1.5h`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => f64::NAN,
    };
    let whole = number.parse::<f64>().ok().map(|number| number * seconds);
    let whole = whole.filter(|seconds| *seconds > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    whole.ok_or_else(|| format!("`{text}` is not a time: write it like 90s, 30m or 2h"))
}

impl LoopOptions {
    /// The flags that have a value, and that a resumed run keeps.
    pub fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let count = |n: Option<u64>| n.map(|n| n.to_string());
        vec![
            ("steps-per-epoch", count(self.steps_per_epoch)),
            ("validation-split", self.validation_split.map(|share| share.to_string())),
            ("validate-every", count(self.validate_every)),
            ("metrics", (!self.metrics.is_empty()).then(|| self.metrics.join(","))),
            ("monitor", self.monitor.clone()),
            ("early-stop", count(self.early_stop)),
            ("keep", self.keep.map(|keep| keep.to_string())),
        ]
    }

    /// The naming scheme of weights, where it is not the default.
    pub fn weight_names(&self) -> Option<String> {
        let value = self.weight_names.to_possible_value()?;
        (self.weight_names != WeightNames::Own).then(|| value.get_name().to_string())
    }

    /// The flags of a resumed run: those of its checkpoint, except for what may differ each time.
    pub fn resumed(self, given: &Self) -> Self {
        Self {
            early_stop: given.early_stop.or(self.early_stop),
            keep: given.keep.or(self.keep),
            time_limit: given.time_limit,
            log: given.log.clone(),
            weight_names: given.weight_names,
            ..self
        }
    }

    /// Refuses invalid values.
    pub fn check(&self, out: Option<&Path>) -> Result<(), Failure> {
        let counts = [
            ("--steps-per-epoch", self.steps_per_epoch),
            ("--validate-every", self.validate_every),
            ("--early-stop", self.early_stop),
            ("--keep", self.keep.map(|keep| keep as u64)),
        ];
        if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return Err(Failure::usage(format!("{flag} must be at least 1")));
        }
        if self.keep.is_some() && out.is_none() {
            return Err(Failure::usage("--keep needs a folder: add --out DIR"));
        }
        match &self.log {
            Some(file) => {
                RunLog::check_name(file).map_err(Failure::from).and(out_file::check("--log", file, out))
            }
            None => Ok(()),
        }
    }

    /// The validation part that the flags ask for.
    pub fn validation(&self) -> ValidationSplit {
        match self.validation_split {
            None => ValidationSplit::Tenth,
            Some(0.0) => ValidationSplit::None,
            Some(share) => ValidationSplit::Share(share),
        }
    }

    /// Applies the flags to a trainer, of a model of classes or of values.
    pub fn trainer(&self, mut trainer: Trainer, classes: bool) -> Result<Trainer, Failure> {
        let metrics = self.metrics.iter().map(|name| name.parse::<MetricSpec>());
        let mut metrics: Vec<MetricSpec> = metrics.collect::<Result<_, _>>().map_err(Failure::usage)?;
        // The accuracy stays beside other metrics.
        let has_accuracy = metrics.iter().any(|metric| matches!(metric, MetricSpec::Accuracy { .. }));
        if classes && !metrics.is_empty() && !has_accuracy {
            metrics.insert(0, MetricSpec::Accuracy { threshold: None });
        }
        trainer = trainer.metrics(&metrics);
        if let Some(name) = &self.monitor {
            trainer = trainer.monitor(name.parse().unwrap_or(Monitor::Loss));
        }
        if let Some(steps) = self.steps_per_epoch {
            trainer = trainer.steps_per_epoch(steps);
        }
        if let Some(steps) = self.validate_every {
            trainer = trainer.validate_every(steps);
        }
        if let Some(limit) = self.time_limit {
            trainer = trainer.time_limit(limit);
        }
        if let Some(keep) = self.keep {
            trainer = trainer.keep(keep);
        }
        Ok(trainer)
    }

    /// Adds the callbacks to a session: early stopping, and the logs, one of them in the run's folder.
    pub fn callbacks(&self, session: &mut Session, folder: Option<&RunFolder>) -> Result<(), Failure> {
        if let Some(patience) = self.early_stop {
            session.add(EarlyStopping::new(patience));
        }
        let done = session.steps_done();
        for path in self.log.iter().cloned().chain(folder.map(|folder| folder.join(EVENTS_FILE))) {
            let mut log = if done == 0 { RunLog::create(path)? } else { RunLog::resume(path, done)? };
            log.begin(&session.plans().sheet, done, session.total_steps())?;
            session.add(log);
        }
        Ok(())
    }
}

/// Names the flag of a validation part that cannot be split off.
pub fn explain_split(error: DataError) -> Failure {
    match error {
        DataError::Option { option: "hold_out", .. } => {
            Failure::usage(format!("--validation-split: {error}"))
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed() {
        for (text, seconds) in [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("2", 2.0), ("1d", 86400.0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "m", "-3m", "0s", "3w", "nan", "infh", "1e300h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
