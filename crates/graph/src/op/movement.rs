//! Moving elements without changing them.

use super::{Family, arity, require};
use crate::{Flow, TypeError};
use plimsoll_tensor::{Shape, TensorType};
use serde::{Deserialize, Serialize};

/// Moving elements without changing them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Movement {
    /// The same elements in row-major order under another shape; costs nothing.
    Reshape(Shape),
    /// Output axis i is input axis `axes[i]`.
    Transpose(Vec<usize>),
    /// Repeats along axes of extent one and new leading axes.
    Broadcast(Shape),
}

impl Family for Movement {
    fn name(&self) -> &'static str {
        match self {
            Self::Reshape(_) => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Broadcast(_) => "broadcast",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let [x] = arity(inputs)?;
        let shape = match self {
            Self::Reshape(shape) => {
                require(shape.elements() == x.shape.elements(), || {
                    format!("{shape} has {} elements, {x} has {}", shape.elements(), x.shape.elements())
                })?;
                shape.clone()
            }
            Self::Transpose(axes) => {
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                require(sorted.iter().copied().eq(0..x.shape.rank()), || {
                    format!("{axes:?} is not an order of the {} axes", x.shape.rank())
                })?;
                axes.iter().map(|&a| x.shape[a]).collect::<Vec<_>>().into()
            }
            Self::Broadcast(shape) => {
                require(x.shape.broadcast(shape).as_ref() == Some(shape), || {
                    format!("{} does not broadcast to {shape}", x.shape)
                })?;
                shape.clone()
            }
        };
        Ok(vec![TensorType::new(x.dtype, shape)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType]) -> u64 {
        0
    }

    fn flow(&self, _: &[bool], inputs: &[&TensorType]) -> Vec<Flow> {
        let stays = match self {
            // Rows may be cut or joined as long as whole examples stay together: checked against the example count
            // by `Graph::flows`, which sees it.
            Self::Reshape(shape) => shape.rank() > 0,
            Self::Transpose(axes) => axes.first() == Some(&0),
            Self::Broadcast(shape) => shape.rank() == inputs[0].shape.rank(),
        };
        vec![if stays { Flow::PerExample } else { Flow::Mixed }]
    }
}
