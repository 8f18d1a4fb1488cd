//! Resizing images and its gradient.

use crate::evaluate::Values;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::{Resize, ResizeMode};
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Resize, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let from = &inputs[0];
    let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
    let mut sums = vec![0.0; output.shape.elements()];
    match *op {
        Resize::Forward { mode, .. } => {
            products(mode, from.extents(), outputs, |i, o, weight| sums[o] += weight * from.data[i]);
        }
        Resize::Grad { mode, .. } => {
            products(mode, outputs, from.extents(), |i, o, weight| sums[i] += weight * from.data[o]);
        }
    }
    Ok(vec![sums])
}

/// Visits every product of a resizing: the offsets of its elements of image and result, and its weight. The gradient
/// sums the same products over the other index.
fn products(
    mode: ResizeMode,
    images: [usize; 4],
    outputs: [usize; 4],
    mut visit: impl FnMut(usize, usize, f64),
) {
    let [count, height, width, channels] = images;
    for n in 0..count {
        for oy in 0..outputs[1] {
            for ox in 0..outputs[2] {
                for (y, down) in sources(mode, height, outputs[1], oy) {
                    for (x, across) in sources(mode, width, outputs[2], ox) {
                        for c in 0..channels {
                            let element = at(outputs, [n, oy, ox, c]);
                            visit(at(images, [n, y, x, c]), element, down * across);
                        }
                    }
                }
            }
        }
    }
}

/// The elements that element i of an axis interpolates, with their weights.
fn sources(mode: ResizeMode, from: usize, to: usize, i: usize) -> Vec<(usize, f64)> {
    let place = match mode {
        ResizeMode::Nearest => return vec![(i * from / to, 1.0)],
        ResizeMode::Bilinear { align_corners: false } => {
            ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0)
        }
        ResizeMode::Bilinear { align_corners: true } if to == 1 => 0.0,
        ResizeMode::Bilinear { align_corners: true } => (i * (from - 1)) as f64 / (to - 1) as f64,
    };
    let first = (place.floor() as usize).min(from - 1);
    let share = place - first as f64;
    match first + 1 < from && share > 0.0 {
        true => vec![(first, 1.0 - share), (first + 1, share)],
        false => vec![(first, 1.0)],
    }
}
