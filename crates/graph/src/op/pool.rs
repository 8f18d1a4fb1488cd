//! Pooling over images in NHWC order.

use super::{Family, Geometry, arity, per_example, rank, require, same_float};
use crate::{Flow, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Pooling and its gradient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// `x → (y, index)`: the largest element of each window and its place in the window (row by row, the first
    /// largest, one byte). NaN counts as largest.
    Max {
        /// How the window slides.
        geometry: Geometry,
    },
    /// `(dy, index) → dx`.
    MaxGrad {
        /// The forward geometry.
        geometry: Geometry,
        /// Height and width of x.
        image: [usize; 2],
    },
}

impl Family for Pool {
    fn name(&self) -> &'static str {
        match self {
            Self::Max { .. } => "max_pool",
            Self::MaxGrad { .. } => "max_pool_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match self {
            Self::Max { geometry } => {
                let [x] = arity(inputs)?;
                let dtype = same_float(inputs)?;
                let [n, h, w, c] = rank("the image", x)?;
                require(geometry.window[0].saturating_mul(geometry.window[1]) <= 256, || {
                    "the window has over 256 places".into()
                })?;
                let inside = (0..2).all(|a| geometry.padding[a].iter().all(|&p| p < geometry.window[a]));
                require(inside, || "padding must be smaller than the window".into())?;
                let [oh, ow] = geometry.output([h, w])?;
                Ok(vec![TensorType::new(dtype, [n, oh, ow, c]), TensorType::new(DType::U8, [n, oh, ow, c])])
            }
            Self::MaxGrad { geometry, image } => {
                let [dy, index] = arity(inputs)?;
                let [n, oh, ow, c] = rank("the gradient", dy)?;
                require(dy.shape == index.shape && index.dtype == DType::U8, || {
                    "the index must be u8 of the gradient's shape".into()
                })?;
                require(geometry.output(*image)? == [oh, ow], || {
                    format!("gradient {dy} does not come from an image {image:?}")
                })?;
                Ok(vec![TensorType::new(dy.dtype, [n, image[0], image[1], c])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }

    fn flow(&self, _: &[bool], _: &[&TensorType]) -> Vec<Flow> {
        per_example(match self {
            Self::Max { .. } => 2,
            Self::MaxGrad { .. } => 1,
        })
    }
}
