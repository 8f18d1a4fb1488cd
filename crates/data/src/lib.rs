//! Sources, pipelines and batches; never sees a graph.
//!
//! A [`Source`] gives records by index, a [`Streamed`] one after another; a [`Pipeline`] describes with tf.data's verbs how
//! they become a [`Batch`]. [`Pipeline::start`] returns [`Batches`]: worker threads read, decode and map straight into
//! buffers that are reused. The memory of each part is stated before it runs ([`Pipeline::bytes`]), and a [`Cursor`] of two
//! numbers is all that a checkpoint needs.
//!
//! | folder | holds |
//! |---|---|
//! | `formats` | one file for each data format, and the registry that [`open`] and [`catalogue`] read |
//! | `source` | [`Source`], tensors in memory, views and joins that compute indices |
//! | `stream` | [`Stream`] and [`Streamed`], shuffle buffers, verbs on streams |
//! | `transforms` | [`Stage`], and stages for images, tables and text |
//! | `pipeline` | verbs, byte accounts, workers and autotuning, buckets, the cache, running [`Batches`] |
//! | `core` | [`Record`], [`Schema`], [`Batch`], [`DataError`], allocation within a budget |
//!
//! ```
//! use plimsoll_data::{Cursor, OpenOptions, open};
//! let digits = open("mnist", &OpenOptions::default())?;
//! let pipeline = digits.train.shuffle(0, 7).batch(64).workers(2).prefetch(1);
//! let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
//! assert!(stated > 2 * 64 * (28 * 28 * 4 + 4)); // two batches, and the rest
//! let mut batches = pipeline.start(Cursor::default())?;
//! let batch = batches.next()?.expect("the first batch");
//! assert_eq!(batch.input_types()[0].to_string(), "f32[64,28,28,1]");
//! # Ok::<(), plimsoll_data::DataError>(())
//! ```

mod core;
mod formats;
mod pipeline;
mod source;
mod stream;
mod transforms;

pub use crate::core::batch::{Batch, Cursor, OwnRows};
pub use crate::core::dataset::Dataset;
pub use crate::core::error::DataError;
pub use crate::core::guard::is_guarded;
pub use crate::core::preparation::{
    ColumnPreparation, InputPreparation, PicturePreparation, Preparation, RowPreparation,
};
pub use crate::core::record::{MAX_COLUMNS, Place, Record};
pub use crate::core::schema::{Column, Kind, Schema};
pub use formats::*;
pub use pipeline::Pipeline;
pub use pipeline::autotune::{Prefetch, Workers};
pub use pipeline::batches::Batches;
pub use pipeline::buckets::Buckets;
pub use pipeline::cache::Cache;
pub use pipeline::memory::{
    BATCHES, BUCKET_BUFFER, CACHE, DATA_SET, DECODERS, INPUT_WORKERS, SHUFFLE_BUFFER, Share,
};
pub use plimsoll_tensor::Field;
pub use source::memory::Memory;
pub use source::permutation::Permutation;
pub use source::pictures::{PictureFile, PictureOptions, PictureWindow, Pictures};
pub use source::{Counted, Source};
pub use stream::{Stream, Streamed};
pub use transforms::example::{Itself, Shaped};
pub use transforms::image::{Crop, Decode, DecodeMasks};
pub use transforms::resize::Resize;
pub use transforms::stage::Stage;
pub use transforms::table::{Normalise, OneHot, Select};
pub use transforms::text::Masked;
pub use transforms::vocabulary::{TextDecoder, Vocabulary};
