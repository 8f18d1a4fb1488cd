//! The plan that a batch runs, and where its inputs and outputs are.

use super::Session;
use crate::trainer::{BatchType, types_in_words};
use crate::{BatchKind, TrainError, Trainer};
use bytemuck::{bytes_of, cast_slice};
use plimsoll_data::Batch;
use plimsoll_graph::NodeId;
use plimsoll_nn::step::{LABELS, LOSS_BEFORE, OUTPUT, PREDICTIONS, WEIGHTS, input_name};
use plimsoll_nn::{EXAMPLES, RANDOM};
use plimsoll_plan::{ExecuteError, WholePlan};
use plimsoll_tensor::DType;
use plimsoll_transform::LOSS;
use std::sync::Arc;

/// Inputs of a step at most: the batch's, the key of random numbers, the sum of losses before, and the optimizer's settings.
pub(super) const MAX_INPUTS: usize = 25;

/// One plan of the set, with the roles of its graph's inputs and outputs.
pub(super) struct BatchPlan {
    pub batch: BatchType,
    inputs: Vec<InputRole>,
    pub loss: Option<OutputSlot>,
    /// Whether the loss is the sum of its rows' weighted losses, added to that of the batches before; else it is their mean.
    pub continues_loss: bool,
    /// The predicted classes.
    pub predictions: Option<OutputSlot>,
    /// The model's first output.
    pub output: Option<OutputSlot>,
}

/// An output of a graph.
#[derive(Clone, Copy)]
pub(super) struct OutputSlot {
    pub index: usize,
    pub dtype: DType,
    pub bytes: usize,
}

/// How a plan runs on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Plain,
    /// The executor was given the batch's large inputs ahead, since the last run.
    Prefetched,
    /// Up to the first node that writes a number that is not finite.
    UntilBad,
}

#[derive(Clone, Copy)]
enum InputRole {
    Input(usize),
    Labels,
    Weights,
    /// The sum of losses so far.
    LossBefore,
    Random,
    Examples,
    Setting(usize),
}

impl BatchPlan {
    pub fn new(trainer: &Trainer, plan: &WholePlan, batch: BatchType) -> Result<Self, TrainError> {
        let settings = trainer.optimizer.setting_names();
        let fields = trainer.model_at(batch.model).inputs().len();
        let role = |name: &str| match name {
            LABELS => Some(InputRole::Labels),
            WEIGHTS => Some(InputRole::Weights),
            LOSS_BEFORE => Some(InputRole::LossBefore),
            RANDOM => Some(InputRole::Random),
            EXAMPLES => Some(InputRole::Examples),
            _ => match name.strip_prefix("optimizer/") {
                Some(setting) => settings.iter().position(|n| n == setting).map(InputRole::Setting),
                None => (0..fields).find(|&i| input_name(i) == name).map(InputRole::Input),
            },
        };
        let inputs = plan.inputs.iter().map(|name| {
            role(name).ok_or_else(|| ExecuteError::Input(format!("nothing feeds the input `{name}`")))
        });
        let slot = |name: &str| {
            let index = plan.outputs.iter().position(|o| o.name == name)?;
            let ty = &plan.outputs[index].ty;
            Some(OutputSlot { index, dtype: ty.dtype, bytes: ty.bytes() })
        };
        let (loss, predictions, output) = (slot(LOSS), slot(PREDICTIONS), slot(OUTPUT));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let continues_loss = plan.inputs.iter().any(|name| name == LOSS_BEFORE);
        Ok(Self { batch, inputs, loss, continues_loss, predictions, output })
    }
}

impl Session {
    /// The plan for a batch, by kind, example types and number of examples.
    pub(super) fn find_plan(&self, kind: BatchKind, batch: &Batch) -> Result<usize, TrainError> {
        let examples = batch.examples();
        let model = self.feed.model_of(batch);
        let wanted = model.map(|model| BatchType { kind, model, examples });
        let found = self.batch_plans.iter().position(|p| Some(p.batch) == wanted);
        found.ok_or_else(|| {
            if model.is_none() {
                return TrainError::Setting(self.trainer.unlike(batch));
            }
            let planned =
                self.batch_plans.iter().zip(&self.whole.plans).filter(|(p, _)| p.batch.kind == kind);
            let planned: Vec<_> = planned.map(|(_, plan)| format!("`{}`", plan.name)).collect();
            let (name, planned) = (kind.name(), planned.join(", "));
            let of = types_in_words(batch.example_types());
            TrainError::Setting(format!(
                "no plan for {name} batches of {examples} examples of {of}: planned were {planned}"
            ))
        })
    }

