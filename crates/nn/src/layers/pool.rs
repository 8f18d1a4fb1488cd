//! Pooling.

use super::Layer;
use super::conv::{Padding, geometry};
use crate::Net;
use plimsoll_graph::op::{Pool, Windows};
use plimsoll_graph::{GraphError, Op, ValueId};

/// The largest element of each window.
#[derive(Clone, Debug)]
pub struct MaxPool2d {
    window: usize,
    stride: usize,
    padding: Padding,
}

impl MaxPool2d {
    /// Non-overlapping windows, without padding.
    pub fn new(window: usize) -> Self {
        Self { window, stride: window, padding: Padding::Valid }
    }

    /// The layer with another stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The layer with another padding.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }
}

impl Layer for MaxPool2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = net.image("max_pool", x)?;
        let windows =
            Windows::Sliding(geometry(self.padding, [h, w], [self.window; 2], [self.stride; 2], [1; 2]));
        net.one(Op::Pool(Pool::Max { windows }), &[x])
    }
}

/// The mean of each window.
#[derive(Clone, Debug)]
pub struct AveragePool2d {
    window: usize,
    stride: usize,
    padding: Padding,
    count_padding: bool,
}

impl AveragePool2d {
    /// Non-overlapping windows, without padding. With padding, a mean is over the pixels inside the image.
    pub fn new(window: usize) -> Self {
        Self { window, stride: window, padding: Padding::Valid, count_padding: false }
    }

    /// The layer with another stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The layer with another padding.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// The layer with the padding's zeros counted in the mean, as in PyTorch.
    pub fn count_padding(self) -> Self {
        Self { count_padding: true, ..self }
    }
}

impl Layer for AveragePool2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = net.image("average_pool", x)?;
        let windows =
            Windows::Sliding(geometry(self.padding, [h, w], [self.window; 2], [self.stride; 2], [1; 2]));
        net.one(Op::Pool(Pool::Average { windows, count_padding: self.count_padding }), &[x])
    }
}

/// Means over windows that divide an image of any size into this many rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAveragePool2d(
    /// Height and width of the result.
    pub [usize; 2],
);

impl Layer for AdaptiveAveragePool2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let windows = Windows::Adaptive { output: self.0 };
        net.one(Op::Pool(Pool::Average { windows, count_padding: false }), &[x])
    }
}

/// The mean over an image's height and width.
#[derive(Clone, Copy, Debug)]
pub struct GlobalAveragePool;

impl Layer for GlobalAveragePool {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [n, h, w, c] = net.image("global_average_pool", x)?;
        let sum = net.sum(x, 1, 3)?;
        let flat = net.reshape(sum, [n, c])?;
        net.scale(flat, 1.0 / (h * w).max(1) as f64)
    }
}

/// The largest element over an image's height and width.
#[derive(Clone, Copy, Debug)]
pub struct GlobalMaxPool;

impl Layer for GlobalMaxPool {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [n, _, _, c] = net.image("global_max_pool", x)?;
        let largest = net.max_axes(x, &[1, 2], false)?;
        net.reshape(largest, [n, c])
    }
}
