//! Tensors from and to arrays of the crate `ndarray`.

use crate::{Element, Tensor};
use ndarray::{Array, ArrayD, ArrayView, Dimension, IxDyn};

/// The array's elements in row-major order. An array that lies in this order is not copied.
///
/// ```
/// use ndarray::array;
/// use plimsoll_tensor::Tensor;
/// let matrix = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let address = matrix.as_ptr().cast::<u8>();
/// let tensor = Tensor::from(matrix);
/// assert_eq!((tensor.ty().to_string().as_str(), tensor.as_bytes().as_ptr()), ("f32[2,3]", address));
/// let back = tensor.into_array::<f32>().unwrap();
/// assert_eq!((back.shape(), back[[1, 0]], back.as_ptr().cast::<u8>()), (&[2, 3][..], 4.0, address));
/// ```
impl<T: Element, D: Dimension> From<Array<T, D>> for Tensor {
    fn from(array: Array<T, D>) -> Self {
        let (shape, count) = (array.shape().to_vec(), array.len());
        if !array.is_standard_layout() {
            return array.view().into();
        }
        let (mut elements, start) = array.into_raw_vec_and_offset();
        // An array may be a part of its vector.
        elements.truncate(start.unwrap_or(0) + count);
        elements.drain(..start.unwrap_or(0));
        Self::new(shape, elements).expect("an array has as many elements as its shape")
    }
}

/// A copy of the elements, in row-major order.
impl<T: Element, D: Dimension> From<ArrayView<'_, T, D>> for Tensor {
    fn from(array: ArrayView<'_, T, D>) -> Self {
        let elements: Vec<T> = array.iter().copied().collect();
        Self::new(array.shape(), elements).expect("an array has as many elements as its shape")
    }
}

impl Tensor {
    /// The tensor as an array, without a copy, or the tensor itself if its elements are of another type.
    pub fn into_array<T: Element>(self) -> Result<ArrayD<T>, Self> {
        let shape = IxDyn(&self.ty().shape);
        let elements = self.into_vec()?;
        Ok(ArrayD::from_shape_vec(shape, elements).expect("a tensor has as many elements as its shape"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, s};

    #[test]
    fn an_array_in_another_order_keeps_its_elements() {
        let matrix = Array2::from_shape_fn((2, 3), |(i, j)| (10 * i + j) as i32);
        let transposed = Tensor::from(matrix.clone().reversed_axes());
        assert_eq!(transposed, Tensor::from([[0, 10], [1, 11], [2, 12]]));
        assert_eq!(Tensor::from(matrix.slice(s![.., ..;2])), Tensor::from([[0, 2], [10, 12]]));
        assert_eq!(Tensor::from(matrix.clone().slice_move(s![1.., ..])), Tensor::from([[10, 11, 12]]));
        assert_eq!(Tensor::from(matrix.clone().slice_move(s![..1, ..])), Tensor::from([[0, 1, 2]]));
        assert_eq!(Tensor::from(matrix.slice_move(s![.., ..;-1])), Tensor::from([[2, 1, 0], [12, 11, 10]]));
    }

    #[test]
    fn an_array_has_its_tensors_type() {
        assert!(Tensor::from([1u8]).into_array::<f32>().is_err());
        assert_eq!(Tensor::from([[1u8, 2]]).into_array::<u8>().unwrap().shape(), [1, 2]);
    }
}
