//! Means and maxima of images of codes, and images of other sizes.

use super::elementwise::Operand;
use crate::isa::{Context, Isa};
use crate::kernels::math::{Shared, TASK_ELEMENTS, simd_fn};
use plimsoll_tensor::fixed_point;

/// The means of channels over an image of so many pixels.
pub fn mean(
    ctx: Context<'_>,
    [examples, pixels, channels]: [usize; 3],
    (from, multiplier, shift): Operand,
    (zero, bounds): (u8, [u8; 2]),
    x: &[u8],
    y: &mut [u8],
) {
    let [low, high] = bounds.map(i32::from);
    let y = Shared::new(y);
    ctx.pool.run(examples, &|example, _| {
        // SAFETY: the channels of an example are one task's.
        let y = unsafe { y.part(example * channels, channels) };
        let x = &x[example * pixels * channels..][..pixels * channels];
        for (block, y) in y.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0; BLOCK];
            add_pixels(ctx.isa, x, channels, block * BLOCK, &mut sums[..y.len()]);
            for (sum, y) in sums.iter().zip(y) {
                let sum = sum.wrapping_sub(from.wrapping_mul(pixels as i32));
                let scaled = fixed_point(sum, multiplier, shift);
                *y = scaled.saturating_add(i32::from(zero)).clamp(low, high) as u8;
            }
        }
    });
}

/// Channels whose sums are held at a time.
const BLOCK: usize = 64;

simd_fn! {
    /// Adds the codes of some channels of every pixel.
    fn add_pixels(isa: Isa, x: &[u8], channels: usize, first: usize, sums: &mut [i32]) {
        if let Ok(sums) = <&mut [i32; BLOCK]>::try_from(&mut *sums) {
            for pixel in x.chunks_exact(channels) {
                for (sum, code) in sums.iter_mut().zip(&pixel[first..first + BLOCK]) {
                    *sum = sum.wrapping_add(i32::from(*code));
                }
            }
            return;
        }
        for pixel in x.chunks_exact(channels.max(1)) {
            for (sum, code) in sums.iter_mut().zip(&pixel[first..]) {
                *sum = sum.wrapping_add(i32::from(*code));
            }
        }
    }
}

/// Examples, extents of the image and of the result, and channels.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    /// Examples.
    pub examples: usize,
    /// Extents of the image.
    pub image: [usize; 2],
    /// Extents of the result.
    pub output: [usize; 2],
    /// Channels.
    pub channels: usize,
}

/// The windows of outputs along an axis.
#[derive(Clone, Copy, Debug)]
pub enum Spans {
    /// So many taps, between neighbouring ones and between neighbouring windows, and padding before the image.
    Even {
        /// Taps of a window.
        taps: usize,
        /// Distance between taps.
        dilation: usize,
        /// Distance between windows.
        stride: usize,
        /// Padding before the image.
        before: usize,
    },
    /// As even parts of the image as there are outputs; neighbours may share pixels.
    Parts,
}

impl Spans {
    /// The pixels of the window of an output that lie in an image of so many: the first, how many, and the distance between them.
    fn inside(self, output: usize, outputs: usize, image: usize) -> (usize, usize, usize) {
        match self {
            Self::Even { taps, dilation, stride, before } => {
                let (start, step) = (output * stride, dilation.max(1));
                let skipped = before.saturating_sub(start).div_ceil(step).min(taps);
                let first = (start + skipped * step).saturating_sub(before);
                let count = (taps - skipped).min(image.saturating_sub(first).div_ceil(step));
                (first, count, step)
            }
            Self::Parts => {
                let (first, end) = (output * image / outputs, ((output + 1) * image).div_ceil(outputs));
                (first, end - first, 1)
            }
        }
    }
}

impl PoolShape {
    /// Bytes of a line of maxima of a window's rows, with the padding around it: whole cache lines.
    fn line(&self, [_, across]: [Spans; 2]) -> usize {
        let pixels = match across {
            Spans::Even { taps, dilation, stride, before } => {
                let covered =
                    self.output[1].saturating_sub(1) * stride + taps.saturating_sub(1) * dilation + 1;
                covered.max(before + self.image[1])
            }
            Spans::Parts => self.image[1],
        };
        (pixels * self.channels + SLACK).next_multiple_of(64)
    }
}

/// Bytes that a pixel of few channels is copied with.
const SLACK: usize = 16;

/// Bytes of workspace of [`max_pool`]: two lines for each thread.
pub fn max_pool_workspace(shape: &PoolShape, spans: [Spans; 2], threads: usize) -> usize {
    2 * threads * shape.line(spans)
}

