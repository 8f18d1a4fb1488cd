//! Lines of output pixels, and the bytes of the input under them.

/// A convolution: image, kernel and result, each as height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Examples.
    pub examples: usize,
    /// Extents of the image.
    pub image: [usize; 2],
    /// Channels of the image.
    pub inputs: usize,
    /// Extents of the window.
    pub window: [usize; 2],
    /// Distance between neighbouring windows.
    pub stride: [usize; 2],
    /// Distance between neighbouring taps.
    pub dilation: [usize; 2],
    /// Padding before the image.
    pub before: [usize; 2],
    /// Extents of the result.
    pub output: [usize; 2],
    /// Channels of the result.
    pub outputs: usize,
}

impl ConvShape {
    /// Codes of the input.
    pub fn input_len(&self) -> usize {
        self.examples * self.image[0] * self.image[1] * self.inputs
    }

    /// Codes of the output.
    pub fn output_len(&self) -> usize {
        self.examples * self.output[0] * self.output[1] * self.outputs
    }

    /// Whether pixels of the output are those of the input.
    pub fn is_pointwise(&self) -> bool {
        self.window == [1, 1] && self.stride == [1, 1] && self.before == [0, 0] && self.output == self.image
    }

    /// Pixels of the image, padding included, under so many outputs along an axis.
    fn covered(&self, axis: usize, outputs: usize) -> usize {
        outputs.saturating_sub(1) * self.stride[axis]
            + self.window[axis].saturating_sub(1) * self.dilation[axis]
            + 1
    }
}

/// Output pixels of a band, where lines are so short that it has several.
const BAND_PIXELS: usize = 256;
/// Rows of a matrix that are a line.
pub(super) const MATRIX_LINE: usize = 96;
/// Bytes of input under a band, where it has more than one line.
const BAND_BYTES: usize = 128 * 1024;
/// Bands for each thread, so that they share the work evenly.
const BANDS_PER_THREAD: usize = 3;

/// The lines of output pixels of a layer, in bands. A tile of pixels lies in one line, so its windows are at even distances.
pub(super) struct Lines {
    pub shape: ConvShape,
    /// All output pixels: the last line of a matrix may be shorter than the others.
    pixels: usize,
    /// Bytes from a line of the input to the next, in the image if windows stay inside of it, else in a copy.
    pub pitch: usize,
    inside: bool,
    /// Bytes that are read behind the end of a run.
    over: usize,
    /// Lines of a band, and bands of an example.
    band: usize,
    bands: usize,
}

/// A band whose input can be read.
pub(super) struct Band {
    /// The first byte under the first line.
    pub first: *const u8,
    /// Bytes of input between lines of the output.
    pub line: usize,
    /// Lines, and pixels of each.
    pub lines: usize,
    pub pixels: usize,
    /// The first pixel of all the output's, and pixels between lines.
    pub pixel: usize,
    pub pixel_line: usize,
}

impl Lines {
    /// The lines of a convolution whose kernel reads so many bytes behind the end of a run.
    pub fn of(shape: &ConvShape, over: usize, threads: usize) -> Self {
        let pixels = shape.examples * shape.output[0] * shape.output[1];
        let inside = (0..2).all(|axis| {
            shape.before[axis] == 0 && shape.covered(axis, shape.output[axis]) <= shape.image[axis]
        });
        let width = if inside { shape.image[1] } else { shape.covered(1, shape.output[1]) };
        let pitch = width * shape.inputs;
        let [height, width] = shape.output;
        let wanted = (BANDS_PER_THREAD * threads).div_ceil(shape.examples.max(1));
        let fitting = (BAND_BYTES / (pitch * shape.stride[0]).max(1)).min(BAND_PIXELS.div_ceil(width.max(1)));
        let band = fitting.min(height.div_ceil(wanted)).clamp(1, height.max(1));
        Self { shape: *shape, pixels, pitch, inside, over, band, bands: height.div_ceil(band) }
    }

