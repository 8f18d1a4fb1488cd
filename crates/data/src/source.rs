//! What every source of records offers.

use crate::{DataError, Pipeline, Record, Schema};
use std::fmt;

/// Records that are each reachable by an index. Worker threads read them at the same time.
///
/// ```
/// use plimsoll_data::{DataError, Field, Record, Schema, Source};
///
/// /// Numbers and their squares.
/// struct Squares(Schema);
///
/// impl Source for Squares {
///     fn schema(&self) -> &Schema {
///         &self.0
///     }
///     fn len(&self) -> usize {
///         1000
///     }
///     fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
///         record.put_f32(0, &[index as f32])?;
///         record.put_f32(1, &[(index * index) as f32])
///     }
///     fn resident_bytes(&self) -> usize {
///         0
///     }
/// }
///
/// let squares = Squares(Schema::examples([Field::floats([1])], Field::floats([1])));
/// let mut bytes = [0; 8];
/// squares.read(3, &mut Record::over(squares.schema(), &mut bytes), &mut [])?;
/// assert_eq!(bytes[4..], 9f32.to_ne_bytes());
/// # Ok::<(), DataError>(())
/// ```
pub trait Source: Send + Sync {
    /// The columns of its records.
    fn schema(&self) -> &Schema;

    /// Number of records.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes record `index`. `scratch` is at least [`Source::scratch_bytes`] long, and holds anything. Allocates nothing
    /// unless it fails, but for [`Source::decoder_bytes`].
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError>;

    /// Heap bytes this source holds, exact to a few KiB.
    fn resident_bytes(&self) -> usize;

    /// Bytes of scratch that one reader needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Heap bytes that a library takes at most while one reader reads.
    fn decoder_bytes(&self) -> usize {
        0
    }

    /// Where a record of an epoch is from, for errors: a file, a place in it.
    fn origin(&self, index: usize, epoch: u64) -> String {
        let _ = epoch;
        format!("example {index}")
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn schema(&self) -> &Schema {
        (**self).schema()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        (**self).read(index, record, scratch)
    }
    fn resident_bytes(&self) -> usize {
        (**self).resident_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        (**self).scratch_bytes()
    }
    fn decoder_bytes(&self) -> usize {
        (**self).decoder_bytes()
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        (**self).origin(index, epoch)
    }
}

/// A dataset in its two parts, neither shuffled nor batched: who trains does that.
///
/// ```
/// use plimsoll_data::{OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// assert_eq!(digits.resident_bytes(), (16_000 + 2_500) * (28 * 28 + 1));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Dataset {
    /// The name it was opened by.
    pub name: String,
    /// Examples to learn from.
    pub train: Pipeline,
    /// Examples to measure with.
    pub test: Pipeline,
}

impl Dataset {
    /// A dataset from two sources or pipelines.
    pub fn new(name: impl Into<String>, train: impl Into<Pipeline>, test: impl Into<Pipeline>) -> Self {
        Self { name: name.into(), train: train.into(), test: test.into() }
    }

    /// The data with a share of its training examples in place of the test part ([`Pipeline::hold_out`]): for looking at a
    /// model while it is not done, without looking at the test part.
    pub fn hold_out(self, share: f64) -> Result<Self, DataError> {
        let (train, test) = self.train.hold_out(share)?;
        Ok(Self { train, test, ..self })
    }

    /// Heap bytes that the sources of both parts hold.
    pub fn resident_bytes(&self) -> usize {
        self.train.resident_bytes() + self.test.resident_bytes()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |part: &Pipeline| part.len().map_or("unknown".to_string(), |n| n.to_string());
        write!(f, "Dataset({}, {} + {} examples)", self.name, count(&self.train), count(&self.test))
    }
}

/// Refuses an index past the end, and buffers of another number or length; every source of tensors asks it first.
pub(crate) fn check_read(source: &dyn Source, index: usize, record: &Record<'_>) -> Result<(), DataError> {
    if index >= source.len() {
        return Err(DataError::Index { index, len: source.len() });
    }
    record.check(source.schema())
}
