//! Floats quantised to bytes, block by block.

use crate::evaluate::Values;
use crate::tensor::Elements;
use plimsoll_graph::op::Quantise;
use plimsoll_tensor::{CODE_BLOCK, code_of, code_values, round};

pub(crate) fn evaluate(op: Quantise, inputs: &[Elements<'_>]) -> Values {
    match op {
        Quantise::Encode { signed } => {
            let x = &inputs[0];
            let largest = |block: &[f64]| {
                block.iter().fold(0.0, |a: f64, b| if b.abs() > a || b.is_nan() { b.abs() } else { a })
            };
            let scales: Vec<f64> = x.data.chunks(CODE_BLOCK).map(largest).collect();
            let share = |(i, x): (usize, &f64)| match scales[i / CODE_BLOCK] {
                0.0 => 0.0,
                scale => round(x / scale, plimsoll_tensor::DType::F32) as f32,
            };
            let codes = x.data.iter().enumerate().map(share).map(|share| f64::from(code_of(share, signed)));
            Ok(vec![codes.collect(), scales])
        }
        Quantise::Decode { signed } => {
            let (codes, scales) = (&inputs[0], &inputs[1]);
            let value = |(i, code): (usize, &f64)| {
                f64::from(code_values(signed)[*code as usize]) * scales.data[i / CODE_BLOCK]
            };
            Ok(vec![codes.data.iter().enumerate().map(value).collect()])
        }
    }
}
