//! Sources, pipelines and batches; never sees a graph.
//!
//! A [`Source`] gives any record by its index, a [`Streamed`] one after another; a [`Pipeline`] says what becomes of them
//! on the way to a [`Batch`], with tf.data's verbs. [`Pipeline::start`] makes it [`Batches`]: worker threads that read, decode
//! and map straight into buffers which are used again and again. What each part keeps in memory is stated before it runs
//! ([`Pipeline::bytes`]), and a [`Cursor`] of two numbers is all that a checkpoint needs.
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

mod adapt;
mod batch;
mod batches;
mod block;
mod buckets;
mod budget;
mod cache;
#[cfg(feature = "parquet")]
mod columnar;
mod csv;
mod digits;
mod error;
mod example;
mod files;
mod folder;
mod gather;
mod held;
mod idx;
mod image;
mod index;
mod lines;
mod marks;
mod memory;
mod numpy;
mod open;
mod pairs;
mod paths;
mod permutation;
mod pipeline;
#[cfg(feature = "tiff")]
mod raster;
mod record;
mod rows;
mod schema;
mod shards;
mod share;
mod source;
mod stage;
mod stream;
mod synthetic;
mod table;
mod text;
mod tfrecord;
#[cfg(feature = "tokenizers")]
mod tokens;
mod verbs;
mod workers;
mod wrap;

pub use adapt::{Prefetch, Workers};
pub use batch::{Batch, Cursor};
pub use batches::Batches;
pub use buckets::Buckets;
pub use cache::Cache;
#[cfg(feature = "parquet")]
pub use columnar::columnar;
pub use csv::Csv;
pub use digits::Digits;
pub use error::DataError;
pub use folder::Folder;
pub use image::{Crop, Decode, DecodeMasks};
pub use memory::Memory;
pub use numpy::Numpy;
pub use open::{DEFAULT_MAX_BYTES, DatasetInfo, ImageOptions, OpenOptions, catalogue, open};
pub use pairs::Pairs;
pub use paths::Paths;
pub use permutation::Permutation;
pub use pipeline::Pipeline;
pub use plimsoll_tensor::Field;
#[cfg(feature = "tiff")]
pub use raster::Raster;
pub use record::{MOST_COLUMNS, Place, Record};
pub use rows::{Normalise, OneHot, Select};
pub use schema::{Column, Kind, Schema};
pub use shards::Shards;
pub use share::{BATCHES, BUCKET_BUFFER, CACHE, DATA_SET, DECODERS, INPUT_WORKERS, SHUFFLE_BUFFER, Share};
pub use source::{Dataset, Source};
pub use stage::Stage;
pub use stream::{Stream, Streamed};
pub use synthetic::{Synthetic, SyntheticSpec};
pub use table::TableOptions;
pub use text::Text;
pub use tfrecord::tf_records;
#[cfg(feature = "tokenizers")]
pub use tokens::Tokens;
pub use workers::is_guarded;
pub use wrap::{Itself, Masked, Shaped};