    /// Runs a plan on a batch. Returns the sum of its rows' weights, for averaging over batches, and of [`Run::UntilBad`] the
    /// first node that wrote a number that is not finite.
    pub(super) fn run_plan(
        &mut self,
        plan: usize,
        batch: &Batch,
        how: Run,
    ) -> Result<(f64, Option<NodeId>), TrainError> {
        let batch_plan = &self.batch_plans[plan];
        let key = (self.trainer.seed, self.steps_done);
        let ranks = self.trainer.connected().map(Arc::as_ref);
        let weight = self.feed.fill(batch_plan.batch.model, batch, key, ranks)?;
        self.ran = None;
        // Until the whole step is done, states may be half written.
        self.poisoned |= batch_plan.batch.kind == BatchKind::Train;
        // A fixed array, because the step loop allocates nothing.
        let mut inputs: [&[u8]; MAX_INPUTS] = [&[]; MAX_INPUTS];
        for (slot, role) in inputs.iter_mut().zip(&batch_plan.inputs) {
            *slot = match *role {
                InputRole::Input(i) => batch.input(i).unwrap_or(&[]),
                InputRole::Labels => cast_slice(self.feed.labels()),
                // A sum over several batches is divided by the weights of all, when they are known.
                InputRole::Weights if batch_plan.continues_loss => cast_slice(self.feed.raw_weights()),
                InputRole::Weights => cast_slice(self.feed.weights()),
                InputRole::LossBefore => bytes_of(&self.loss_before),
                InputRole::Random => cast_slice(self.feed.key()),
                InputRole::Examples => cast_slice(self.feed.examples()),
                InputRole::Setting(i) => &self.setting_bytes[i],
            };
        }
        let inputs = &inputs[..batch_plan.inputs.len()];
        match how {
            Run::Plain => self.prepared.run(plan, inputs)?,
            Run::Prefetched => self.prepared.run_prefetched(plan, inputs)?,
            Run::UntilBad => return Ok((weight, self.prepared.run_until_bad(plan, inputs)?)),
        }
        self.ran = Some(plan);
        Ok((weight, None))
    }

    /// Lets the executor copy the large inputs of the next training batch to its device, beside the step that it computes.
    /// Returns how the batch is to run.
    pub(super) fn prefetch(&mut self, batch: &Batch, least: usize) -> Result<Run, TrainError> {
        // A batch without a plan is an error when its turn comes.
        let Ok(plan) = self.find_plan(BatchKind::Train, batch) else { return Ok(Run::Plain) };
        let roles = &self.batch_plans[plan].inputs;
        let mut inputs: [&[u8]; MAX_INPUTS] = [&[]; MAX_INPUTS];
        for (slot, role) in inputs.iter_mut().zip(roles) {
            if let InputRole::Input(i) = *role {
                *slot = batch.input(i).filter(|bytes| bytes.len() >= least).unwrap_or(&[]);
            }
        }
        let taken = self.prepared.prefetch(plan, &inputs[..roles.len()])?;
        Ok(if taken { Run::Prefetched } else { Run::Plain })
    }

    /// The loss of the batch that ran last; NaN where the plan computes none.
    pub(super) fn read_loss(&self, plan: usize) -> Result<f64, TrainError> {
        let Some(OutputSlot { index, dtype, .. }) = self.batch_plans[plan].loss else { return Ok(f64::NAN) };
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..dtype.bytes()];
        self.prepared.read_output(plan, index, bytes)?;
        Ok(match dtype {
            DType::F64 => f64::from_ne_bytes((&*bytes).try_into().unwrap_or_default()),
            _ => f64::from(f32::from_ne_bytes((&*bytes).try_into().unwrap_or_default())),
        })
    }
}
