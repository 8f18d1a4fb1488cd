//! Examples from tensors in memory.

use crate::core::schema::check_types;
use crate::source::check_read;
use crate::{DataError, Record, Schema, Source};
use plimsoll_tensor::{Field, Tensor, TensorType};

/// Examples cut from tensors along their first axis: example `i` is row `i` of every input and of the labels.
///
/// ```
/// use plimsoll_data::{Memory, Source};
/// use plimsoll_tensor::Tensor;
/// let points = vec![[0.0f32, 0.1], [1.0, 1.1], [2.0, 2.1]];
/// let classes = Memory::classes(points.clone(), [0, 1, 1], 2)?; // the vector is not copied
/// assert_eq!(classes.schema().in_words(), "input f32[2], label i32[]");
/// let values = Memory::values(points.clone(), [0.5f32, 1.5, f32::NAN])?;
/// assert_eq!((values.len(), values.resident_bytes()), (3, 24 + 12));
/// // Several inputs, of any element type:
/// let inputs = vec![Tensor::from(points), Tensor::from([7, 8, 9])];
/// let both = Memory::new(inputs, [0, 1, 1], Some(2))?;
/// assert_eq!(both.schema().in_words(), "input f32[2], input1 i32[], label i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    inputs: Vec<Tensor>,
    /// `None`: zeros.
    labels: Option<Tensor>,
    len: usize,
    schema: Schema,
}

impl Memory {
    /// Examples of one input with classes as labels: integers below `classes`, negative where there is no label. Vectors
    /// and tensors are not copied, unless they are f64, which becomes f32, or labels of another type than i32.
    pub fn classes(
        input: impl Into<Tensor>,
        labels: impl Into<Tensor>,
        classes: usize,
    ) -> Result<Self, DataError> {
        let labels = class_labels(labels.into(), classes)?;
        Self::new(vec![single_precision(input.into())], labels, Some(classes))
    }

    /// Examples of one input with float values as targets, any number for each. Vectors and tensors are not copied, unless
    /// they are f64, which becomes f32.
    pub fn values(input: impl Into<Tensor>, targets: impl Into<Tensor>) -> Result<Self, DataError> {
        Self::new(vec![single_precision(input.into())], single_precision(targets.into()), None)
    }

    /// Examples of any number of inputs. Takes ownership of the tensors, without a copy. With `classes` the labels are i32
    /// below it, negative where there is no label; without, they are any f32 values, NaN included.
    pub fn new(
        inputs: Vec<Tensor>,
        labels: impl Into<Tensor>,
        classes: Option<usize>,
    ) -> Result<Self, DataError> {
        let labels = labels.into();
        check_types(inputs.len(), labels.ty(), classes)?;
        let len = common_examples(&inputs, Some(&labels))?;
        check_labels(&labels, len, classes)?;
        let field = |tensor: &Tensor, bound| Field { ty: one(tensor), bound };
        let schema = Schema::examples(inputs.iter().map(|input| field(input, None)), field(&labels, classes));
        Ok(Self { inputs, labels: Some(labels), len, schema })
    }

    /// Examples to predict: any number of inputs, and zeros of the model's target as labels.
    ///
    /// ```
    /// use plimsoll_data::{Field, Memory, Source};
    /// let points = Memory::unlabelled([vec![[0.0f32, 0.1], [1.0, 1.1]]], &Field::below(10, []))?;
    /// assert_eq!((points.len(), points.resident_bytes()), (2, 16));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn unlabelled(
        inputs: impl IntoIterator<Item = impl Into<Tensor>>,
        target: &Field,
    ) -> Result<Self, DataError> {
        let inputs: Vec<Tensor> = inputs.into_iter().map(|input| single_precision(input.into())).collect();
        check_types(inputs.len(), &target.ty, target.bound)?;
        let len = common_examples(&inputs, None)?;
        let fields = inputs.iter().map(|input| Field { ty: one(input), bound: None });
        let schema = Schema::examples(fields, target.clone());
        Ok(Self { inputs, labels: None, len, schema })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().chain(&self.labels)
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
        for (column, tensor) in self.tensors().enumerate() {
            copy(tensor, index, record.buffer_mut(column));
        }
        if self.labels.is_none() {
            record.buffer_mut(self.inputs.len()).fill(0);
        }
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.tensors().map(|tensor| tensor.as_bytes().len()).sum()
    }
}

