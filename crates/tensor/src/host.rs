//! Tensors in host memory: the inputs and outputs of a run.

use crate::element::{Element, Nested};
use crate::round::narrow;
use crate::{DType, Shape, TensorType, bf16, f16};
use bytemuck::cast_slice;
use thiserror::Error;

/// A tensor that owns its elements in host memory.
///
/// Vectors and nested arrays become tensors; a vector stays where it lies. The element type is the vector's: a literal
/// without a suffix is f64 or i32, so write `1.0f32`, or name the type.
///
/// ```
/// use plimsoll_tensor::Tensor;
/// let points = Tensor::from(vec![[0.0f32, 0.1], [1.0, 1.1], [2.0, 2.1]]);
/// let labels = Tensor::from([0, 1, 1]);
/// let pixels = Tensor::new([2, 2, 1], vec![0u8, 64, 128, 255])?;
/// let zeros = Tensor::new::<f32>([2], [0.0, 0.0])?;
/// assert_eq!([&points, &labels, &pixels, &zeros].map(|t| t.ty().to_string()), ["f32[3,2]", "i32[3]", "u8[2,2,1]", "f32[2]"]);
/// assert_eq!(points.as_slice::<f32>(), Some(&[0.0, 0.1, 1.0, 1.1, 2.0, 2.1][..]));
/// assert_eq!(points.reshape([6])?.into_vec::<f32>().unwrap().len(), 6);
/// # Ok::<(), plimsoll_tensor::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    ty: TensorType,
    data: Data,
}

/// The elements, in a vector of their type.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    /// One byte each, 0 or 1.
    Bool(Vec<u8>),
}

/// Why a host tensor could not be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TensorError {
    /// The number of elements does not match the shape.
    #[error("{ty} holds {} elements, {found} were given", ty.shape.elements())]
    Elements {
        /// The type asked for.
        ty: TensorType,
        /// Elements given.
        found: usize,
    },
}

/// Evaluates `$body` with `$v` bound to the vector of the data's element type.
macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F32($v) => $body,
            Data::BF16($v) => $body,
            Data::F16($v) => $body,
            Data::F64($v) => $body,
            Data::I32($v) => $body,
            Data::I64($v) => $body,
            Data::U8($v) => $body,
            Data::Bool($v) => $body,
        }
    };
}

impl Tensor {
    /// A tensor of this shape from its elements in row-major order. A vector is not copied; slices and arrays are.
    pub fn new<T: Element>(
        shape: impl Into<Shape>,
        elements: impl Into<Vec<T>>,
    ) -> Result<Self, TensorError> {
        let (ty, elements) = (TensorType::new(T::DTYPE, shape), elements.into());
        if elements.len() != ty.shape.elements() {
            return Err(TensorError::Elements { ty, found: elements.len() });
        }
        Ok(Self { ty, data: T::store(elements) })
    }

    /// The same elements under another shape, without a copy.
    pub fn reshape(self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let ty = TensorType::new(self.ty.dtype, shape);
        let found = self.ty.shape.elements();
        if found != ty.shape.elements() {
            return Err(TensorError::Elements { ty, found });
        }
        Ok(Self { ty, data: self.data })
    }

    /// A tensor of zeros.
    pub fn zeros(ty: TensorType) -> Self {
        let n = ty.shape.elements();
        let data = match ty.dtype {
            DType::F32 => Data::F32(vec![0.0; n]),
            DType::BF16 => Data::BF16(vec![bf16::ZERO; n]),
            DType::F16 => Data::F16(vec![f16::ZERO; n]),
            DType::F64 => Data::F64(vec![0.0; n]),
            DType::I32 => Data::I32(vec![0; n]),
            DType::I64 => Data::I64(vec![0; n]),
            DType::U8 => Data::U8(vec![0; n]),
            DType::Bool => Data::Bool(vec![0; n]),
        };
        Self { ty, data }
    }

    /// A tensor from f64 values, rounded (integers: truncated) to the element type.
    pub fn from_f64(ty: TensorType, values: &[f64]) -> Result<Self, TensorError> {
        if values.len() != ty.shape.elements() {
            return Err(TensorError::Elements { ty, found: values.len() });
        }
        let data = match ty.dtype {
            DType::F32 => Data::F32(values.iter().map(|&x| x as f32).collect()),
            DType::BF16 => Data::BF16(values.iter().map(|&x| bf16::from_f32(narrow(x))).collect()),
            DType::F16 => Data::F16(values.iter().map(|&x| f16::from_f32(narrow(x))).collect()),
            DType::F64 => Data::F64(values.to_vec()),
            DType::I32 => Data::I32(values.iter().map(|&x| x as i32).collect()),
            DType::I64 => Data::I64(values.iter().map(|&x| x as i64).collect()),
            DType::U8 => Data::U8(values.iter().map(|&x| x as u8).collect()),
            DType::Bool => Data::Bool(values.iter().map(|&x| u8::from(x != 0.0)).collect()),
        };
        Ok(Self { ty, data })
    }

