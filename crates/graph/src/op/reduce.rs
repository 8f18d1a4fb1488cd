//! Reductions, cumulative sums and the order of elements.

use super::{Family, PrecisionClass, Properties, arity, per_example, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// A reduction, or another op along whole axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// Sum over the axes `start..end`, each left with extent one; f32 of 16-bit floats. Over the batch axis it folds block by
    /// block.
    Sum {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// Sum of squares over the axes `start..end`, each left with extent one. Not over the batch axis.
    SquareSum {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// The largest over the axes `start..end`, each left with extent one; NaN if there is one. Of a bool:
    /// whether any is true.
    Max {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// The smallest over the axes `start..end`, each left with extent one; NaN if there is one. Of a bool:
    /// whether all are true.
    Min {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// Product over the axes `start..end`, each left with extent one; one if there are no elements.
    Product {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// `(x, dy) → dx`: the gradient of [`Reduce::Product`], dy times the product of all elements but the one.
    ProductGrad {
        /// First axis.
        start: usize,
        /// One past the last axis.
        end: usize,
    },
    /// Index of the first largest element along the last axis, which is dropped; i32. NaN counts as largest.
    Argmax,
    /// Index of the first smallest element along the last axis, which is dropped; i32. NaN counts as smallest.
    Argmin,
    /// Element i along an axis is the sum of the elements up to i, itself included; with `reverse`, from i on.
    CumulativeSum {
        /// The axis.
        axis: usize,
        /// Whether to sum from the end.
        reverse: bool,
    },
    /// `x [.., n] → (values [.., k], indices i32 [.., k])`: the k largest along the last axis, largest first. Of equal
    /// ones the first comes first; NaN counts as largest.
    TopK {
        /// How many.
        k: usize,
    },
}

impl Family for Reduce {
    fn name(&self) -> &'static str {
        match self {
            Self::Sum { .. } => "sum",
            Self::SquareSum { .. } => "square_sum",
            Self::Max { .. } => "reduce_max",
            Self::Min { .. } => "reduce_min",
            Self::Product { .. } => "product",
            Self::ProductGrad { .. } => "product_grad",
            Self::Argmax => "argmax",
            Self::Argmin => "argmin",
            Self::CumulativeSum { .. } => "cumulative_sum",
            Self::TopK { .. } => "top_k",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Self::Sum { start, end } => {
                let [x] = arity(inputs)?;
                require_float(x)?;
                Ok(vec![TensorType::new(x.dtype.wide(), reduced(x, start, end)?.shape)])
            }
            Self::SquareSum { start, end } | Self::Product { start, end } => {
                let [x] = arity(inputs)?;
                require_float(x)?;
                Ok(vec![reduced(x, start, end)?])
            }
            Self::Max { start, end } | Self::Min { start, end } => {
                let [x] = arity(inputs)?;
                require(x.dtype.is_float() || matches!(x.dtype, DType::I32 | DType::Bool), || {
                    format!("needs a float, i32 or bool, not {}", x.dtype)
                })?;
                let y = reduced(x, start, end)?;
                require(!x.shape[start..end].contains(&0), || format!("{x} has nothing to choose from"))?;
                Ok(vec![y])
            }
            Self::ProductGrad { start, end } => {
                let [x, dy] = arity(inputs)?;
                require_float(x)?;
                let y = reduced(x, start, end)?;
                require(*dy == y, || format!("the gradient must be {y}, it is {dy}"))?;
                Ok(vec![x.clone()])
            }
            Self::Argmax | Self::Argmin => {
                let [x] = arity(inputs)?;
                require(x.shape.last().is_some_and(|&n| n > 0), || {
                    format!("{x} has no last axis to search")
                })?;
                Ok(vec![TensorType::new(DType::I32, &x.shape[..x.shape.rank() - 1])])
            }
            Self::CumulativeSum { axis, .. } => {
                let [x] = arity(inputs)?;
                require_float(x)?;
                require(axis < x.shape.rank(), || format!("{x} has no axis {axis}"))?;
                Ok(vec![x.clone()])
            }
            Self::TopK { k } => {
                let [x] = arity(inputs)?;
                require(x.shape.last().is_some_and(|&n| n >= k), || {
                    format!("{x} has no last axis of at least {k}")
                })?;
                let shape = [&x.shape[..x.shape.rank() - 1], &[k]].concat();
                Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I32, shape)])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let elements = inputs[0].shape.elements() as u64;
        match *self {
            Self::ProductGrad { .. } => 4 * elements,
            Self::SquareSum { .. } => 2 * elements,
            Self::TopK { k } => elements * (1 + u64::from(k.max(1).ilog2())),
            Self::Sum { .. }
            | Self::Max { .. }
            | Self::Min { .. }
            | Self::Product { .. }
            | Self::Argmax
            | Self::Argmin
            | Self::CumulativeSum { .. } => elements,
        }
    }

    fn batch_relation(&self, _: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        let over_batch = match *self {
            Self::Sum { start: 0, .. } => return vec![BatchRelation::Reduced],
            Self::Sum { start, .. }
            | Self::SquareSum { start, .. }
            | Self::Max { start, .. }
            | Self::Min { start, .. }
            | Self::Product { start, .. }
            | Self::ProductGrad { start, .. } => start == 0,
            Self::Argmax | Self::Argmin | Self::TopK { .. } => inputs[0].shape.rank() == 1,
            Self::CumulativeSum { axis, .. } => axis == 0,
        };
        let outputs = if matches!(self, Self::TopK { .. }) { 2 } else { 1 };
        if over_batch { vec![BatchRelation::Mixed; outputs] } else { per_example(outputs) }
    }

    fn properties(&self) -> Properties {
        let precision = PrecisionClass { extends_chain: true, ..PrecisionClass::WIDE };
        let folds: &[usize] = match self {
            Self::Sum { start: 0, .. } => &[0],
            Self::Sum { .. }
            | Self::SquareSum { .. }
            | Self::Max { .. }
            | Self::Min { .. }
            | Self::Product { .. }
            | Self::ProductGrad { .. }
            | Self::Argmax
            | Self::Argmin
            | Self::CumulativeSum { .. }
            | Self::TopK { .. } => &[],
        };
        Properties { precision, folds, ..Properties::GENERAL }
    }
}

fn require_float(x: &TensorType) -> Result<(), TypeError> {
    require(x.dtype.is_float(), || format!("needs a float, not {}", x.dtype))
}

/// The type with the axes `start..end` at extent one.
fn reduced(x: &TensorType, start: usize, end: usize) -> Result<TensorType, TypeError> {
    require(start < end && end <= x.shape.rank(), || format!("{x} has no axes {start}..{end}"))?;
    let mut shape = x.shape.to_vec();
    shape[start..end].fill(1);
    Ok(TensorType::new(x.dtype, shape))
}
