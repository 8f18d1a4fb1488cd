//! Losses. Each gives one number for every row of a batch; a step's loss is their sum weighted by the rows' weights,
//! which come with the batch: a mean is a weight of one over the number of rows. Class weights and rows to ignore are
//! weights, too, so they cost nothing here.

use crate::{Head, Net};
use plimsoll_graph::op::{Binary, Index, Loss as LossOp, MatMul, Unary};
use plimsoll_graph::{GraphError, Op, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};

/// What is made small.
///
/// Any function of outputs and targets that gives one number per row is one:
///
/// ```
/// use plimsoll_nn::{Activation, Dense, Net, Sequential, Sgd, WithLoss, step};
/// use plimsoll_graph::{GraphError, ValueId, op::Unary};
/// let cubes = |net: &mut Net, outputs: &[ValueId], target: ValueId| -> Result<ValueId, GraphError> {
///     let distance = net.sub(outputs[0], target)?;
///     let size = net.unary(Unary::Abs, distance)?;
///     let cube = net.power(size, 3.0)?;
///     net.sum(cube, 1, 2) // over the outputs of an example
/// };
/// let model = Sequential::regression("line", [4], [2]).layer("dense", Dense::new(2));
/// let graph = step::training(&WithLoss::new(model, cubes), &Sgd::new(0.1), 8)?;
/// # Ok::<(), GraphError>(())
/// ```
pub trait Loss: Send + Sync {
    /// A number for each row: for every element of [`Loss::rows`] of every example.
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError>;

    /// The rows of one example with a target of this type: one for each class label, or one for all values together.
    fn rows(&self, target: &TensorType) -> Shape {
        if target.dtype == DType::I32 { target.shape.clone() } else { Shape::scalar() }
    }

    /// The share of a row with this label in the mean, beside those of the others; a negative label has none.
    fn share(&self, label: i32) -> f64 {
        if label < 0 { 0.0 } else { 1.0 }
    }

    /// `Σ weights · each` over all rows, a scalar; `weights` is `[examples, rows..]`.
    fn total(
        &self,
        net: &mut Net,
        head: &Head,
        target: ValueId,
        weights: ValueId,
    ) -> Result<ValueId, GraphError> {
        let outputs = outputs(net, head)?;
        let each = self.each(net, &outputs, target)?;
        weighted_sum(net, each, weights)
    }
}

impl<F> Loss for F
where
    F: Fn(&mut Net, &[ValueId], ValueId) -> Result<ValueId, GraphError> + Send + Sync,
{
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        self(net, outputs, target)
    }
}

/// A model's outputs, scores of a linear head included.
pub(crate) fn outputs(net: &mut Net, head: &Head) -> Result<Vec<ValueId>, GraphError> {
    match head {
        Head::Outputs(values) => Ok(values.clone()),
        Head::Linear { features, kernel, transposed } => {
            let product = MatMul { transpose_b: *transposed, ..MatMul::default() };
            Ok(vec![net.one(Op::MatMul(product), &[*features, *kernel])?])
        }
    }
}

/// `Σ weights · each`, summed inside an example first.
fn weighted_sum(net: &mut Net, each: ValueId, weights: ValueId) -> Result<ValueId, GraphError> {
    let rows = net.shape(weights).clone();
    let found = net.ty(each);
    // The examples lead: as many numbers along another axis are another sum.
    let led = found.shape.first().is_some_and(|&n| n == rows.elements() || Some(&n) == rows.first());
    if found.shape.elements() != rows.elements() || !led || !found.dtype.is_float() {
        let wanted =
            format!("a loss gives one float for each of the rows {rows}: sum or average over other axes");
        return Err(net.refuse("loss", &[each], wanted));
    }
    let each = net.reshape(each, rows.clone())?;
    let product = net.mul(each, weights)?;
    let sum = net.sum(product, 0, rows.rank())?;
    net.reshape(sum, [])
}

