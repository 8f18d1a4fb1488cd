//! Convolution over images in NHWC order.

use super::{Epilogue, Family, arity, rank, require, same_float};
use crate::{Flow, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// How a window slides over an image: height first, then width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Extents of the window.
    pub window: [usize; 2],
    /// Distance between neighbouring windows.
    pub stride: [usize; 2],
    /// Zeros (for maxima: nothing) around the image: `[[top, bottom], [left, right]]`.
    pub padding: [[usize; 2]; 2],
}

impl Geometry {
    /// The extents of the result for an image of these extents.
    pub fn output(&self, image: [usize; 2]) -> Result<[usize; 2], TypeError> {
        let mut output = [0; 2];
        for axis in 0..2 {
            let (window, stride) = (self.window[axis], self.stride[axis]);
            require(window > 0 && stride > 0, || "window and stride must be at least 1".into())?;
            let padded =
                image[axis].saturating_add(self.padding[axis][0]).saturating_add(self.padding[axis][1]);
            require(padded >= window, || {
                format!("a window of {window} does not fit an image of {} (padded {padded})", image[axis])
            })?;
            output[axis] = (padded - window) / stride + 1;
        }
        Ok(output)
    }
}

/// The padding with which the result has `ceil(extent / stride)` elements, as TensorFlow's `same` has it.
pub fn same_padding(image: [usize; 2], window: [usize; 2], stride: [usize; 2]) -> [[usize; 2]; 2] {
    [0, 1].map(|axis| {
        let wanted = (image[axis].div_ceil(stride[axis]).max(1) - 1) * stride[axis] + window[axis];
        let missing = wanted.saturating_sub(image[axis]);
        [missing / 2, missing - missing / 2]
    })
}

/// Convolution (cross-correlation, as every framework has it) and its gradients.
/// Images are `[n,h,w,c]`, kernels `[kh,kw,in,out]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conv {
    /// `conv2d(x, kernel[, bias])`.
    Forward {
        /// How the kernel slides.
        geometry: Geometry,
        /// What happens to the elements before they are stored.
        #[serde(default)]
        epilogue: Epilogue,
    },
    /// `(dy, kernel) → dx`.
    InputGrad {
        /// The forward geometry.
        geometry: Geometry,
        /// Height and width of x.
        image: [usize; 2],
    },
    /// `(x, dy) → dkernel`, summed over the examples block by block.
    WeightGrad {
        /// The forward geometry.
        geometry: Geometry,
    },
}

impl Conv {
    /// The geometry of the forward convolution.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Forward { geometry, .. }
            | Self::InputGrad { geometry, .. }
            | Self::WeightGrad { geometry } => *geometry,
        }
    }
}

impl Family for Conv {
    fn name(&self) -> &'static str {
        match self {
            Self::Forward { .. } => "conv2d",
            Self::InputGrad { .. } => "conv2d_input_grad",
            Self::WeightGrad { .. } => "conv2d_weight_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        require(inputs.len() >= 2, || "needs two inputs".into())?;
        let dtype = same_float(inputs)?;
        let g = self.geometry();
        let images = |what, ty| rank::<4>(what, ty);
        let shape = match *self {
            Self::Forward { epilogue, .. } => {
                let [n, h, w, c] = images("the image", inputs[0])?;
                let [kh, kw, ci, co] = rank("the kernel", inputs[1])?;
                require(epilogue.take(inputs, co)?.len() == 2, || "needs an image and a kernel".into())?;
                require([kh, kw] == g.window, || {
                    format!("the kernel must be {:?}, it is [{kh},{kw}]", g.window)
                })?;
                require(c == ci, || format!("the image has {c} channels, the kernel takes {ci}"))?;
                let [oh, ow] = g.output([h, w])?;
                [n, oh, ow, co]
            }
            Self::InputGrad { image, .. } => {
                let [dy, kernel] = arity(inputs)?;
                let [n, oh, ow, c] = images("the gradient", dy)?;
                let [kh, kw, ci, co] = rank("the kernel", kernel)?;
                require([kh, kw] == g.window && c == co && g.output(image)? == [oh, ow], || {
                    format!("gradient {dy} does not come from kernel {kernel} on an image {image:?}")
                })?;
                [n, image[0], image[1], ci]
            }
            Self::WeightGrad { .. } => {
                let [x, dy] = arity(inputs)?;
                let [n, h, w, ci] = images("the image", x)?;
                let [n2, oh, ow, co] = images("the gradient", dy)?;
                require(n == n2 && g.output([h, w])? == [oh, ow], || {
                    format!("gradient {dy} does not come from an image {x}")
                })?;
                [g.window[0], g.window[1], ci, co]
            }
        };
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let (y, other) = match self {
            Self::Forward { .. } => (outputs[0], &inputs[1].shape[2]),
            Self::InputGrad { .. } => (inputs[0], &inputs[1].shape[2]),
            Self::WeightGrad { .. } => (inputs[1], &inputs[0].shape[3]),
        };
        let [kh, kw] = self.geometry().window;
        [kh, kw, *other].iter().fold(2 * y.shape.elements() as u64, |n, &f| n.saturating_mul(f as u64))
    }

    fn flow(&self, batched: &[bool], _: &[&TensorType]) -> Vec<Flow> {
        vec![match (self, batched[0], batched[1]) {
            (Self::WeightGrad { .. }, true, true) => Flow::Folded,
            (Self::Forward { .. } | Self::InputGrad { .. }, true, false) => Flow::PerExample,
            _ => Flow::Mixed,
        }]
    }

    fn folds(&self) -> &'static [usize] {
        if matches!(self, Self::WeightGrad { .. }) { &[0] } else { &[] }
    }
}
