//! Whole steps as graphs: training, evaluation, prediction.
//!
//! Every step's loss is `Σ weights · loss per row`; the weights come with the batch (a mean has `1 / rows`), so a
//! remainder, a micro-batch and a masked row are all a matter of weights.

use crate::optimizer::setting_inputs;
use crate::{Head, Mode, Model, Net, Optimizer, Parameter};
use plimsoll_graph::op::{Loss, Reduce};
use plimsoll_graph::{Builder, Graph, GraphError, Op, Role, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use plimsoll_transform::{LOSS, gradient};

/// The names of a step's batch inputs.
pub const INPUTS: &str = "inputs";
/// The labels' name.
pub const LABELS: &str = "labels";
/// The row weights' name.
pub const WEIGHTS: &str = "weights";
/// Output of an evaluation: the predicted class of every row.
pub const PREDICTIONS: &str = "predictions";
/// Output of a prediction: the logits of every row.
pub const LOGITS: &str = "logits";

/// Rows that one block of examples should at least have, so that sums over examples run on full registers.
const BLOCK_ROWS: usize = 32;

/// Examples whose sums are folded as one block: a function of the model alone, so that every batch size folds alike.
pub fn example_block(model: &dyn Model) -> usize {
    BLOCK_ROWS.div_ceil(model.labels().elements().max(1)).next_power_of_two()
}

/// One training step (forward, backward, update) in f32.
pub fn training(model: &dyn Model, optimizer: &dyn Optimizer, examples: usize) -> Result<Graph, GraphError> {
    training_in(DType::F32, model, optimizer, examples)
}

/// One training step with another float type.
pub fn training_in(
    dtype: DType,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    examples: usize,
) -> Result<Graph, GraphError> {
    let mut step = Step::new(dtype, model, examples, Mode::Train)?;
    let loss = step.loss(model)?;
    step.net.output(LOSS, loss);
    let mut b = step.net.into_builder();
    let states = b.graph().states.iter().filter(|s| s.role == Role::Parameter);
    let parameters: Vec<Parameter> =
        states.map(|s| Parameter { name: s.name.clone(), value: s.input }).collect();
    let values: Vec<ValueId> = parameters.iter().map(|p| p.value).collect();
    let gradients = gradient(&mut b, loss, &values)?;
    let settings = setting_inputs(&mut b, optimizer, dtype);
    for (parameter, gradient) in parameters.iter().zip(gradients) {
        let layer = parameter.name.rsplit_once('/').map_or("", |(layer, _)| layer);
        b.within(layer.into(), |b| optimizer.update(b, parameter, gradient, &settings))?;
    }
    b.finish()
}

/// Loss and, for models that end in logits, the predicted classes.
pub fn evaluation(model: &dyn Model, examples: usize) -> Result<Graph, GraphError> {
    let mut step = Step::new(DType::F32, model, examples, Mode::Infer)?;
    let loss = step.loss(model)?;
    step.net.output(LOSS, loss);
    if let Head::Logits(logits) = step.head {
        let predictions = step.net.one(Op::Reduce(Reduce::Argmax), &[logits])?;
        step.net.output(PREDICTIONS, predictions);
    }
    step.net.into_builder().finish()
}

/// The logits of every row.
pub fn prediction(model: &dyn Model, examples: usize) -> Result<Graph, GraphError> {
    let mut step = Step::new(DType::F32, model, examples, Mode::Infer)?;
    let logits = match step.head {
        Head::Logits(logits) => logits,
        Head::Linear { features, kernel } => step.net.matmul(features, kernel)?,
    };
    step.net.output(LOGITS, logits);
    step.net.into_builder().finish()
}

struct Step {
    net: Net,
    head: Head,
    examples: usize,
}

impl Step {
    fn new(dtype: DType, model: &dyn Model, examples: usize, mode: Mode) -> Result<Self, GraphError> {
        if examples == 0 {
            return Err(GraphError::Broken(
                "a batch needs at least one example: set the batch size to 1 or more".into(),
            ));
        }
        let mut net = Net::new(Builder::new(examples, example_block(model)), mode, dtype);
        let one = model.input();
        let ty = batch_type(if one.dtype == DType::F32 { dtype } else { one.dtype }, examples, &one.shape);
        let x = net.batch_input(INPUTS, ty);
        let head = model.forward(&mut net, x)?;
        Ok(Self { net, head, examples })
    }

    fn loss(&mut self, model: &dyn Model) -> Result<ValueId, GraphError> {
        let (net, labels) = (&mut self.net, model.labels());
        let rows = self.examples.saturating_mul(labels.elements());
        let (dtype, examples) = (net.dtype, self.examples);
        let targets = net.batch_input(LABELS, batch_type(DType::I32, examples, &labels));
        let weights = net.batch_input(WEIGHTS, batch_type(dtype, examples, &labels));
        net.scope("loss", |net| {
            let (targets, weights) = (net.reshape(targets, [rows])?, net.reshape(weights, [rows])?);
            match self.head {
                Head::Logits(logits) => net.one(Op::Loss(Loss::CrossEntropy), &[logits, targets, weights]),
                Head::Linear { features, kernel } => {
                    net.one(Op::Loss(Loss::LinearCrossEntropy), &[features, kernel, targets, weights])
                }
            }
        })
    }
}

fn batch_type(dtype: DType, examples: usize, one: &Shape) -> TensorType {
    TensorType::new(dtype, [&[examples], &one[..]].concat())
}
