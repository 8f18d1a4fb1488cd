//! Layers, losses, optimizers and the model zoo, all of which build graphs and compute nothing.
//!
//! - A [`Layer`] adds nodes and parameters to a [`Net`], a graph under construction; a [`Model`] adds a whole network and
//!   names its inputs and target. [`Sequential`] chains layers, [`zoo`] has published models.
//! - A [`Loss`] gives one number per row; a step's loss is their sum weighted by the batch's row weights.
//! - An [`Optimizer`] adds each parameter's update next to its gradient; [`Recipe`] adds clipping, weight averaging and
//!   frozen parameters.
//! - A [`Policy`] selects mixed precision and, for f16, dynamic loss scaling ([`LossScale`]).
//! - [`step`] assembles whole steps: training (forward, backward, optimizer step), evaluation and prediction.
//!
//! Every layer is made by `new` with what it needs, and changed by methods: `Conv2d::new(16, 3).stride(2)`. Layers without
//! options are their names alone (`Flatten`), as activations are (`Relu`, `Gelu`, `LeakyRelu(0.1)`).
//!
//! Layer and parameter names are part of the file formats: weights files carry them and random streams are keyed by them.
//! [`Sequential::push`] names a layer after its kind, [`Sequential::layer`] as it is told.
//!
//! ```
//! use plimsoll_nn::{Dense, Flatten, Relu, Sequential, Sgd, step};
//! let model = Sequential::classifier([4, 4, 1], 3).push(Flatten).push(Dense::new(8)).push(Relu).push(Dense::new(3));
//! let graph = step::training(&model, &Sgd::new(0.1).momentum(0.9), 16)?;
//! assert_eq!(graph.parameter_count(), 16 * 8 + 8 + 8 * 3 + 3);
//! # Ok::<(), plimsoll_graph::GraphError>(())
//! ```

mod initial;
mod inputs;
mod layers;
mod loss;
mod model;
mod net;
mod optimizer;
mod precision;
mod sequential;
pub mod step;
pub mod zoo;

pub use initial::{first_values, push_number};
pub use inputs::NarrowInputs;
pub use layers::Activation::{
    self, Elu, Gelu, GeluTanh, HardSigmoid, HardSwish, LeakyRelu, LogSoftmax, Mish, Relu, Relu6, Sigmoid,
    Silu, Softmax, Softplus, Tanh,
};
pub use layers::{
    AdaptiveAveragePool2d, AveragePool2d, BatchNorm, Bidirectional, Conv1d, Conv2d, ConvTranspose2d, Dense,
    DepthwiseConv2d, Dropout, Embedding, Flatten, GaussianNoise, GlobalAveragePool, GlobalMaxPool, GroupNorm,
    Gru, Layer, LayerNorm, Lstm, MaxPool2d, Mlp, MultiHeadAttention, NormPlace, Padding, Permute, Recurrent,
    Reshape, Residual, RmsNorm, SeparableConv2d, SimpleRnn, SpatialDropout, TransformerBlock, Upsample,
};
pub use loss::{
    BinaryCrossEntropy, CosineDistance, CrossEntropy, Dice, Focal, Huber, KlDivergence, Loss,
    MeanAbsoluteError, MeanSquaredError, SoftCrossEntropy,
};
pub use model::{Head, InitialValues, Model, Narrow, RANGES, Rewritten, WithLoss};
pub use net::{EXAMPLES, Mode, Net, Penalty, RANDOM};
pub use optimizer::{
    AVERAGE, Adafactor, Adam, AdamW, Adaptive, Clip, Decay, Lion, MASK, Moments, Optimizer, Parameter,
    Pattern, Recipe, RmsProp, Sgd, gradient_name,
};
pub use plimsoll_graph::op::ResizeMode;
pub use plimsoll_tensor::Field;
pub use precision::{
    GOOD_STEPS, LOSS_SCALE, LossScale, MAX_GROWTH, MAX_LOSS_SCALE, MIN_LOSS_SCALE, Policy, Precision,
    SKIPPED_STEPS,
};
pub use sequential::Sequential;
