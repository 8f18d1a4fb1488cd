//! Pooling over NHWC images: maxima and means, each with its gradient.
//!
//! A forward task computes rows of the result, a backward task rows of the image's gradient: it gathers from the windows
//! over its rows, in their order.

mod average;
mod max;
#[cfg(test)]
mod tests;

pub use average::{average_pool, average_pool_grad, average_pool_grad_workspace, average_pool_workspace};
pub use max::{max_pool, max_pool_grad};

use crate::kernels::math::rows_per_task;
use std::ops::Range;

/// Where the windows along an axis are.
#[derive(Clone, Copy, Debug)]
pub enum Spacing {
    /// Window i starts at `i · stride - before`.
    Sliding {
        /// Elements between windows.
        stride: usize,
        /// Elements of the first window before the image.
        before: usize,
        /// Elements between places of a window.
        dilation: usize,
    },
    /// Window i runs from `floor(i · input / output)` to `ceil((i + 1) · input / output)`.
    Adaptive,
}

/// The windows along one axis of an image. They may reach over either edge.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Elements of the image.
    pub input: usize,
    /// Windows.
    pub output: usize,
    /// The most places that a window has.
    pub places: usize,
    /// Where the windows are.
    pub spacing: Spacing,
}

/// The places of one window inside the image.
#[derive(Clone)]
struct Span {
    /// Counted from the window's first place.
    places: Range<usize>,
    /// The image's element under the first of them.
    first: usize,
    /// Elements from place to place.
    step: usize,
}

impl Span {
    /// The places, each with its element of the image.
    #[inline(always)]
    fn taps(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let elements = (self.first..).step_by(self.step);
        self.places.clone().zip(elements)
    }
}

impl Axis {
    /// Window i.
    #[inline(always)]
    fn span(&self, i: usize) -> Span {
        match self.spacing {
            Spacing::Sliding { stride, before, dilation } => {
                let start = i * stride;
                if start >= before && start - before + (self.places - 1) * dilation < self.input {
                    return Span { places: 0..self.places, first: start - before, step: dilation };
                }
                let first = before.saturating_sub(start).div_ceil(dilation).min(self.places);
                let end = (self.input + before).saturating_sub(start).div_ceil(dilation).min(self.places);
                let element = (start + first * dilation).saturating_sub(before);
                Span { places: first..end, first: element, step: dilation }
            }
            Spacing::Adaptive => {
                let first = i * self.input / self.output;
                let end = ((i + 1) * self.input).div_ceil(self.output);
                Span { places: 0..end - first, first, step: 1 }
            }
        }
    }

    /// Where window i starts; before the image if it wraps around.
    fn corner(&self, i: usize) -> usize {
        match self.spacing {
            Spacing::Sliding { stride, before, .. } => (i * stride).wrapping_sub(before),
            Spacing::Adaptive => i * self.input / self.output,
        }
    }

    /// Elements from place to place.
    fn step(&self) -> usize {
        match self.spacing {
            Spacing::Sliding { dilation, .. } => dilation,
            Spacing::Adaptive => 1,
        }
    }

    /// The windows that have a place at or around an element of the image.
    #[inline(always)]
    fn around(&self, element: usize) -> Range<usize> {
        match self.spacing {
            Spacing::Sliding { stride, before, dilation } => {
                let reach = (self.places - 1) * dilation;
                let first = (element + before).saturating_sub(reach).div_ceil(stride);
                first..((element + before) / stride + 1).min(self.output)
            }
            Spacing::Adaptive => {
                element * self.output / self.input..((element + 1) * self.output).div_ceil(self.input)
            }
        }
    }

    /// Whether a window [around](Self::around) an element has a place there, not between two.
    #[inline(always)]
    fn covers(&self, window: usize, element: usize) -> bool {
        element.wrapping_sub(self.corner(window)).is_multiple_of(self.step())
    }
}

/// The sizes of a pooling.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    /// Images.
    pub examples: usize,
    /// The rows.
    pub height: Axis,
    /// The columns.
    pub width: Axis,
    /// Channels of a pixel.
    pub channels: usize,
}

impl PoolShape {
    fn check(&self, x: usize, y: usize) {
        for axis in [&self.height, &self.width] {
            assert!(axis.places > 0 && axis.input > 0 && axis.output > 0, "windows and images have elements");
        }
        assert_eq!(x, self.examples * self.height.input * self.in_row(), "the input's length");
        assert_eq!(y, self.examples * self.height.output * self.out_row(), "the output's length");
    }

    /// Floats of a row of the image.
    fn in_row(&self) -> usize {
        self.width.input * self.channels
    }

    /// Floats of a row of the result.
    fn out_row(&self) -> usize {
        self.width.output * self.channels
    }

    /// How many rows of the result one task takes: by what it reads.
    fn out_rows_per_task(&self) -> usize {
        rows_per_task(self.in_row() * self.height.places)
    }
}
