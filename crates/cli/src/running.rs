//! The flags of the loop: how long a run goes, how often it is looked at, when it ends, and what it leaves.

use super::Failure;
use clap::{Args, ValueEnum};
use plimsoll::data::Dataset;
use plimsoll::train::metrics::MetricSpec;
use plimsoll::train::{EarlyStopping, Monitor, Names, RunLog, Session, Trainer};
use std::path::PathBuf;
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
    /// What the library calls it.
    pub fn names(self) -> Names {
        match self {
            Self::Own => Names::Own,
            Self::Torch => Names::Torch,
            Self::Keras => Names::Keras,
        }
    }
}

/// The loop.
#[derive(Clone, Debug, Args)]
pub struct LoopOptions {
    /// Count so many steps as an epoch, wherever in the data they are
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub steps_per_epoch: Option<u64>,
    /// Hold this share of the training examples out, spread evenly, and validate with them instead of the test part
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub validation_split: Option<f64>,
    /// Validate every so many steps, instead of after each epoch
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub validate_every: Option<u64>,
    /// Figures of validations besides the loss, as for evaluate; several with commas
    #[arg(long, value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// The figure by which a validation is the best: loss, accuracy, or one of --metrics [default: loss]
    #[arg(long, value_name = "FIGURE")]
    pub monitor: Option<String>,
    /// End the run after so many validations without a better one, and go back to the best, if --out names a folder
    #[arg(long, value_name = "PATIENCE", allow_negative_numbers = true)]
    pub early_stop: Option<u64>,
    /// End the run after the step in which this time is over, like 90s, 30m or 2h; --resume goes on
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub time_limit: Option<Duration>,
    /// How many of the last checkpoints stay; the best stays besides [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub keep: Option<usize>,
    /// Names and layouts in weights.safetensors; `evaluate` and `predict` read them all
    #[arg(long, value_name = "WHOSE", value_enum, default_value = "own")]
    pub weight_names: WeightNames,
    /// File for what happens: a table of validations (.csv), or an object for every step and validation (.jsonl)
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
    whole.ok_or_else(|| format!("`{text}` is no time: write it like 90s, 30m or 2h"))
}

impl LoopOptions {
    /// Flags with their values, where they have one: those that a run that goes on keeps.
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

    /// Whose names weights have, where they are not this program's own.
    pub fn weight_names(&self) -> Option<String> {
        let value = self.weight_names.to_possible_value()?;
        (self.weight_names != WeightNames::Own).then(|| value.get_name().to_string())
    }

    /// The flags as a run that goes on has them: those of its checkpoint, but for what may differ each time.
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

    /// Refuses what makes no sense.
    pub fn check(&self, out: bool) -> Result<(), Failure> {
        let counts = [
            ("--steps-per-epoch", self.steps_per_epoch),
            ("--validate-every", self.validate_every),
            ("--early-stop", self.early_stop),
            ("--keep", self.keep.map(|keep| keep as u64)),
        ];
        if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return Err(Failure::usage(format!("{flag} must be at least 1")));
        }
        if self.keep.is_some() && !out {
            return Err(Failure::usage("--keep needs a folder: add --out DIR"));
        }
        Ok(())
    }

    /// The data with a part of the training examples in place of the test part, where that is wanted.
    pub fn data(&self, data: Dataset) -> Result<Dataset, Failure> {
        match self.validation_split {
            None => Ok(data),
            Some(share) => {
                data.hold_out(share).map_err(|e| Failure::usage(format!("--validation-split: {e}")))
            }
        }
    }

    /// The trainer with all of it.
    pub fn trainer(&self, mut trainer: Trainer) -> Result<Trainer, Failure> {
        let metrics = self.metrics.iter().map(|name| name.parse::<MetricSpec>());
        let metrics: Vec<MetricSpec> = metrics.collect::<Result<_, _>>().map_err(Failure::usage)?;
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

    /// Adds those who look on to a session that has done so many steps.
    pub fn callbacks(&self, session: &mut Session<'_>, steps_done: u64) -> Result<(), Failure> {
        if let Some(patience) = self.early_stop {
            session.add(EarlyStopping::new(patience));
        }
        if let Some(path) = &self.log {
            session.add(if steps_done == 0 {
                RunLog::create(path)?
            } else {
                RunLog::resume(path, steps_done)?
            });
        }
        Ok(())
    }

    /// What validations are done with, in words.
    pub fn validated_on(&self) -> &'static str {
        if self.validation_split.is_some() { "validation" } else { "test" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("2", 2.0), ("1d", 86400.0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "m", "-3m", "0s", "3w", "nan", "infh", "1e300h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
