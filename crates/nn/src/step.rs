//! Whole steps as graphs: training, evaluation, prediction.
//!
//! A step's loss is `Σ weight · loss` over rows. The weights come with the batch (`1 / rows` for a mean), so remainders,
//! micro-batches and masked rows differ only in their weights.

use crate::optimizer::setting_inputs;
use crate::precision::{LOSS_LAYER, Scaling};
use crate::{AVERAGE, Field, Head, LossScale, Mode, Model, Net, Optimizer, Parameter, Policy, Precision};
use plimsoll_graph::op::Reduce;
use plimsoll_graph::{Builder, Graph, GraphError, Numerics, Op, Role, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use plimsoll_transform::{LOSS, gradient, scaled_gradient};

/// The name of a step's first batch input; see [`input_name`] for the others'.
pub const INPUTS: &str = "inputs";
/// The labels' name.
pub const LABELS: &str = "labels";
/// The row weights' name.
pub const WEIGHTS: &str = "weights";
/// The name of an evaluation's input that its sum of losses starts from: that of the batches before.
pub const LOSS_BEFORE: &str = "loss_before";
/// Output of an evaluation: the predicted class of every row.
pub const PREDICTIONS: &str = "predictions";
/// Output of a forward pass: what layers add to the loss while training.
pub const PENALTY: &str = "penalty";
/// Output of evaluation and prediction: the model's first output, scores or values.
pub const OUTPUT: &str = "output";

/// The name of batch input i.
pub fn input_name(i: usize) -> String {
    if i == 0 { INPUTS.to_string() } else { format!("{INPUTS}{i}") }
}

/// The name of output i of a prediction.
pub fn output_name(i: usize) -> String {
    if i == 0 { OUTPUT.to_string() } else { format!("{OUTPUT}{i}") }
}

/// The rows of one example that the loss sums over.
pub fn rows(model: &dyn Model) -> Shape {
    model.loss().rows(&model.target().ty)
}

/// Examples in one block of the fold over the batch. A function of the model and of the target's numerics alone: the fold is
/// the same for every batch size.
pub fn example_block(model: &dyn Model, numerics: &Numerics) -> usize {
    numerics.block_rows.div_ceil(rows(model).elements().max(1)).next_power_of_two()
}

/// One training step (forward, backward, update) in f32, for a target with default numerics.
pub fn training(model: &dyn Model, optimizer: &dyn Optimizer, examples: usize) -> Result<Graph, GraphError> {
    training_in(DType::F32, model, optimizer, examples)
}

/// One training step with another float type, for a target with default numerics.
pub fn training_in(
    dtype: DType,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    examples: usize,
) -> Result<Graph, GraphError> {
    plain_training(dtype, &Numerics::default(), model, optimizer, examples)
}

/// One training step under a precision policy, for a target with these numerics.
pub fn training_as(
    policy: &Policy,
    numerics: &Numerics,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    examples: usize,
) -> Result<Graph, GraphError> {
    if !policy.precision.is_low() {
        return plain_training(DType::F32, numerics, model, optimizer, examples);
    }
    let numerics = &policy.numerics(numerics);
    let (b, loss) = training_forward(DType::F32, numerics, model, examples)?;
    if model.rewritten(b.graph(), Mode::Train)?.is_some() {
        return Err(GraphError::Choice(format!(
            "quantization-aware training is in f32, not in {}",
            policy.precision
        )));
    }
    let lowered = policy.apply(b.graph(), numerics, Mode::Train)?;
    let loss = lowered.value(loss).unwrap_or(loss);
    drop(b);
    let scale = (policy.precision == Precision::F16).then_some(policy.scale);
    finish_training(lowered.builder, loss, (DType::F32, numerics), scale, optimizer)
}

/// One training step without casts.
fn plain_training(
    dtype: DType,
    numerics: &Numerics,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    examples: usize,
) -> Result<Graph, GraphError> {
    let (mut b, mut loss) = training_forward(dtype, numerics, model, examples)?;
    if let Some(rewritten) = model.rewritten(b.graph(), Mode::Train)? {
        (loss, b) = (rewritten.values[loss.index()].unwrap_or(loss), rewritten.builder);
    }
    finish_training(b, loss, (dtype, numerics), None, optimizer)
}

/// The forward pass of a training step, and its loss.
fn training_forward(
    dtype: DType,
    numerics: &Numerics,
    model: &dyn Model,
    examples: usize,
) -> Result<(Builder, ValueId), GraphError> {
    let batch = (examples, example_block(model, numerics));
    Step::new((dtype, numerics), model, batch, Mode::Train)?.training_loss(model)
}

/// A model's forward pass in f32 by itself, for callers that run it and take gradients on their own: its outputs, under
/// [`output_name`]. Sums over the batch of so many examples fold in blocks of so many. While training, what layers add to the loss
/// is the last output, [`PENALTY`], and running statistics have new versions.
///
/// ```
/// use plimsoll_graph::Numerics;
/// use plimsoll_nn::{Mode, step, zoo};
/// let graph = step::forward(&zoo::resnet20(), &Numerics::default(), (8, 32), Mode::Train)?;
/// assert_eq!(graph.outputs.len(), 1);
/// assert!(graph.states.iter().any(|state| state.output.is_some())); // batch norm's
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub fn forward(
    model: &dyn Model,
    numerics: &Numerics,
    batch: (usize, usize),
    mode: Mode,
) -> Result<Graph, GraphError> {
    let mut step = Step::new((DType::F32, numerics), model, batch, mode)?;
    let outputs = crate::loss::outputs(&mut step.net, &step.head)?;
    for (i, &value) in outputs.iter().enumerate() {
        step.net.output(&output_name(i), value);
    }
    let penalties = step.net.penalties();
    let added =
        penalties.into_iter().map(Ok).reduce(|a, b| step.net.scope(LOSS_LAYER, |net| net.add(a?, b?)));
    if let (Some(penalty), Mode::Train) = (added, mode) {
        step.net.output(PENALTY, penalty?);
    }
    finish_forward(model, step.net.into_builder(), mode)
}

/// As [`forward`] while training, with the model's loss and what layers add to it as the one output. Targets and row weights are
/// inputs, too: [`LABELS`], [`WEIGHTS`].
pub fn forward_loss(
    model: &dyn Model,
    numerics: &Numerics,
    batch: (usize, usize),
) -> Result<Graph, GraphError> {
    let step = Step::new((DType::F32, numerics), model, batch, Mode::Train)?;
    let (b, _) = step.training_loss(model)?;
    finish_forward(model, b, Mode::Train)
}

fn finish_forward(model: &dyn Model, b: Builder, mode: Mode) -> Result<Graph, GraphError> {
    match model.rewritten(b.graph(), mode)? {
        Some(rewritten) => rewritten.builder.finish(),
        None => b.finish(),
    }
}

/// Adds the backward pass and the updates.
fn finish_training(
    mut b: Builder,
    loss: ValueId,
    (dtype, numerics): (DType, &Numerics),
    scale: Option<LossScale>,
    optimizer: &dyn Optimizer,
) -> Result<Graph, GraphError> {
    let states = b.graph().states.iter().filter(|s| s.role == Role::Parameter);
    let names: Vec<&str> = states.clone().map(|s| s.name.as_str()).collect();
    optimizer.check(&names)?;
    let trained = states.filter(|s| optimizer.trains(&s.name));
    let parameters: Vec<Parameter> =
        trained.map(|s| Parameter { name: s.name.clone(), value: s.input }).collect();
    let values: Vec<ValueId> = parameters.iter().map(|p| p.value).collect();
    let Some(scale) = scale else {
        let gradients = gradient(&mut b, numerics, loss, &values)?;
        let settings = setting_inputs(&mut b, optimizer, dtype);
        optimizer.updates(&mut b, &parameters, &gradients, &settings)?;
        return b.finish();
    };
    let scaling = Scaling::new(&mut b, scale)?;
    let gradients = scaled_gradient(&mut b, numerics, loss, scaling.scale, &values)?;
    let settings = setting_inputs(&mut b, optimizer, dtype);
    scaling.updates(&mut b, optimizer, &parameters, &gradients, &settings)?;
    b.finish()
}

/// An evaluation or prediction step of a model under a precision policy.
fn lowered(
    policy: &Policy,
    numerics: &Numerics,
    model: &dyn Model,
    graph: Graph,
) -> Result<Graph, GraphError> {
    let graph = match model.rewritten(&graph, Mode::Infer)? {
        Some(rewritten) => rewritten.builder.finish()?,
        None => graph,
    };
    if !policy.precision.is_low() {
        return Ok(graph);
    }
    policy.apply(&graph, numerics, Mode::Infer)?.builder.finish()
}

/// An evaluation or prediction step that reads the optimizer's parameter averages, if it keeps any, instead of the
/// parameters.
pub fn averaged(mut graph: Graph, optimizer: &dyn Optimizer) -> Graph {
    if optimizer.averages() {
        for state in graph.states.iter_mut().filter(|s| s.role == Role::Parameter) {
            if optimizer.trains(&state.name) {
                (state.name, state.role) = (format!("{}/{AVERAGE}", state.name), Role::Average);
            }
        }
    }
    graph
}

/// What an evaluation outputs besides the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// The predicted class of every row, for models that materialize all scores; else nothing.
    #[default]
    Classes,
    /// The model's first output, for metrics of scores or values.
    Output,
}

