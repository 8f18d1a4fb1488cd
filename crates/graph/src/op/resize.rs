//! Resizing images in NHWC order.

use super::{Family, PrecisionClass, Properties, arity, per_example, rank, require, same_float};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// How elements between those of an image are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeMode {
    /// Element i of an axis is the image's element `floor(i · from / to)`.
    Nearest,
    /// Between the two nearest elements of either axis, by distance; beyond the outermost it is the outermost.
    Bilinear {
        /// Whether the corners' centres lie on each other (element i lies at `i · (from - 1) / (to - 1)`); otherwise
        /// their outer edges do (element i lies at `(i + ½) · from / to - ½`).
        align_corners: bool,
    },
}

/// Resizing and its adjoint, which is its gradient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// `x → y`: the image at another size.
    Forward {
        /// The interpolation.
        mode: ResizeMode,
        /// Height and width of y.
        output: [usize; 2],
    },
    /// `dy → dx`.
    Grad {
        /// The forward mode.
        mode: ResizeMode,
        /// Height and width of x.
        image: [usize; 2],
    },
}

impl Family for Resize {
    fn name(&self) -> &'static str {
        match self {
            Self::Forward { .. } => "resize",
            Self::Grad { .. } => "resize_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let [x] = arity(inputs)?;
        let dtype = same_float(inputs)?;
        let [n, h, w, c] = rank("the image", x)?;
        let (Self::Forward { output: to, .. } | Self::Grad { image: to, .. }) = *self;
        require(![h, w].contains(&0) && !to.contains(&0), || {
            format!("an image of {h} × {w} cannot become one of {} × {}: both need elements", to[0], to[1])
        })?;
        Ok(vec![TensorType::new(dtype, [n, to[0], to[1], c])])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let (y, mode) = match self {
            Self::Forward { mode, .. } => (outputs[0], mode),
            Self::Grad { mode, .. } => (inputs[0], mode),
        };
        let each = match mode {
            ResizeMode::Nearest => 1,
            ResizeMode::Bilinear { .. } => 8,
        };
        each * y.shape.elements() as u64
    }

    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        per_example(1)
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Forward { .. } | Self::Grad { .. } => {
                Properties { precision: PrecisionClass::ROUNDED, ..Properties::GENERAL }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::DType;

    #[test]
    fn images_without_elements_are_refused() {
        let [empty, image] = [[2, 0, 3, 1], [2, 4, 3, 1]].map(|shape| TensorType::new(DType::F32, shape));
        let op = |output| Resize::Forward { mode: ResizeMode::Nearest, output };
        assert!(op([2, 2]).infer(&[&empty]).unwrap_err().to_string().contains("0 × 3"));
        assert!(op([2, 0]).infer(&[&image]).unwrap_err().to_string().contains("2 × 0"));
        assert_eq!(op([8, 1]).infer(&[&image]).unwrap()[0].shape[..], [2, 8, 1, 1]);
    }
}
