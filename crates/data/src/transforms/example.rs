//! Stages that change the label or the shape of examples.

use crate::{DataError, Kind, Record, Schema, Stage};
use plimsoll_tensor::{DType, Field, TensorType};

/// Makes the input its own label, for autoencoders.
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

/// Reshapes the first input.
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
    /// The new shape of one example.
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
