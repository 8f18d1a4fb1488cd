//! Dropout and noise, while training only.

use super::Layer;
use crate::{Mode, Net};
use plimsoll_graph::op::Distribution;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::DType;

/// Sets elements to zero with this probability while training, and scales the others so that the expectation stays.
///
/// The mask is a function of seed, step, layer, example and element. Backward recomputes it, so it takes no memory in
/// between, and neither threads nor micro-batches change it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(f64);

/// [`Dropout`] of whole channels: an example's channel is dropped or kept at all positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpatialDropout(f64);

/// Normal noise of this standard deviation, added while training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNoise(f64);

impl Dropout {
    /// Dropout with this probability, at least 0 and below 1.
    pub const fn new(rate: f64) -> Self {
        Self(rate)
    }
}

impl SpatialDropout {
    /// Dropout of whole channels with this probability, at least 0 and below 1.
    pub const fn new(rate: f64) -> Self {
        Self(rate)
    }
}

impl GaussianNoise {
    /// Noise of this standard deviation.
    pub const fn new(deviation: f64) -> Self {
        Self(deviation)
    }
}

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
