//! Golden runs: ten training steps of small models.

use plimsoll_tensor::random::fnv1a;
use serde::{Deserialize, de::DeserializeOwned};
use std::{collections::BTreeMap, path::Path};

/// The results of ten steps of a model; `scripts/freeze_runs.py` defines models, data and optimizers.
#[derive(Clone, Debug, Deserialize)]
pub struct GoldenRun {
    /// The loss of each step, before its update.
    pub losses: Vec<f64>,
    /// Parameters after the last step, by name: all, or a sample of many.
    pub parameters: BTreeMap<String, Summary>,
    /// All parameters together.
    pub all_parameters: Total,
    /// Running statistics after the last step, by name: all, or a sample of many.
    pub statistics: BTreeMap<String, Summary>,
    /// All running statistics together.
    pub all_statistics: Total,
}

/// A summary of one tensor.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Summary {
    /// Its extents.
    pub shape: Vec<usize>,
    /// The sum of its elements.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
    /// The first four, or all if there are fewer.
    pub first: Vec<f64>,
    /// The last four, or all if there are fewer.
    pub last: Vec<f64>,
}

impl Summary {
    /// The summary of a tensor's elements in row-major order.
    pub fn of(shape: &[usize], values: &[f64]) -> Self {
        Self {
            shape: shape.to_vec(),
            sum: values.iter().sum(),
            squares: values.iter().map(|x| x * x).sum(),
            first: values[..values.len().min(4)].to_vec(),
            last: values[values.len().saturating_sub(4)..].to_vec(),
        }
    }
}

/// A summary of many tensors.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Total {
    /// How many there are.
    pub tensors: usize,
    /// How many elements they have.
    pub elements: usize,
    /// The sum of all elements.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

impl Total {
    /// Adds a tensor.
    pub fn add(&mut self, values: &[f64]) {
        self.tensors += 1;
        self.elements += values.len();
        self.sum += values.iter().sum::<f64>();
        self.squares += values.iter().map(|x| x * x).sum::<f64>();
    }
}

/// The golden run of a model, named as in `scripts/freeze_runs.py`, with an optimizer (`sgd`, `adamw`).
///
/// # Panics
/// If there is no such run.
pub fn golden_run(model: &str, optimizer: &str) -> GoldenRun {
    let mut file = golden_file(model);
    file.runs.remove(optimizer).unwrap_or_else(|| panic!("no run of {model} with {optimizer}"))
}

/// Element i of the tensor `name`, uniform in [0, 1). Weights and data of the golden files are made from it, so it must keep
/// the bits of `scripts/formula.py`: SplitMix64 of the name's hash.
pub fn formula(name: &str, i: usize) -> f64 {
    let mut z = fnv1a(name).wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Reads a file of golden numbers.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(Deserialize)]
struct File {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the test below reads it"))]
    formula_check: Vec<(String, usize, f64)>,
    runs: BTreeMap<String, GoldenRun>,
}

fn golden_file(model: &str) -> File {
    load(Path::new(&format!("{}/golden/runs/{model}.json", env!("CARGO_MANIFEST_DIR"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models with their number of parameters and of running statistics.
    const MODELS: [(&str, usize, usize); 14] = [
        ("mlp", 6, 0),
        ("lenet", 10, 0),
        ("resnet20", 65, 42),
        ("mobilenet_v2", 158, 104),
        ("densenet121", 364, 242),
        ("unet", 64, 36),
        ("unet_plain", 46, 0),
        ("autoencoder", 12, 0),
        ("gpt", 37, 0),
        ("gpt2", 36, 0),
        ("vit_tiny", 40, 0),
        ("bert_tiny", 41, 0),
        ("lstm", 8, 0),
        ("seq2seq", 13, 0),
    ];

    #[test]
    fn the_formula_gives_the_bits_of_the_script() {
        for (model, ..) in MODELS {
            let check = golden_file(model).formula_check;
            assert!(!check.is_empty());
            for (name, i, value) in check {
                assert_eq!(formula(&name, i), value, "{name} {i}");
            }
        }
    }

    #[test]
    fn every_run_has_ten_losses_and_its_parameters() {
        for (model, parameters, statistics) in MODELS {
            for optimizer in ["sgd", "adamw"] {
                let run = golden_run(model, optimizer);
                assert_eq!(run.losses.len(), 10);
                assert_eq!(run.all_parameters.tensors, parameters, "{model}");
                assert_eq!(run.parameters.len(), if parameters > 80 { 40 } else { parameters }, "{model}");
                assert_eq!(run.all_statistics.tensors, statistics, "{model}");
                assert_eq!(run.statistics.len(), statistics.min(10), "{model}");
            }
        }
    }

    #[test]
    fn a_summary_of_a_short_tensor_holds_all_of_it() {
        let summary = Summary::of(&[3], &[1.0, 2.0, 3.0]);
        assert_eq!((summary.sum, summary.squares), (6.0, 14.0));
        assert_eq!((summary.first, summary.last), (vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0]));
    }
}