/// The largest code of each window: first of its rows, a line at a time, then of its columns.
///
/// # Safety
///
/// The workspace has the bytes of [`max_pool_workspace`], and nobody else uses it.
pub unsafe fn max_pool(
    ctx: Context<'_>,
    shape: &PoolShape,
    spans: [Spans; 2],
    x: &[u8],
    y: &mut [u8],
    workspace: *mut u8,
) {
    let PoolShape { examples, image, output, channels } = *shape;
    if y.is_empty() {
        return;
    }
    let (width, size) = (image[1] * channels, shape.line(spans));
    let (lines, y) = (Shared::from_ptr(workspace), Shared::new(y));
    let together = (TASK_ELEMENTS / width.max(1)).clamp(1, output[0].max(1));
    let tasks = output[0].div_ceil(together);
    ctx.pool.run(examples * tasks, &|task, worker| {
        let (example, first) = (task / tasks, task % tasks * together);
        let x = &x[example * image[0] * width..][..image[0] * width];
        // SAFETY: every thread has two lines of its own.
        let [line, maxima] = [0, 1].map(|i| unsafe { lines.part((2 * worker + i) * size, size) });
        for row in first..output[0].min(first + together) {
            let (top, rows, step) = spans[0].inside(row, output[0], image[0]);
            // SAFETY: the rows of a task are its own.
            let y =
                unsafe { y.part((example * output[0] + row) * output[1] * channels, output[1] * channels) };
            let row = |i: usize| &x[(top + i * step) * width..][..width];
            match spans[1] {
                Spans::Even { taps, dilation, stride, before } => {
                    let before = before * channels;
                    // The smallest code is that of an empty window.
                    line[..before].fill(0);
                    line[before + width..].fill(0);
                    largest_of_rows(&mut line[before..before + width], rows, row, ctx.isa);
                    let len = ((output[1] - 1) * stride + 1) * channels;
                    let apart = dilation * channels;
                    match taps {
                        0 => maxima[..len].fill(0),
                        _ => maxima[..len].copy_from_slice(&line[..len]),
                    }
                    (1..taps).for_each(|tap| larger(ctx.isa, &mut maxima[..len], &line[tap * apart..]));
                    pick_pixels(maxima, stride * channels, channels, y);
                }
                Spans::Parts => {
                    largest_of_rows(&mut line[..width], rows, row, ctx.isa);
                    for (pixel, y) in y.chunks_exact_mut(channels.max(1)).enumerate() {
                        let (left, columns, step) = spans[1].inside(pixel, output[1], image[1]);
                        y.fill(0);
                        (0..columns).for_each(|i| larger(ctx.isa, y, &line[(left + i * step) * channels..]));
                    }
                }
            }
        }
    });
}

/// The mean of the codes of each window inside the image, rounded half away from 128.
pub fn average_pool(ctx: Context<'_>, shape: &PoolShape, spans: [Spans; 2], x: &[u8], y: &mut [u8]) {
    let PoolShape { examples, image, output, channels } = *shape;
    if y.is_empty() {
        return;
    }
    let (width, y) = (image[1] * channels, Shared::new(y));
    ctx.pool.run(examples * output[0], &|task, _| {
        let (example, row) = (task / output[0], task % output[0]);
        let (top, rows, down) = spans[0].inside(row, output[0], image[0]);
        let x = &x[(example * image[0] + top) * width..][..(image[0] - top) * width];
        // SAFETY: the pixels of a row are one task's.
        let y = unsafe { y.part(task * output[1] * channels, output[1] * channels) };
        for (pixel, y) in y.chunks_exact_mut(channels).enumerate() {
            let (left, columns, across) = spans[1].inside(pixel, output[1], image[1]);
            let window = Window { taps: [rows, columns], steps: [down * width, across * channels] };
            window_mean(ctx.isa, &window, &x[left * channels..], y);
        }
    });
}

/// Pixels of a window, and elements between rows and columns of them.
struct Window {
    taps: [usize; 2],
    steps: [usize; 2],
}

