//! A dataset in its parts: training, validation, test.

use crate::{Counted, DataError, Pipeline};
use std::fmt;

/// A dataset in its parts, neither shuffled nor batched: training code does that.
///
/// Training validates on the validation part, which decides when to stop and which checkpoint is the best. The test part is
/// measured once, at the end. [`crate::open`] splits the validation part off the training part. A dataset from
/// [`Dataset::new`] has none until [`Dataset::split_validation`] or [`Dataset::with_validation`]; without one, validations use
/// the test part.
///
/// ```
/// use plimsoll_data::datasets;
/// let digits = datasets::mnist()?;
/// assert_eq!(digits.train.len(), Some(14_400));
/// assert_eq!(digits.validation.as_ref().and_then(|part| part.len()), Some(1_600));
/// assert_eq!(digits.test.len(), Some(2_500));
/// assert_eq!(digits.resident_bytes(), (16_000 + 2_500) * (28 * 28 + 1)); // the split is a view
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Dataset {
    /// The name it was opened by.
    pub name: String,
    /// Training examples.
    pub train: Pipeline,
    /// Examples that validations use during training.
    pub validation: Option<Pipeline>,
    /// Test examples.
    pub test: Pipeline,
}

impl Dataset {
    /// A dataset from two sources or pipelines, without a validation part.
    pub fn new(name: impl Into<String>, train: impl Into<Pipeline>, test: impl Into<Pipeline>) -> Self {
        let (name, train, test) = (name.into(), train.into(), test.into());
        Self { name, train, validation: None, test }
    }

    /// The data with this validation part.
    pub fn with_validation(self, validation: impl Into<Pipeline>) -> Self {
        Self { validation: Some(validation.into()), ..self }
    }

    /// The data with a share of its training examples, spread evenly, as the validation part ([`Pipeline::hold_out`]).
    pub fn split_validation(self, share: f64) -> Result<Self, DataError> {
        let (train, held_out) = self.train.hold_out(share)?;
        Ok(Self { train, validation: Some(held_out), ..self })
    }

    /// The part that a run validates on: the validation part, or the test part where there is none.
    pub fn evaluation_part(&self) -> &Pipeline {
        self.validation.as_ref().unwrap_or(&self.test)
    }

    /// The parts: training, validation if there is one, test.
    pub fn parts(&self) -> impl Iterator<Item = &Pipeline> {
        std::iter::once(&self.train).chain(&self.validation).chain([&self.test])
    }

    /// The data with a stage or verb applied to every part.
    pub fn map_parts<E>(self, mut map: impl FnMut(Pipeline) -> Result<Pipeline, E>) -> Result<Self, E> {
        let train = map(self.train)?;
        let validation = self.validation.map(&mut map).transpose()?;
        Ok(Self { train, validation, test: map(self.test)?, ..self })
    }

    /// Heap bytes that the sources of all parts hold. A source that several parts share counts once.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Memory, Pipeline};
    /// let all = Pipeline::new(Memory::values(vec![[1.0f32; 2]; 10], vec![[1.0f32]; 10])?);
    /// let data = Dataset::new("points", all.clone().skip(2), all.take(2));
    /// assert_eq!(data.resident_bytes(), 120);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn resident_bytes(&self) -> usize {
        let mut counted = Counted::default();
        self.parts().map(|part| part.resident_bytes_once(&mut counted)).sum()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |part: &Pipeline| part.len().map_or("unknown".to_string(), |n| n.to_string());
        let counts: Vec<String> = self.parts().map(count).collect();
        write!(f, "Dataset({}, {} examples)", self.name, counts.join(" + "))
    }
}
