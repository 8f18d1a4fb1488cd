//! Losses. Each is a weighted sum over rows; a mean is a weight of one over the number of rows.

use super::{Family, OperandPrecision, PrecisionClass, Properties, rank, require, same_float};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Softmax cross-entropy: `Σ_r weights[r] · (logsumexp(logits[r]) - logits[r, labels[r]])`. Labels are i32 and
/// range-checked where they enter a run. The sum folds over the batch, block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// `(logits [r,c], labels [r], weights [r]) → (loss [], logsumexp [r])`.
    CrossEntropy,
    /// `(logits, labels, weights, logsumexp, dloss) → dlogits`: `(softmax - onehot) · weights · dloss`.
    CrossEntropyGrad,
    /// `(x [r,d], kernel [d,c], labels [r], weights [r]) → (loss [], logsumexp [r])` with logits `x · kernel`, computed
    /// and dropped in chunks of rows, so that they never exist whole. Where x holds 16-bit floats, all else is f32.
    LinearCrossEntropy {
        /// The kernel is stored as `[c,d]`: the table of an embedding serves as it is.
        transposed: bool,
    },
    /// `(x, kernel, labels, weights, logsumexp, dloss) → (dx, dkernel)`; the logits are recomputed, in chunks.
    LinearCrossEntropyGrad {
        /// As in forward.
        transposed: bool,
    },
    /// `(x, kernel, labels, weights, dloss) → (loss, dx, dkernel)`: the two above in one pass, so that the logits are computed
    /// once. It has their bits.
    LinearCrossEntropyWithGrad {
        /// As in forward.
        transposed: bool,
    },
}

impl Loss {
    /// Whether the kernel is stored as `[c,d]`, for losses that have one.
    fn transposed(&self) -> Option<bool> {
        match *self {
            Self::CrossEntropy | Self::CrossEntropyGrad => None,
            Self::LinearCrossEntropy { transposed }
            | Self::LinearCrossEntropyGrad { transposed }
            | Self::LinearCrossEntropyWithGrad { transposed } => Some(transposed),
        }
    }

    /// Classes of a kernel, for losses that have one.
    pub fn classes(&self, kernel: &TensorType) -> usize {
        kernel.shape[if self.transposed() == Some(true) { 0 } else { 1 }]
    }
}

impl Family for Loss {
    fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::CrossEntropyGrad => "cross_entropy_grad",
            Self::LinearCrossEntropy { .. } => "linear_cross_entropy",
            Self::LinearCrossEntropyGrad { .. } => "linear_cross_entropy_grad",
            Self::LinearCrossEntropyWithGrad { .. } => "linear_cross_entropy_with_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let linear = self.transposed().is_some();
        let operands = if linear { 2 } else { 1 };
        let (forward, backward) = match self {
            Self::CrossEntropy | Self::LinearCrossEntropy { .. } => (true, false),
            Self::CrossEntropyGrad | Self::LinearCrossEntropyGrad { .. } => (false, true),
            Self::LinearCrossEntropyWithGrad { .. } => (true, true),
        };
        // A gradient alone reads what forward saved.
        let expected = operands + 2 + usize::from(backward) + usize::from(!forward);
        require(inputs.len() == expected, || format!("needs {expected} inputs, has {}", inputs.len()))?;
        let (floats, rest) = inputs.split_at(operands);
        let own = same_float(&floats[..1])?;
        let dtype = own.wide();
        require(floats.iter().skip(1).all(|t| t.dtype == dtype), || {
            format!("the kernel must be {dtype}, it is {}", floats[floats.len() - 1])
        })?;
        let [rows, _] = rank(if linear { "x" } else { "logits" }, floats[0])?;
        if linear {
            let [rows, columns] = rank("the kernel", floats[1])?;
            let width = if self.transposed() == Some(true) { columns } else { rows };
            require(floats[0].shape[1] == width, || {
                format!("x has {} columns, the kernel takes {width}", floats[0].shape[1])
            })?;
        }
        let per_row = |what: &str, ty: &TensorType, dtype: DType| {
            let wanted = TensorType::new(dtype, [rows]);
            require(*ty == wanted, || format!("{what} must be {wanted}, it is {ty}"))
        };
        per_row("labels", rest[0], DType::I32)?;
        per_row("weights", rest[1], dtype)?;
        if !forward {
            per_row("logsumexp", rest[2], dtype)?;
        }
        let scalar = TensorType::scalar(dtype);
        if backward {
            let dloss = rest[rest.len() - 1];
            require(*dloss == scalar, || format!("dloss must be a scalar, it is {dloss}"))?;
        }
        let gradients = floats.iter().map(|t| (*t).clone());
        Ok(match (forward, backward) {
            (true, true) => std::iter::once(scalar).chain(gradients).collect(),
            (false, _) => gradients.collect(),
            (true, false) => vec![scalar, TensorType::new(dtype, [rows])],
        })
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let rows = inputs[0].shape.elements() as u64;
        match self {
            Self::CrossEntropy | Self::CrossEntropyGrad => rows.saturating_mul(20),
            Self::LinearCrossEntropy { .. } => {
                rows.saturating_mul(2).saturating_mul(self.classes(inputs[1]) as u64)
            }
            Self::LinearCrossEntropyGrad { .. } | Self::LinearCrossEntropyWithGrad { .. } => {
                rows.saturating_mul(6).saturating_mul(self.classes(inputs[1]) as u64)
            }
        }
    }

    fn batch_relation(&self, batched: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        let kernel_is_independent = self.transposed().is_none() || !batched[1];
        match self {
            _ if !(batched[0] && kernel_is_independent) => vec![BatchRelation::Mixed; 3],
            Self::CrossEntropy | Self::LinearCrossEntropy { .. } => {
                vec![BatchRelation::Reduced, BatchRelation::PerExample]
            }
            Self::CrossEntropyGrad => vec![BatchRelation::PerExample],
            Self::LinearCrossEntropyGrad { .. } => vec![BatchRelation::PerExample, BatchRelation::Reduced],
            Self::LinearCrossEntropyWithGrad { .. } => {
                vec![BatchRelation::Reduced, BatchRelation::PerExample, BatchRelation::Reduced]
            }
        }
    }

    fn properties(&self) -> Properties {
        match self {
            Self::CrossEntropy => Properties { folds: &[0], ..Properties::GENERAL },
            Self::CrossEntropyGrad => Properties::GENERAL,
            Self::LinearCrossEntropy { .. } => {
                let precision =
                    PrecisionClass { operands: OperandPrecision::FirstAsStored, ..PrecisionClass::WIDE };
                Properties { precision, folds: &[0], ..Properties::GENERAL }
            }
            Self::LinearCrossEntropyGrad { .. } => Properties { folds: &[1], ..Properties::GENERAL },
            Self::LinearCrossEntropyWithGrad { .. } => Properties { folds: &[0, 2], ..Properties::GENERAL },
        }
    }
}
