//! The flags of the optimizer and of the learning rate's schedule.

use super::Failure;
use clap::{Args, ValueEnum};
use plimsoll::nn::{
    Adafactor, Adam, AdamW, Adaptive, Clip, Decay, Lion, Moments, Optimizer, Recipe, RmsProp, Sgd,
};
use plimsoll::train::Schedule;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Plain stochastic gradient descent
    Sgd,
    /// SGD with momentum
    Momentum,
    /// SGD with Nesterov momentum
    Nesterov,
    /// Gradients divided by their root mean square
    Rmsprop,
    /// Adam with weight decay as part of the gradient
    Adam,
    /// Adam with decoupled weight decay
    Adamw,
    /// The sign of the averaged gradient
    Lion,
    /// Factored second moments, step sizes relative to the parameter
    Adafactor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MomentsName {
    /// 8 bytes per parameter
    Whole,
    /// 4 bytes per parameter
    Bf16,
    /// 2.03 bytes per parameter: one for each moment and a scale for every 256
    #[value(name = "8bit")]
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScheduleName {
    /// Constant
    Constant,
    /// Falls to zero along half a cosine
    Cosine,
    /// Falls to zero linearly
    Linear,
    /// Multiplied by --factor every --every steps
    Step,
    /// Rises over three tenths of the run, then falls to almost zero
    OneCycle,
    /// Multiplied by --factor when the test loss did not improve for more than --patience epochs
    Plateau,
}

/// The optimizer, gradient clipping, averaging, and the learning rate.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Optimizer and learning rate")]
pub struct UpdateOptions {
    /// Learning rate [default: 0.001 for adam, adamw and rmsprop, 0.0001 for lion, 0.01 for the others]
    #[arg(long, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw")]
    pub optimizer: OptimizerName,
    /// Momentum of momentum, nesterov and rmsprop [default: 0.9; rmsprop: 0]
    #[arg(long, allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// Precision of the moments of adam and adamw
    #[arg(long, value_enum, default_value = "whole")]
    pub moments: MomentsName,
    /// Weight decay [default: 0.01 for adamw, else 0]
    #[arg(long, allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Another weight decay for parameters by name, like `head=0.1` or `*/bias=0`, or `vectors=0` for all of fewer than
    /// two axes; comma-separated, the first match counts
    #[arg(long, value_name = "NAME=DECAY", value_delimiter = ',')]
    pub decay_group: Vec<String>,
    /// Clip every element of a gradient to ± this
    #[arg(long, value_name = "MOST", allow_negative_numbers = true)]
    pub clip_value: Option<f64>,
    /// Clip the norm of each parameter's gradient to this
    #[arg(long, value_name = "MOST", allow_negative_numbers = true, conflicts_with = "clip_value")]
    pub clip_norm: Option<f64>,
    /// Clip the global norm of all gradients to this: all are held until the norm is known
    #[arg(long, value_name = "MOST", allow_negative_numbers = true, conflicts_with_all = ["clip_value", "clip_norm"])]
    pub clip_global_norm: Option<f64>,
    /// Evaluate and save an exponential moving average of the parameters, with this decay, like 0.999
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    pub ema: Option<f64>,
    /// Do not train these parameters: a layer, or a pattern like `block*/conv1`; comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub freeze: Vec<String>,
    /// Schedule of the learning rate over the run
    #[arg(long, value_enum, default_value = "cosine")]
    pub schedule: ScheduleName,
    /// Steps of linear warm-up before the schedule starts [default: 0]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub warmup: Option<u64>,
    /// Steps between two changes of the schedule `step` [default: 1000]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub every: Option<u64>,
    /// Factor of the schedules step and plateau [default: 0.1]
    #[arg(long, allow_negative_numbers = true)]
    pub factor: Option<f64>,
    /// Epochs that the schedule `plateau` waits for a better test loss [default: 5]
    #[arg(long, value_name = "EPOCHS", allow_negative_numbers = true)]
    pub patience: Option<u64>,
}

/// The name of a flag's value.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

impl UpdateOptions {
    /// The flags that have a value.
    pub fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let number = |n: Option<f64>| n.map(|n| n.to_string());
        let count = |n: Option<u64>| n.map(|n| n.to_string());
        let list = |words: &[String]| (!words.is_empty()).then(|| words.join(","));
        vec![
            ("lr", number(self.lr)),
            ("optimizer", Some(name(self.optimizer))),
            ("momentum", number(self.momentum)),
            ("moments", Some(name(self.moments))),
            ("weight-decay", number(self.weight_decay)),
            ("decay-group", list(&self.decay_group)),
            ("clip-value", number(self.clip_value)),
            ("clip-norm", number(self.clip_norm)),
            ("clip-global-norm", number(self.clip_global_norm)),
            ("ema", number(self.ema)),
            ("freeze", list(&self.freeze)),
            ("schedule", Some(name(self.schedule))),
            ("warmup", count(self.warmup)),
            ("every", count(self.every)),
            ("factor", number(self.factor)),
            ("patience", count(self.patience)),
        ]
    }

    /// The optimizer's name for a report.
    pub fn optimizer_name(&self) -> String {
        name(self.optimizer)
    }

    /// The learning rate.
    pub fn rate(&self) -> Result<f64, Failure> {
        let own = match self.optimizer {
            OptimizerName::Adam | OptimizerName::Adamw | OptimizerName::Rmsprop => 1e-3,
            OptimizerName::Lion => 1e-4,
            _ => 1e-2,
        };
        above_zero("--lr", self.lr.unwrap_or(own))
    }

    /// The optimizer with clipping, averaging and frozen parameters.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>, Failure> {
        let mut recipe = Recipe::new(self.rule()?);
        // The flags exclude each other.
        if let Some(most) = self.clip_value {
            recipe = recipe.clip(Clip::Value(above_zero("--clip-value", most)?));
        }
        if let Some(most) = self.clip_norm {
            recipe = recipe.clip(Clip::Norm(above_zero("--clip-norm", most)?));
        }
        if let Some(most) = self.clip_global_norm {
            recipe = recipe.clip(Clip::GlobalNorm(above_zero("--clip-global-norm", most)?));
        }
        if let Some(decay) = self.ema {
            let decay = below_one("--ema", decay)?;
            if decay as f32 >= 1.0 {
                let message = format!(
                    "--ema {decay} rounds to 1 in 32 bits, and the averages would never move: lower it"
                );
                return Err(Failure::usage(message));
            }
            recipe = recipe.average(decay);
        }
        Ok(Box::new(self.freeze.iter().fold(recipe, |recipe, pattern| recipe.freeze(pattern))))
    }

    /// The update rule.
    fn rule(&self) -> Result<Box<dyn Optimizer>, Failure> {
        let (rate, decay) = (self.rate()?, self.decay()?);
        let own = if self.optimizer == OptimizerName::Rmsprop { 0.0 } else { 0.9 };
        let momentum = below_one("--momentum", self.momentum.unwrap_or(own))?;
        let has_momentum = matches!(
            self.optimizer,
            OptimizerName::Momentum | OptimizerName::Nesterov | OptimizerName::Rmsprop
        );
        if self.momentum.is_some() && !has_momentum {
            return Err(self.has_no("--momentum", "momentum, nesterov and rmsprop"));
        }
        let has_moments = matches!(self.optimizer, OptimizerName::Adam | OptimizerName::Adamw);
        if self.moments != MomentsName::Whole && !has_moments {
            return Err(self.has_no("--moments", "adam and adamw"));
        }
        Ok(match self.optimizer {
            OptimizerName::Sgd => Box::new(Sgd::new(rate).weight_decay(decay)),
            OptimizerName::Momentum => Box::new(Sgd::new(rate).momentum(momentum).weight_decay(decay)),
            OptimizerName::Nesterov => Box::new(Sgd::new(rate).nesterov(momentum).weight_decay(decay)),
            OptimizerName::Rmsprop => Box::new(RmsProp::new(rate).momentum(momentum).weight_decay(decay)),
            OptimizerName::Adam => self.adaptive(Adam::new(rate), decay),
            OptimizerName::Adamw => self.adaptive(AdamW::new(rate), decay),
            OptimizerName::Lion => Box::new(Lion::new(rate).weight_decay(decay)),
            OptimizerName::Adafactor => Box::new(Adafactor::new(rate).weight_decay(decay)),
        })
    }

    fn adaptive<const APART: bool>(&self, rule: Adaptive<APART>, decay: Decay) -> Box<dyn Optimizer> {
        let moments = match self.moments {
            MomentsName::Whole => Moments::Whole,
            MomentsName::Bf16 => Moments::Half,
            MomentsName::Bytes => Moments::Bytes,
        };
        Box::new(rule.weight_decay(decay).moments(moments))
    }

    fn decay(&self) -> Result<Decay, Failure> {
        let own = if self.optimizer == OptimizerName::Adamw { 0.01 } else { 0.0 };
        let weight = at_least_zero("--weight-decay", self.weight_decay.unwrap_or(own))?;
        let mut decay = Decay::new(weight);
        for group in &self.decay_group {
            let parts = group.rsplit_once('=').and_then(|(name, weight)| Some((name, weight.parse().ok()?)));
            let (name, weight) = parts.ok_or_else(|| {
                Failure::usage(format!("--decay-group {group}: write a name and a number, like `*/bias=0`"))
            })?;
            decay = decay.group(name, at_least_zero("--decay-group", weight)?);
        }
        Ok(decay)
    }

    /// The learning rate's schedule.
    pub fn schedule(&self) -> Result<Schedule, Failure> {
        let (step, plateau) = (self.schedule == ScheduleName::Step, self.schedule == ScheduleName::Plateau);
        let unused = [
            ("--every", self.every.is_some() && !step, "step"),
            ("--factor", self.factor.is_some() && !step && !plateau, "step or plateau"),
            ("--patience", self.patience.is_some() && !plateau, "plateau"),
        ];
        if let Some((flag, _, schedule)) = unused.into_iter().find(|(_, given, _)| *given) {
            return Err(Failure::usage(format!("{flag} needs --schedule {schedule}")));
        }
        let (every, factor) = (self.every.unwrap_or(1000), self.factor.unwrap_or(0.1));
        if every == 0 {
            return Err(Failure::usage("--every must be at least 1"));
        }
        let factor = above_zero("--factor", factor)?;
        Ok(match self.schedule {
            ScheduleName::Constant => Schedule::Constant,
            ScheduleName::Cosine => Schedule::Cosine,
            ScheduleName::Linear => Schedule::Linear,
            ScheduleName::Step => Schedule::Step { every, factor },
            ScheduleName::OneCycle => Schedule::OneCycle,
            ScheduleName::Plateau => Schedule::Plateau { patience: self.patience.unwrap_or(5), factor },
        })
    }

    fn has_no(&self, flag: &str, others: &str) -> Failure {
        Failure::usage(format!("{flag} is for {others}, not {}: leave it out", name(self.optimizer)))
    }
}

fn above_zero(flag: &str, value: f64) -> Result<f64, Failure> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(Failure::usage(format!("{flag} must be a positive number, not {value}"))),
    }
}

fn at_least_zero(flag: &str, value: f64) -> Result<f64, Failure> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(Failure::usage(format!("{flag} must be a number of at least 0, not {value}"))),
    }
}

fn below_one(flag: &str, value: f64) -> Result<f64, Failure> {
    match (0.0..1.0).contains(&value) {
        true => Ok(value),
        false => Err(Failure::usage(format!("{flag} must be at least 0 and below 1, not {value}"))),
    }
}
