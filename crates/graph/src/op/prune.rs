//! Masks of pruned weights, one bit per element.

use super::{Family, InPlace, Properties, arity, require};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, Shape, TensorType, mask_bytes};
use serde::{Deserialize, Serialize};

/// Masks of pruned weights: a bit for each element, in order, from the lowest bit of a byte. `plimsoll_tensor::kept_at` says how
/// many elements a sparsity keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prune {
    /// `(weights, old mask, sparsity) → mask`: keeps the weights of the largest magnitudes, as many as the sparsity says, and
    /// all others of the smallest magnitude kept. Below zero, or NaN, the sparsity stands for the old mask.
    Mask,
    /// `(x, mask) → x`, with zeros where the mask has no bit.
    Apply,
    /// `(values, mask) → x`: the values, floats or bytes, in order, where the mask has bits, else zeros. The mask has as many bits as
    /// there are values.
    Expand {
        /// The shape of x.
        shape: Shape,
    },
}

impl Family for Prune {
    fn name(&self) -> &'static str {
        match self {
            Self::Mask => "prune_mask",
            Self::Apply => "prune",
            Self::Expand { .. } => "expand",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let is_mask = |mask: &TensorType, shape: &Shape| {
            let wanted = TensorType::new(DType::U8, [mask_bytes(shape.elements())]);
            require(*mask == wanted, || format!("the mask of {shape} must be {wanted}, it is {mask}"))
        };
        let is_float =
            |ty: &TensorType| require(ty.dtype.is_float(), || format!("needs a float, not {}", ty.dtype));
        match self {
            Self::Mask => {
                let [weights, mask, sparsity] = arity(inputs)?;
                is_float(weights)?;
                is_mask(mask, &weights.shape)?;
                require(*sparsity == TensorType::scalar(weights.dtype), || {
                    format!("the sparsity must be a scalar {}, it is {sparsity}", weights.dtype)
                })?;
                Ok(vec![mask.clone()])
            }
            Self::Apply => {
                let [x, mask] = arity(inputs)?;
                is_float(x)?;
                is_mask(mask, &x.shape)?;
                Ok(vec![x.clone()])
            }
            Self::Expand { shape } => {
                let [values, mask] = arity(inputs)?;
                if values.dtype != DType::U8 {
                    is_float(values)?;
                }
                is_mask(mask, shape)?;
                let fits = values.shape.rank() == 1 && values.shape.elements() <= shape.elements();
                require(fits, || format!("{values} are no values of {shape}"))?;
                Ok(vec![TensorType::new(values.dtype, shape.clone())])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        match self {
            // Three passes over the weights.
            Self::Mask => 3 * inputs[0].shape.elements() as u64,
            Self::Apply | Self::Expand { .. } => outputs[0].shape.elements() as u64,
        }
    }

    /// A byte of a mask may belong to several examples.
    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        vec![BatchRelation::Mixed]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Mask | Self::Apply => Properties { in_place: InPlace::ReadFirst, ..Properties::GENERAL },
            Self::Expand { .. } => Properties::GENERAL,
        }
    }
}
