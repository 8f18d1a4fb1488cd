//! Normalisation. Layer and batch norm are composites: the `decompose` pass turns them into [`Norm::Stats`] and
//! elementwise ops, so that rematerializing a normalised value is cheap elementwise work from its saved statistics.

use super::{Family, PrecisionClass, Properties, arity, require, same_float};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Which elements share a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormAxis {
    /// Those of a row: over the last axis. Statistics have the input's shape with a last extent of one.
    Row,
    /// Those of a channel: over all axes but the last. Statistics have the shape `[channels]`.
    Channel,
}

/// Normalisation and its parts. `x̂ = (x - mean) · rstd`. Statistics and sums of 16-bit floats are f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// `(x, gain, bias) → (y, mean, rstd)` with `y = x̂ · gain + bias` over rows; gain and bias are `[last extent]`.
    Layer {
        /// Added to the variance.
        eps: f64,
    },
    /// `(x, gain, bias) → (y, mean, variance, rstd)` over channels, with the batch's own statistics.
    Batch {
        /// Added to the variance.
        eps: f64,
    },
    /// `x → ln Σ exp(x)` over rows, without overflow; -infinity for an empty row. Softmax is `exp(x - logsumexp(x))`.
    LogSumExp,
    /// `x → (mean, variance)`: the variance is the mean squared distance from the mean.
    Stats {
        /// Which elements share a statistic.
        axis: NormAxis,
    },
    /// `x → [count, mean, Σ (x - mean)²]` of every channel, f64 of `[3, channels]`. It folds over the batch, block by block: what it is
    /// added to are the moments of the examples before, and the result are those of all. [`Norm::StatsOfMoments`] of them has the bits
    /// of [`Norm::Stats`] over channels.
    Moments,
    /// `moments → (mean, variance)`, of channels.
    StatsOfMoments {
        /// Their element type.
        dtype: DType,
    },
    /// `(dy, x, mean, rstd) → (Σ dy, Σ dy · x̂)`, statistics broadcast to x: the sums in a norm's gradient.
    /// Over channels it folds over the batch, block by block.
    Sums {
        /// Which elements are summed together.
        axis: NormAxis,
    },
}

/// Rows of a channel's moments: count, mean, sum of squared distances from it.
const MOMENTS: usize = 3;

/// The type of a statistic of `x`.
fn statistic(x: &TensorType, axis: NormAxis) -> Result<TensorType, TypeError> {
    let channels = *x.shape.last().ok_or_else(|| TypeError("a scalar cannot be normalised".into()))?;
    let shape = match axis {
        NormAxis::Row => [&x.shape[..x.shape.rank() - 1], &[1]].concat(),
        NormAxis::Channel => vec![channels],
    };
    Ok(TensorType::new(x.dtype.wide(), shape))
}

