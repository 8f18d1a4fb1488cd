//! Pooling.

use super::Layer;
use super::conv::{Padding, geometry};
use crate::Net;
use plimsoll_graph::op::Windows;
use plimsoll_graph::{GraphError, ValueId};

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
        net.max_pool(x, windows)
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
        net.average_pool(x, windows, self.count_padding)
    }
}

/// Means over windows that divide an image of any size into this many rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAveragePool2d([usize; 2]);

impl AdaptiveAveragePool2d {
    /// The height and width of the result.
    pub const fn new(output: [usize; 2]) -> Self {
        Self(output)
    }
}

impl Layer for AdaptiveAveragePool2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        net.average_pool(x, Windows::Adaptive { output: self.0 }, false)
    }
}

/// The mean over an image's height and width.
#[derive(Clone, Copy, Debug)]
pub struct GlobalAveragePool;

impl Layer for GlobalAveragePool {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = net.image("global_average_pool", x)?;
        let sum = net.sum(x, &[1, 2], false)?;
        net.scale(sum, 1.0 / (h * w).max(1) as f64)
    }
}

/// The largest element over an image's height and width.
#[derive(Clone, Copy, Debug)]
pub struct GlobalMaxPool;

impl Layer for GlobalMaxPool {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        net.image("global_max_pool", x)?;
        net.max(x, &[1, 2], false)
    }
}
