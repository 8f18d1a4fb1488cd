//! Pooling and its gradients.

use crate::conv::{Tap, taps};
use crate::evaluate::Values;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::{Pool, Windows};
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Pool, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let outputs = output.shape[..].try_into().expect("the type rule gives four axes");
    match *op {
        Pool::Max { windows } => Ok(max(windows, &inputs[0], outputs)),
        Pool::MaxGrad { windows, .. } => max_grad(windows, &inputs[0], &inputs[1], outputs),
        Pool::Average { windows, count_padding } => {
            let x = &inputs[0];
            let mut y = vec![0.0; output.shape.elements()];
            shares(windows, count_padding, x.extents(), outputs, |i, o, count| y[o] += x.data[i] / count);
            Ok(vec![y])
        }
        Pool::AverageGrad { windows, count_padding, .. } => {
            let dy = &inputs[0];
            let mut dx = vec![0.0; output.shape.elements()];
            shares(windows, count_padding, outputs, dy.extents(), |i, o, count| dx[i] += dy.data[o] / count);
            Ok(vec![dx])
        }
    }
}

/// Every place of every window that lies inside the image.
fn places(windows: Windows, image: [usize; 2], output: [usize; 2]) -> Vec<Tap> {
    if let Windows::Sliding(geometry) = windows {
        return taps(geometry, image, output);
    }
    let span = |i: usize, axis: usize| {
        i * image[axis] / output[axis]..((i + 1) * image[axis]).div_ceil(output[axis])
    };
    let mut places = Vec::new();
    for oy in 0..output[0] {
        for ox in 0..output[1] {
            for (ky, y) in span(oy, 0).enumerate() {
                for (kx, x) in span(ox, 1).enumerate() {
                    places.push(Tap { output: [oy, ox], window: [ky, kx], image: [y, x] });
                }
            }
        }
    }
    places
}

pub(crate) fn max(windows: Windows, x: &Elements<'_>, outputs: [usize; 4]) -> Vec<Vec<f64>> {
    let images @ [count, height, width, channels] = x.extents();
    let largest_window = windows.largest([height, width]);
    let size = outputs.iter().product();
    // Padding is no element: a maximum starts empty.
    let mut largest: Vec<Option<f64>> = vec![None; size];
    let mut index = vec![0.0; size];
    for n in 0..count {
        for tap in places(windows, [height, width], [outputs[1], outputs[2]]) {
            for c in 0..channels {
                let value = x.data[at(images, [n, tap.image[0], tap.image[1], c])];
                let place = at(outputs, [n, tap.output[0], tap.output[1], c]);
                // The first largest wins; NaN counts as largest.
                if largest[place].is_none_or(|old| value > old || (value.is_nan() && !old.is_nan())) {
                    largest[place] = Some(value);
                    index[place] = at(largest_window, tap.window) as f64;
                }
            }
        }
    }
    let largest =
        largest.into_iter().map(|value| value.expect("every window has an element of the image")).collect();
    vec![largest, index]
}

fn max_grad(windows: Windows, dy: &Elements<'_>, index: &Elements<'_>, images: [usize; 4]) -> Values {
    let gradients @ [_, out_height, out_width, channels] = dy.extents();
    let largest_window = windows.largest([images[1], images[2]]);
    for position in 0..index.data.len() {
        index.index("max_pool_grad", "window index", position, largest_window.iter().product())?;
    }
    let mut dx = vec![0.0; images.iter().product()];
    for n in 0..images[0] {
        for tap in places(windows, [images[1], images[2]], [out_height, out_width]) {
            for c in 0..channels {
                let place = at(gradients, [n, tap.output[0], tap.output[1], c]);
                if index.data[place] == at(largest_window, tap.window) as f64 {
                    dx[at(images, [n, tap.image[0], tap.image[1], c])] += dy.data[place];
                }
            }
        }
    }
    Ok(vec![dx])
}

/// Visits every element of every mean: the offsets of the image's element and of the mean, and the mean's divisor. The
/// gradient visits the same.
pub(crate) fn shares(
    windows: Windows,
    count_padding: bool,
    images: [usize; 4],
    outputs: [usize; 4],
    mut visit: impl FnMut(usize, usize, f64),
) {
    let [count, height, width, channels] = images;
    let [_, out_height, out_width, _] = outputs;
    let taps = places(windows, [height, width], [out_height, out_width]);
    let mut elements = vec![0.0; out_height * out_width];
    for tap in &taps {
        elements[at([out_height, out_width], tap.output)] += 1.0;
    }
    if let (Windows::Sliding(geometry), true) = (windows, count_padding) {
        elements.fill(geometry.window.iter().product::<usize>() as f64);
    }
    for n in 0..count {
        for tap in &taps {
            for c in 0..channels {
                visit(
                    at(images, [n, tap.image[0], tap.image[1], c]),
                    at(outputs, [n, tap.output[0], tap.output[1], c]),
                    elements[at([out_height, out_width], tap.output)],
                );
            }
        }
    }
}
