//! One axis of a convolution: from which source positions a target position gathers, by which taps.

use std::ops::Range;

/// An evenly spaced class of target positions that all meet the same taps of the kernel.
///
/// Going forward there is one class. Going back through a stride, the target positions fall into classes by
/// their position modulo the stride.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    /// The first target position of the class, how far apart they are, and how many there are.
    pub first: usize,
    pub pitch: usize,
    pub count: usize,
    /// The first tap, how far apart they are, and how many there are.
    pub tap: usize,
    pub tap_pitch: usize,
    pub taps: usize,
    /// Where the first target position meets the source by its first tap; this may lie outside of it.
    pub origin: isize,
    /// How far that moves to the next target position, and to the next tap.
    pub step: usize,
    pub spread: isize,
}

/// The sizes of a convolution along one axis.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl Axis {
    /// Output positions, which gather from the input.
    pub(super) fn forward(extent: Extent) -> Self {
        let Extent { output, kernel, stride, pad, .. } = extent;
        let (origin, spread) = (-(pad as isize), extent.dilation() as isize);
        let (first, pitch, count) = (0, 1, output);
        Self { first, pitch, count, tap: 0, tap_pitch: 1, taps: kernel, origin, step: stride, spread }
    }

    /// Class `first` of the input positions, which gather from the output's gradient.
    pub(super) fn backward(extent: Extent, first: usize) -> Self {
        let Extent { input, kernel, stride, pad, .. } = extent;
        let dilation = extent.dilation();
        // A tap meets the class where its distance from the window's corner is the class's, modulo the stride.
        let meets = |tap: &usize| (tap * dilation) % stride == (first + pad) % stride;
        let tap = (0..stride.min(kernel)).find(meets).unwrap_or(kernel);
        let tap_pitch =
            (1..stride.min(kernel)).find(|n| (n * dilation).is_multiple_of(stride)).unwrap_or(stride);
        Self {
            first,
            pitch: stride,
            count: input.saturating_sub(first).div_ceil(stride),
            tap,
            tap_pitch,
            taps: (kernel - tap).div_ceil(tap_pitch),
            origin: ((first + pad) as isize - (tap * dilation) as isize).div_euclid(stride as isize),
            step: 1,
            spread: -((tap_pitch * dilation / stride) as isize),
        }
    }

    /// The source position that a target position meets by a tap.
    pub(super) fn source(&self, at: usize, tap: usize) -> isize {
        self.origin + (at * self.step) as isize + tap as isize * self.spread
    }

    /// The lowest and the highest source position that target position 0 meets.
    pub(super) fn ends(&self) -> [isize; 2] {
        let reach = self.taps.saturating_sub(1) as isize * self.spread;
        [self.origin + reach.min(0), self.origin + reach.max(0)]
    }

    /// The taps by which a target position meets a source of this size.
    pub(super) fn taps_inside(&self, at: usize, size: usize) -> Range<usize> {
        let inside = |&tap: &usize| (0..size as isize).contains(&self.source(at, tap));
        let start = (0..self.taps).find(inside).unwrap_or(self.taps);
        start..start + (start..self.taps).take_while(inside).count()
    }

    /// The target positions that meet a source of this size by every tap.
    pub(super) fn whole(&self, size: usize) -> Range<usize> {
        let [low, high] = self.ends();
        let start = (-low).max(0).cast_unsigned().div_ceil(self.step).min(self.count);
        let end = (size as isize - high).max(0).cast_unsigned().div_ceil(self.step);
        start..end.clamp(start, self.count)
    }
}

impl Extent {
    /// Between the taps; nothing lies between one tap and itself.
    fn dilation(&self) -> usize {
        if self.kernel > 1 { self.dilation } else { 1 }
    }
}
