//! A dataset in its two parts.

use crate::{DataError, Pipeline};
use std::fmt;

/// A dataset in its two parts, neither shuffled nor batched: training code does that.
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
    /// Training examples.
    pub train: Pipeline,
    /// Test examples.
    pub test: Pipeline,
}

impl Dataset {
    /// A dataset from two sources or pipelines.
    pub fn new(name: impl Into<String>, train: impl Into<Pipeline>, test: impl Into<Pipeline>) -> Self {
        Self { name: name.into(), train: train.into(), test: test.into() }
    }

    /// The data with a share of its training examples in place of the test part ([`Pipeline::hold_out`]): for validating a
    /// model during training without the test part.
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