simd_fn! {
    /// The mean of each channel over a window's pixels.
    fn window_mean(isa: Isa, window: &Window, x: &[u8], y: &mut [u8]) {
        let [rows, columns] = window.taps;
        let count = (rows * columns).max(1) as u32;
        // Exact for all dividends below 2^31.
        let shift = 31 + u32::BITS - (count - 1).leading_zeros();
        let inverse = (1u64 << shift).div_ceil(u64::from(count));
        let centre = 128 * count as i32;
        for (block, y) in y.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0i32; BLOCK];
            for row in 0..rows {
                for column in 0..columns {
                    let pixel = &x[row * window.steps[0] + column * window.steps[1] + block * BLOCK..];
                    for (sum, code) in sums[..y.len()].iter_mut().zip(pixel) {
                        *sum += i32::from(*code);
                    }
                }
            }
            for (y, sum) in y.iter_mut().zip(sums) {
                let off = sum - centre;
                let dividend = u64::from(off.unsigned_abs() + count / 2);
                let mean = ((dividend * inverse) >> shift) as i32;
                *y = (128 + if off < 0 { -mean } else { mean }) as u8;
            }
        }
    }
}

/// An image at another size: every element lies between two of either axis, by shares of two to the power of `bits`, 10 at most, of the
/// second. `taps` gives them for an axis and an element of the result.
pub fn resize(
    ctx: Context<'_>,
    shape: &PoolShape,
    bits: u32,
    taps: &(dyn Fn(usize, usize) -> (usize, usize, i32) + Sync),
    x: &[u8],
    y: &mut [u8],
) {
    let PoolShape { examples, image, output, channels } = *shape;
    if y.is_empty() {
        return;
    }
    let (width, y) = (image[1] * channels, Shared::new(y));
    ctx.pool.run(examples * output[0], &|task, _| {
        let (example, row) = (task / output[0], task % output[0]);
        let (top, bottom, down) = taps(0, row);
        let lines = [top, bottom].map(|line| &x[(example * image[0] + line) * width..][..width]);
        // SAFETY: the pixels of a row are one task's.
        let y = unsafe { y.part(task * output[1] * channels, output[1] * channels) };
        for (pixel, y) in y.chunks_exact_mut(channels).enumerate() {
            let (left, right, across) = taps(1, pixel);
            let [left, right] = [left, right].map(|column| column * channels..(column + 1) * channels);
            let [upper, lower] = lines;
            if (down, across) == (0, 0) {
                y.copy_from_slice(&upper[left]);
                continue;
            }
            let corners = [&upper[left.clone()], &upper[right.clone()], &lower[left], &lower[right]];
            let one = 1 << bits;
            let shares =
                [(one - down) * (one - across), (one - down) * across, down * (one - across), down * across];
            between(ctx.isa, corners, shares, 2 * bits, y);
        }
    });
}

simd_fn! {
    /// The mean of four pixels by shares, which are two to the power of `bits` together, rounded half away from 128.
    fn between(isa: Isa, corners: [&[u8]; 4], shares: [i32; 4], bits: u32, y: &mut [u8]) {
        let [a, b, c, d] = corners;
        let half = 1 << (bits - 1);
        for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let off = |code: &u8| i32::from(*code) - 128;
            let sum = off(a) * shares[0] + off(b) * shares[1] + off(c) * shares[2] + off(d) * shares[3];
            let mean = (sum.abs() + half) >> bits;
            *y = (128 + if sum < 0 { -mean } else { mean }) as u8;
        }
    }
}

/// The larger of each element of so many rows; zeros if there are none.
fn largest_of_rows<'x>(line: &mut [u8], rows: usize, row: impl Fn(usize) -> &'x [u8], isa: Isa) {
    match rows {
        0 => line.fill(0),
        _ => line.copy_from_slice(row(0)),
    }
    (1..rows).for_each(|i| larger(isa, line, row(i)));
}

simd_fn! {
    /// The larger of each element and another.
    fn larger(isa: Isa, line: &mut [u8], other: &[u8]) {
        for (a, b) in line.iter_mut().zip(other) {
            *a = (*a).max(*b);
        }
    }
}

/// Every pixel of `channels` bytes at distances of `step` bytes. Few bytes are copied as a vector, which the next pixel overwrites.
fn pick_pixels(line: &[u8], step: usize, channels: usize, y: &mut [u8]) {
    if step == channels {
        let len = y.len();
        return y.copy_from_slice(&line[..len]);
    }
    let (count, mut done) = (y.len() / channels.max(1), 0);
    if channels <= SLACK {
        while done + SLACK.div_ceil(channels.max(1)) < count {
            let from: [u8; SLACK] = line[done * step..][..SLACK].try_into().unwrap_or_default();
            y[done * channels..][..SLACK].copy_from_slice(&from);
            done += 1;
        }
    }
    for pixel in done..count {
        y[pixel * channels..][..channels].copy_from_slice(&line[pixel * step..][..channels]);
    }
}