/// The one output that a loss is defined for.
fn only(net: &Net, outputs: &[ValueId]) -> Result<ValueId, GraphError> {
    match outputs {
        [output] => Ok(*output),
        _ => Err(GraphError::Broken(format!(
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
    let shape = net.shape(x).clone();
    let sum = if shape.rank() > 1 { net.sum(x, 1, shape.rank())? } else { x };
    net.reshape(sum, [shape[0]])
}

/// The output and the target, if they have one shape.
fn alike(net: &Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
    let output = only(net, outputs)?;
    if net.ty(output) != net.ty(target) || net.shape(output).rank() == 0 {
        let reason = format!("the target is {}: they must be alike", net.ty(target));
        return Err(net.refuse("loss", &[output], reason));
    }
    Ok(output)
}

/// Softmax cross-entropy with class labels: `logsumexp(scores) - scores[label]` per row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    smoothing: f64,
    class_weights: Vec<f64>,
}

impl CrossEntropy {
    /// Without smoothing and class weights.
    pub(crate) const PLAIN: Self = Self { smoothing: 0.0, class_weights: Vec::new() };

    /// Spreads this share of every label evenly over all classes.
    pub fn smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }

    /// Rows count by the weight of their class, as PyTorch's mean has it: over the sum of the weights. One weight for
    /// each class. With smoothing the whole row counts by its label's weight; PyTorch weighs what is spread class by class.
    pub fn class_weights(self, class_weights: Vec<f64>) -> Self {
        Self { class_weights, ..self }
    }

    /// Whether the settings fit so many classes.
    fn check(&self, net: &Net, value: ValueId, classes: usize) -> Result<(), GraphError> {
        let weights = self.class_weights.len();
        let reason = if !(0.0..=1.0).contains(&self.smoothing) {
            format!("smoothing is a share between 0 and 1, not {}", self.smoothing)
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

/// Whether the target is class labels.
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
fn score_rows(net: &mut Net, scores: ValueId, target: ValueId) -> Result<ValueId, GraphError> {
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
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = only(net, outputs)?;
        let scores = score_rows(net, scores, target)?;
        self.check(net, scores, net.shape(scores)[1])?;
        let classes = net.shape(scores)[1];
        let logs = net.log_softmax(scores)?;
        let rows = net.shape(scores)[0];
        let labels = net.reshape(target, [rows, 1])?;
        let chosen = net.one(Op::Index(Index::Take), &[logs, labels])?;
        let chosen = net.scale(chosen, self.smoothing - 1.0)?;
        if self.smoothing == 0.0 {
            return Ok(chosen);
        }
        let sum = net.sum(logs, 1, 2)?;
        let spread = net.scale(sum, -self.smoothing / classes.max(1) as f64)?;
        net.add(chosen, spread)
    }

    fn share(&self, label: i32) -> f64 {
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
            let each = self.each(net, &outputs, target)?;
            return weighted_sum(net, each, weights);
        }
        let shown = match head {
            Head::Outputs(outputs) => only(net, outputs)?,
            Head::Linear { features, .. } => *features,
        };
        check_labels(net, shown, target)?;
        let rows = net.shape(target).elements();
        let (labels, weights) = (net.reshape(target, [rows])?, net.reshape(weights, [rows])?);
        match head {
            Head::Outputs(_) => {
                let scores = score_rows(net, shown, target)?;
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

/// Softmax cross-entropy with a probability for every class: `-Σ target · log_softmax(scores)` per example (averaged
/// over positions, where there are any). One-hot labels are such targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoftCrossEntropy;

impl Loss for SoftCrossEntropy {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = alike(net, outputs, target)?;
        let logs = net.log_softmax(scores)?;
        let product = net.mul(target, logs)?;
        let classes = net.width("loss", scores)?;
        let mean = example_mean(net, product)?;
        net.scale(mean, -(classes as f64))
    }
}

/// Binary cross-entropy with logits, averaged over an example's outputs: `softplus(x) - x · target`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BinaryCrossEntropy;

/// `softplus(x) - x · target` for every element.
fn binary_terms(net: &mut Net, x: ValueId, target: ValueId) -> Result<ValueId, GraphError> {
    let softplus = net.unary(Unary::Softplus, x)?;
    let product = net.mul(x, target)?;
    net.sub(softplus, product)
}

impl Loss for BinaryCrossEntropy {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let terms = binary_terms(net, x, target)?;
        example_mean(net, terms)
    }
}

/// Focal loss with logits (Lin et al. 2017), averaged over an example's outputs: binary cross-entropy times
/// `α_t · (1 - p_t)^γ`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Focal {
    /// Weight of the positive class; the negative one has `1 - alpha`.
    pub alpha: f64,
    /// How much easy elements are discounted.
    pub gamma: f64,
}

impl Default for Focal {
    fn default() -> Self {
        Self { alpha: 0.25, gamma: 2.0 }
    }
}

impl Loss for Focal {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let terms = binary_terms(net, x, target)?;
        // 1 - p_t = p + t - 2·p·t; α_t = 1 - α + t · (2α - 1).
        let p = net.sigmoid(x)?;
        let sum = net.add(p, target)?;
        let product = net.mul(p, target)?;
        let double = net.scale(product, 2.0)?;
        let miss = net.sub(sum, double)?;
        // A power below one has an infinite slope at zero, where a sure answer comes to in f32.
        let steep = 0.0 < self.gamma && self.gamma < 1.0;
        let least = f64::from(f32::MIN_POSITIVE);
        let miss = if steep { net.with_constant(Binary::Max, miss, least)? } else { miss };
        let factor = net.power(miss, self.gamma)?;
        let alpha = net.scale(target, 2.0 * self.alpha - 1.0)?;
        let alpha = net.shift(alpha, 1.0 - self.alpha)?;
        let terms = net.mul(terms, factor)?;
        let terms = net.mul(terms, alpha)?;
        example_mean(net, terms)
    }
}

/// The mean of an example's squared errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanSquaredError;

impl Loss for MeanSquaredError {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let square = net.unary(Unary::Square, error)?;
        example_mean(net, square)
    }
}

/// The mean size of an example's errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanAbsoluteError;

impl Loss for MeanAbsoluteError {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let size = net.unary(Unary::Abs, error)?;
        example_mean(net, size)
    }
}

/// Half the squared error up to `delta`, and straight beyond, averaged over an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Huber {
    /// Where the parabola ends.
    pub delta: f64,
}

