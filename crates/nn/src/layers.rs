//! Layers: descriptions that add nodes and parameters to a [`Net`].

mod activation;
mod attention;
mod conv;
mod dense;
mod dropout;
mod norm;
mod pool;
mod recurrent;
mod shape;

pub use activation::Activation;
pub use attention::{Mlp, MultiHeadAttention, NormPlace, TransformerBlock};
pub use conv::{Conv1d, Conv2d, ConvTranspose2d, DepthwiseConv2d, Padding, SeparableConv2d};
pub use dense::{Dense, Embedding};
pub use dropout::{Dropout, GaussianNoise, SpatialDropout};
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use pool::{AdaptiveAveragePool2d, AveragePool2d, GlobalAveragePool, GlobalMaxPool, MaxPool2d};
pub use recurrent::{Bidirectional, Gru, Lstm, Recurrent, SimpleRnn};
pub use shape::{Flatten, Permute, Reshape, Residual, Upsample};

use crate::Net;
use plimsoll_graph::{GraphError, Init, ValueId};

/// A function of one value, with its own parameters.
///
/// A custom layer is a few lines of ordinary ops; its gradient follows from them:
///
/// ```
/// use plimsoll_nn::{Layer, Net};
/// use plimsoll_graph::{GraphError, Init, ValueId};
///
/// /// A learned gain.
/// struct Gain;
///
/// impl Layer for Gain {
///     fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
///         let gain = net.parameter("gain", [], Init::Ones);
///         net.mul(x, gain)
///     }
/// }
/// ```
pub trait Layer: Send + Sync {
    /// Adds the layer to the net, inside its scope.
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError>;
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.as_ref().forward(net, x)
    }
}

/// Uniform in ±√(6 / inputs): keeps the variance of activations through relu layers.
fn he_uniform(inputs: usize) -> Init {
    Init::Uniform((6.0 / inputs.max(1) as f64).sqrt())
}

/// Uniform in ±√(6 / (inputs + outputs)): the same for tanh and sigmoid layers.
fn glorot_uniform(inputs: usize, outputs: usize) -> Init {
    Init::Uniform((6.0 / (inputs + outputs).max(1) as f64).sqrt())
}
