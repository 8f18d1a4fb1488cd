//! Layers: descriptions that add nodes and parameters to a [`Net`].

mod activation;
mod attention;
mod conv;
mod dense;
mod dropout;
mod kind;
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
///         net.math([x, gain], |[x, gain]| x * gain)
///     }
/// }
/// assert_eq!(Gain.kind(), "gain");
/// ```
pub trait Layer: Send + Sync {
    /// Adds the layer to the net, inside its scope.
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError>;

    /// What kind of layer it is, which [`Sequential::push`](crate::Sequential::push) names it after: by default its type's
    /// name in snake case, without generics. Weights files carry it, so a type that is renamed should give its old kind.
    fn kind(&self) -> String {
        kind::of_type::<Self>()
    }
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.as_ref().forward(net, x)
    }

    fn kind(&self) -> String {
        self.as_ref().kind()
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
