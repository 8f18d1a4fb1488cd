//! Losses of one decision per element or pixel: binary cross-entropy, focal, Dice.

use super::cross_entropy::score_rows;
use super::{Loss, example_mean, matching_output, single_output};
use crate::Net;
use plimsoll_graph::op::Binary;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::{Shape, TensorType};

/// Binary cross-entropy with logits, averaged over an example's outputs: `softplus(x) - x · target`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BinaryCrossEntropy;

/// `softplus(x) - x · target` for every element.
fn binary_terms(net: &mut Net, x: ValueId, target: ValueId) -> Result<ValueId, GraphError> {
    let softplus = net.softplus(x)?;
    let product = net.mul(x, target)?;
    net.sub(softplus, product)
}

impl Loss for BinaryCrossEntropy {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let terms = binary_terms(net, x, target)?;
        example_mean(net, terms)
    }
}

/// Focal loss with logits (Lin et al. 2017), averaged over an example's outputs: binary cross-entropy times
/// `α_t · (1 - p_t)^γ`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Focal {
    alpha: f64,
    gamma: f64,
}

impl Focal {
    /// The loss with an alpha of 0.25 and a gamma of 2.
    pub const fn new() -> Self {
        Self { alpha: 0.25, gamma: 2.0 }
    }

    /// The loss with another weight of the positive class; the negative one has `1 - alpha`.
    pub const fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// The loss with well-classified elements down-weighted by another exponent.
    pub const fn gamma(self, gamma: f64) -> Self {
        Self { gamma, ..self }
    }
}

impl Default for Focal {
    fn default() -> Self {
        Self::new()
    }
}

impl Loss for Focal {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let terms = binary_terms(net, x, target)?;
        // 1 - p_t = p + t - 2·p·t; α_t = 1 - α + t · (2α - 1).
        let p = net.sigmoid(x)?;
        let sum = net.add(p, target)?;
        let product = net.mul(p, target)?;
        let double = net.scale(product, 2.0)?;
        let miss = net.sub(sum, double)?;
        // A power below one has an infinite gradient at zero, which a confident answer reaches in f32.
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

/// Soft Dice loss per example: one minus the mean over classes of `(2 Σ p·t + smooth) / (Σ p + Σ t + smooth)`, with p
/// the softmax of the scores over the last axis and t the labels, one-hot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dice {
    /// Keeps absent classes from dividing zero by zero.
    smooth: f64,
}

impl Dice {
    /// The loss with a `smooth` of 1.
    pub const fn new() -> Self {
        Self { smooth: 1.0 }
    }

    /// The loss with another `smooth`, which keeps absent classes from dividing zero by zero.
    pub const fn smooth(self, smooth: f64) -> Self {
        Self { smooth }
    }
}

impl Default for Dice {
    fn default() -> Self {
        Self::new()
    }
}

impl Loss for Dice {
    fn rows(&self, _: &TensorType) -> Shape {
        Shape::scalar()
    }

    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let scores = single_output(net, outputs)?;
        let (examples, classes) = (net.shape(target)[0], net.width("dice", scores)?);
        let scores = score_rows(net, scores, target)?;
        let pixels = net.shape(scores)[0] / examples.max(1);
        let p = net.softmax(scores)?;
        let labels = net.reshape(target, [examples * pixels])?;
        let dtype = net.dtype;
        let t = net.one_hot(labels, classes, dtype)?;
        let over_pixels = |net: &mut Net, x: ValueId| {
            let x = net.reshape(x, [examples, pixels, classes])?;
            net.sum(x, &[1], false)
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
