//! Reductions.

use crate::evaluate::Values;
use crate::tensor::{Tensor, offsets};
use plimsoll_graph::op::Reduce;
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Reduce, inputs: &[Tensor<'_>], output: &TensorType) -> Values {
    let x = &inputs[0];
    Ok(vec![match op {
        Reduce::Sum { .. } => {
            let mut sums = vec![0.0; output.shape.elements()];
            // Summed axes have extent one in the output, so they broadcast: a stride of zero.
            let target = offsets(x.shape(), &output.shape.strides_in(x.shape()));
            target.into_iter().zip(&x.data).for_each(|(target, value)| sums[target] += value);
            sums
        }
        Reduce::Argmax => x.data.chunks(x.columns()).map(|row| first_largest(row) as f64).collect(),
    }])
}

/// The place of the first largest element; NaN counts as largest.
pub(crate) fn first_largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] || (value.is_nan() && !values[best].is_nan()) {
            best = i;
        }
    }
    best
}
