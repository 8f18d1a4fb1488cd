//! Sources and batches; never sees a graph.
//!
//! A [`Source`] gives any example by its index, a [`Permutation`] computes the order of an epoch without holding it, and
//! [`Batches`] writes the examples into one [`Batch`] that is used again and again. What each of them keeps in memory
//! is stated before the first step.
//!
//! ```
//! use plimsoll_data::{Batches, Cursor, OpenOptions, Order, open};
//! let digits = open("mnist", &OpenOptions::default())?;
//! let mut batches = Batches::new(&*digits.train, 64, Order::Shuffled { seed: 7 }, Cursor::default())?;
//! let mut batch = batches.batch()?;
//! assert_eq!(batches.resident_bytes(), 64 * (28 * 28 * 4 + 4));
//! assert!(batches.next_into(&mut batch)?);
//! assert_eq!(batch.input_types()[0].to_string(), "f32[64,28,28,1]");
//! # Ok::<(), plimsoll_data::DataError>(())
//! ```

mod batches;
mod budget;
mod digits;
mod error;
mod idx;
mod memory;
mod open;
mod permutation;
mod source;
mod synthetic;
mod text;
mod wrap;

pub use batches::{Batch, Batches, Cursor, Order};
pub use digits::Digits;
pub use error::DataError;
pub use memory::Memory;
pub use open::{DEFAULT_MAX_BYTES, DatasetInfo, OpenOptions, catalogue, open};
pub use permutation::Permutation;
pub use plimsoll_tensor::Field;
pub use source::{Dataset, MOST_INPUTS, Source};
pub use synthetic::{Synthetic, SyntheticSpec};
pub use text::Text;
pub use wrap::{Itself, Masked};
