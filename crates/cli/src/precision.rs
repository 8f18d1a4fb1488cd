//! The flags of mixed precision, and the policy they describe.

use super::Failure;
use clap::Args;
use plimsoll::nn::{LossScale, Policy, Precision};

/// Precision of activations.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Precision")]
pub struct PrecisionOptions {
    /// Precision of activations and matrix products: f32, tf32 (on a GPU: f32 in memory, products of 10 bits), bf16 or f16;
    /// parameters, sums, norms and losses stay f32
    #[arg(long, default_value = "f32", value_parser = precision)]
    pub precision: Precision,
    /// Layers that compute in f32: a name, or a pattern like `block*/norm1`; comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub keep_f32: Vec<String>,
    /// Initial loss scale of f16; when a gradient is not finite, it halves and the step is skipped [default: 65536]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true)]
    pub loss_scale: Option<f64>,
    /// Steps without overflow after which the loss scale of f16 doubles [default: 2000]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub loss_scale_growth: Option<u32>,
}

/// Parses `--precision`. Other programs have other names for the same types.
pub fn precision(text: &str) -> Result<Precision, String> {
    text.parse().map_err(|error| {
        let meant = match text.to_ascii_lowercase().as_str() {
            "fp16" | "float16" | "half" | "16" | "amp" => "f16",
            "bfloat16" | "bfp16" | "b16" => "bf16",
            "tensorfloat32" | "tensorfloat-32" | "tf-32" => "tf32",
            "fp32" | "float32" | "float" | "single" | "32" => "f32",
            _ => return error,
        };
        format!("{error}; did you mean {meant}?")
    })
}

impl PrecisionOptions {
    /// The flags that have a value.
    pub fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("precision", Some(self.precision.to_string())),
            ("keep-f32", (!self.keep_f32.is_empty()).then(|| self.keep_f32.join(","))),
            ("loss-scale", self.loss_scale.map(|scale| scale.to_string())),
            ("loss-scale-growth", self.loss_scale_growth.map(|steps| steps.to_string())),
        ]
    }

    /// The precision policy.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let unused = [
            ("--keep-f32", !self.keep_f32.is_empty() && !self.precision.is_low(), "bf16 or f16"),
            ("--loss-scale", self.loss_scale.is_some() && self.precision != Precision::F16, "f16"),
            (
                "--loss-scale-growth",
                self.loss_scale_growth.is_some() && self.precision != Precision::F16,
                "f16",
            ),
        ];
        if let Some((flag, _, precision)) = unused.into_iter().find(|(_, given, _)| *given) {
            return Err(Failure::usage(format!("{flag} needs --precision {precision}")));
        }
        let default = LossScale::default();
        let scale = LossScale {
            initial: self.loss_scale.unwrap_or(default.initial),
            growth: self.loss_scale_growth.unwrap_or(default.growth),
        };
        scale
            .check()
            .map_err(|reason| Failure::usage(format!("--loss-scale, --loss-scale-growth: {reason}")))?;
        let policy = Policy::new(self.precision).loss_scale(scale);
        Ok(self.keep_f32.iter().fold(policy, |policy, pattern| policy.keep_f32(pattern)))
    }
}