/// The extent of the first axis, which all of these tensors share.
pub(crate) fn common_examples(inputs: &[Tensor], labels: Option<&Tensor>) -> Result<usize, DataError> {
    let name = |i| if i == inputs.len() { "the labels".to_string() } else { format!("input {i}") };
    let mut len = None;
    for (i, tensor) in inputs.iter().chain(labels).enumerate() {
        let Some(&found) = tensor.ty().shape.first() else {
            return Err(DataError::NoExamplesAxis { what: name(i), found: tensor.ty().clone() });
        };
        let expected = *len.get_or_insert(found);
        if found != expected {
            return Err(DataError::Examples { what: name(i), expected, found });
        }
    }
    match len.unwrap_or(0) {
        0 => Err(DataError::Empty { what: name(0) }),
        len => Ok(len),
    }
}

/// The tensor itself, or its f64 as f32, which models take.
fn single_precision(tensor: Tensor) -> Tensor {
    let rounded =
        tensor.as_slice::<f64>().map(|values| values.iter().map(|&x| x as f32).collect::<Vec<f32>>());
    rounded.and_then(|values| Tensor::new(&tensor.ty().shape[..], values).ok()).unwrap_or(tensor)
}

/// The labels as i32, if they are integers.
fn class_labels(labels: Tensor, classes: usize) -> Result<Tensor, DataError> {
    let narrow = |(index, &label): (usize, &i64)| {
        let outside = || DataError::Label { file: "labels".into(), index, label, classes };
        i32::try_from(label).map_err(|_| outside())
    };
    let narrowed = match (labels.as_slice::<u8>(), labels.as_slice::<i64>()) {
        (Some(bytes), _) => bytes.iter().copied().map(i32::from).collect(),
        (_, Some(words)) => words.iter().enumerate().map(narrow).collect::<Result<Vec<i32>, _>>()?,
        _ => return Ok(labels),
    };
    Ok(Tensor::new(&labels.ty().shape[..], narrowed).unwrap_or(labels))
}

/// Type of one example: the tensor's without its first axis.
fn one(tensor: &Tensor) -> TensorType {
    TensorType::new(tensor.ty().dtype, &tensor.ty().shape[1..])
}

fn copy(tensor: &Tensor, index: usize, into: &mut [u8]) {
    into.copy_from_slice(&tensor.as_bytes()[index * into.len()..][..into.len()]);
}

/// Checks that labels are below the number of classes.
fn check_labels(labels: &Tensor, len: usize, classes: Option<usize>) -> Result<(), DataError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_stay_where_they_lie() {
        let (x, y, labels) = (vec![[1.0f32, 2.0]; 3], vec![[3.0f32]; 3], vec![0, 1, 1]);
        let addresses = [x.as_ptr().cast::<u8>(), y.as_ptr().cast(), labels.as_ptr().cast()];
        let values = Memory::values(x, y).unwrap();
        assert_eq!(values.inputs[0].as_bytes().as_ptr(), addresses[0]);
        assert_eq!(values.labels.as_ref().unwrap().as_bytes().as_ptr(), addresses[1]);
        let classes = Memory::classes([[1.0f32]; 3], labels, 2).unwrap();
        assert_eq!(classes.labels.as_ref().unwrap().as_bytes().as_ptr(), addresses[2]);
    }

    #[test]
    fn labels_of_any_integer_are_classes_and_f64_becomes_f32() {
        let x = || [[0.5], [1.5], [2.5]];
        let wanted = Memory::classes([[0.5f32], [1.5], [2.5]], [0, 1, 1], 2).unwrap();
        for source in [Memory::classes(x(), [0u8, 1, 1], 2), Memory::classes(x(), [0i64, 1, 1], 2)] {
            let source = source.unwrap();
            assert_eq!((&source.inputs, &source.labels), (&wanted.inputs, &wanted.labels));
        }
        let values = Memory::values(x(), [0.25, 0.5, 1e300]).unwrap();
        assert_eq!(values.labels, Some(Tensor::from([0.25f32, 0.5, f32::INFINITY])));
        let error = Memory::classes(x(), [0i64, 1 << 40, 1], 2).unwrap_err();
        assert!(
            matches!(error, DataError::Label { index: 1, label: 0x100_0000_0000, classes: 2, .. }),
            "{error}"
        );
        assert!(matches!(Memory::classes(x(), [0u8, 2, 1], 2), Err(DataError::Label { index: 1, .. })));
        assert!(matches!(Memory::classes(x(), [0.0f32, 1.0, 1.0], 2), Err(DataError::LabelType { .. })));
    }
}