/// An evaluation step in f32, for a target with default numerics: the loss, and what [`Report`] selects.
pub fn evaluation(model: &dyn Model, examples: usize, report: Report) -> Result<Graph, GraphError> {
    evaluation_as(&Policy::default(), &Numerics::default(), model, examples, report)
}

/// An evaluation step under a precision policy, for a target with these numerics.
pub fn evaluation_as(
    policy: &Policy,
    numerics: &Numerics,
    model: &dyn Model,
    examples: usize,
    report: Report,
) -> Result<Graph, GraphError> {
    let numerics = &policy.numerics(numerics);
    let mut step =
        Step::new((DType::F32, numerics), model, (examples, example_block(model, numerics)), Mode::Infer)?;
    let loss = step.loss(model)?;
    let net = &mut step.net;
    net.output(LOSS, loss);
    match (&step.head, report) {
        (Head::Outputs(outputs), Report::Classes) => {
            // The argmax is a prediction only if there is one score per class for each label.
            let (target, scores) = (model.target(), net.shape(outputs[0]));
            let labels = examples.saturating_mul(target.ty.shape.elements());
            let fits =
                |classes: usize| scores.last() == Some(&classes) && scores.elements() == labels * classes;
            if target.bound.is_some_and(fits) {
                let predictions = net.one(Op::Reduce(Reduce::Argmax), &[outputs[0]])?;
                net.output(PREDICTIONS, predictions);
            }
        }
        (_, Report::Classes) => {}
        (head, Report::Output) => {
            let outputs = crate::loss::outputs(net, head)?;
            net.output(OUTPUT, outputs[0]);
        }
    }
    lowered(policy, numerics, model, step.net.into_builder().finish()?)
}

