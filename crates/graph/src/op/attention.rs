//! Attention without the score matrix.

use super::{Family, arity, per_example, rank, require, same_float};
use crate::{Flow, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention over `[n, positions, heads, width]`, computed in tiles: scores `q · kᵀ / √width`,
/// a softmax over the keys, and the weighted sum of v. `causal`: a query sees keys up to its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// `(q, k, v) → (y, logsumexp)`; logsumexp is `[n, positions, heads]`, natural logarithm of the softmax's sum.
    Forward {
        /// Whether a query sees keys up to its own position only.
        causal: bool,
    },
    /// `(q, k, v, y, logsumexp, dy) → (dq, dk, dv)`.
    Grad {
        /// Whether a query sees keys up to its own position only.
        causal: bool,
    },
}

impl Attention {
    /// Whether a query sees keys up to its own position only.
    pub fn causal(&self) -> bool {
        match *self {
            Self::Forward { causal } | Self::Grad { causal } => causal,
        }
    }
}

impl Family for Attention {
    fn name(&self) -> &'static str {
        match self {
            Self::Forward { .. } => "attention",
            Self::Grad { .. } => "attention_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        require(!inputs.is_empty(), || "needs inputs".into())?;
        let dtype = same_float(inputs)?;
        let q = inputs[0];
        let [n, positions, heads, _] = rank("q", q)?;
        let lse = TensorType::new(dtype, [n, positions, heads]);
        match self {
            Self::Forward { .. } => {
                let [_, k, v] = arity(inputs)?;
                require(k == q && v == q, || "q, k and v must have one shape".into())?;
                Ok(vec![q.clone(), lse])
            }
            Self::Grad { .. } => {
                let [_, k, v, y, saved, dy] = arity(inputs)?;
                require([k, v, y, dy].iter().all(|t| *t == q), || {
                    "q, k, v, y and dy must have one shape".into()
                })?;
                require(*saved == lse, || format!("logsumexp must be {lse}, it is {saved}"))?;
                Ok(vec![q.clone(); 3])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let shape = &inputs[0].shape;
        let products = match self {
            Self::Forward { .. } => 4,
            Self::Grad { .. } => 10,
        };
        let all = (shape.elements() as u64).saturating_mul(products).saturating_mul(shape[1] as u64);
        if self.causal() { all / 2 } else { all }
    }

    fn flow(&self, _: &[bool], _: &[&TensorType]) -> Vec<Flow> {
        per_example(match self {
            Self::Forward { .. } => 2,
            Self::Grad { .. } => 3,
        })
    }
}
