//! What every dataset offers.

use crate::DataError;
use plimsoll_tensor::TensorType;
use std::fmt;

/// Examples of fixed shape, each reachable by its index.
///
/// ```
/// use plimsoll_data::{Source, Synthetic, SyntheticSpec};
/// let spec = SyntheticSpec {
///     input: "f32[3]".parse().unwrap(),
///     label: "i32[]".parse().unwrap(),
///     classes: 2,
///     input_bound: 1,
/// };
/// let source = Synthetic::new(spec, 10, 7, 0)?;
/// let (mut input, mut label) = ([0; 12], [0; 4]);
/// source.read(9, &mut input, &mut label)?;
/// assert!(i32::from_ne_bytes(label) < 2);
/// assert!(source.read(10, &mut input, &mut label).is_err());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub trait Source: Send + Sync {
    /// Number of examples.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of one example's input, without a batch axis.
    fn input_type(&self) -> TensorType;

    /// Type of one example's label: a scalar class, or one class for each token.
    fn label_type(&self) -> TensorType;

    /// Number of classes; every label is in `0..classes`.
    fn classes(&self) -> usize;

    /// Writes example `index` as native bytes of the two types. Allocates nothing unless it fails.
    fn read(&self, index: usize, input: &mut [u8], label: &mut [u8]) -> Result<(), DataError>;

    /// Heap bytes this source holds, exact to a few KiB.
    fn resident_bytes(&self) -> usize;
}

/// A dataset in its two parts.
///
/// ```
/// use plimsoll_data::{OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// assert_eq!(digits.resident_bytes(), (digits.train.len() + digits.test.len()) * (28 * 28 + 1));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Dataset {
    /// The name it was opened by.
    pub name: String,
    /// Examples to learn from.
    pub train: Box<dyn Source>,
    /// Examples to measure with.
    pub test: Box<dyn Source>,
}

impl Dataset {
    /// Heap bytes of both parts.
    pub fn resident_bytes(&self) -> usize {
        self.train.resident_bytes() + self.test.resident_bytes()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({}, {} + {} examples)", self.name, self.train.len(), self.test.len())
    }
}

/// Refuses an index past the end and slices of the wrong length; every source asks it first.
pub(crate) fn check_read(
    (index, len): (usize, usize),
    (input, input_bytes): (&[u8], usize),
    (label, label_bytes): (&[u8], usize),
) -> Result<(), DataError> {
    if index >= len {
        return Err(DataError::Index { index, len });
    }
    for (what, expected, found) in
        [("the input", input_bytes, input.len()), ("the label", label_bytes, label.len())]
    {
        if expected != found {
            return Err(DataError::Buffer { what, expected, found });
        }
    }
    Ok(())
}

/// Writes 4-byte elements into bytes; the shorter of the two ends it.
pub(crate) fn write_words(bytes: &mut [u8], words: impl Iterator<Item = [u8; 4]>) {
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word);
    }
}
