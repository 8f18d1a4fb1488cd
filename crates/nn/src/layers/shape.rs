//! Reshaping, resizing and residual layers.

use super::Layer;
use crate::Net;
use plimsoll_graph::op::ResizeMode;
use plimsoll_graph::{GraphError, ValueId};

/// Merges all axes but the batch axis.
#[derive(Clone, Copy, Debug)]
pub struct Flatten;

impl Layer for Flatten {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let shape = net.shape(x).clone();
        let Some((&examples, rest)) = shape.split_first() else {
            return Err(net.refuse("flatten", &[x], "needs at least one axis".into()));
        };
        net.reshape(x, [examples, rest.iter().product()])
    }
}

/// Reshapes each example.
#[derive(Clone, Debug)]
pub struct Reshape(Vec<usize>);

impl Reshape {
    /// The new shape of one example.
    pub fn new(shape: impl Into<Vec<usize>>) -> Self {
        Self(shape.into())
    }
}

impl Layer for Reshape {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let examples = net.graph().examples;
        net.reshape(x, [&[examples], &self.0[..]].concat())
    }
}

/// Permutes the axes of each example.
#[derive(Clone, Debug)]
pub struct Permute(Vec<usize>);

impl Permute {
    /// Axis i of the result is axis `axes[i]`, both counted without the batch axis.
    pub fn new(axes: impl Into<Vec<usize>>) -> Self {
        Self(axes.into())
    }
}

impl Layer for Permute {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let axes: Vec<usize> = std::iter::once(0).chain(self.0.iter().map(|a| a.saturating_add(1))).collect();
        net.transpose(x, &axes)
    }
}

/// Enlarges an image by an integer factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upsample {
    factor: usize,
    mode: ResizeMode,
}

impl Upsample {
    /// This many times as high and as wide; a pixel is repeated.
    pub const fn new(factor: usize) -> Self {
        Self { factor, mode: ResizeMode::Nearest }
    }

    /// The layer with another interpolation.
    pub const fn mode(self, mode: ResizeMode) -> Self {
        Self { mode, ..self }
    }
}

impl Layer for Upsample {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = net.image("upsample", x)?;
        let output = [h.saturating_mul(self.factor), w.saturating_mul(self.factor)];
        net.resize(x, self.mode, output)
    }
}

/// `x + layer(x)`.
#[derive(Clone, Debug)]
pub struct Residual<L>(L);

impl<L: Layer> Residual<L> {
    /// The layer with a residual connection around it.
    pub const fn new(layer: L) -> Self {
        Self(layer)
    }
}

impl<L: Layer> Layer for Residual<L> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = self.0.forward(net, x)?;
        if net.shape(x) != net.shape(y) {
            let reason =
                format!("the layer inside gives {}: a residual needs the shape it was given", net.ty(y));
            return Err(net.refuse("residual", &[x], reason));
        }
        net.add(x, y)
    }
}
