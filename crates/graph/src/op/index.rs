//! Look-ups by index.

use super::{Family, PrecisionClass, Properties, arity, rank, require};
use crate::{BatchRelation, TypeError};
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
    /// `(x [.., n], indices [.., k]) → [.., k]`: element `indices[.., i]` of each row.
    Take,
    /// `(indices [.., k], dy [.., k]) → [.., extent]`: adds element i of each row of dy to element `indices[.., i]`, in
    /// order.
    Put {
        /// Last extent of the result.
        extent: usize,
    },
    /// `(indices [..]) → [.., classes]`: one at each index, zero elsewhere.
    OneHot {
        /// Last extent of the result.
        classes: usize,
        /// Element type of the result.
        dtype: DType,
    },
    /// `() → i32 [extent]`: 0, 1, 2, ..
    Range {
        /// How many.
        extent: usize,
    },
}

impl Family for Index {
    fn name(&self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::ScatterAdd { .. } => "scatter_add",
            Self::Take => "take",
            Self::Put { .. } => "put",
            Self::OneHot { .. } => "one_hot",
            Self::Range { .. } => "range",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let is_index = |t: &TensorType| {
            require(t.dtype == DType::I32, || format!("indices must be i32, not {}", t.dtype))
        };
        match *self {
            Self::Gather => {
                let [table, indices] = arity(inputs)?;
                is_index(indices)?;
                let [_, width] = rank("the table", table)?;
                Ok(vec![TensorType::new(table.dtype, [&indices.shape[..], &[width]].concat())])
            }
            Self::ScatterAdd { rows } => {
                let [indices, dy] = arity(inputs)?;
                is_index(indices)?;
                let split = dy.shape.rank().checked_sub(1);
                let fits = split.is_some_and(|r| dy.shape[..r] == indices.shape[..]) && dy.dtype.is_float();
                require(fits, || format!("{dy} does not hold a row for each index of {indices}"))?;
                Ok(vec![TensorType::new(dy.dtype.wide(), [rows, dy.shape[dy.shape.rank() - 1]])])
            }
            Self::Take => {
                let [x, indices] = arity(inputs)?;
                is_index(indices)?;
                let fits = rows_of(x).is_some() && rows_of(x) == rows_of(indices);
                require(fits, || format!("{x} does not have a row for each row of {indices}"))?;
                Ok(vec![TensorType::new(x.dtype, indices.shape.clone())])
            }
            Self::Put { extent } => {
                let [indices, dy] = arity(inputs)?;
                is_index(indices)?;
                let fits = dy.shape == indices.shape && dy.dtype.is_float();
                require(fits, || format!("{dy} does not hold a float for each index of {indices}"))?;
                let rows = rows_of(indices).ok_or_else(|| TypeError("needs an axis to put along".into()))?;
                Ok(vec![TensorType::new(dy.dtype, [rows, &[extent]].concat())])
            }
            Self::OneHot { classes, dtype } => {
                let [indices] = arity(inputs)?;
                is_index(indices)?;
                Ok(vec![TensorType::new(dtype, [&indices.shape[..], &[classes]].concat())])
            }
            Self::Range { extent } => {
                let [] = arity(inputs)?;
                require(i32::try_from(extent).is_ok(), || format!("{extent} is past the range of i32"))?;
                Ok(vec![TensorType::new(DType::I32, [extent])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        match self {
            Self::ScatterAdd { .. } | Self::Put { .. } => inputs[1].shape.elements() as u64,
            Self::Gather | Self::Take | Self::OneHot { .. } | Self::Range { .. } => 0,
        }
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        vec![match (self, batched) {
            (Self::Gather, [false, true]) | (Self::OneHot { .. }, _) => BatchRelation::PerExample,
            (Self::ScatterAdd { .. }, [true, true]) => BatchRelation::Reduced,
            (Self::Take | Self::Put { .. }, _) if inputs[0].shape.rank() > 1 => BatchRelation::PerExample,
            // Elements of a shared row, one for each example.
            (Self::Take, [false, true]) => BatchRelation::PerExample,
            (
                Self::Gather | Self::ScatterAdd { .. } | Self::Take | Self::Put { .. } | Self::Range { .. },
                _,
            ) => BatchRelation::Mixed,
        }]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Gather => Properties { precision: PrecisionClass::ROUNDED, ..Properties::GENERAL },
            Self::ScatterAdd { .. } => Properties { folds: &[0], ..Properties::GENERAL },
            Self::Take | Self::Put { .. } | Self::OneHot { .. } | Self::Range { .. } => Properties::GENERAL,
        }
    }
}

/// All extents but the last; `None` for a scalar.
fn rows_of(ty: &TensorType) -> Option<&[usize]> {
    ty.shape.split_last().map(|(_, rows)| rows)
}
