//! Pooling over images in NHWC order.

use super::{
    Family, Geometry, OperandPrecision, PrecisionClass, Properties, arity, per_example, rank, reach, require,
    same_float,
};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Which elements of an image are pooled together: height first, then width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    /// A window that slides.
    Sliding(Geometry),
    /// One window for each element of the result: along an axis, window i of an image of n elements runs from
    /// `floor(i · n / output)` to `ceil((i + 1) · n / output)`. Neighbours share an element where n does not divide.
    Adaptive {
        /// Extents of the result.
        output: [usize; 2],
    },
}

impl Windows {
    /// The extents of the result for an image of these extents. Every window has an element of the image.
    pub fn output(&self, image: [usize; 2]) -> Result<[usize; 2], TypeError> {
        require(!image.contains(&0), || format!("an image {image:?} has no elements"))?;
        match self {
            Self::Sliding(geometry) => {
                let reach = reach(geometry.window, geometry.dilation);
                let inside = (0..2).all(|a| geometry.padding[a].iter().all(|&p| p < reach[a]));
                require(inside, || "padding must be smaller than what the window reaches over".into())?;
                // A window that starts before the image could step over all of it.
                let met = (0..2).all(|a| geometry.padding[a][0] == 0 || geometry.dilation[a] <= image[a]);
                require(met, || {
                    format!("padded, a dilation of {:?} steps over an image {image:?}", geometry.dilation)
                })?;
                geometry.output(image)
            }
            Self::Adaptive { output } => {
                require(!output.contains(&0), || format!("an output {output:?} has no elements"))?;
                Ok(*output)
            }
        }
    }

    /// The extents of the largest window over an image of these extents.
    pub fn largest(&self, image: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Sliding(geometry) => geometry.window,
            // Of all windows, the one that starts furthest inside an element ends furthest.
            Self::Adaptive { output } => [0, 1].map(|a| {
                let furthest = output[a].saturating_sub(common_divisor(image[a], output[a]));
                image[a].saturating_add(furthest).div_ceil(output[a].max(1))
            }),
        }
    }
}

/// The greatest common divisor; the other number where one is 0.
fn common_divisor(a: usize, b: usize) -> usize {
    if a == 0 { b } else { common_divisor(b % a, a) }
}

/// Pooling and its gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// `x → (y, index)`: the largest element of each window and its place in the window (row by row of the largest
    /// window's extents, the first largest, one byte). NaN counts as largest.
    Max {
        /// The windows.
        windows: Windows,
    },
    /// `(dy, index) → dx`.
    MaxGrad {
        /// The forward windows.
        windows: Windows,
        /// Height and width of x.
        image: [usize; 2],
    },
    /// `x → y`: the mean of each window.
    Average {
        /// The windows.
        windows: Windows,
        /// Whether padding counts as elements that are zero; without, a mean is that of the elements of the image.
        /// Adaptive windows have no padding.
        count_padding: bool,
    },
    /// `dy → dx`.
    AverageGrad {
        /// The forward windows.
        windows: Windows,
        /// As in forward.
        count_padding: bool,
        /// Height and width of x.
        image: [usize; 2],
    },
}

impl Pool {
    /// The windows of the forward pool.
    fn windows(&self) -> Windows {
        match self {
            Self::Max { windows }
            | Self::MaxGrad { windows, .. }
            | Self::Average { windows, .. }
            | Self::AverageGrad { windows, .. } => *windows,
        }
    }

    /// Height and width of x.
    fn image(&self, input: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Max { .. } | Self::Average { .. } => input,
            Self::MaxGrad { image, .. } | Self::AverageGrad { image, .. } => *image,
        }
    }
}

