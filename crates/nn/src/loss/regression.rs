//! Losses of values: squared, absolute and Huber errors, cosine distance.

use super::{Loss, example_mean, example_sum, matching_output};
use crate::Net;
use plimsoll_graph::op::Binary;
use plimsoll_graph::{GraphError, ValueId};

/// The mean squared error of an example.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanSquaredError;

impl Loss for MeanSquaredError {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let square = net.square(error)?;
        example_mean(net, square)
    }
}

/// The mean absolute error of an example.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanAbsoluteError;

impl Loss for MeanAbsoluteError {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let size = net.abs(error)?;
        example_mean(net, size)
    }
}

/// Half the squared error up to `delta`, linear beyond, averaged over an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Huber {
    /// Where the quadratic part ends.
    delta: f64,
}

impl Huber {
    /// The loss with a delta of 1.
    pub const fn new() -> Self {
        Self { delta: 1.0 }
    }

    /// The loss with a quadratic part up to another error.
    pub const fn delta(self, delta: f64) -> Self {
        Self { delta }
    }
}

impl Default for Huber {
    fn default() -> Self {
        Self::new()
    }
}

impl Loss for Huber {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let error = net.sub(x, target)?;
        let size = net.abs(error)?;
        // With m = min(size, delta): m · (size - m / 2) is half the square inside and linear outside.
        let inside = net.with_constant(Binary::Min, size, self.delta)?;
        let half = net.scale(inside, 0.5)?;
        let rest = net.sub(size, half)?;
        let terms = net.mul(inside, rest)?;
        example_mean(net, terms)
    }
}

/// One minus the cosine of the angle between output and target, per example.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CosineDistance;

impl Loss for CosineDistance {
    fn per_row(&self, net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
        let x = matching_output(net, outputs, target)?;
        let product = net.mul(x, target)?;
        let product = example_sum(net, product)?;
        let inverse_norm = |net: &mut Net, x: ValueId| {
            let square = net.square(x)?;
            let sum = example_sum(net, square)?;
            // PyTorch bounds each norm from below.
            let bounded = net.with_constant(Binary::Max, sum, 1e-16)?;
            net.rsqrt(bounded)
        };
        let (a, b) = (inverse_norm(net, x)?, inverse_norm(net, target)?);
        // One after the other: with two short vectors, the gradient of the product's root overflows f32.
        let cosine = net.mul(product, a)?;
        let cosine = net.mul(cosine, b)?;
        net.subtract_from(1.0, cosine)
    }
}
