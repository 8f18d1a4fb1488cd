//! Decoded pixels, and their conversion to floats.

use crate::DataError;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use plimsoll_tensor::bf16;

/// The most channels that a decoder writes, before they are converted to one or three.
pub const MAX_CHANNELS: usize = 4;

/// What a decoder wrote.
pub struct Decoded<'p> {
    pub pixels: &'p mut [u8],
    /// Decoded rows, and columns.
    pub size: [usize; 2],
}

/// Bytes of pixels, row by row.
pub struct Frame<'p> {
    pub pixels: &'p [u8],
    /// Height and width.
    pub size: [usize; 2],
    pub channels: usize,
}

/// The part of a picture to take.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Top and left, in pixels of the picture.
    pub corner: [f64; 2],
    /// Pixels of the picture for one of the window.
    pub scale: f64,
    /// Height and width of the result.
    pub size: [usize; 2],
}

impl Window {
    /// Rows of the picture that it reads, from the top.
    pub fn rows(&self, height: usize) -> usize {
        // The filter reads one pixel of the result beyond the window.
        let last = self.corner[0] + (self.size[0] + 1) as f64 * self.scale;
        (last.ceil().max(1.0) as usize).saturating_add(1).min(height)
    }

    /// The most bytes between the two passes of resizing: as many rows as the result has, of the columns that it reads.
    pub fn bytes_between_passes(&self, channels: usize) -> usize {
        let columns = (self.size[1] as f64 * self.scale).ceil() as usize;
        let columns = columns.saturating_add(2 * self.scale.max(1.0).ceil() as usize + 2);
        columns.saturating_mul(self.size[0]).saturating_add(1).saturating_mul(channels)
    }
}

impl Frame<'_> {
    /// Resizes the window into `into`.
    pub fn resize(&self, window: &Window, resizer: &mut Resizer, into: &mut [u8]) -> Result<(), DataError> {
        // Rounding must not move the window past the edges.
        let [top, left] = [0, 1].map(|axis| {
            let extent = window.size[axis] as f64 * window.scale;
            window.corner[axis].min(self.size[axis] as f64 - extent).max(0.0)
        });
        let extent = |axis: usize, start: f64| {
            (window.size[axis] as f64 * window.scale).min(self.size[axis] as f64 - start)
        };
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
            left,
            top,
            extent(1, left),
            extent(0, top),
        );
        // A larger buffer replaces the resizer's; growing it would hold both, and more than is needed.
        if resizer.size_of_internal_buffers() < window.bytes_between_passes(self.channels) {
            resizer.reset_internal_buffers();
        }
        // Not `Resizer::resize`: that compiles every type of pixel into this crate.
        match self.channels {
            1 => self.resize_as::<U8>(window, resizer, &options, into),
            _ => self.resize_as::<U8x3>(window, resizer, &options, into),
        }
    }

    fn resize_as<P: PixelTrait>(
        &self,
        window: &Window,
        resizer: &mut Resizer,
        options: &ResizeOptions,
        into: &mut [u8],
    ) -> Result<(), DataError> {
        let failed = |reason: String| DataError::Corrupt { reason: format!("cannot be resized: {reason}") };
        let [rows, columns] = self.size.map(|n| n as u32);
        let [height, width] = window.size.map(|n| n as u32);
        let from = TypedImageRef::<P>::from_buffer(columns, rows, self.pixels);
        let to = TypedImage::<P>::from_buffer(width, height, into);
        let (from, mut to) =
            (from.map_err(|e| failed(e.to_string()))?, to.map_err(|e| failed(e.to_string()))?);
        resizer.resize_typed(&from, &mut to, options).map_err(|e| failed(e.to_string()))
    }
}

/// A float as a batch holds it.
pub trait Stored {
    const BYTES: usize;
    fn put(value: f32, into: &mut [u8]);
}

impl Stored for f32 {
    const BYTES: usize = 4;
    fn put(value: f32, into: &mut [u8]) {
        into.copy_from_slice(&value.to_ne_bytes());
    }
}

impl Stored for bf16 {
    const BYTES: usize = 2;
    fn put(value: f32, into: &mut [u8]) {
        into.copy_from_slice(&bf16::from_f32(value).to_ne_bytes());
    }
}

