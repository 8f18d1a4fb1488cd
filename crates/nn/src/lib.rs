//! Layers, losses, optimizers and the model zoo as graph builders.
//!
//! A model is a description; [`step::training`] turns it into the graph of a whole training step.
//!
//! ```
//! use plimsoll_nn::{Activation, Dense, Flatten, Sequential, Sgd, step};
//! let model = Sequential::classifier("tiny", [4, 4, 1], 3)
//!     .layer("flatten", Flatten)
//!     .layer("hidden", Dense::new(8))
//!     .layer("relu", Activation::Relu)
//!     .layer("head", Dense::new(3));
//! let graph = step::training(&model, &Sgd::new(0.1).momentum(0.9), 16)?;
//! assert_eq!(graph.parameter_count(), 16 * 8 + 8 + 8 * 3 + 3);
//! # Ok::<(), plimsoll_graph::GraphError>(())
//! ```

mod layers;
mod model;
mod net;
mod optimizer;
pub mod step;
pub mod zoo;

pub use layers::{
    Activation, BatchNorm, Conv2d, Dense, Embedding, Flatten, GlobalAveragePool, Layer, LayerNorm, MaxPool2d,
    Padding, SelfAttention,
};
pub use model::{Head, Model, Sequential};
pub use net::{Mode, Net};
pub use optimizer::{AdamW, Optimizer, Parameter, Sgd};
