//! What every dataset offers.

use crate::DataError;
use plimsoll_tensor::{DType, TensorType};
use std::fmt;

/// The most inputs an example may have: a batch is filled through a fixed array of this length, so that nothing is
/// allocated.
pub const MOST_INPUTS: usize = 8;

/// Examples of fixed shape, each reachable by its index.
///
/// ```
/// use plimsoll_data::{Source, Synthetic, SyntheticSpec};
/// use plimsoll_tensor::Field;
/// let spec = SyntheticSpec {
///     inputs: vec![Field::floats([3]), Field::below(50, [2])],
///     label: Field::below(2, []),
/// };
/// let source = Synthetic::new(spec, 10, 7, 0)?;
/// let (mut floats, mut tokens, mut label) = ([0; 12], [0; 8], [0; 4]);
/// source.read(9, &mut [&mut floats, &mut tokens], &mut label)?;
/// assert!(i32::from_ne_bytes(label) < 2);
/// assert!(source.read(10, &mut [&mut floats, &mut tokens], &mut label).is_err());
/// assert!(source.read(9, &mut [&mut floats], &mut label).is_err());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub trait Source: Send + Sync {
    /// Number of examples.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Types of one example's inputs in their order, without a batch axis: at least one, at most [`MOST_INPUTS`].
    fn input_types(&self) -> Vec<TensorType>;

    /// Type of one example's label: i32 classes or f32 values, a scalar or one for each position.
    fn label_type(&self) -> TensorType;

    /// Number of classes where labels are i32: each is below it, and a negative one means "no label", so that its row
    /// is to count nothing. `None` where labels are f32 values.
    fn classes(&self) -> Option<usize>;

    /// Writes example `index` as native bytes: one buffer for each input, as long as its type, and one for the label.
    /// Allocates nothing unless it fails.
    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError>;

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

/// Refuses a number of inputs, a type of labels or a number of classes that no source may have.
pub(crate) fn check_types(
    inputs: usize,
    label: &TensorType,
    classes: Option<usize>,
) -> Result<(), DataError> {
    if !(1..=MOST_INPUTS).contains(&inputs) {
        return Err(DataError::InputCount { found: inputs, most: MOST_INPUTS });
    }
    let expected = if classes.is_some() { DType::I32 } else { DType::F32 };
    if label.dtype != expected {
        return Err(DataError::LabelType { found: label.clone(), expected, classes });
    }
    match classes {
        Some(classes) if !(1..=i32::MAX as usize).contains(&classes) => {
            Err(DataError::Option { option: "classes", reason: format!("must be in 1..2^31, not {classes}") })
        }
        _ => Ok(()),
    }
}

/// Refuses an index past the end, and buffers of another number or length; every source asks it first.
pub(crate) fn check_read(
    (index, len): (usize, usize),
    (inputs, input_bytes): (&[&mut [u8]], &[usize]),
    (label, label_bytes): (&[u8], usize),
) -> Result<(), DataError> {
    if index >= len {
        return Err(DataError::Index { index, len });
    }
    if inputs.len() != input_bytes.len() {
        return Err(DataError::BufferCount { expected: input_bytes.len(), found: inputs.len() });
    }
    for (i, (input, &expected)) in inputs.iter().zip(input_bytes).enumerate() {
        if input.len() != expected {
            return Err(DataError::Buffer { what: format!("input {i}"), expected, found: input.len() });
        }
    }
    if label.len() != label_bytes {
        let (what, expected, found) = ("the label".into(), label_bytes, label.len());
        return Err(DataError::Buffer { what, expected, found });
    }
    Ok(())
}

/// Writes 4-byte elements into bytes; the shorter of the two ends it.
pub(crate) fn write_words(bytes: &mut [u8], words: impl Iterator<Item = [u8; 4]>) {
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word);
    }
}