impl Family for Norm {
    fn name(&self) -> &'static str {
        match self {
            Self::Layer { .. } => "layer_norm",
            Self::Batch { .. } => "batch_norm",
            Self::LogSumExp => "logsumexp",
            Self::Stats { .. } => "norm_stats",
            Self::Moments => "norm_moments",
            Self::StatsOfMoments { .. } => "norm_stats_of_moments",
            Self::Sums { .. } => "norm_sums",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        require(!inputs.is_empty(), || "needs inputs".into())?;
        match *self {
            Self::Layer { .. } | Self::Batch { .. } => {
                same_float(inputs)?;
                let [x, gain, bias] = arity(inputs)?;
                require(!x.dtype.is_low(), || "norms are computed in f32: cast x".into())?;
                let axis = if matches!(self, Self::Layer { .. }) { NormAxis::Row } else { NormAxis::Channel };
                let channel = statistic(x, NormAxis::Channel)?;
                require(*gain == channel && *bias == channel, || format!("gain and bias must be {channel}"))?;
                let stat = statistic(x, axis)?;
                let stats = if matches!(self, Self::Layer { .. }) { 2 } else { 3 };
                Ok([x.clone()].into_iter().chain(std::iter::repeat_n(stat, stats)).collect())
            }
            Self::LogSumExp => {
                let [x] = arity(inputs)?;
                same_float(inputs)?;
                Ok(vec![statistic(x, NormAxis::Row)?])
            }
            Self::Stats { axis } => {
                let [x] = arity(inputs)?;
                same_float(inputs)?;
                Ok(vec![statistic(x, axis)?; 2])
            }
            Self::Moments => {
                let [x] = arity(inputs)?;
                same_float(inputs)?;
                let channels = statistic(x, NormAxis::Channel)?.shape[0];
                Ok(vec![TensorType::new(DType::F64, [MOMENTS, channels])])
            }
            Self::StatsOfMoments { dtype } => {
                let [moments] = arity(inputs)?;
                let fits = moments.dtype == DType::F64 && matches!(moments.shape[..], [MOMENTS, _]);
                require(fits && dtype.is_float(), || format!("{moments} are not moments of channels"))?;
                Ok(vec![TensorType::new(dtype, [moments.shape[1]]); 2])
            }
            Self::Sums { axis } => {
                let [dy, x, mean, rstd] = arity(inputs)?;
                let floats = dy.dtype.is_float() && x.dtype.is_float();
                // Either may be a 16-bit float: the op widens.
                require(floats && dy.shape == x.shape && dy.dtype.wide() == x.dtype.wide(), || {
                    format!("gradient {dy} and input {x} differ")
                })?;
                let fits = [NormAxis::Row, NormAxis::Channel]
                    .into_iter()
                    .any(|a| statistic(x, a).as_ref() == Ok(mean));
                require(fits && mean == rstd, || format!("{mean} and {rstd} are not statistics of {x}"))?;
                Ok(vec![statistic(x, axis)?; 2])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let per_element = if matches!(self, Self::LogSumExp) { 20 } else { 6 };
        per_element * inputs[0].shape.elements() as u64
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        match self {
            Self::Layer { .. } => per_row(inputs, 3),
            Self::LogSumExp => per_row(inputs, 1),
            Self::Batch { .. } => vec![
                BatchRelation::PerExample,
                BatchRelation::Mixed,
                BatchRelation::Mixed,
                BatchRelation::Mixed,
            ],
            Self::Stats { axis: NormAxis::Row } | Self::Sums { axis: NormAxis::Row } => per_row(inputs, 2),
            Self::Stats { axis: NormAxis::Channel } => vec![BatchRelation::Mixed; 2],
            Self::Moments => vec![BatchRelation::Reduced],
            // Moments have no batch axis.
            Self::StatsOfMoments { .. } => vec![BatchRelation::Mixed; 2],
            Self::Sums { axis: NormAxis::Channel } => {
                vec![if batched[0] && batched[1] { BatchRelation::Reduced } else { BatchRelation::Mixed }; 2]
            }
        }
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Layer { .. } | Self::Batch { .. } => {
                Properties { precision: PrecisionClass::ROUNDED, ..Properties::GENERAL }
            }
            Self::LogSumExp => {
                let precision = PrecisionClass { extends_chain: true, ..PrecisionClass::WIDE };
                Properties { precision, ..Properties::GENERAL }
            }
            Self::Stats { .. } | Self::StatsOfMoments { .. } => Properties::GENERAL,
            Self::Moments => Properties { folds: &[0], ..Properties::GENERAL },
            Self::Sums { .. } => Properties { folds: &[0, 1], ..Properties::GENERAL },
        }
    }
}

/// Rows lie inside an example, unless the batch axis is the only one.
fn per_row(inputs: &[&TensorType], outputs: usize) -> Vec<BatchRelation> {
    vec![if inputs[0].shape.rank() > 1 { BatchRelation::PerExample } else { BatchRelation::Mixed }; outputs]
}
