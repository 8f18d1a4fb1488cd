//! Losses of a softmax: cross-entropy and the Kullback-Leibler divergence.

use super::{Loss, example_mean, matching_output, outputs, single_output, weighted_sum};
use crate::{Head, Net};
use plimsoll_graph::op::{Binary, Loss as LossOp};
use plimsoll_graph::{GraphError, Op, ValueId};
use plimsoll_tensor::DType;

/// Softmax cross-entropy with class labels: `logsumexp(scores) - scores[label]` per row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    smoothing: f64,
    class_weights: Vec<f64>,
}

impl CrossEntropy {
    /// The loss without smoothing and class weights.
    pub const fn new() -> Self {
        Self { smoothing: 0.0, class_weights: Vec::new() }
    }

    /// Label smoothing: spreads this fraction of every label evenly over all classes.
    pub fn smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }

    /// One weight per class; the mean is over the sum of the rows' weights, as in PyTorch. With smoothing the label's weight
    /// applies to the whole row, while PyTorch weighs the spread part class by class.
    pub fn class_weights(self, class_weights: Vec<f64>) -> Self {
        Self { class_weights, ..self }
    }

    /// Checks the options against the number of classes.
    fn check(&self, net: &Net, value: ValueId, classes: usize) -> Result<(), GraphError> {
        let weights = self.class_weights.len();
        let reason = if !(0.0..=1.0).contains(&self.smoothing) {
            format!("smoothing is a fraction between 0 and 1, not {}", self.smoothing)
        } else if weights != 0 && weights != classes {
            format!("{weights} class weights for {classes} classes: give one for each")
        } else if let Some(weight) = self.class_weights.iter().find(|w| !w.is_finite() || **w < 0.0) {
            format!("a class weight of {weight}: weights are finite and not negative")
        } else {
            return Ok(());
        };
        Err(net.refuse("cross_entropy", &[value], reason))
    }
}

/// Checks that the target is class labels.
fn check_labels(net: &Net, scores: ValueId, target: ValueId) -> Result<(), GraphError> {
    if net.ty(target).dtype == DType::I32 {
        return Ok(());
    }
    let reason = format!(
        "the target is {}, not i32 class labels: for probabilities there is SoftCrossEntropy, for values \
         MeanSquaredError",
        net.ty(target)
    );
    Err(net.refuse("cross_entropy", &[scores], reason))
}

/// Scores as `[rows, classes]`.
pub(super) fn score_rows(net: &mut Net, scores: ValueId, target: ValueId) -> Result<ValueId, GraphError> {
    check_labels(net, scores, target)?;
    let rows = net.shape(target).elements();
    let shape = net.shape(scores).clone();
    match shape.last() {
        Some(&classes) if shape.elements() == rows * classes && shape.rank() > 1 => {
            net.reshape(scores, [rows, classes])
        }
        _ => {
            let reason = format!("needs scores of every class for each label of {}", net.ty(target));
            Err(net.refuse("cross_entropy", &[scores], reason))
        }
    }
}

impl Loss for CrossEntropy {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = single_output(net, outputs)?;
        let scores = score_rows(net, scores, target)?;
        self.check(net, scores, net.shape(scores)[1])?;
        let classes = net.shape(scores)[1];
        let logs = net.log_softmax(scores)?;
        let rows = net.shape(scores)[0];
        let labels = net.reshape(target, [rows, 1])?;
        let chosen = net.take(logs, labels)?;
        let chosen = net.scale(chosen, self.smoothing - 1.0)?;
        if self.smoothing == 0.0 {
            return Ok(chosen);
        }
        let sum = net.sum(logs, &[1], true)?;
        let spread = net.scale(sum, -self.smoothing / classes.max(1) as f64)?;
        net.add(chosen, spread)
    }

    fn label_weight(&self, label: i32) -> f64 {
        match usize::try_from(label) {
            Ok(_) if self.class_weights.is_empty() => 1.0,
            Ok(label) => self.class_weights.get(label).copied().unwrap_or(0.0),
            Err(_) => 0.0,
        }
    }

    fn total(
        &self,
        net: &mut Net,
        head: &Head,
        target: ValueId,
        weights: ValueId,
    ) -> Result<ValueId, GraphError> {
        if self.smoothing != 0.0 {
            let outputs = outputs(net, head)?;
            let losses = self.per_row(net, &outputs, target)?;
            return weighted_sum(net, losses, weights);
        }
        let scores_or_features = match head {
            Head::Outputs(outputs) => single_output(net, outputs)?,
            Head::Linear { features, .. } => *features,
        };
        check_labels(net, scores_or_features, target)?;
        let rows = net.shape(target).elements();
        let (labels, weights) = (net.reshape(target, [rows])?, net.reshape(weights, [rows])?);
        match head {
            Head::Outputs(_) => {
                let scores = score_rows(net, scores_or_features, target)?;
                self.check(net, scores, net.shape(scores)[1])?;
                net.one(Op::Loss(LossOp::CrossEntropy), &[scores, labels, weights])
            }
            Head::Linear { features, kernel, transposed } => {
                let shape = net.shape(*kernel);
                let classes = if *transposed { shape.first() } else { shape.last() };
                self.check(net, *kernel, classes.copied().unwrap_or(0))?;
                let op = LossOp::LinearCrossEntropy { transposed: *transposed };
                net.one(Op::Loss(op), &[*features, *kernel, labels, weights])
            }
        }
    }
}

/// Softmax cross-entropy with a probability for every class: `-Σ target · log_softmax(scores)` per example, averaged
/// over positions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoftCrossEntropy;

impl Loss for SoftCrossEntropy {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = matching_output(net, outputs, target)?;
        let logs = net.log_softmax(scores)?;
        let product = net.mul(target, logs)?;
        let classes = net.width("loss", scores)?;
        let mean = example_mean(net, product)?;
        net.scale(mean, -(classes as f64))
    }
}

/// Kullback-Leibler divergence of the softmax of the scores from the target:
/// `Σ target · (ln target - log_softmax(scores))` per example, averaged over positions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KlDivergence;

impl Loss for KlDivergence {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = matching_output(net, outputs, target)?;
        let logs = net.log_softmax(scores)?;
        // A probability of zero adds nothing: its logarithm must only stay finite.
        let positive = net.with_constant(Binary::Max, target, f64::from(f32::MIN_POSITIVE))?;
        let log_target = net.log(positive)?;
        let distance = net.sub(log_target, logs)?;
        let terms = net.mul(target, distance)?;
        let classes = net.width("loss", scores)?;
        let mean = example_mean(net, terms)?;
        net.scale(mean, classes as f64)
    }
}
