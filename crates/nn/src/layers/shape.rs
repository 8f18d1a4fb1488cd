//! Reshaping, resizing and residual layers.

use super::Layer;
use crate::Net;
use plimsoll_graph::op::{Resize, ResizeMode};
use plimsoll_graph::{GraphError, Op, ValueId};

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
pub struct Reshape(
    /// The shape of one example.
    pub Vec<usize>,
);

impl Layer for Reshape {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let examples = net.graph().examples;
        net.reshape(x, [&[examples], &self.0[..]].concat())
    }
}

/// Permutes the axes of each example: axis i of the result is axis `.0[i]`, both counted without the batch axis.
#[derive(Clone, Debug)]
pub struct Permute(
    /// The order.
    pub Vec<usize>,
);

impl Layer for Permute {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let axes: Vec<usize> = std::iter::once(0).chain(self.0.iter().map(|a| a.saturating_add(1))).collect();
        net.transpose(x, &axes)
    }
}

/// Enlarges an image by an integer factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upsample {
    /// The factor.
    pub factor: usize,
    /// How pixels are interpolated.
    pub mode: ResizeMode,
}

impl Layer for Upsample {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = net.image("upsample", x)?;
        let output = [h.saturating_mul(self.factor), w.saturating_mul(self.factor)];
        net.one(Op::Resize(Resize::Forward { mode: self.mode, output }), &[x])
    }
}

/// `x + layer(x)`.
pub struct Residual<L>(
    /// The layer.
    pub L,
);

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
