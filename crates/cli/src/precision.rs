//! The flags of mixed precision, and what they make.

use super::Failure;
use clap::Args;
use plimsoll::nn::{LossScale, Policy, Precision};

/// What layers hand on to each other.
#[derive(Clone, Debug, Args)]
pub struct PrecisionOptions {
    /// What products multiply and layers hand on: f32, bf16 or f16; parameters, sums, norms and losses are f32 in all
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// Let layers by name compute in f32: a layer, or a pattern like `block*/norm1`; several with commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub keep_f32: Vec<String>,
    /// What the loss of f16 is multiplied with at first; it halves when a gradient is not finite, and the step is skipped
    /// [default: 65536]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true)]
    pub loss_scale: Option<f64>,
    /// Good steps after which the loss scale of f16 doubles [default: 2000]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub loss_scale_growth: Option<u32>,
}

impl PrecisionOptions {
    /// Flags with their values, where they have one.
    pub fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("precision", Some(self.precision.to_string())),
            ("keep-f32", (!self.keep_f32.is_empty()).then(|| self.keep_f32.join(","))),
            ("loss-scale", self.loss_scale.map(|scale| scale.to_string())),
            ("loss-scale-growth", self.loss_scale_growth.map(|steps| steps.to_string())),
        ]
    }

    /// The policy that the flags stand for.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let idle = [
            ("--keep-f32", !self.keep_f32.is_empty() && self.precision == Precision::F32, "bf16 or f16"),
            ("--loss-scale", self.loss_scale.is_some() && self.precision != Precision::F16, "f16"),
            (
                "--loss-scale-growth",
                self.loss_scale_growth.is_some() && self.precision != Precision::F16,
                "f16",
            ),
        ];
        if let Some((flag, _, precision)) = idle.into_iter().find(|(_, idle, _)| *idle) {
            return Err(Failure::usage(format!("{flag} needs --precision {precision}")));
        }
        let own = LossScale::default();
        let scale = LossScale {
            initial: self.loss_scale.unwrap_or(own.initial),
            growth: self.loss_scale_growth.unwrap_or(own.growth),
        };
        scale
            .check()
            .map_err(|reason| Failure::usage(format!("--loss-scale, --loss-scale-growth: {reason}")))?;
        let policy = Policy::new(self.precision).loss_scale(scale);
        Ok(self.keep_f32.iter().fold(policy, |policy, pattern| policy.keep_f32(pattern)))
    }
}
