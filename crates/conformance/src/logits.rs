//! Golden logits of published models, with the names and shapes of their tensors.

use crate::run::load;
use serde::Deserialize;
use std::path::Path;

/// The logits of a torchvision model; `scripts/freeze_logits.py` defines its weights and images.
#[derive(Clone, Debug, Deserialize)]
pub struct GoldenLogits {
    /// Names and shapes of the model's tensors, as in PyTorch.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// The scores of the first image, then those of the second.
    pub logits: Vec<f64>,
}

/// The golden logits of a model (`resnet50`, `mobilenet_v2`).
///
/// # Panics
/// If there are none.
pub fn golden_logits(model: &str) -> GoldenLogits {
    load(Path::new(&format!("{}/golden/logits/{model}.json", env!("CARGO_MANIFEST_DIR"))))
}