impl Family for Pool {
    fn name(&self) -> &'static str {
        match self {
            Self::Max { .. } => "max_pool",
            Self::MaxGrad { .. } => "max_pool_grad",
            Self::Average { .. } => "average_pool",
            Self::AverageGrad { .. } => "average_pool_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let given = match self {
            Self::MaxGrad { .. } => {
                let [dy, index] = arity(inputs)?;
                require(dy.shape == index.shape && index.dtype == DType::U8, || {
                    "the index must be u8 of the gradient's shape".into()
                })?;
                dy
            }
            Self::Max { .. } | Self::Average { .. } | Self::AverageGrad { .. } => arity::<1>(inputs)?[0],
        };
        let dtype = same_float(&[given])?;
        let [n, h, w, c] = rank("the image", given)?;
        let (windows, image) = (self.windows(), self.image([h, w]));
        let [oh, ow] = windows.output(image)?;
        if matches!(self, Self::Max { .. } | Self::MaxGrad { .. }) {
            let [rows, columns] = windows.largest(image);
            require(rows.saturating_mul(columns) <= 256, || {
                format!("a window of {rows} × {columns} has over 256 places; a maximum's index is one byte")
            })?;
        }
        let y = TensorType::new(dtype, [n, oh, ow, c]);
        match self {
            Self::Max { .. } => Ok(vec![y, TensorType::new(DType::U8, [n, oh, ow, c])]),
            Self::Average { .. } => Ok(vec![y]),
            Self::MaxGrad { .. } | Self::AverageGrad { .. } => {
                require([oh, ow] == [h, w], || {
                    format!("gradient {given} does not come from an image {image:?}")
                })?;
                Ok(vec![TensorType::new(dtype, [n, image[0], image[1], c])])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let (x, y) = match self {
            Self::Max { .. } | Self::Average { .. } => (inputs[0], outputs[0]),
            Self::MaxGrad { .. } | Self::AverageGrad { .. } => (outputs[0], inputs[0]),
        };
        let window = self.windows().largest([x.shape[1], x.shape[2]]);
        window.iter().fold(y.shape.elements() as u64, |n, &extent| n.saturating_mul(extent as u64))
    }

    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        per_example(if matches!(self, Self::Max { .. }) { 2 } else { 1 })
    }

    fn properties(&self) -> Properties {
        let precision = match self {
            // The largest of a window is one of its elements.
            Self::Max { .. } => {
                PrecisionClass { operands: OperandPrecision::AsStored, ..PrecisionClass::ROUNDED }
            }
            Self::MaxGrad { .. } | Self::Average { .. } | Self::AverageGrad { .. } => PrecisionClass::ROUNDED,
        };
        Properties { precision, ..Properties::GENERAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_adaptive_window_is_the_largest_of_all() {
        for n in 1..40 {
            for output in 1..40 {
                let span = |i: usize| ((i + 1) * n).div_ceil(output) - i * n / output;
                let largest = Windows::Adaptive { output: [output, 1] }.largest([n, 1])[0];
                assert_eq!(Some(largest), (0..output).map(span).max(), "{n} to {output}");
            }
        }
    }

    #[test]
    fn what_cannot_be_pooled_is_refused_with_a_reason() {
        let image = TensorType::new(DType::F32, [1, 40, 40, 2]);
        let refusal = |op: Pool, x: &TensorType| op.infer(&[x]).unwrap_err().to_string();
        let windows = |output| Windows::Adaptive { output };
        let average = |output| Pool::Average { windows: windows(output), count_padding: false };
        assert!(refusal(Pool::Max { windows: windows([2, 2]) }, &image).contains("20 × 20 has over 256"));
        assert!(average([2, 2]).infer(&[&image]).is_ok());
        assert!(refusal(average([2, 0]), &image).contains("output [2, 0]"));
        let empty = TensorType::new(DType::F32, [1, 4, 0, 2]);
        assert!(refusal(average([2, 2]), &empty).contains("image [4, 0]"));
        let apart = Geometry { window: [2, 2], stride: [1, 1], padding: [[1, 1]; 2], dilation: [2, 2] };
        let windows_apart = Pool::Max { windows: Windows::Sliding(apart) };
        let pixel = TensorType::new(DType::F32, [1, 1, 1, 2]);
        assert!(refusal(windows_apart.clone(), &pixel).contains("dilation of [2, 2] steps over"));
        assert!(windows_apart.infer(&[&image]).is_ok());
        let padded = Pool::Max { windows: Windows::Sliding(Geometry { padding: [[3, 3]; 2], ..apart }) };
        assert!(refusal(padded, &image).contains("padding must be smaller"));
        let grad = Pool::AverageGrad { windows: windows([3, 3]), count_padding: false, image: [8, 8] };
        assert!(refusal(grad, &image).contains("does not come from an image [8, 8]"));
    }
}
