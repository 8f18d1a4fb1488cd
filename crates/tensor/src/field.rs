//! The inputs and targets of one example.

use crate::{DType, Shape, TensorType};

/// One input or target of one example: its type and, for integers, their bound.
///
/// ```
/// use plimsoll_tensor::Field;
/// let (image, label) = (Field::floats([28, 28, 1]), Field::below(10, []));
/// assert_eq!((image.ty.bytes(), label.ty.bytes()), (28 * 28 * 4, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its type, without the batch axis. In a model, f32 stands for the run's float type.
    pub ty: TensorType,
    /// For integers (tokens, classes): an exclusive upper bound. A negative class means that there is no label.
    pub bound: Option<usize>,
}

impl Field {
    /// Floats of this shape.
    pub fn floats(shape: impl Into<Shape>) -> Self {
        Self { ty: TensorType::new(DType::F32, shape), bound: None }
    }

    /// Integers below `bound`: tokens or classes.
    pub fn below(bound: usize, shape: impl Into<Shape>) -> Self {
        Self { ty: TensorType::new(DType::I32, shape), bound: Some(bound) }
    }
}
