//! Convolution and its gradients, and how a window slides.

use crate::evaluate::Values;
use crate::matmul::finish;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::{Conv, Geometry};
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Conv, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let slide = (op.geometry(), op.groups());
    let mut sums = vec![0.0; output.shape.elements()];
    match op {
        Conv::Forward { epilogue, .. } => {
            let (x, kernel) = (&inputs[0], &inputs[1]);
            let (images, kernels) = (x.extents(), kernel.extents());
            let outputs = extents(output);
            products(slide, images, kernels, outputs, |i, k, o| sums[o] += x.data[i] * kernel.data[k]);
            finish(*epilogue, &mut sums, inputs);
        }
        Conv::InputGrad { .. } => {
            let (dy, kernel) = (&inputs[0], &inputs[1]);
            let (images, kernels) = (extents(output), kernel.extents());
            products(slide, images, kernels, dy.extents(), |i, k, o| sums[i] += dy.data[o] * kernel.data[k]);
        }
        Conv::WeightGrad { .. } => {
            let (x, dy) = (&inputs[0], &inputs[1]);
            let (images, kernels) = (x.extents(), extents(output));
            products(slide, images, kernels, dy.extents(), |i, k, o| sums[k] += x.data[i] * dy.data[o]);
        }
    }
    Ok(vec![sums])
}

fn extents(ty: &TensorType) -> [usize; 4] {
    ty.shape[..].try_into().expect("the type rule gives four axes")
}

/// Visits every product of a convolution: the offsets of its element of the image, the kernel and the output. The
/// gradients sum the same products over other indices.
pub(crate) fn products(
    (geometry, groups): (Geometry, usize),
    images: [usize; 4],
    kernels: [usize; 4],
    outputs: [usize; 4],
    mut visit: impl FnMut(usize, usize, usize),
) {
    let [count, height, width, _] = images;
    let [_, _, channels_in, channels_out] = kernels;
    let [_, out_height, out_width, _] = outputs;
    for n in 0..count {
        for tap in taps(geometry, [height, width], [out_height, out_width]) {
            for ci in 0..channels_in {
                for co in 0..channels_out {
                    let group = co / (channels_out / groups);
                    visit(
                        at(images, [n, tap.image[0], tap.image[1], group * channels_in + ci]),
                        at(kernels, [tap.window[0], tap.window[1], ci, co]),
                        at(outputs, [n, tap.output[0], tap.output[1], co]),
                    );
                }
            }
        }
    }
}

/// A place of a window that lies inside the image.
pub(crate) struct Tap {
    /// Which window: the output's row and column.
    pub output: [usize; 2],
    /// Row and column inside the window.
    pub window: [usize; 2],
    /// Row and column of the image.
    pub image: [usize; 2],
}

/// Every place of every window, windows row by row, then places row by row, without those in the padding.
pub(crate) fn taps(geometry: Geometry, image: [usize; 2], output: [usize; 2]) -> Vec<Tap> {
    let place = |axis: usize, window: usize, place: usize| {
        let padded = window * geometry.stride[axis] + place * geometry.dilation[axis];
        padded.checked_sub(geometry.padding[axis][0])
    };
    let mut taps = Vec::new();
    for oy in 0..output[0] {
        for ox in 0..output[1] {
            for ky in 0..geometry.window[0] {
                for kx in 0..geometry.window[1] {
                    let (y, x) = (place(0, oy, ky), place(1, ox, kx));
                    if let (Some(y), Some(x)) = (y, x)
                        && y < image[0]
                        && x < image[1]
                    {
                        taps.push(Tap { output: [oy, ox], window: [ky, kx], image: [y, x] });
                    }
                }
            }
        }
    }
    taps
}
