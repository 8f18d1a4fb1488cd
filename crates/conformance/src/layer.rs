//! Golden cases of layers and losses.

use crate::case::{StoredTensor, tensor};
use crate::run::{formula, load};
use plimsoll_tensor::{DType, Tensor, TensorType};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::Path;

/// A layer or loss with the results of another framework; `scripts/freeze_layers.py` defines its inputs and parameters.
#[derive(Clone, Debug, Deserialize)]
pub struct LayerCase {
    /// A unique name, like `conv1d/causal`.
    pub name: String,
    /// Its inputs.
    pub inputs: Vec<LayerInput>,
    /// The expected output.
    #[serde(deserialize_with = "one")]
    pub output: Tensor,
    /// Gradients of inputs and parameters by name.
    #[serde(deserialize_with = "named")]
    pub gradients: BTreeMap<String, Tensor>,
    /// Running statistics after the step.
    #[serde(default, deserialize_with = "named")]
    pub statistics: BTreeMap<String, Tensor>,
}

/// An input of a [`LayerCase`].
#[derive(Clone, Debug, Deserialize)]
pub struct LayerInput {
    /// Its name.
    pub name: String,
    /// Its type, floats in f64.
    #[serde(rename = "type", deserialize_with = "parsed")]
    pub ty: TensorType,
    /// The bound of floats and integers; the fraction of booleans that are true.
    pub scale: f64,
}

/// Every golden layer and loss.
///
/// # Panics
/// If the file cannot be read: it is part of the crate.
pub fn golden_layers() -> Vec<LayerCase> {
    load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/layers.json")))
}

impl LayerCase {
    /// Element i of the tensor `name`, uniform in [0, 1).
    fn uniform(&self, name: &str, i: usize) -> f64 {
        formula(&format!("{}/{name}", self.name), i)
    }

    /// The elements of an input.
    pub fn input(&self, input: &LayerInput) -> Vec<f64> {
        let value = |i: usize| {
            let u = self.uniform(&input.name, i);
            match input.ty.dtype {
                DType::Bool => f64::from(u < input.scale),
                DType::F64 => (u - 0.5) * 2.0 * input.scale,
                _ => (u * input.scale).floor(),
            }
        };
        (0..input.ty.shape.elements()).map(value).collect()
    }

    /// The gradient of the output.
    pub fn upstream(&self) -> Vec<f64> {
        let elements = self.output.ty().shape.elements();
        (0..elements).map(|i| (self.uniform("upstream", i) - 0.5) * 2.0).collect()
    }

    /// The initial value of a parameter or running statistic.
    pub fn state(&self, name: &str, ty: &TensorType) -> Tensor {
        let shift = if name.ends_with("gain") || name.ends_with("running_variance") { 0.5 } else { -0.5 };
        let values: Vec<f64> = (0..ty.shape.elements()).map(|i| self.uniform(name, i) + shift).collect();
        Tensor::from_f64(ty.clone(), &values).expect("as many values as elements")
    }
}

fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tensor, D::Error> {
    tensor(&StoredTensor::deserialize(deserializer)?)
}

fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Tensor>, D::Error> {
    let all = BTreeMap::<String, StoredTensor>::deserialize(deserializer)?;
    all.into_iter().map(|(name, stored)| Ok((name, tensor(&stored)?))).collect()
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TensorType, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
