//! Pooling and its gradient.

use crate::conv::taps;
use crate::evaluate::Values;
use crate::tensor::{Tensor, at};
use plimsoll_graph::op::{Geometry, Pool};
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Pool, inputs: &[Tensor<'_>], output: &TensorType) -> Values {
    let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
    match *op {
        Pool::Max { geometry } => Ok(max(geometry, &inputs[0], outputs)),
        Pool::MaxGrad { geometry, .. } => max_grad(geometry, &inputs[0], &inputs[1], outputs),
    }
}

fn max(geometry: Geometry, x: &Tensor<'_>, outputs: [usize; 4]) -> Vec<Vec<f64>> {
    let images @ [count, height, width, channels] = x.extents();
    let size = outputs.iter().product();
    // The padding holds nothing: a maximum starts as none.
    let mut largest: Vec<Option<f64>> = vec![None; size];
    let mut index = vec![0.0; size];
    for n in 0..count {
        for tap in taps(geometry, [height, width], [outputs[1], outputs[2]]) {
            for c in 0..channels {
                let value = x.data[at(images, [n, tap.image[0], tap.image[1], c])];
                let place = at(outputs, [n, tap.output[0], tap.output[1], c]);
                // The first largest wins; NaN counts as largest.
                if largest[place].is_none_or(|old| value > old || (value.is_nan() && !old.is_nan())) {
                    largest[place] = Some(value);
                    index[place] = at(geometry.window, tap.window) as f64;
                }
            }
        }
    }
    let largest =
        largest.into_iter().map(|value| value.expect("padding is smaller than the window")).collect();
    vec![largest, index]
}

fn max_grad(geometry: Geometry, dy: &Tensor<'_>, index: &Tensor<'_>, images: [usize; 4]) -> Values {
    let gradients @ [_, out_height, out_width, channels] = dy.extents();
    let places = geometry.window[0] * geometry.window[1];
    for position in 0..index.data.len() {
        index.index("max_pool_grad", "window index", position, places)?;
    }
    let mut dx = vec![0.0; images.iter().product()];
    for n in 0..images[0] {
        for tap in taps(geometry, [images[1], images[2]], [out_height, out_width]) {
            for c in 0..channels {
                let place = at(gradients, [n, tap.output[0], tap.output[1], c]);
                if index.data[place] == at(geometry.window, tap.window) as f64 {
                    dx[at(images, [n, tap.image[0], tap.image[1], c])] += dy.data[place];
                }
            }
        }
    }
    Ok(vec![dx])
}