    /// Those of a matrix of so many rows: each line is some of them.
    pub fn of_matrix([rows, k, n]: [usize; 3], over: usize, threads: usize) -> Self {
        let line = rows.clamp(1, MATRIX_LINE);
        let shape = ConvShape {
            examples: rows.div_ceil(line),
            image: [1, line],
            inputs: k,
            window: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            before: [0, 0],
            output: [1, line],
            outputs: n,
        };
        Self { pixels: rows, ..Self::of(&shape, over, threads) }
    }

    /// Output pixels of all examples.
    pub fn pixels(&self) -> usize {
        self.pixels
    }

    /// Bytes of input that are copied, but for the last band of one that is read in place.
    pub fn copied_bytes(&self) -> f64 {
        if self.inside { 0.0 } else { (self.bands() * self.shape.covered(0, self.band) * self.pitch) as f64 }
    }

    /// Bands of all examples.
    pub fn bands(&self) -> usize {
        self.shape.examples * self.bands
    }

    /// Bytes of a thread's copy of the input under a band: whole cache lines.
    pub fn copy_bytes(&self) -> usize {
        (self.shape.covered(0, self.band) * self.pitch + self.over).next_multiple_of(64)
    }

    /// How many runs of neighbouring bytes a window has: its rows, or, where its taps are apart, all taps.
    pub fn runs_of(shape: &ConvShape) -> (usize, usize) {
        let [height, width] = shape.window;
        match width == 1 || shape.dilation[1] == 1 {
            true => (height, width * shape.inputs),
            false => (height * width, shape.inputs),
        }
    }

    /// Where every run of so many bytes starts, from the first byte of a window.
    pub fn starts(&self, run: usize, starts: &mut [usize]) {
        let c = self.shape.inputs;
        let across = if run == c { self.shape.window[1].max(1) } else { 1 };
        for (i, start) in starts.iter_mut().enumerate() {
            *start =
                i / across * self.shape.dilation[0] * self.pitch + i % across * self.shape.dilation[1] * c;
        }
    }

    /// A band, its input copied if it has to be.
    ///
    /// # Safety
    ///
    /// The copy is good for [`Lines::copy_bytes`], and nobody else uses it while the band is in use.
    pub unsafe fn band(&self, index: usize, x: &[u8], zero: u8, copy: *mut u8) -> Band {
        let Self { shape, pitch, .. } = self;
        let (example, line) = (index / self.bands, index % self.bands * self.band);
        let lines = self.band.min(shape.output[0] - line);
        let (image, width) = (shape.image[0] * shape.image[1] * shape.inputs, shape.image[1] * shape.inputs);
        let (top, covered) = (line * shape.stride[0], shape.covered(0, lines));
        let pixel = (example * shape.output[0] + line) * shape.output[1];
        let mut band = Band {
            first: copy,
            line: shape.stride[0] * pitch,
            lines,
            pixels: shape.output[1].min(self.pixels - pixel),
            pixel,
            pixel_line: shape.output[1],
        };
        if self.inside {
            let first = example * image + top * width;
            let len = (covered * width).min(x.len() - first);
            if first + len + self.over <= x.len() {
                band.first = x[first..].as_ptr();
            } else {
                // Nothing is read behind the end of the input.
                // SAFETY: the copy has room for the lines that are covered.
                unsafe { std::ptr::copy_nonoverlapping(x[first..].as_ptr(), copy, len) };
            }
            return band;
        }
        let x = &x[example * image..][..image];
        let before = (shape.before[1] * shape.inputs).min(*pitch);
        let inside = width.min(pitch - before);
        for at in 0..covered {
            // SAFETY: the copy has room for the lines that are covered.
            let to = unsafe { std::slice::from_raw_parts_mut(copy.add(at * pitch), *pitch) };
            match (top + at).checked_sub(shape.before[0]).filter(|&at| at < shape.image[0]) {
                Some(at) => {
                    to[..before].fill(zero);
                    to[before..before + inside].copy_from_slice(&x[at * width..][..inside]);
                    to[before + inside..].fill(zero);
                }
                None => to.fill(zero),
            }
        }
        band
    }
}
