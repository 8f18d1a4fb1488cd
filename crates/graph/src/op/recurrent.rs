//! Recurrences over the positions of a sequence, as one op.

use super::{Family, InPlace, Properties, arity, per_example, rank, require, same_float};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// Long short-term memory of `u` units over the positions of a sequence. x holds the projected inputs with their bias, in
/// blocks of units for the gates: input, forget, new, output. A position's gates are `σ(x + h · kernel)`, tanh for the third;
/// `c = forget · c + input · new`, `h = output · tanh(c)`. The layer's gradient of the kernel is a product over all positions,
/// and not part of the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurrent {
    /// `(x [n, t, 4u], kernel [u, 4u], h [n, u], c [n, u]) → (y [n, t, u], cells [n, t, u], gates [n, t, 4u])`: from the state
    /// before the first position to h and c after every one, and the gates after their activations.
    Lstm {
        /// Whether the last position is the first.
        reverse: bool,
    },
    /// `(kernel, c, cells, gates, dy) → (dx, dh, dc)`, or with the cells' gradient as the last input.
    LstmGrad {
        /// As in forward.
        reverse: bool,
        /// Whether the last input is the gradient of the cells.
        cells: bool,
    },
}

impl Family for Recurrent {
    fn name(&self) -> &'static str {
        match self {
            Self::Lstm { .. } => "lstm",
            Self::LstmGrad { .. } => "lstm_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (dcells, inputs) = match (self, inputs.split_last()) {
            (Self::LstmGrad { cells: true, .. }, Some((last, rest))) => (Some(*last), rest),
            _ => (None, inputs),
        };
        let (wide, kernel, states, sequences) = match self {
            Self::Lstm { .. } => {
                let [x, kernel, h, c] = arity(inputs)?;
                (x, kernel, vec![("h", h), ("c", c)], vec![])
            }
            Self::LstmGrad { .. } => {
                let [kernel, c, cells, gates, dy] = arity(inputs)?;
                let sequences = [("cells", Some(cells)), ("dy", Some(dy)), ("dcells", dcells)];
                (
                    gates,
                    kernel,
                    vec![("c", c)],
                    sequences.into_iter().filter_map(|(n, t)| Some((n, t?))).collect(),
                )
            }
        };
        let dtype = same_float(inputs)?;
        require(!dtype.is_low(), || format!("needs f32 or f64, not {dtype}"))?;
        let [n, t, columns] = rank("the sequence", wide)?;
        let [units, gates] = rank("the kernel", kernel)?;
        require(gates == 4 * units && columns == gates, || {
            format!("a kernel of {kernel} takes sequences of {} columns, not {columns}", 4 * units)
        })?;
        let (state, sequence) = (TensorType::new(dtype, [n, units]), TensorType::new(dtype, [n, t, units]));
        let expect = |wanted: &TensorType, given: &[(&str, &TensorType)]| {
            given.iter().try_for_each(|(what, ty)| {
                require(*ty == wanted, || format!("{what} must be {wanted}, it is {ty}"))
            })
        };
        expect(&state, &states)?;
        expect(&sequence, &sequences)?;
        Ok(match self {
            Self::Lstm { .. } => vec![sequence.clone(), sequence, wide.clone()],
            Self::LstmGrad { .. } => vec![wide.clone(), state.clone(), state],
        })
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let (sequence, kernel) = match self {
            Self::Lstm { .. } => (inputs[0], inputs[1]),
            Self::LstmGrad { .. } => (inputs[3], inputs[0]),
        };
        let (elements, units) = (sequence.shape.elements() as u64, kernel.shape[0] as u64);
        elements.saturating_mul(2 * units + 20)
    }

    fn batch_relation(&self, batched: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        let kernel = match self {
            Self::Lstm { .. } => 1,
            Self::LstmGrad { .. } => 0,
        };
        let fits = batched.iter().enumerate().all(|(i, batched)| *batched != (i == kernel));
        if fits { per_example(3) } else { vec![BatchRelation::Mixed; 3] }
    }

    fn properties(&self) -> Properties {
        match self {
            // Gates over x, their gradients over the gates: an element is read before its place is written.
            Self::Lstm { .. } | Self::LstmGrad { .. } => {
                Properties { in_place: InPlace::ReadFirst, ..Properties::GENERAL }
            }
        }
    }
}
