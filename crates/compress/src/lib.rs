//! Smaller models.
//!
//! - [`Pruning`] prunes weights by magnitude while a model trains: an optimizer around another one, with a mask of one bit per
//!   weight as a state. A [`Sparsity`] says how many weights are zero at which step.
//! - [`Channels`] removes whole channels of convolutions: a smaller, faster model with the weights of those that are left.
//! - [`Int8Grids`] quantizes a trained model: layers on bytes, with sums in 32 bits. [`QuantizeAware`] trains a model for that.
//!
//! ```
//! use plimsoll_compress::{Pruning, Sparsity};
//! use plimsoll_nn::{AdamW, step, zoo};
//!
//! let sparsity: Sparsity = "polynomial:0.5..0.8@0..2000".parse()?;
//! assert_eq!((sparsity.at(0), sparsity.at(1000), sparsity.at(2000)), (0.5, 0.7625, 0.8));
//! let optimizer = Pruning::new(sparsity).layers("dense*").around(AdamW::new(1e-3));
//! let graph = step::training(&zoo::lenet(), &optimizer, 16)?;
//! assert!(graph.states.iter().any(|state| state.name == "dense1/kernel/mask"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod channels;
mod int8;
mod pruning;
mod sparsity;

pub use channels::{ChannelError, ChannelSets, Channels, KeptChannels};
pub use int8::{CODES, Int8Grids, KeptLayers, LayerNoise, QuantizeAware, calibration, places};
pub use pruning::{Pruned, Pruning};
pub use sparsity::{Sparsity, SparsityError};
