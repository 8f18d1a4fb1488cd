//! Random numbers by counter.

use super::{Family, Properties, Rematerialization, arity, rank, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, Shape, TensorType};
use serde::{Deserialize, Serialize};

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Uniform in [0, 1), 24 random bits, as this float type.
    Uniform(DType),
    /// Standard normal, as this float type.
    Normal(DType),
    /// True with this probability.
    Bernoulli(f64),
}

/// `(key i64[2], examples i32[n]) → [n, shape..]`: for each example, numbers that are a function of the key (seed and
/// step), the stream, the example's number and the element: never of order, threads or micro-batches. The generator is
/// Philox4x32-10 (`plimsoll_tensor::random`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Random {
    /// What is drawn.
    pub distribution: Distribution,
    /// Which of the step's streams; layers use their names.
    pub stream: String,
    /// Shape of one example's numbers.
    pub shape: Shape,
}

impl Family for Random {
    fn name(&self) -> &'static str {
        match self.distribution {
            Distribution::Uniform(_) => "uniform",
            Distribution::Normal(_) => "normal",
            Distribution::Bernoulli(_) => "bernoulli",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let [key, examples] = arity(inputs)?;
        require(*key == TensorType::new(DType::I64, [2]), || {
            format!("the key must be i64[2] (seed and step), it is {key}")
        })?;
        let [n] = rank("the examples", examples)?;
        require(examples.dtype == DType::I32, || format!("examples must be i32, not {}", examples.dtype))?;
        let dtype = match self.distribution {
            Distribution::Uniform(dtype) | Distribution::Normal(dtype) => {
                require(dtype.is_float(), || format!("draws floats, not {dtype}"))?;
                dtype
            }
            Distribution::Bernoulli(p) => {
                require((0.0..=1.0).contains(&p), || format!("{p} is no probability"))?;
                DType::Bool
            }
        };
        Ok(vec![TensorType::new(dtype, [&[n], &self.shape[..]].concat())])
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        20 * outputs[0].shape.elements() as u64
    }

    fn batch_relation(&self, batched: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        vec![if batched[0] { BatchRelation::Mixed } else { BatchRelation::PerExample }]
    }

    fn properties(&self) -> Properties {
        Properties { rematerialization: Rematerialization::Cheap, ..Properties::GENERAL }
    }
}
