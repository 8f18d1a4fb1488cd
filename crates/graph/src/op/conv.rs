//! Convolution over images in NHWC order.

use super::{
    Epilogue, Family, OperandPrecision, PrecisionClass, Properties, arity, product_type, rank, require,
    same_float,
};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
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
    /// Distance between neighbouring taps of a window.
    #[serde(default = "undilated", skip_serializing_if = "is_undilated")]
    pub dilation: [usize; 2],
}

fn undilated() -> [usize; 2] {
    [1, 1]
}

fn is_undilated(dilation: &[usize; 2]) -> bool {
    *dilation == undilated()
}

impl Geometry {
    /// The extents of the result for an image of these extents.
    pub fn output(&self, image: [usize; 2]) -> Result<[usize; 2], TypeError> {
        let mut output = [0; 2];
        for axis in 0..2 {
            let (window, stride, dilation) = (self.window[axis], self.stride[axis], self.dilation[axis]);
            require(window > 0 && stride > 0, || "window and stride must be at least 1".into())?;
            require(dilation > 0, || "dilation must be at least 1".into())?;
            let reach = reach(self.window, self.dilation)[axis];
            let padded =
                image[axis].saturating_add(self.padding[axis][0]).saturating_add(self.padding[axis][1]);
            require(padded >= reach, || {
                let apart =
                    if reach == window { String::new() } else { format!(" that reaches over {reach}") };
                format!(
                    "a window of {window}{apart} does not fit an image of {} (padded {padded})",
                    image[axis]
                )
            })?;
            output[axis] = (padded - reach) / stride + 1;
        }
        Ok(output)
    }
}

/// The extents that a window covers when its taps are `dilation` apart.
pub fn reach(window: [usize; 2], dilation: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|axis| window[axis].saturating_sub(1).saturating_mul(dilation[axis]).saturating_add(1))
}

/// The padding with which the result has `ceil(extent / stride)` elements, as TensorFlow's `same` has it. Of a
/// dilated window, `window` is its [`reach`].
pub fn same_padding(image: [usize; 2], window: [usize; 2], stride: [usize; 2]) -> [[usize; 2]; 2] {
    [0, 1].map(|axis| {
        let wanted = (image[axis].div_ceil(stride[axis]).max(1) - 1) * stride[axis] + window[axis];
        let missing = wanted.saturating_sub(image[axis]);
        [missing / 2, missing - missing / 2]
    })
}

/// Convolution (cross-correlation, as every framework has it) and its gradients.
/// Images are `[n,h,w,c]`, kernels `[kh,kw,in,out]`.
///
/// With groups, kernels are `[kh,kw,in / groups,out]`: output channel `o` sees the input channels of group
/// `o / (out / groups)` only. As many groups as channels are a depthwise convolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conv {
    /// `conv2d(x, kernel[, bias])`.
    Forward {
        /// How the kernel slides.
        geometry: Geometry,
        /// Groups of channels.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        groups: usize,
        /// What happens to the elements before they are stored.
        #[serde(default)]
        epilogue: Epilogue,
        /// The result's element type, if not the operands': of 16-bit floats it may be f32.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<DType>,
    },
    /// `(dy, kernel) → dx`. As an op by itself, this is the transposed convolution.
    InputGrad {
        /// The forward geometry.
        geometry: Geometry,
        /// Groups of channels.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        groups: usize,
        /// Height and width of x.
        image: [usize; 2],
        /// The result's element type, if not the operands': of 16-bit floats it may be f32.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<DType>,
    },
    /// `(x, dy) → dkernel`, summed over the batch block by block; f32 of 16-bit floats.
    WeightGrad {
        /// The forward geometry.
        geometry: Geometry,
        /// Groups of channels.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        groups: usize,
    },
}

fn one() -> usize {
    1
}

fn is_one(groups: &usize) -> bool {
    *groups == 1
}