    /// The elements as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::F64(v) => v.clone(),
            Data::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Data::U8(v) | Data::Bool(v) => v.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// Type of this tensor.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The bytes, in native order.
    pub fn as_bytes(&self) -> &[u8] {
        each!(&self.data, v => cast_slice(v))
    }

    /// The bytes, in native order, writable. Booleans must stay 0 or 1.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        each!(&mut self.data, v => bytemuck::cast_slice_mut(v))
    }

    /// Overwrites the content with bytes in native order; the length must be the type's.
    ///
    /// # Panics
    /// If the length differs from [`TensorType::bytes`].
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.ty.bytes(), "bytes of {}", self.ty);
        match &mut self.data {
            Data::Bool(v) => v.iter_mut().zip(bytes).for_each(|(x, &b)| *x = u8::from(b != 0)),
            data => each!(data, v => bytemuck::cast_slice_mut(v).copy_from_slice(bytes)),
        }
    }

    /// The elements in row-major order, if they are of this type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::stored(&self.data)
    }

    /// The vector of the elements, without a copy, or the tensor itself if they are of another type.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, Self> {
        let ty = self.ty;
        T::take(self.data).map_err(|data| Self { ty, data })
    }

    /// The elements, if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        self.as_slice()
    }

    /// The elements, if they are i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        self.as_slice()
    }
}

/// A row for each element of the vector, which is not copied.
impl<R: Nested> From<Vec<R>> for Tensor {
    fn from(rows: Vec<R>) -> Self {
        let shape = [&[rows.len()], &R::extents()[..]].concat();
        let data = <R::Element as crate::element::sealed::Stored>::store(R::flatten(rows));
        Self { ty: TensorType::new(R::Element::DTYPE, shape), data }
    }
}

/// A row for each element of the slice.
impl<R: Nested> From<&[R]> for Tensor {
    fn from(rows: &[R]) -> Self {
        rows.to_vec().into()
    }
}

/// A row for each element of the array.
impl<R: Nested, const N: usize> From<[R; N]> for Tensor {
    fn from(rows: [R; N]) -> Self {
        Vec::from(rows).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector's elements stay at their address, whatever they are and however they are nested.
    #[test]
    fn a_vector_becomes_a_tensor_without_a_copy() {
        fn check<T: Element>(elements: Vec<T>) {
            let (address, count) = (elements.as_ptr().cast::<u8>(), elements.len());
            let tensor = Tensor::new([count / 2, 2], elements).unwrap();
            assert_eq!(tensor.as_bytes().as_ptr(), address);
            assert_eq!(tensor.as_slice::<T>().unwrap().len(), count);
            let elements = tensor.reshape([count]).unwrap().into_vec::<T>().unwrap();
            assert_eq!(Tensor::from(elements).as_bytes().as_ptr(), address);
        }
        check(vec![1.0f32; 6]);
        check(vec![bf16::ONE; 6]);
        check(vec![f16::ONE; 6]);
        check(vec![1.0f64; 6]);
        check(vec![1i32; 6]);
        check(vec![1i64; 6]);
        check(vec![1u8; 6]);
        let rows = vec![[[1.0f32; 3]; 2]; 4];
        let address = rows.as_ptr().cast::<u8>();
        let tensor = Tensor::from(rows);
        assert_eq!((tensor.as_bytes().as_ptr(), tensor.ty().to_string().as_str()), (address, "f32[4,2,3]"));
    }

    #[test]
    fn nested_arrays_are_row_major() {
        let tensor = Tensor::from([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]);
        assert_eq!(tensor.ty().to_string(), "i32[2,2,2]");
        assert_eq!(tensor.as_i32(), Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
        assert_eq!(Tensor::from(&[[1u8], [2]][..]).ty().to_string(), "u8[2,1]");
        let none: [[f32; 2]; 0] = [];
        assert_eq!(Tensor::from(none).ty().to_string(), "f32[0,2]");
        assert_eq!(Tensor::from([[0.0f32; 0]; 3]).ty().to_string(), "f32[3,0]");
    }

    #[test]
    fn a_wrong_number_of_elements_is_an_error() {
        let error = Tensor::new([2, 3], vec![0.0f32; 5]).unwrap_err().to_string();
        assert_eq!(error, "f32[2,3] holds 6 elements, 5 were given");
        let error = Tensor::from([1, 2]).reshape([3]).unwrap_err().to_string();
        assert_eq!(error, "i32[3] holds 3 elements, 2 were given");
        let huge = Tensor::new([usize::MAX, 2], vec![1u8; 2]).unwrap_err();
        assert!(matches!(huge, TensorError::Elements { found: 2, .. }));
    }

    #[test]
    fn elements_of_another_type_are_refused() {
        let tensor = Tensor::from([1, 2]);
        assert_eq!((tensor.as_f32(), tensor.as_slice::<i64>()), (None, None));
        assert_eq!(tensor.into_vec::<u8>().unwrap_err(), Tensor::from([1, 2]));
    }
}
