//! Reductions, cumulative sums and the order of elements.

use crate::evaluate::Values;
use crate::tensor::{Elements, offsets};
use plimsoll_graph::op::Reduce;
use plimsoll_tensor::TensorType;
use std::cmp::Ordering;

pub(crate) fn evaluate(op: &Reduce, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let x = &inputs[0];
    Ok(vec![match *op {
        Reduce::Sum { .. } => reduce(x, output, 0.0, |sum, value| sum + value),
        Reduce::SquareSum { .. } => reduce(x, output, 0.0, |sum, value| sum + value * value),
        Reduce::Max { .. } => reduce(x, output, f64::NEG_INFINITY, |a, b| if above(b, a) { b } else { a }),
        Reduce::Min { .. } => reduce(x, output, f64::INFINITY, |a, b| if above(-b, -a) { b } else { a }),
        Reduce::Product { .. } => reduce(x, output, 1.0, |product, value| product * value),
        Reduce::ProductGrad { start, end } => product_grad(x, &inputs[1], start, end),
        Reduce::Argmax => x.data.chunks(x.columns()).map(|row| first_largest(row) as f64).collect(),
        Reduce::Argmin => {
            let negated: Vec<f64> = x.data.iter().map(|value| -value).collect();
            negated.chunks(x.columns()).map(|row| first_largest(row) as f64).collect()
        }
        Reduce::CumulativeSum { axis, reverse } => cumulative_sum(x, axis, reverse),
        Reduce::TopK { k } => return Ok(top_k(x, k)),
    }])
}

/// Folds elements into the output, in order.
fn reduce(x: &Elements<'_>, output: &TensorType, start: f64, combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut results = vec![start; output.shape.elements()];
    // Reduced axes have extent one in the output, so they broadcast: a stride of zero.
    let target = offsets(x.shape(), &output.shape.strides_in(x.shape()));
    target.into_iter().zip(&x.data).for_each(|(t, &value)| results[t] = combine(results[t], value));
    results
}

/// The product of the elements before each element, times that of those after it.
fn product_grad(x: &Elements<'_>, dy: &Elements<'_>, start: usize, end: usize) -> Vec<f64> {
    let [outer, reduced, inner] =
        [0..start, start..end, end..x.shape().rank()].map(|axes| x.shape()[axes].iter().product::<usize>());
    let mut dx = vec![0.0; x.data.len()];
    for o in 0..outer {
        for i in 0..inner {
            let at = |r: usize| (o * reduced + r) * inner + i;
            let mut before = 1.0;
            for r in 0..reduced {
                dx[at(r)] = before;
                before *= x.data[at(r)];
            }
            let mut after = 1.0;
            for r in (0..reduced).rev() {
                dx[at(r)] *= after * dy.data[o * inner + i];
                after *= x.data[at(r)];
            }
        }
    }
    dx
}

fn cumulative_sum(x: &Elements<'_>, axis: usize, reverse: bool) -> Vec<f64> {
    let extent = x.shape()[axis];
    let stride: usize = x.shape()[axis + 1..].iter().product();
    let mut sums = x.data.clone();
    for i in 0..sums.len() {
        let last = sums.len() - 1;
        let (at, before) = if reverse { (last - i, last - i + stride) } else { (i, i.wrapping_sub(stride)) };
        // All but the first along the axis, counted from where the sums start.
        if !(i / stride).is_multiple_of(extent) {
            sums[at] += sums[before];
        }
    }
    sums
}

fn top_k(x: &Elements<'_>, k: usize) -> Vec<Vec<f64>> {
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for row in x.data.chunks(x.columns().max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        // Stable, so that of equal elements the first stays first.
        order.sort_by(|&a, &b| match (above(row[a], row[b]), above(row[b], row[a])) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            _ => Ordering::Equal,
        });
        values.extend(order[..k].iter().map(|&i| row[i]));
        indices.extend(order[..k].iter().map(|&i| i as f64));
    }
    vec![values, indices]
}

/// Whether one value is larger than another; NaN is larger than every number.
fn above(a: f64, b: f64) -> bool {
    a > b || (a.is_nan() && !b.is_nan())
}

/// The place of the first largest element; NaN counts as largest.
pub(crate) fn first_largest(values: &[f64]) -> usize {
    (1..values.len()).fold(0, |best, i| if above(values[i], values[best]) { i } else { best })
}
