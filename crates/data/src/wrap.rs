//! Stages that give other labels or another shape to the same examples.

use crate::{DataError, Kind, Record, Schema, Stage};
use plimsoll_tensor::{DType, Field, TensorType, random::Stream};

/// Gives each example its input as its label: what an autoencoder learns from.
///
/// ```
/// use plimsoll_data::{Itself, OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?.train.apply(Itself)?;
/// assert_eq!(digits.schema().in_words(), "input f32[28,28,1], label f32[28,28,1]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Itself;

impl Stage for Itself {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        match input.fields()? {
            (inputs, _) if inputs.len() == 1 && inputs[0].ty.dtype == DType::F32 => {
                Ok(Schema::examples([inputs[0].clone()], inputs[0].clone()))
            }
            _ => {
                let reason = "needs examples of one float input".to_string();
                Err(DataError::Option { option: "the input as its own label", reason })
            }
        }
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        output.put(0, input.bytes(0))?;
        output.put(1, input.bytes(0))
    }
}

/// Hides some of the tokens of a text: what a masked language model learns from. Of 15 % of the positions, drawn anew for
/// each example of each epoch, 80 % show the mask, 10 % another token and 10 % their own; only they have labels.
///
/// ```
/// use plimsoll_data::{Cursor, Field, Masked, Pipeline, Synthetic, SyntheticSpec};
/// let tokens = Field::below(256, [64]);
/// let text = Synthetic::new(SyntheticSpec { inputs: vec![tokens.clone()], label: tokens }, 10, 0, 0)?;
/// let masked = Pipeline::new(text).apply(Masked { tokens: 256, seed: 7 })?;
/// assert_eq!(masked.schema().classes(), Some(257)); // the mask is one token more
/// let mut batches = masked.start(Cursor::default())?;
/// let labels = batches.next()?.expect("a batch").label_tensor();
/// assert!(labels.as_i32().unwrap().iter().any(|&label| label < 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Masked {
    /// Tokens of the text; the mask is the one after them.
    pub tokens: u32,
    /// What is hidden follows from it.
    pub seed: u64,
}

impl Stage for Masked {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let (inputs, label) = input.fields()?;
        let tokens = self.tokens as usize;
        let alike = inputs.len() == 1 && inputs[0].ty == label.ty && label.ty.dtype == DType::I32;
        if !alike || label.bound != Some(tokens) || tokens == 0 || tokens > (u32::MAX / 10) as usize {
            let reason = format!("needs one input of tokens below {tokens}, with a label for each");
            return Err(DataError::Option { option: "masked text", reason });
        }
        let field = Field { ty: label.ty.clone(), bound: Some(tokens + 1) };
        Ok(Schema::examples([field.clone()], field))
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let stream = Stream::new(self.seed, input.place.epoch, "mask");
        let example = input.place.number;
        output.put(0, input.bytes(0))?;
        for (i, token) in input.bytes(0).chunks_exact(4).enumerate() {
            let position = 4 * i..4 * i + 4;
            // Two numbers for a position: whether it is hidden, and what is shown.
            let (hidden, shown) = (stream.uniform(example, 2 * i as u64), 2 * i as u64 + 1);
            if hidden >= 0.15 {
                output.room(1)[position].copy_from_slice(&(-1i32).to_ne_bytes());
                continue;
            }
            output.room(1)[position.clone()].copy_from_slice(token);
            let other = stream.below(example, shown, 10 * self.tokens);
            let visible = match other / self.tokens {
                0 => Some(other % self.tokens),
                1 => None,
                _ => Some(self.tokens),
            };
            if let Some(visible) = visible {
                output.room(0)[position].copy_from_slice(&visible.to_ne_bytes());
            }
        }
        Ok(())
    }
}

/// Gives the first input another shape of as many elements.
///
/// ```
/// use plimsoll_data::{OpenOptions, Shaped, open};
/// let digits = open("mnist", &OpenOptions::default())?.train.apply(Shaped::new([784]))?;
/// assert_eq!(digits.schema().in_words(), "input f32[784], label i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shaped {
    shape: Vec<usize>,
}

impl Shaped {
    /// This shape of one example.
    pub fn new(shape: impl Into<Vec<usize>>) -> Self {
        Self { shape: shape.into() }
    }
}

impl Stage for Shaped {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let mut columns = input.columns().iter();
        let first = columns.next().map(|column| (&column.name, &column.kind));
        match first {
            Some((name, Kind::Tensor(field))) if Some(field.ty.shape.elements()) == elements(&self.shape) => {
                let ty = TensorType::new(field.ty.dtype, self.shape.clone());
                let first = Schema::new().tensor(name, Field { ty, bound: field.bound });
                Ok(columns.fold(first, |schema, column| schema.column(&column.name, column.kind.clone())))
            }
            _ => {
                let reason =
                    format!("{:?} holds another number of elements than {}", self.shape, input.in_words());
                Err(DataError::Option { option: "shape", reason })
            }
        }
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        output.copy_from(input)
    }
}

fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |elements, n| elements.checked_mul(*n))
}
