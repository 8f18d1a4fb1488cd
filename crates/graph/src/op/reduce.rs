//! Reductions over neighbouring axes; reduced axes stay with extent one.

use super::{Family, arity, require};
use crate::{Flow, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// A reduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// Sum over the axes `start..end`, each left with extent one. Over the examples it folds block by block.
    Sum {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// Index of the first largest element along the last axis, which goes; i32. NaN counts as largest.
    Argmax,
}

impl Family for Reduce {
    fn name(&self) -> &'static str {
        match self {
            Self::Sum { .. } => "sum",
            Self::Argmax => "argmax",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let [x] = arity(inputs)?;
        match *self {
            Self::Sum { start, end } => {
                require(x.dtype.is_float(), || format!("needs a float, not {}", x.dtype))?;
                require(start < end && end <= x.shape.rank(), || format!("{x} has no axes {start}..{end}"))?;
                let mut shape = x.shape.to_vec();
                shape[start..end].fill(1);
                Ok(vec![TensorType::new(x.dtype, shape)])
            }
            Self::Argmax => {
                require(x.shape.last().is_some_and(|&n| n > 0), || {
                    format!("{x} has no last axis to search")
                })?;
                Ok(vec![TensorType::new(DType::I32, &x.shape[..x.shape.rank() - 1])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }

    fn flow(&self, _: &[bool], inputs: &[&TensorType]) -> Vec<Flow> {
        vec![match *self {
            Self::Sum { start: 0, .. } => Flow::Folded,
            Self::Argmax if inputs[0].shape.rank() == 1 => Flow::Mixed,
            _ => Flow::PerExample,
        }]
    }

    fn folds(&self) -> &'static [usize] {
        if matches!(self, Self::Sum { start: 0, .. }) { &[0] } else { &[] }
    }
}