impl Conv {
    /// The geometry of the forward convolution.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Forward { geometry, .. }
            | Self::InputGrad { geometry, .. }
            | Self::WeightGrad { geometry, .. } => *geometry,
        }
    }

    /// Groups of channels.
    pub fn groups(&self) -> usize {
        match self {
            Self::Forward { groups, .. }
            | Self::InputGrad { groups, .. }
            | Self::WeightGrad { groups, .. } => *groups,
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
        let dtype = same_float(&inputs[..2])?;
        let (g, groups) = (self.geometry(), self.groups());
        require(groups > 0, || "needs at least one group".into())?;
        let images = |what, ty| rank::<4>(what, ty);
        let divided = |what: &str, channels: usize| {
            require(channels.is_multiple_of(groups), || {
                format!("{what} {channels} channels, which {groups} groups do not divide")
            })
        };
        let (dtype, shape) = match *self {
            Self::Forward { epilogue, output, .. } => {
                let [n, h, w, c] = images("the image", inputs[0])?;
                let [kh, kw, ci, co] = rank("the kernel", inputs[1])?;
                require(epilogue.take(inputs, co)?.len() == 2, || "needs an image and a kernel".into())?;
                window_is([kh, kw], g)?;
                divided("the kernel gives", co)?;
                require(c == ci.saturating_mul(groups), || {
                    let of =
                        if groups == 1 { String::new() } else { format!(" for each of {groups} groups") };
                    format!("the image has {c} channels, the kernel takes {ci}{of}")
                })?;
                let [oh, ow] = g.output([h, w])?;
                (product_type(dtype, output)?, [n, oh, ow, co])
            }
            Self::InputGrad { image, output, .. } => {
                let [dy, kernel] = arity(inputs)?;
                let [n, oh, ow, c] = images("the gradient", dy)?;
                let [kh, kw, ci, co] = rank("the kernel", kernel)?;
                window_is([kh, kw], g)?;
                divided("the kernel gives", co)?;
                require(c == co, || format!("the gradient has {c} channels, the kernel gives {co}"))?;
                require(g.output(image)? == [oh, ow], || {
                    format!("gradient {dy} does not come from kernel {kernel} on an image {image:?}")
                })?;
                (product_type(dtype, output)?, [n, image[0], image[1], ci.saturating_mul(groups)])
            }
            Self::WeightGrad { .. } => {
                let [x, dy] = arity(inputs)?;
                let [n, h, w, ci] = images("the image", x)?;
                let [n2, oh, ow, co] = images("the gradient", dy)?;
                require(n == n2 && g.output([h, w])? == [oh, ow], || {
                    format!("gradient {dy} does not come from an image {x}")
                })?;
                divided("the image has", ci)?;
                divided("the gradient has", co)?;
                (dtype.wide(), [g.window[0], g.window[1], ci / groups, co])
            }
        };
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let (y, kernel) = match self {
            Self::Forward { .. } => (outputs[0], inputs[1]),
            Self::InputGrad { .. } => (inputs[0], inputs[1]),
            Self::WeightGrad { .. } => (inputs[1], outputs[0]),
        };
        kernel.shape[..3].iter().fold(2 * y.shape.elements() as u64, |n, &f| n.saturating_mul(f as u64))
    }

    fn batch_relation(&self, batched: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        vec![match (self, batched[0], batched[1]) {
            (Self::WeightGrad { .. }, true, true) => BatchRelation::Reduced,
            (Self::Forward { .. } | Self::InputGrad { .. }, true, false) => BatchRelation::PerExample,
            (Self::Forward { .. } | Self::InputGrad { .. } | Self::WeightGrad { .. }, ..) => {
                BatchRelation::Mixed
            }
        }]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Forward { .. } | Self::InputGrad { .. } => {
                Properties { precision: PrecisionClass::PRODUCT, ..Properties::GENERAL }
            }
            Self::WeightGrad { .. } => {
                let precision =
                    PrecisionClass { operands: OperandPrecision::Wide, ..PrecisionClass::PRODUCT };
                Properties { precision, folds: &[0], ..Properties::GENERAL }
            }
        }
    }
}

