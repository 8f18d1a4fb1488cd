//! Activation functions.

use super::Layer;
use super::kind::snake_case;
use crate::Net;
use plimsoll_graph::op::Binary;
use plimsoll_graph::{GraphError, ValueId};

/// A function applied to every element (softmax: to every row).
///
/// Its variants are exported by their names, so that they are layers by themselves:
///
/// ```
/// use plimsoll_nn::{Activation, Dense, LeakyRelu, Relu, Sequential};
/// assert_eq!(Relu, Activation::Relu);
/// let model = Sequential::classifier([2], 2).push(Dense::new(4)).push(LeakyRelu(0.1)).push(Dense::new(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// x, with this slope below zero.
    LeakyRelu(f64),
    /// x, and `α · (exp(x) - 1)` below zero.
    Elu(f64),
    /// x · Φ(x), exact.
    Gelu,
    /// x · Φ(x) by the tanh approximation, as in GPT-2.
    GeluTanh,
    /// x · sigmoid(x), also called swish.
    Silu,
    /// x · tanh(softplus(x)).
    Mish,
    /// x · min(max(x + 3, 0), 6) / 6.
    HardSwish,
    /// min(max(x + 3, 0), 6) / 6.
    HardSigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// ln(1 + exp(x)).
    Softplus,
    /// exp(x) / Σ exp(x) over the last axis.
    Softmax,
    /// The logarithm of softmax.
    LogSoftmax,
}

fn relu6(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let above = net.relu(x)?;
    net.with_constant(Binary::Min, above, 6.0)
}

/// min(max(x + 3, 0), 6) / 6.
fn hard_sigmoid(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let shifted = net.shift(x, 3.0)?;
    let gate = relu6(net, shifted)?;
    net.scale(gate, 1.0 / 6.0)
}

impl Layer for Activation {
    fn kind(&self) -> String {
        let name = format!("{self:?}");
        snake_case(name.split('(').next().unwrap_or(&name))
    }

    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        match *self {
            Self::Relu => net.relu(x),
            Self::Tanh => net.tanh(x),
            Self::Sigmoid => net.sigmoid(x),
            Self::Softplus => net.softplus(x),
            Self::Softmax => {
                net.width("softmax", x)?;
                net.softmax(x)
            }
            Self::LogSoftmax => {
                net.width("log_softmax", x)?;
                net.log_softmax(x)
            }
            Self::Relu6 => relu6(net, x),
            Self::HardSigmoid => hard_sigmoid(net, x),
            Self::HardSwish => {
                let gate = hard_sigmoid(net, x)?;
                net.mul(x, gate)
            }
            Self::LeakyRelu(slope) => {
                let below = net.scale(x, slope)?;
                select_positive(net, x, below)
            }
            Self::Elu(alpha) => {
                // exp only of the negative part: of a large x it would be infinite, and so would its gradient.
                let dtype = net.ty(x).dtype;
                let zero = net.constant(0.0, dtype)?;
                let positive = net.greater(x, zero)?;
                let negative = net.select(positive, zero, x)?;
                let curve = net.expm1(negative)?;
                let curve = net.scale(curve, alpha)?;
                net.select(positive, x, curve)
            }
            Self::Gelu => {
                let scaled = net.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
                let erf = net.erf(scaled)?;
                half_of_one_plus(net, x, erf)
            }
            Self::GeluTanh => {
                let cube = net.power(x, 3.0)?;
                let bent = net.scale(cube, 0.044_715)?;
                let sum = net.add(x, bent)?;
                let scaled = net.scale(sum, (2.0 / std::f64::consts::PI).sqrt())?;
                let tanh = net.tanh(scaled)?;
                half_of_one_plus(net, x, tanh)
            }
            Self::Silu => {
                let gate = net.sigmoid(x)?;
                net.mul(x, gate)
            }
            Self::Mish => {
                let softplus = net.softplus(x)?;
                let gate = net.tanh(softplus)?;
                net.mul(x, gate)
            }
        }
    }
}

/// x where it is positive, `below` elsewhere.
fn select_positive(net: &mut Net, x: ValueId, below: ValueId) -> Result<ValueId, GraphError> {
    let dtype = net.ty(x).dtype;
    let zero = net.constant(0.0, dtype)?;
    let positive = net.greater(x, zero)?;
    net.select(positive, x, below)
}

/// x · (1 + y) / 2.
fn half_of_one_plus(net: &mut Net, x: ValueId, y: ValueId) -> Result<ValueId, GraphError> {
    let above = net.shift(y, 1.0)?;
    let half = net.scale(above, 0.5)?;
    net.mul(x, half)
}
