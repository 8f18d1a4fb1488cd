//! Floats quantised to bytes, block by block.

use super::{Family, Properties, arity, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{CODE_BLOCK, DType, TensorType};
use serde::{Deserialize, Serialize};

/// Floats as one byte each, with a scale for every [`CODE_BLOCK`] elements, in order: the largest magnitude of the block.
/// `plimsoll_tensor::code_values` lists the fraction of the scale that each byte stands for. For optimizer states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantise {
    /// `x → (codes u8, scales)`: the code nearest to `x / scale`, the lower one of two. Without a sign, a positive number
    /// does not become zero.
    Encode {
        /// Whether there are codes for numbers below zero.
        signed: bool,
    },
    /// `(codes, scales) → x`: what the codes stand for, times their scales.
    Decode {
        /// Whether there are codes for numbers below zero.
        signed: bool,
    },
}

impl Family for Quantise {
    fn name(&self) -> &'static str {
        match self {
            Self::Encode { .. } => "quantise",
            Self::Decode { .. } => "dequantise",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let blocks = |ty: &TensorType| ty.shape.elements().div_ceil(CODE_BLOCK);
        match self {
            Self::Encode { .. } => {
                let [x] = arity(inputs)?;
                require(x.dtype.is_float(), || format!("needs a float, not {}", x.dtype))?;
                let codes = TensorType::new(DType::U8, x.shape.clone());
                Ok(vec![codes, TensorType::new(x.dtype, [blocks(x)])])
            }
            Self::Decode { .. } => {
                let [codes, scales] = arity(inputs)?;
                require(codes.dtype == DType::U8, || format!("codes must be u8, not {}", codes.dtype))?;
                let fits = scales.dtype.is_float() && scales.shape[..] == [blocks(codes)];
                require(fits, || format!("needs {} scales, has {scales}", blocks(codes)))?;
                Ok(vec![TensorType::new(scales.dtype, codes.shape.clone())])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let each = if matches!(self, Self::Encode { .. }) { 16 } else { 2 };
        each * inputs[0].shape.elements() as u64
    }

    /// A block may hold elements of several examples.
    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        vec![BatchRelation::Mixed; if matches!(self, Self::Encode { .. }) { 2 } else { 1 }]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Encode { .. } | Self::Decode { .. } => Properties::GENERAL,
        }
    }
}
