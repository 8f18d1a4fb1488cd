//! Records by index: the trait, sources in memory, and verbs that compute other indices.

pub(crate) mod join;
pub(crate) mod mapped;
pub(crate) mod memory;
pub(crate) mod permutation;
pub(crate) mod pictures;
pub(crate) mod view;

use crate::{DataError, Record, Schema};
use std::collections::BTreeSet;
use std::sync::Arc;

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

    /// The same without what `counted` has already: parts of a data set may share a source. A source that holds others asks
    /// `counted` for theirs.
    fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        let _ = counted;
        self.resident_bytes()
    }

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

/// Shared sources whose bytes are counted.
#[derive(Debug, Default)]
pub struct Counted(BTreeSet<usize>);

impl Counted {
    /// The bytes of a shared source the first time, and none after that.
    ///
    /// ```
    /// use plimsoll_data::{Counted, Memory, Source};
    /// use std::sync::Arc;
    /// let (points, mut counted) = (Arc::new(Memory::values(vec![[1.0f32; 2]; 3], vec![[1.0f32]; 3])?), Counted::default());
    /// assert_eq!((counted.shared(&points), counted.shared(&points.clone())), (36, 0));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn shared<S: Source + ?Sized>(&mut self, source: &Arc<S>) -> usize {
        if self.is_new(source) { (**source).resident_bytes_once(self) } else { 0 }
    }

    /// Whether this is seen for the first time.
    pub(crate) fn is_new<T: ?Sized>(&mut self, shared: &Arc<T>) -> bool {
        self.0.insert(Arc::as_ptr(shared).cast::<()>() as usize)
    }
}

/// A pointer to a source is that source.
macro_rules! forward_source {
    ($($pointer:ty: $once:expr),*) => {$(
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
            fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
                $once(self, counted)
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

forward_source!(
    Box<S>: |source: &Self, counted| (**source).resident_bytes_once(counted),
    Arc<S>: |source: &Self, counted: &mut Counted| counted.shared(source)
);

/// Checks the index, and number and lengths of the buffers. Every source of tensors calls it first.
pub(crate) fn check_read(source: &dyn Source, index: usize, record: &Record<'_>) -> Result<(), DataError> {
    if index >= source.len() {
        return Err(DataError::Index { index, len: source.len() });
    }
    record.check(source.schema())
}
