//! Noise while training.

use super::Layer;
use crate::{Mode, Net};
use plimsoll_graph::op::Distribution;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::DType;

/// Sets a share of the elements to zero while training, and scales the others up so that sums keep their size.
///
/// What is dropped is a function of seed, step, layer, example and element: it costs no memory between forward and
/// backward, and neither threads nor micro-batches change it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(
    /// The share that is dropped.
    pub f64,
);

/// [`Dropout`] of whole channels: the last axis is dropped or kept at all places alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpatialDropout(
    /// The share that is dropped.
    pub f64,
);

/// Normal noise of this deviation, added while training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNoise(
    /// The deviation.
    pub f64,
);

/// `x / (1 - rate)` where a mask of this shape per example is true, else zero.
fn drop(net: &mut Net, x: ValueId, rate: f64, shape: &[usize]) -> Result<ValueId, GraphError> {
    if !(0.0..1.0).contains(&rate) {
        return Err(net.refuse("dropout", &[x], format!("a rate is at least 0 and below 1, not {rate}")));
    }
    if !net.ty(x).dtype.is_float() {
        return Err(net.refuse("dropout", &[x], "needs floats: drop after the embedding".into()));
    }
    if net.mode == Mode::Infer || rate == 0.0 {
        return Ok(x);
    }
    let keep = net.draw(Distribution::Bernoulli(1.0 - rate), shape)?;
    let scaled = net.scale(x, 1.0 / (1.0 - rate))?;
    let dtype = net.ty(x).dtype;
    let zero = net.constant(0.0, dtype)?;
    net.select(keep, scaled, zero)
}

impl Layer for Dropout {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let shape = net.shape(x).get(1..).unwrap_or(&[]).to_vec();
        drop(net, x, self.0, &shape)
    }
}

impl Layer for SpatialDropout {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let channels = net.width("spatial_dropout", x)?;
        let mut shape = vec![1; net.shape(x).rank().saturating_sub(2)];
        shape.push(channels);
        drop(net, x, self.0, &shape)
    }
}

impl Layer for GaussianNoise {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        if !(self.0 >= 0.0 && self.0.is_finite()) {
            let reason = format!("a deviation is a number of at least 0, not {}", self.0);
            return Err(net.refuse("gaussian_noise", &[x], reason));
        }
        if net.mode == Mode::Infer || self.0 == 0.0 {
            return Ok(x);
        }
        let shape = net.shape(x).get(1..).unwrap_or(&[]).to_vec();
        let noise = net.draw(Distribution::Normal(DType::F32), shape)?;
        let dtype = net.ty(x).dtype;
        let noise = net.cast(noise, dtype)?;
        let noise = net.scale(noise, self.0)?;
        net.add(x, noise)
    }
}