fn window_is(kernel: [usize; 2], geometry: Geometry) -> Result<(), TypeError> {
    let [h, w] = kernel;
    require(kernel == geometry.window, || {
        format!("the kernel must be {:?}, it is [{h},{w}]", geometry.window)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Geometry =
        Geometry { window: [3, 3], stride: [1, 1], padding: [[1, 1], [1, 1]], dilation: [1, 1] };

    fn forward(groups: usize) -> Conv {
        Conv::Forward { geometry: PLAIN, groups, epilogue: Epilogue::default(), output: None }
    }

    fn types(types: &[&str]) -> Vec<TensorType> {
        types.iter().map(|ty| ty.parse().unwrap()).collect()
    }

    fn infer(op: &Conv, inputs: &[&str]) -> Result<String, String> {
        let inputs = types(inputs);
        let found = op.infer(&inputs.iter().collect::<Vec<_>>());
        found.map(|types| types[0].to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn kernels_take_the_channels_of_a_group() {
        assert_eq!(infer(&forward(3), &["f32[2,5,4,6]", "f32[3,3,2,9]"]).unwrap(), "f32[2,5,4,9]");
        let input = Conv::InputGrad { geometry: PLAIN, groups: 3, image: [5, 4], output: None };
        assert_eq!(infer(&input, &["f32[2,5,4,9]", "f32[3,3,2,9]"]).unwrap(), "f32[2,5,4,6]");
        let weight = Conv::WeightGrad { geometry: PLAIN, groups: 3 };
        assert_eq!(infer(&weight, &["f32[2,5,4,6]", "f32[2,5,4,9]"]).unwrap(), "f32[3,3,2,9]");
        for (op, inputs, output) in [
            (forward(3), ["f32[2,5,4,6]", "f32[3,3,2,9]"], "f32[2,5,4,9]"),
            (input, ["f32[2,5,4,9]", "f32[3,3,2,9]"], "f32[2,5,4,6]"),
            (weight, ["f32[2,5,4,6]", "f32[2,5,4,9]"], "f32[3,3,2,9]"),
        ] {
            let (inputs, output) = (types(&inputs), types(&[output]));
            let flops = op.flops(&inputs.iter().collect::<Vec<_>>(), &[&output[0]]);
            assert_eq!(flops, 2 * (2 * 5 * 4 * 9) * (3 * 3 * 2), "{}", op.name());
        }
    }

    #[test]
    fn mistakes_name_the_channels() {
        let wrong = |op: &Conv, inputs: [&str; 2], words: &str| {
            let error = infer(op, &inputs).unwrap_err();
            assert!(error.contains(words), "no `{words}` in: {error}");
        };
        let (x, y) = ("f32[2,5,4,6]", "f32[2,5,4,9]");
        wrong(&forward(1), [x, "f32[3,3,2,9]"], "the image has 6 channels, the kernel takes 2");
        wrong(
            &forward(2),
            [x, "f32[3,3,2,8]"],
            "the image has 6 channels, the kernel takes 2 for each of 2 groups",
        );
        wrong(&forward(3), [x, "f32[3,3,2,8]"], "the kernel gives 8 channels, which 3 groups do not divide");
        wrong(&forward(0), [x, "f32[3,3,2,8]"], "at least one group");
        let input = Conv::InputGrad { geometry: PLAIN, groups: 1, image: [5, 4], output: None };
        wrong(&input, [y, "f32[3,3,6,8]"], "the gradient has 9 channels, the kernel gives 8");
        wrong(&input, [y, "f32[3,2,6,9]"], "the kernel must be [3, 3], it is [3,2]");
        let weight = Conv::WeightGrad { geometry: PLAIN, groups: 2 };
        wrong(&weight, [x, y], "the gradient has 9 channels, which 2 groups do not divide");
    }

    #[test]
    fn dilation_widens_what_a_window_reaches() {
        let g = Geometry { dilation: [2, 3], ..PLAIN };
        assert_eq!(g.output([7, 9]).unwrap(), [5, 5]);
        let error = g.output([7, 4]).unwrap_err().to_string();
        assert!(
            error.contains("a window of 3 that reaches over 7 does not fit an image of 4 (padded 6)"),
            "{error}"
        );
        assert!(Geometry { dilation: [1, 0], ..PLAIN }.output([7, 9]).is_err());
        for stride in [1, 2, 3] {
            let padding = same_padding([7, 9], reach(g.window, g.dilation), [stride; 2]);
            let same = Geometry { stride: [stride; 2], padding, ..g };
            assert_eq!(same.output([7, 9]).unwrap(), [7_usize.div_ceil(stride), 9_usize.div_ceil(stride)]);
        }
    }

    #[test]
    fn text_without_dilation_and_groups_still_parses() {
        let text = r#"{"weight_grad":{"geometry":{"window":[3,3],"stride":[1,1],"padding":[[1,1],[1,1]]}}}"#;
        let op: Conv = serde_json::from_str(text).unwrap();
        assert_eq!(op, Conv::WeightGrad { geometry: PLAIN, groups: 1 });
        assert_eq!(serde_json::to_string(&op).unwrap(), text);
        let spread = Conv::WeightGrad { geometry: Geometry { dilation: [2, 1], ..PLAIN }, groups: 4 };
        let text = serde_json::to_string(&spread).unwrap();
        assert_eq!(serde_json::from_str::<Conv>(&text).unwrap(), spread);
    }
}
