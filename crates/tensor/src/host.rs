//! Tensors in host memory: the inputs and outputs of a run.

use crate::round::narrow;
use crate::{DType, TensorType, bf16, f16};
use bytemuck::cast_slice;
use thiserror::Error;

/// A tensor that owns its bytes in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    ty: TensorType,
    data: Data,
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
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

impl HostTensor {
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

    /// The elements, if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        if let Data::F32(v) = &self.data { Some(v) } else { None }
    }

    /// The elements, if they are i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        if let Data::I32(v) = &self.data { Some(v) } else { None }
    }
}
