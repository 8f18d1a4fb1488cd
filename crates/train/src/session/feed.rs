//! A step's inputs besides the batch's own: checked labels, row weights, and the key of random numbers.

use crate::TrainError;
use plimsoll_data::Batch;
use plimsoll_nn::{Model, step};
use plimsoll_tensor::Field;
use std::sync::Arc;

/// The inputs, labels and loss of one model.
struct ModelFields {
    /// The weight of each class in the loss; empty if all are one.
    class_weights: Vec<f32>,
    inputs: Vec<Field>,
    target: Field,
    /// Rows of the loss per example.
    rows: usize,
}

/// Buffers for one batch, refilled without allocating.
pub(crate) struct Feed {
    models: Vec<ModelFields>,
    /// The labels' bits; a row without a label has class zero, and weight zero.
    labels: Vec<i32>,
    /// Each row's weight, as the loss states it.
    raw_weights: Vec<f32>,
    /// The same, normalized to a sum of one.
    weights: Vec<f32>,
    /// The examples' numbers, which random numbers depend on.
    examples: Vec<i32>,
    /// Seed and step.
    key: [u64; 2],
}

/// The weights of a model's classes in its loss; none if all are one.
fn class_weights(model: &dyn Model) -> Vec<f32> {
    let (loss, classes) = (model.loss(), model.target().bound.unwrap_or(0));
    let weights = (0..classes as i32).map(|label| loss.label_weight(label) as f32);
    if weights.clone().all(|weight| weight == 1.0) { Vec::new() } else { weights.collect() }
}

impl Feed {
    /// Buffers for batches of up to `examples` examples of any of these models.
    pub fn new(models: impl Iterator<Item = Arc<dyn Model>>, examples: usize) -> Self {
        let fields = |model: Arc<dyn Model>| ModelFields {
            class_weights: class_weights(model.as_ref()),
            inputs: model.inputs(),
            target: model.target(),
            rows: step::rows(model.as_ref()).elements(),
        };
        let models: Vec<ModelFields> = models.map(fields).collect();
        let rows = models.iter().map(|model| model.rows).max().unwrap_or(0);
        let labels = models.iter().map(|model| model.target.ty.shape.elements()).max().unwrap_or(0);
        Self {
            models,
            labels: Vec::with_capacity(examples * labels),
            raw_weights: Vec::with_capacity(examples * rows),
            weights: Vec::with_capacity(examples * rows),
            examples: Vec::with_capacity(examples),
            key: [0; 2],
        }
    }

    /// The model that takes a batch's examples.
    pub fn model_of(&self, batch: &Batch) -> Option<usize> {
        let types = |model: &ModelFields| {
            let fields = model.inputs.iter().chain([&model.target]);
            batch.example_types().eq(fields.map(|field| &field.ty))
        };
        self.models.iter().position(types)
    }

    /// Fills the buffers for a batch of one of the models. Returns the sum of the raw row weights, by which means over
    /// several batches are weighted.
    pub fn fill(&mut self, model: usize, batch: &Batch, seed: u64, step: u64) -> Result<f64, TrainError> {
        let ModelFields { class_weights, inputs, target, rows } = &self.models[model];
        for (bytes, field) in batch.inputs().zip(inputs) {
            if let Some(bound) = field.bound {
                words(bytes).enumerate().try_for_each(|(i, token)| in_range("token", token, i, bound))?;
            }
        }
        self.key = [seed, step];
        let examples = batch.examples();
        self.examples.clear();
        self.examples.extend((0..examples as u64).map(|i| (batch.first_example() + i) as i32));
        self.labels.clear();
        self.raw_weights.clear();
        match target.bound {
            Some(classes) => {
                let one_row_each = batch.labels().len() / 4 == examples * rows;
                for (i, label) in words(batch.labels()).enumerate() {
                    if label < 0 && !one_row_each {
                        return Err(TrainError::Setting(format!(
                            "label {label} at place {i} of the batch: the loss takes an example's labels together, so \
                             none can be left out"
                        )));
                    }
                    in_range("label", label.max(0), i, classes)?;
                    self.labels.push(label.max(0));
                    let weight = usize::try_from(label)
                        .map_or(0.0, |class| class_weights.get(class).copied().unwrap_or(1.0));
                    self.raw_weights.push(weight);
                }
            }
            None => self.labels.extend(words(batch.labels())),
        }
        if self.raw_weights.len() != examples * rows {
            // One row has several labels, or values: all rows weigh the same.
            self.raw_weights.clear();
            self.raw_weights.resize(examples * rows, 1.0);
        }
        let total: f64 = self.raw_weights.iter().copied().map(f64::from).sum();
        let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
        self.weights.clear();
        self.weights.extend(self.raw_weights.iter().map(|&weight| (f64::from(weight) * scale) as f32));
        Ok(total)
    }

    /// The labels' bits: classes, or values.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// Each row's weight, as the loss states it.
    pub fn raw_weights(&self) -> &[f32] {
        &self.raw_weights
    }

    /// Each row's weight, normalized to a sum of one.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The examples' numbers.
    pub fn examples(&self) -> &[i32] {
        &self.examples
    }

    /// Seed and step.
    pub fn key(&self) -> &[u64; 2] {
        &self.key
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

fn in_range(what: &str, value: i32, index: usize, bound: usize) -> Result<(), TrainError> {
    if usize::try_from(value).is_ok_and(|v| v < bound) {
        return Ok(());
    }
    Err(TrainError::Setting(format!("{what} {value} at place {index} of the batch is not in 0..{bound}")))
}