/// Normalisation of bytes to floats: a factor and a summand for every byte of a row.
pub struct Normal {
    factors: Vec<f32>,
    summands: Vec<f32>,
    channels: usize,
}

impl Normal {
    pub fn new(width: usize, channels: usize, mean: [f32; 3], deviation: [f32; 3]) -> Self {
        let channel = |i: usize| i % channels.max(1) % 3;
        let count = width.saturating_mul(channels);
        Self {
            factors: (0..count).map(|i| 1.0 / (255.0 * deviation[channel(i)])).collect(),
            summands: (0..count).map(|i| -mean[channel(i)] / deviation[channel(i)]).collect(),
            channels,
        }
    }

    /// Writes a window of the frame as floats; pixels outside the frame are black. `line` is a buffer for a row of bytes.
    #[allow(clippy::too_many_arguments, reason = "all in one pass over the pixels")]
    pub fn write<F: Stored>(
        &self,
        frame: &Frame<'_>,
        [top, left]: [isize; 2],
        [height, width]: [usize; 2],
        mirrored: bool,
        jitter: Option<[f32; 4]>,
        line: &mut [u8],
        into: &mut [u8],
    ) {
        let (channels, row_bytes) = (self.channels, width * self.channels);
        let line = &mut line[..row_bytes];
        // Columns of the window that lie inside the frame.
        let first = (-left).clamp(0, width as isize) as usize;
        let last = (frame.size[1] as isize - left).clamp(first as isize, width as isize) as usize;
        let inside = |row: usize| -> Option<&[u8]> {
            let row = usize::try_from(top + row as isize).ok().filter(|row| *row < frame.size[0])?;
            let start = (row * frame.size[1]).checked_add_signed(left + first as isize)? * channels;
            frame.pixels.get(start..start + (last - first) * channels)
        };
        let grey = jitter.map(|_| {
            let sum: u64 = (0..height).filter_map(inside).flatten().map(|&byte| u64::from(byte)).sum();
            sum as f32 / (height * row_bytes).max(1) as f32
        });
        for (row, into) in into.chunks_exact_mut(row_bytes * F::BYTES).take(height).enumerate() {
            let source = inside(row);
            let whole = last - first == width;
            let bytes = match source {
                Some(source) if whole && !mirrored => source,
                source => {
                    line.fill(0);
                    let pixels = source.unwrap_or(&[]).chunks_exact(channels);
                    for (i, pixel) in pixels.enumerate() {
                        let column = if mirrored { width - 1 - (first + i) } else { first + i };
                        line[column * channels..][..channels].copy_from_slice(pixel);
                    }
                    &*line
                }
            };
            match (jitter, grey) {
                (Some(by), Some(grey)) => self.jittered::<F>(bytes, by, grey, into),
                _ => {
                    let constants = self.factors.iter().zip(&self.summands);
                    for ((element, byte), (factor, summand)) in
                        into.chunks_exact_mut(F::BYTES).zip(bytes).zip(constants)
                    {
                        F::put(f32::from(*byte) * factor + summand, element);
                    }
                }
            }
        }
    }

    /// A row with its brightness, contrast and saturation changed.
    fn jittered<F: Stored>(
        &self,
        bytes: &[u8],
        [brightness, contrast, saturation, _]: [f32; 4],
        grey: f32,
        into: &mut [u8],
    ) {
        let channels = self.channels;
        for (i, (pixel, into)) in
            bytes.chunks_exact(channels).zip(into.chunks_exact_mut(F::BYTES * channels)).enumerate()
        {
            let mut colours = [0.0f32; 3];
            for (colour, &byte) in colours.iter_mut().zip(pixel) {
                let value = f32::from(byte) * brightness;
                *colour = grey * brightness + (value - grey * brightness) * contrast;
            }
            let own = match channels {
                1 => colours[0],
                _ => 0.299 * colours[0] + 0.587 * colours[1] + 0.114 * colours[2],
            };
            for (channel, element) in into.chunks_exact_mut(F::BYTES).enumerate() {
                let value = (own + (colours[channel] - own) * saturation).clamp(0.0, 255.0);
                let at = i * channels + channel;
                F::put(value * self.factors[at] + self.summands[at], element);
            }
        }
    }
}
