//! Golden cases of single ops.

use plimsoll_graph::Op;
use plimsoll_tensor::{DType, Tensor};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// One op with its inputs and the outputs of another framework.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// A unique name, like `conv/3x3/weight_grad`.
    pub name: String,
    /// The op.
    pub op: Op,
    /// The element type in which the outputs were computed; for a cast, the source type.
    pub dtype: DType,
    /// The op's inputs. Floats that are not results of another op are exact in every float type.
    #[serde(deserialize_with = "tensors")]
    pub inputs: Vec<Tensor>,
    /// The expected outputs.
    #[serde(deserialize_with = "tensors")]
    pub outputs: Vec<Tensor>,
    /// A gradient of the first output, where the op is differentiable there.
    #[serde(default, deserialize_with = "optional_tensor")]
    pub upstream: Option<Tensor>,
    /// With [`Case::upstream`]: the gradient of each input, `None` for integers and booleans.
    #[serde(default, deserialize_with = "optional_tensors")]
    pub gradients: Vec<Option<Tensor>>,
}

/// Every golden case, in the order of file names.
///
/// # Panics
/// If a file cannot be read: the folder is part of the crate.
pub fn golden_cases() -> Vec<Case> {
    golden()
}

fn golden<T: DeserializeOwned>() -> Vec<T> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/ops");
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().flat_map(|path| crate::run::load::<Vec<T>>(path)).collect()
}

/// A tensor in a golden file.
#[derive(Deserialize)]
pub(crate) struct StoredTensor {
    #[serde(rename = "type")]
    ty: String,
    data: Vec<f64>,
}

pub(crate) fn tensor<E: Error>(stored: &StoredTensor) -> Result<Tensor, E> {
    Tensor::from_f64(stored.ty.parse().map_err(E::custom)?, &stored.data).map_err(E::custom)
}

fn tensors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Tensor>, D::Error> {
    Vec::<StoredTensor>::deserialize(deserializer)?.iter().map(tensor).collect()
}

fn optional_tensor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Tensor>, D::Error> {
    Option::<StoredTensor>::deserialize(deserializer)?.as_ref().map(tensor).transpose()
}

fn optional_tensors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Option<Tensor>>, D::Error> {
    let all = Vec::<Option<StoredTensor>>::deserialize(deserializer)?;
    all.iter().map(|stored| stored.as_ref().map(tensor).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Serde ignores unknown fields, so a misspelt one would make the case test another op.
    #[test]
    fn ops_are_written_as_serde_prints_them() {
        let raw: Vec<Value> = golden();
        for (raw, case) in raw.iter().zip(golden_cases()) {
            assert_eq!(serde_json::to_value(&case.op).unwrap(), raw["op"], "{}", case.name);
        }
    }
}
