//! Masks of pruned weights.

use crate::EvaluateError;
use crate::evaluate::Values;
use crate::tensor::Elements;
use plimsoll_graph::op::Prune;
use plimsoll_tensor::{kept_at, mask_bytes};

pub(crate) fn evaluate(op: &Prune, inputs: &[Elements<'_>]) -> Values {
    match op {
        Prune::Mask => {
            let (weights, old, sparsity) = (&inputs[0].data, &inputs[1].data, inputs[2].data[0]);
            if sparsity.is_nan() || sparsity < 0.0 || weights.is_empty() {
                return Ok(vec![old.clone()]);
            }
            let mut magnitudes: Vec<f64> = weights.iter().map(|w| w.abs()).collect();
            // NaN counts as larger than infinity.
            magnitudes.sort_by(|a, b| b.total_cmp(a));
            let threshold = magnitudes[kept_at(weights.len(), sparsity as f32) - 1];
            let mut mask = vec![0u8; mask_bytes(weights.len())];
            for (i, w) in weights.iter().enumerate() {
                mask[i / 8] |= u8::from(w.abs().total_cmp(&threshold).is_ge()) << (i % 8);
            }
            Ok(vec![mask.into_iter().map(f64::from).collect()])
        }
        Prune::Apply => {
            let (x, mask) = (&inputs[0].data, &inputs[1].data);
            Ok(vec![x.iter().enumerate().map(|(i, &x)| if bit(mask, i) { x } else { 0.0 }).collect()])
        }
        Prune::Expand { shape } => {
            let (values, mask) = (&inputs[0].data, &inputs[1].data);
            let mut values = values.iter();
            let mut take = |i: usize| if bit(mask, i) { values.next().copied() } else { Some(0.0) };
            let x: Option<Vec<f64>> = (0..shape.elements()).map(&mut take).collect();
            match x {
                Some(x) if values.next().is_none() => Ok(vec![x]),
                _ => Err(EvaluateError::Mask),
            }
        }
    }
}

fn bit(mask: &[f64], element: usize) -> bool {
    mask[element / 8] as u8 >> (element % 8) & 1 == 1
}
