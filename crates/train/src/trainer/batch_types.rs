//! The batch types of a run, and how its data is cut into batches and epochs.

use super::Trainer;
use crate::TrainError;
use plimsoll_data::{Dataset, Pipeline};
use plimsoll_tensor::{Field, TensorType};

/// Capacity of the shuffle buffer, in records, for streams that are not shuffled by the caller.
const SHUFFLE_RECORDS: usize = 1024;

/// What a batch is for. With its number of examples, a batch type; every type is planned before step one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Forward, backward, optimizer step.
    Train,
    /// Loss and predicted classes.
    Evaluate,
    /// The model's outputs.
    Predict,
}

impl BatchKind {
    /// The name in load sheets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Evaluate => "evaluate",
            Self::Predict => "predict",
        }
    }
}

/// Batches that share a plan: of one kind, one model's inputs and one number of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchType {
    pub kind: BatchKind,
    /// The model's index among [`Trainer::models`].
    pub model: usize,
    pub examples: usize,
}

/// Types as a list.
pub(crate) fn types_in_words<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> String {
    types.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn field_types<'f>(
    fields: impl IntoIterator<Item = &'f Field>,
) -> impl Iterator<Item = &'f TensorType> {
    fields.into_iter().map(|field| &field.ty)
}

impl Trainer {
    /// Examples of a step.
    pub fn step_examples(&self) -> usize {
        self.batch.saturating_mul(self.accumulate)
    }

    /// Training examples of an epoch.
    pub(crate) fn epoch_examples(&self, data: &Dataset) -> u64 {
        data.train.batch(self.step_examples()).batched_len().unwrap_or(0) as u64
    }

    /// Steps of a run over this data.
    pub fn total_steps(&self, data: &Dataset) -> u64 {
        let batches = self.epoch_examples(data).div_ceil(self.step_examples().max(1) as u64);
        let per_epoch = self.steps_per_epoch.unwrap_or(batches);
        self.steps.unwrap_or(self.epochs.saturating_mul(per_epoch))
    }

    /// Validations of a run over this data, the last one included.
    pub fn validations(&self, data: &Dataset) -> u64 {
        let batches = self.epoch_examples(data).div_ceil(self.step_examples().max(1) as u64);
        let every = self.validate_every.or(self.steps_per_epoch).unwrap_or(batches).max(1);
        self.total_steps(data).div_ceil(every)
    }

    /// The batches to train on, shuffled anew each epoch.
    pub fn training_batches(&self, data: &Dataset) -> Pipeline {
        let train = data.train.clone();
        let train = if train.is_shuffled() { train } else { train.shuffle(SHUFFLE_RECORDS, self.seed) };
        train.batch(self.step_examples())
    }

    /// Examples of an evaluation or prediction batch where a step has so many micro-batches: no more than one device's
    /// micro-batch, so that neither needs more memory than training, and such that whole blocks fill the examples of a step.
    fn evaluated_examples(&self, micro_batches: usize) -> usize {
        let (step, block) = (self.step_examples(), self.block().max(1));
        let most = (step / (micro_batches.max(1) * self.device_count())).max(1);
        let fits = |examples: &usize| step.is_multiple_of(*examples) && examples.is_multiple_of(block);
        (1..=most / block).rev().map(|blocks| blocks * block).find(fits).unwrap_or(most)
    }

    /// The batch types of a run over this data in `micro_batches` micro-batches, the largest training batch first. Of several buckets
    /// only the largest has a remainder.
    pub(crate) fn batch_types(&self, data: &Dataset, micro_batches: usize) -> Vec<BatchType> {
        let evaluated = self.evaluated_examples(micro_batches);
        let sizes = |kind, part: &Pipeline| {
            let len = part.len().unwrap_or(0);
            let full = match kind {
                BatchKind::Train => self.step_examples().max(1),
                BatchKind::Evaluate | BatchKind::Predict => evaluated,
            };
            let full = full.min(len);
            let rest = len % full.max(1);
            let models = part.batch_schemas().iter().rev().filter_map(|schema| self.model_of(schema));
            let models: Vec<usize> = models.collect();
            let of = |&model| [full, rest].map(|examples| BatchType { kind, model, examples });
            let mut types: Vec<BatchType> = models.iter().flat_map(of).collect();
            types.retain(|t| t.examples == full || t.model == models[0]);
            types.retain(|t| t.examples > 0);
            types
        };
        let mut types = sizes(BatchKind::Train, &data.train);
        let evaluated =
            data.validation.iter().chain([&data.test]).flat_map(|p| sizes(BatchKind::Evaluate, p));
        evaluated.for_each(|t| {
            if !types.contains(&t) {
                types.push(t)
            }
        });
        types.extend(sizes(BatchKind::Predict, &data.test));
        types.retain(|t| self.kinds.contains(&t.kind));
        types
    }

    /// The batch types that plans of these names were made for. How many micro-batches were chosen decides the sizes of evaluations, and a
    /// last batch may have more of them than the others.
    pub(crate) fn planned_types<'n>(
        &self,
        data: &Dataset,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<Vec<BatchType>, TrainError> {
        let counts = self.micro_batch_counts().into_iter();
        let mut types = counts.map(|micro_batches| self.batch_types(data, micro_batches));
        let found = types.find(|types| types.iter().map(|&batch| self.type_name(batch)).eq(names.clone()));
        found
            .ok_or_else(|| TrainError::Setting("this plan was made for other data or another trainer".into()))
    }

    /// A batch type's name in load sheets.
    pub(super) fn type_name(&self, BatchType { kind, model, examples }: BatchType) -> String {
        let name = format!("{} × {examples}", kind.name());
        if self.variants.is_empty() {
            return name;
        }
        format!("{name} of {}", types_in_words(field_types(&self.model_at(model).inputs())))
    }
}
