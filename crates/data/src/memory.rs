//! Examples from tensors in memory.

use crate::{
    DataError, Source,
    source::{check_read, check_types},
};
use plimsoll_tensor::{HostTensor, TensorType};

/// Examples cut from tensors along their first axis: example `i` is row `i` of every input and of the labels.
///
/// ```
/// use plimsoll_data::{Memory, Source};
/// use plimsoll_tensor::HostTensor;
/// let tensor = |ty: &str, values: &[f64]| HostTensor::from_f64(ty.parse().unwrap(), values).unwrap();
/// let points = tensor("f32[3,2]", &[0.0, 0.1, 1.0, 1.1, 2.0, 2.1]);
/// let kinds = tensor("i32[3]", &[7.0, 8.0, 9.0]);
/// let heights = tensor("f32[3]", &[0.5, 1.5, f64::NAN]);
/// let source = Memory::new(vec![points, kinds], heights, None)?;
/// assert_eq!((source.len(), source.resident_bytes()), (3, 24 + 12 + 12));
///
/// let (mut point, mut kind, mut height) = ([0; 8], [0; 4], [0; 4]);
/// source.read(1, &mut [&mut point, &mut kind], &mut height)?;
/// assert_eq!((i32::from_ne_bytes(kind), f32::from_ne_bytes(height)), (8, 1.5));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    inputs: Vec<HostTensor>,
    labels: HostTensor,
    classes: Option<usize>,
    len: usize,
    /// Bytes of one example.
    input_bytes: Vec<usize>,
    label_bytes: usize,
}

impl Memory {
    /// Takes the tensors as they are, without a copy. With `classes` the labels are i32 below it, negative where there
    /// is no label; without, they are f32 values of any kind, NaN included.
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
        let each = |tensor: &HostTensor| tensor.ty().bytes() / len;
        let (input_bytes, label_bytes) = (inputs.iter().map(each).collect(), each(&labels));
        Ok(Self { inputs, labels, classes, len, input_bytes, label_bytes })
    }
}

impl Source for Memory {
    fn len(&self) -> usize {
        self.len
    }

    fn input_types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(one).collect()
    }

    fn label_type(&self) -> TensorType {
        one(&self.labels)
    }

    fn classes(&self) -> Option<usize> {
        self.classes
    }

    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        check_read((index, self.len), (inputs, &self.input_bytes), (label, self.label_bytes))?;
        for (tensor, input) in self.inputs.iter().zip(inputs) {
            copy(tensor, index, input);
        }
        copy(&self.labels, index, label);
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

/// Refuses a class that is not there.
fn check_labels(labels: &HostTensor, len: usize, classes: Option<usize>) -> Result<(), DataError> {
    let (Some(classes), Some(elements)) = (classes, labels.as_i32()) else { return Ok(()) };
    let past = |&label: &i32| usize::try_from(label).is_ok_and(|label| label >= classes);
    match elements.iter().position(past) {
        Some(place) => {
            // Each example has as many labels.
            let (index, label) = (place / (elements.len() / len), i64::from(elements[place]));
            Err(DataError::Label { file: "labels".into(), index, label, classes })
        }
        None => Ok(()),
    }
}
