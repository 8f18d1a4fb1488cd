//! Losses. Each gives one number per row of a batch; a step's loss is their sum weighted by the batch's row weights. A mean
//! has weights of `1 / rows`; class weights and ignored rows are row weights, too.

mod cross_entropy;
mod regression;
mod segmentation;

pub use cross_entropy::{CrossEntropy, KlDivergence, SoftCrossEntropy};
pub use regression::{CosineDistance, Huber, MeanAbsoluteError, MeanSquaredError};
pub use segmentation::{BinaryCrossEntropy, Dice, Focal};

use crate::{Head, Net};
use plimsoll_graph::op::MatMul;
use plimsoll_graph::{GraphError, Op, Origin, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::sync::Arc;

/// The objective of training.
///
/// Any function of outputs and targets that gives one number per row is a loss:
///
/// ```
/// use plimsoll_nn::{Dense, Net, Sequential, Sgd, WithLoss, step};
/// use plimsoll_graph::ValueId;
/// let cubes = |net: &mut Net, outputs: &[ValueId], target: ValueId| {
///     // Over the outputs of an example.
///     net.math([outputs[0], target], |[y, t]| (y - t).abs().power(3.0).sum(&[1], false))
/// };
/// let model = Sequential::regression([4], [2]).push(Dense::new(2));
/// let graph = step::training(&WithLoss::new(model, cubes), &Sgd::new(0.1), 8)?;
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub trait Loss: Send + Sync {
    /// The loss of each row: of every element of [`Loss::rows`] of every example.
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError>;

    /// The rows of one example with a target of this type: one per class label, or one for all values together.
    fn rows(&self, target: &TensorType) -> Shape {
        if target.dtype == DType::I32 { target.shape.clone() } else { Shape::scalar() }
    }

    /// The weight of a row with this label in the weighted mean; zero for a negative label, which is ignored.
    fn label_weight(&self, label: i32) -> f64 {
        if label < 0 { 0.0 } else { 1.0 }
    }

    /// `Σ weight · loss` over all rows, a scalar; `weights` is `[examples, rows..]`.
    fn total(
        &self,
        net: &mut Net,
        head: &Head,
        target: ValueId,
        weights: ValueId,
    ) -> Result<ValueId, GraphError> {
        let outputs = outputs(net, head)?;
        let losses = self.per_row(net, &outputs, target)?;
        weighted_sum(net, losses, weights)
    }
}

impl<F> Loss for F
where
    F: Fn(&mut Net, &[ValueId], ValueId) -> Result<ValueId, GraphError> + Send + Sync,
{
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        self(net, outputs, target)
    }
}

/// A model's outputs; for a linear head, its scores.
pub(crate) fn outputs(net: &mut Net, head: &Head) -> Result<Vec<ValueId>, GraphError> {
    match head {
        Head::Outputs(values) => Ok(values.clone()),
        Head::Linear { features, kernel, transposed } => {
            let product = MatMul { transpose_b: *transposed, ..MatMul::default() };
            // The model's forward pass is over: the product is of the layer that has the kernel.
            let layer = match net.graph().origin(*kernel) {
                Origin::State(state) => {
                    net.graph().states[state].name.rsplit_once('/').map(|(layer, _)| layer.into())
                }
                Origin::Input(_) | Origin::Accumulator(_) | Origin::Node { .. } => None,
            };
            let layer: Arc<str> = layer.unwrap_or_else(|| net.layer().clone());
            Ok(vec![net.within(layer, |b| b.one(Op::MatMul(product), &[*features, *kernel]))?])
        }
    }
}

/// `Σ weight · loss`, summed inside an example first.
fn weighted_sum(net: &mut Net, losses: ValueId, weights: ValueId) -> Result<ValueId, GraphError> {
    let rows = net.shape(weights).clone();
    let found = net.ty(losses);
    // The batch must be axis 0: the same count along another axis is another sum.
    let batch_first = found.shape.first().is_some_and(|&n| n == rows.elements() || Some(&n) == rows.first());
    if found.shape.elements() != rows.elements() || !batch_first || !found.dtype.is_float() {
        let wanted =
            format!("a loss gives one float for each of the rows {rows}: sum or average over other axes");
        return Err(net.refuse("loss", &[losses], wanted));
    }
    let losses = net.reshape(losses, rows.clone())?;
    let product = net.mul(losses, weights)?;
    net.sum(product, &(0..rows.rank()).collect::<Vec<_>>(), false)
}

/// The output of a model that has only one.
fn single_output(net: &Net, outputs: &[ValueId]) -> Result<ValueId, GraphError> {
    match outputs {
        [output] => Ok(*output),
        _ => Err(GraphError::Choice(format!(
            "layer `{}`: this loss takes one output, the model has {}: write a loss that takes all",
            net.layer(),
            outputs.len()
        ))),
    }
}

/// Mean over every axis but the first: `[examples]`.
fn example_mean(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let shape = net.shape(x).clone();
    let inside: usize = shape.iter().skip(1).product();
    let sum = example_sum(net, x)?;
    net.scale(sum, 1.0 / inside.max(1) as f64)
}

/// Sum over every axis but the first: `[examples]`.
fn example_sum(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let inside: Vec<usize> = (1..net.shape(x).rank()).collect();
    net.sum(x, &inside, false)
}

/// The model's only output, which must have the target's type.
fn matching_output(net: &Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
    let output = single_output(net, outputs)?;
    if net.ty(output) != net.ty(target) || net.shape(output).rank() == 0 {
        let reason = format!("the target is {}: output and target must have the same type", net.ty(target));
        return Err(net.refuse("loss", &[output], reason));
    }
    Ok(output)
}