impl Default for Huber {
    fn default() -> Self {
        Self { delta: 1.0 }
    }
}

impl Loss for Huber {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let size = net.unary(Unary::Abs, error)?;
        // With m = min(size, delta): m · (size - m / 2) is half the square inside and straight outside.
        let inside = net.with_constant(Binary::Min, size, self.delta)?;
        let half = net.scale(inside, 0.5)?;
        let rest = net.sub(size, half)?;
        let terms = net.mul(inside, rest)?;
        example_mean(net, terms)
    }
}

/// `Σ target · (ln target - log_softmax(scores))` per example (averaged over positions): how far the softmax of the
/// scores is from a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KlDivergence;

impl Loss for KlDivergence {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = alike(net, outputs, target)?;
        let logs = net.log_softmax(scores)?;
        // A probability of zero adds nothing; its logarithm is kept finite for that.
        let positive = net.with_constant(Binary::Max, target, f64::from(f32::MIN_POSITIVE))?;
        let known = net.unary(Unary::Log, positive)?;
        let distance = net.sub(known, logs)?;
        let terms = net.mul(target, distance)?;
        let classes = net.width("loss", scores)?;
        let mean = example_mean(net, terms)?;
        net.scale(mean, classes as f64)
    }
}

/// Soft Dice loss per example: one minus the mean over classes of `(2 Σ p·t + smooth) / (Σ p + Σ t + smooth)`, with p
/// the softmax of the scores over the last axis and t the labels, one-hot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dice {
    /// Keeps classes that are not there from dividing zero by zero.
    pub smooth: f64,
}

impl Default for Dice {
    fn default() -> Self {
        Self { smooth: 1.0 }
    }
}

impl Loss for Dice {
    fn rows(&self, _: &TensorType) -> Shape {
        Shape::scalar()
    }

    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = only(net, outputs)?;
        let (examples, classes) = (net.shape(target)[0], net.width("dice", scores)?);
        let scores = score_rows(net, scores, target)?;
        let pixels = net.shape(scores)[0] / examples.max(1);
        let p = net.softmax(scores)?;
        let labels = net.reshape(target, [examples * pixels])?;
        let dtype = net.dtype;
        let t = net.one(Op::Index(Index::OneHot { classes, dtype }), &[labels])?;
        let over_pixels = |net: &mut Net, x: ValueId| {
            let x = net.reshape(x, [examples, pixels, classes])?;
            let sum = net.sum(x, 1, 2)?;
            net.reshape(sum, [examples, classes])
        };
        let both = net.mul(p, t)?;
        let both = over_pixels(net, both)?;
        let (p, t) = (over_pixels(net, p)?, over_pixels(net, t)?);
        let upper = net.scale(both, 2.0)?;
        let upper = net.shift(upper, self.smooth)?;
        let lower = net.add(p, t)?;
        let lower = net.shift(lower, self.smooth)?;
        let dice = net.div(upper, lower)?;
        let mean = example_mean(net, dice)?;
        net.subtract_from(1.0, mean)
    }
}

/// One minus the cosine of the angle between output and target, per example.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CosineDistance;

impl Loss for CosineDistance {
    fn each(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = alike(net, outputs, target)?;
        let product = net.mul(x, target)?;
        let product = example_sum(net, product)?;
        let over_length = |net: &mut Net, x: ValueId| {
            let square = net.unary(Unary::Square, x)?;
            let sum = example_sum(net, square)?;
            // As PyTorch bounds each length from below.
            let bounded = net.with_constant(Binary::Max, sum, 1e-16)?;
            net.unary(Unary::Rsqrt, bounded)
        };
        let (a, b) = (over_length(net, x)?, over_length(net, target)?);
        // One after the other: the slope of the product's root is beyond f32 where both are short.
        let cosine = net.mul(product, a)?;
        let cosine = net.mul(cosine, b)?;
        net.subtract_from(1.0, cosine)
    }
}
