//! Records by index: the trait, sources in memory, and verbs that compute other indices.

pub(crate) mod join;
pub(crate) mod mapped;
pub(crate) mod memory;
pub(crate) mod permutation;
pub(crate) mod pictures;
pub(crate) mod view;

use crate::{DataError, Record, Schema};

/// Records with random access by index. Worker threads read them concurrently.
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

    /// Writes record `index`. `scratch` is at least [`Source::scratch_bytes`] long, with undefined content. Apart from
    /// [`Source::decoder_bytes`] it allocates only on errors.
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError>;

    /// Heap bytes this source holds, exact to a few KiB.
    fn resident_bytes(&self) -> usize;

    /// Bytes of scratch that one reader needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// The most heap bytes that libraries allocate while this many threads read at once.
    fn decoder_bytes(&self, readers: usize) -> usize {
        let _ = readers;
        0
    }

    /// Where a record of an epoch is from, for errors: a file, a position in it.
    fn origin(&self, index: usize, epoch: u64) -> String {
        let _ = epoch;
        format!("example {index}")
    }
}

/// A pointer to a source is that source.
macro_rules! forward_source {
    ($($pointer:ty),*) => {$(
        impl<S: Source + ?Sized> Source for $pointer {
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
            fn decoder_bytes(&self, readers: usize) -> usize {
                (**self).decoder_bytes(readers)
            }
            fn origin(&self, index: usize, epoch: u64) -> String {
                (**self).origin(index, epoch)
            }
        }
    )*};
}

forward_source!(Box<S>, std::sync::Arc<S>);

/// Checks the index, and number and lengths of the buffers. Every source of tensors calls it first.
pub(crate) fn check_read(source: &dyn Source, index: usize, record: &Record<'_>) -> Result<(), DataError> {
    if index >= source.len() {
        return Err(DataError::Index { index, len: source.len() });
    }
    record.check(source.schema())
}