/// A prediction step in f32, for a target with default numerics: the outputs of the model.
pub fn prediction(model: &dyn Model, examples: usize) -> Result<Graph, GraphError> {
    prediction_as(&Policy::default(), &Numerics::default(), model, examples)
}

/// A prediction step under a precision policy, for a target with these numerics.
pub fn prediction_as(
    policy: &Policy,
    numerics: &Numerics,
    model: &dyn Model,
    examples: usize,
) -> Result<Graph, GraphError> {
    let numerics = &policy.numerics(numerics);
    let mut step =
        Step::new((DType::F32, numerics), model, (examples, example_block(model, numerics)), Mode::Infer)?;
    let outputs = crate::loss::outputs(&mut step.net, &step.head)?;
    for (i, &value) in outputs.iter().enumerate() {
        step.net.output(&output_name(i), value);
    }
    lowered(policy, numerics, model, step.net.into_builder().finish()?)
}

struct Step {
    net: Net,
    head: Head,
    examples: usize,
}

impl Step {
    fn new(
        (dtype, numerics): (DType, &Numerics),
        model: &dyn Model,
        (examples, block): (usize, usize),
        mode: Mode,
    ) -> Result<Self, GraphError> {
        if examples == 0 {
            return Err(GraphError::Choice(
                "a batch needs at least one example: set the batch size to 1 or more".into(),
            ));
        }
        let mut net = Net::new(Builder::new(examples, block), mode, dtype);
        net.unrolls = !numerics.recurrences;
        let inputs: Vec<ValueId> = (model.inputs().iter().enumerate())
            .map(|(i, field)| net.batch_input(&input_name(i), batch_type(dtype, examples, field)))
            .collect();
        let head = model.forward(&mut net, &inputs)?;
        if matches!(&head, Head::Outputs(outputs) if outputs.is_empty()) {
            return Err(GraphError::Choice(format!("model `{}` has no output", model.name())));
        }
        Ok(Self { net, head, examples })
    }

    /// The step with the loss of training as an output, and the loss.
    fn training_loss(mut self, model: &dyn Model) -> Result<(Builder, ValueId), GraphError> {
        let mut loss = self.loss(model)?;
        for penalty in self.net.penalties() {
            loss = self.net.scope(LOSS_LAYER, |net| net.add(loss, penalty))?;
        }
        self.net.output(LOSS, loss);
        Ok((self.net.into_builder(), loss))
    }

    fn loss(&mut self, model: &dyn Model) -> Result<ValueId, GraphError> {
        let (net, target) = (&mut self.net, model.target());
        let (dtype, examples) = (net.dtype, self.examples);
        let rows = Field::floats(model.loss().rows(&target.ty));
        let targets = net.batch_input(LABELS, batch_type(dtype, examples, &target));
        let weights = net.batch_input(WEIGHTS, batch_type(dtype, examples, &rows));
        net.scope(LOSS_LAYER, |net| model.loss().total(net, &self.head, targets, weights))
    }
}

/// The type of a batch of a field.
fn batch_type(dtype: DType, examples: usize, field: &Field) -> TensorType {
    let dtype = if field.ty.dtype == DType::F32 { dtype } else { field.ty.dtype };
    TensorType::new(dtype, [&[examples], &field.ty.shape[..]].concat())
}
