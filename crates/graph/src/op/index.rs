//! Look-ups by index.

use super::{Family, arity, rank, require};
use crate::{Flow, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Look-ups by i32 index. Indices are range-checked where they enter a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// `(table [rows, width], indices [..]) → [.., width]`: row `indices[i]` of the table.
    Gather,
    /// `(indices [..], dy [.., width]) → [rows, width]`: adds row i of dy to row `indices[i]`, in order.
    ScatterAdd {
        /// Rows of the result.
        rows: usize,
    },
}

impl Family for Index {
    fn name(&self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::ScatterAdd { .. } => "scatter_add",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let [first, second] = arity(inputs)?;
        let is_index = |t: &TensorType| {
            require(t.dtype == DType::I32, || format!("indices must be i32, not {}", t.dtype))
        };
        match *self {
            Self::Gather => {
                is_index(second)?;
                let [_, width] = rank("the table", first)?;
                Ok(vec![TensorType::new(first.dtype, [&second.shape[..], &[width]].concat())])
            }
            Self::ScatterAdd { rows } => {
                is_index(first)?;
                let split = second.shape.rank().checked_sub(1);
                let fits =
                    split.is_some_and(|r| second.shape[..r] == first.shape[..]) && second.dtype.is_float();
                require(fits, || format!("{second} does not hold a row for each index of {first}"))?;
                Ok(vec![TensorType::new(second.dtype, [rows, second.shape[second.shape.rank() - 1]])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        match self {
            Self::Gather => 0,
            Self::ScatterAdd { .. } => inputs[1].shape.elements() as u64,
        }
    }

    fn flow(&self, batched: &[bool], _: &[&TensorType]) -> Vec<Flow> {
        vec![match (self, batched[0], batched[1]) {
            (Self::Gather, false, true) => Flow::PerExample,
            (Self::ScatterAdd { .. }, true, true) => Flow::Folded,
            _ => Flow::Mixed,
        }]
    }

    fn folds(&self) -> &'static [usize] {
        if matches!(self, Self::ScatterAdd { .. }) { &[0] } else { &[] }
    }
}
