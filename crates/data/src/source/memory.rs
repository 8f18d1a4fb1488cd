//! Examples from tensors in memory.

use crate::core::schema::check_types;
use crate::source::check_read;
use crate::{DataError, Record, Schema, Source};
use plimsoll_tensor::{Field, HostTensor, TensorType};

/// Examples cut from tensors along their first axis: example `i` is row `i` of every input and of the labels.
///
/// ```
/// use plimsoll_data::{Memory, Record, Source};
/// use plimsoll_tensor::HostTensor;
/// let tensor = |ty: &str, values: &[f64]| HostTensor::from_f64(ty.parse().unwrap(), values).unwrap();
/// let points = tensor("f32[3,2]", &[0.0, 0.1, 1.0, 1.1, 2.0, 2.1]);
/// let kinds = tensor("i32[3]", &[7.0, 8.0, 9.0]);
/// let heights = tensor("f32[3]", &[0.5, 1.5, f64::NAN]);
/// let source = Memory::new(vec![points, kinds], heights, None)?;
/// assert_eq!((source.len(), source.resident_bytes()), (3, 24 + 12 + 12));
///
/// let mut bytes = vec![0; source.schema().capacity()];
/// let mut record = Record::over(source.schema(), &mut bytes);
/// source.read(1, &mut record, &mut [])?;
/// assert_eq!((record.i32(1), record.bytes(2)), (Some(8), &1.5f32.to_ne_bytes()[..]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    inputs: Vec<HostTensor>,
    labels: HostTensor,
    len: usize,
    schema: Schema,
}

impl Memory {
    /// Takes ownership of the tensors, without a copy. With `classes` the labels are i32 below it, negative where there
    /// is no label; without, they are any f32 values, NaN included.
    pub fn new(
        inputs: Vec<HostTensor>,
        labels: HostTensor,
        classes: Option<usize>,
    ) -> Result<Self, DataError> {
        check_types(inputs.len(), labels.ty(), classes)?;
        let name = |i| if i == inputs.len() { "the labels".to_string() } else { format!("input {i}") };
        let mut len = None;
        for (i, tensor) in inputs.iter().chain([&labels]).enumerate() {
            let Some(&found) = tensor.ty().shape.first() else {
                return Err(DataError::NoExamplesAxis { what: name(i), found: tensor.ty().clone() });
            };
            let expected = *len.get_or_insert(found);
            if found != expected {
                return Err(DataError::Examples { what: name(i), expected, found });
            }
        }
        let len = len.unwrap_or(0);
        if len == 0 {
            return Err(DataError::Empty { what: name(0) });
        }
        check_labels(&labels, len, classes)?;
        let field = |tensor: &HostTensor, bound| Field { ty: one(tensor), bound };
        let schema = Schema::examples(inputs.iter().map(|input| field(input, None)), field(&labels, classes));
        Ok(Self { inputs, labels, len, schema })
    }
}

impl Source for Memory {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        for (column, tensor) in self.inputs.iter().chain([&self.labels]).enumerate() {
            copy(tensor, index, record.buffer_mut(column));
        }
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.inputs.iter().chain([&self.labels]).map(|tensor| tensor.as_bytes().len()).sum()
    }
}

/// Type of one example: the tensor's without its first axis.
fn one(tensor: &HostTensor) -> TensorType {
    TensorType::new(tensor.ty().dtype, &tensor.ty().shape[1..])
}

fn copy(tensor: &HostTensor, index: usize, into: &mut [u8]) {
    into.copy_from_slice(&tensor.as_bytes()[index * into.len()..][..into.len()]);
}

/// Checks that labels are below the number of classes.
fn check_labels(labels: &HostTensor, len: usize, classes: Option<usize>) -> Result<(), DataError> {
    let (Some(classes), Some(elements)) = (classes, labels.as_i32()) else { return Ok(()) };
    let past = |&label: &i32| usize::try_from(label).is_ok_and(|label| label >= classes);
    match elements.iter().position(past) {
        Some(place) => {
            // Each example has the same number of labels.
            let (index, label) = (place / (elements.len() / len), i64::from(elements[place]));
            Err(DataError::Label { file: "labels".into(), index, label, classes })
        }
        None => Ok(()),
    }
}
