//! Layers of bytes: u8 codes times signed 8-bit weights, summed in 32 bits. Sums of integers are exact, so neither instruction sets nor
//! threads nor blocks change a bit.

use crate::isa::{Context, Isa};
use crate::kernels::math::{Shared, TASK_ELEMENTS, simd_fn};
use plimsoll_tensor::{fixed_point, grid_code};

/// Columns of a panel of packed weights.
const COLUMNS: usize = 16;
/// Rows of a tile.
const ROWS: usize = 8;
/// Neighbouring k in one packed word.
const DEPTH: usize = 4;
/// Rows whose patches are gathered at a time.
const PATCHES: usize = 32;

/// What makes codes of sums: bias, factor and bounds of each output channel.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// Added to the sums.
    pub bias: &'a [i32],
    /// Fixed-point factors.
    pub multipliers: &'a [i32],
    /// Their shifts.
    pub shifts: &'a [i32],
    /// The output's code of zero.
    pub zero: u8,
    /// The smallest and the largest code.
    pub bounds: [u8; 2],
}

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
    fn patch(&self) -> usize {
        self.window[0] * self.window[1] * self.inputs
    }

    fn rows(&self) -> usize {
        self.examples * self.output[0] * self.output[1]
    }

    /// The pixel of the image under a tap of the window of an output, if it is inside.
    fn pixel(&self, output: [usize; 2], tap: [usize; 2]) -> Option<[usize; 2]> {
        let mut pixel = [0; 2];
        for axis in 0..2 {
            let at = output[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
            pixel[axis] = at.checked_sub(self.before[axis]).filter(|&at| at < self.image[axis])?;
        }
        Some(pixel)
    }
}

/// Bytes of workspace of a product with k rows and n columns of weights: packed weights, their column sums, and for each thread patches
/// and sums.
pub fn workspace(k: usize, n: usize, threads: usize) -> usize {
    let (depth, columns) = (k.div_ceil(DEPTH) * DEPTH, n.div_ceil(COLUMNS) * COLUMNS);
    let packed = depth * columns + columns * 4;
    (packed + threads * (PATCHES * depth + PATCHES * columns * 4)).next_multiple_of(64) + 64
}

/// Bytes of workspace of a depthwise convolution: sums for each thread.
pub fn depthwise_workspace(channels: usize, threads: usize) -> usize {
    threads * channels.next_multiple_of(16) * 4
}

/// The parts of the workspace of a product.
struct Parts {
    packed: Shared<u8>,
    totals: Shared<i32>,
    patches: Shared<u8>,
    sums: Shared<i32>,
    depth: usize,
    columns: usize,
}

impl Parts {
    fn new(k: usize, n: usize, threads: usize, workspace: *mut u8) -> Self {
        let (depth, columns) = (k.div_ceil(DEPTH) * DEPTH, n.div_ceil(COLUMNS) * COLUMNS);
        // Words first, so that they are aligned as the workspace is.
        let totals = workspace;
        let sums = totals.wrapping_add(columns * 4);
        let packed = sums.wrapping_add(threads * PATCHES * columns * 4);
        let patches = packed.wrapping_add(depth * columns);
        Self {
            packed: Shared::from_ptr(packed),
            totals: Shared::from_ptr(totals.cast()),
            patches: Shared::from_ptr(patches),
            sums: Shared::from_ptr(sums.cast()),
            depth,
            columns,
        }
    }

    /// Packs weights as panels of columns, each with words of neighbouring k, and sums every column.
    fn pack(&self, ctx: Context<'_>, k: usize, n: usize, weights: &[u8]) {
        let depth = self.depth;
        ctx.pool.run(self.columns / COLUMNS, &|panel, _| {
            // SAFETY: every panel is one task's.
            let packed = unsafe { self.packed.part(panel * depth * COLUMNS, depth * COLUMNS) };
            // SAFETY: likewise.
            let totals = unsafe { self.totals.part(panel * COLUMNS, COLUMNS) };
            packed.fill(0);
            totals.fill(0);
            for row in 0..k {
                for (column, total) in totals.iter_mut().enumerate().take(n.saturating_sub(panel * COLUMNS)) {
                    let weight = weights[row * n + panel * COLUMNS + column];
                    packed[row / DEPTH * DEPTH * COLUMNS + column * DEPTH + row % DEPTH] = weight;
                    *total += i32::from(weight as i8);
                }
            }
        });
    }
}

/// Codes of `rows` rows of outputs: `gather` writes the codes of a row.
fn product(
    ctx: Context<'_>,
    (rows, k, n): (usize, usize, usize),
    (weights, zero): (&[u8], u8),
    finish: Finish<'_>,
    gather: &(dyn Fn(usize, &mut [u8]) + Sync),
    y: &mut [u8],
    workspace: *mut u8,
) {
    assert!(weights.len() >= k * n && y.len() >= rows * n, "operands are shorter than their shapes");
    let parts = Parts::new(k, n, ctx.pool.threads(), workspace);
    parts.pack(ctx, k, n, weights);
    let y = Shared::new(y);
    let (depth, columns) = (parts.depth, parts.columns);
    ctx.pool.run(rows.div_ceil(PATCHES), &|task, worker| {
        let first = task * PATCHES;
        let count = PATCHES.min(rows - first);
        // SAFETY: every thread has its own patches and sums; packed weights and totals are only read now.
        let patches = unsafe { parts.patches.part(worker * PATCHES * depth, PATCHES * depth) };
        // SAFETY: likewise.
        let sums = unsafe { parts.sums.part(worker * PATCHES * columns, PATCHES * columns) };
        // SAFETY: nobody writes to them.
        let (packed, totals) =
            unsafe { (&*parts.packed.part(0, depth * columns), &*parts.totals.part(0, columns)) };
        for (i, patch) in patches.chunks_exact_mut(depth).take(count).enumerate() {
            gather(first + i, &mut patch[..k]);
            patch[k..].fill(0);
        }
        // Rows beyond the last are whatever was there: their sums are not read.
        multiply(ctx.isa, patches, packed, sums, count.div_ceil(ROWS) * ROWS, depth);
        for i in 0..count {
            // SAFETY: the rows of a task are its own.
            let y = unsafe { y.part((first + i) * n, n) };
            finish_row(ctx.isa, &sums[i * columns..][..n], totals, i32::from(zero), finish, y);
        }
    });
}

/// `sums = patches · packed` for whole tiles of rows.
fn multiply(isa: Isa, patches: &[u8], packed: &[u8], sums: &mut [i32], rows: usize, depth: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa.vectors() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the machine has the instructions.
        unsafe { multiply_vnni(patches, packed, sums, rows, depth) };
        return;
    }
    multiply_plain(isa, patches, packed, sums, rows, depth);
}

/// With the instruction that multiplies four pairs of bytes and adds them to a word.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_vnni(patches: &[u8], packed: &[u8], sums: &mut [i32], rows: usize, depth: usize) {
    use std::arch::x86_64::{
        _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
    };
    let columns = packed.len() / depth.max(1);
    for row in (0..rows).step_by(ROWS) {
        let tile: &[u8] = &patches[row * depth..][..ROWS * depth];
        for (panel, weights) in packed.chunks_exact(depth * COLUMNS).enumerate() {
            let mut tile_sums = [_mm512_setzero_si512(); ROWS];
            for (step, weights) in weights.chunks_exact(DEPTH * COLUMNS).enumerate() {
                // SAFETY: a step has 64 bytes.
                let weights = unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) };
                for (i, sum) in tile_sums.iter_mut().enumerate() {
                    let at = i * depth + step * DEPTH;
                    let word = i32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
                    *sum = _mm512_dpbusd_epi32(*sum, _mm512_set1_epi32(word), weights);
                }
            }
            for (i, sum) in tile_sums.into_iter().enumerate() {
                let into = &mut sums[(row + i) * columns + panel * COLUMNS..][..COLUMNS];
                // SAFETY: the slice has sixteen words.
                unsafe { _mm512_storeu_si512(into.as_mut_ptr().cast(), sum) };
            }
        }
    }
}

simd_fn! {
    /// As plain loops, which the compiler vectorises.
    fn multiply_plain(isa: Isa, patches: &[u8], packed: &[u8], sums: &mut [i32], rows: usize, depth: usize) {
        let columns = packed.len() / depth.max(1);
        for row in 0..rows {
            let patch = &patches[row * depth..][..depth];
            for (panel, weights) in packed.chunks_exact(depth * COLUMNS).enumerate() {
                let mut panel_sums = [0i32; COLUMNS];
                for (codes, weights) in patch.chunks_exact(DEPTH).zip(weights.chunks_exact(DEPTH * COLUMNS)) {
                    for (column, sum) in panel_sums.iter_mut().enumerate() {
                        let mut word = 0;
                        for i in 0..DEPTH {
                            word += i32::from(codes[i]) * i32::from(weights[column * DEPTH + i] as i8);
                        }
                        *sum += word;
                    }
                }
                sums[row * columns + panel * COLUMNS..][..COLUMNS].copy_from_slice(&panel_sums);
            }
        }
    }
}

simd_fn! {
    /// The codes of a row of sums, from which the input's code of zero times the weights' totals is taken.
    fn finish_row(isa: Isa, sums: &[i32], totals: &[i32], zero: i32, finish: Finish<'_>, y: &mut [u8]) {
        let [low, high] = finish.bounds.map(i32::from);
        let (bias, multipliers, shifts) =
            (&finish.bias[..y.len()], &finish.multipliers[..y.len()], &finish.shifts[..y.len()]);
        for (i, y) in y.iter_mut().enumerate() {
            let sum = sums[i].wrapping_sub(zero.wrapping_mul(totals[i])).wrapping_add(bias[i]);
            let scaled = fixed_point(sum, multipliers[i], shifts[i]);
            *y = scaled.saturating_add(i32::from(finish.zero)).clamp(low, high) as u8;
        }
    }
}

/// A convolution over all channels.
///
/// # Safety
///
/// The workspace has the bytes of [`workspace`], aligned for words, and nobody else uses it.
pub unsafe fn conv(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[u8],
    (weights, zero): (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    let [oh, ow] = shape.output;
    let gather = |row: usize, patch: &mut [u8]| {
        let (example, output) = (row / (oh * ow), [row / ow % oh, row % ow]);
        for (tap, codes) in patch.chunks_exact_mut(shape.inputs).enumerate() {
            match shape.pixel(output, [tap / shape.window[1], tap % shape.window[1]]) {
                Some([i, j]) => {
                    let at = ((example * shape.image[0] + i) * shape.image[1] + j) * shape.inputs;
                    codes.copy_from_slice(&x[at..at + shape.inputs]);
                }
                None => codes.fill(zero),
            }
        }
    };
    product(
        ctx,
        (shape.rows(), shape.patch(), shape.outputs),
        (weights, zero),
        finish,
        &gather,
        y,
        workspace,
    );
}

/// A dense layer of n rows of k codes.
///
/// # Safety
///
/// As for [`conv`].
pub unsafe fn dense(
    ctx: Context<'_>,
    [rows, k, n]: [usize; 3],
    x: &[u8],
    (weights, zero): (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    let gather = |row: usize, patch: &mut [u8]| patch.copy_from_slice(&x[row * k..][..k]);
    product(ctx, (rows, k, n), (weights, zero), finish, &gather, y, workspace);
}

/// A convolution of every channel with its own kernel.
///
/// # Safety
///
/// The workspace has the bytes of [`depthwise_workspace`], aligned for words, and nobody else uses it.
pub unsafe fn depthwise(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[u8],
    (weights, zero): (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    let (channels, [oh, ow]) = (shape.inputs, shape.output);
    let stride = channels.next_multiple_of(16);
    let (sums, y) = (Shared::from_ptr(workspace.cast::<i32>()), Shared::new(y));
    ctx.pool.run(shape.examples * oh, &|task, worker| {
        // SAFETY: every thread has its own sums.
        let sums = unsafe { sums.part(worker * stride, channels) };
        for j in 0..ow {
            sums.fill(0);
            for tap in 0..shape.window[0] * shape.window[1] {
                let place = [tap / shape.window[1], tap % shape.window[1]];
                let Some([i, j]) = shape.pixel([task % oh, j], place) else { continue };
                let at = ((task / oh * shape.image[0] + i) * shape.image[1] + j) * channels;
                add_products(
                    ctx.isa,
                    &x[at..at + channels],
                    &weights[tap * channels..][..channels],
                    i32::from(zero),
                    sums,
                );
            }
            // SAFETY: the rows of a task are its own.
            let y = unsafe { y.part((task * ow + j) * channels, channels) };
            // The code of zero is taken off already.
            finish_row(ctx.isa, sums, sums, 0, finish, y);
        }
    });
}

simd_fn! {
    /// Adds the products of each channel.
    fn add_products(isa: Isa, codes: &[u8], weights: &[u8], zero: i32, sums: &mut [i32]) {
        for ((code, weight), sum) in codes.iter().zip(weights).zip(sums) {
            *sum += (i32::from(*code) - zero) * i32::from(*weight as i8);
        }
    }
}

/// Runs tasks of elements.
fn each_task(ctx: Context<'_>, elements: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    ctx.pool.run(elements.div_ceil(TASK_ELEMENTS), &|i, _| {
        let first = i * TASK_ELEMENTS;
        task(first, TASK_ELEMENTS.min(elements - first));
    });
}

/// The codes of numbers.
pub fn quantize(ctx: Context<'_>, scale: f32, zero: u8, x: &[f32], y: &mut [u8]) {
    let elements = x.len().min(y.len());
    let y = Shared::new(y);
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        quantize_part(ctx.isa, scale, zero, &x[first..first + len], y);
    });
}

simd_fn! {
    fn quantize_part(isa: Isa, scale: f32, zero: u8, x: &[f32], y: &mut [u8]) {
        for (x, y) in x.iter().zip(y) {
            *y = grid_code(*x, scale, zero);
        }
    }
}

/// What codes stand for.
pub fn dequantize(ctx: Context<'_>, scale: f32, zero: u8, x: &[u8], y: &mut [f32]) {
    let elements = x.len().min(y.len());
    let y = Shared::new(y);
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        for (x, y) in x[first..first + len].iter().zip(y) {
            *y = scale * (f32::from(*x) - f32::from(zero));
        }
    });
}

/// An operand of a sum: its code of zero, multiplier and shift.
pub type Operand = (i32, i32, i32);

/// The sum of two tensors of codes.
pub fn add(
    ctx: Context<'_>,
    operands: [Operand; 2],
    (multiplier, shift): (i32, i32),
    (zero, bounds, up): (u8, [u8; 2], u32),
    x: [&[u8]; 2],
    y: &mut [u8],
) {
    let (elements, y) = (x[0].len().min(x[1].len()).min(y.len()), Shared::new(y));
    each_task(ctx, elements, &|first, len| {
        // SAFETY: every task has its own elements.
        let y = unsafe { y.part(first, len) };
        let x = x.map(|x| &x[first..first + len]);
        add_part(ctx.isa, operands, multiplier, shift, zero, bounds, up, x, y);
    });
}

simd_fn! {
    fn add_part(
        isa: Isa, operands: [Operand; 2], multiplier: i32, shift: i32, zero: u8, bounds: [u8; 2], up: u32, x: [&[u8]; 2], y: &mut [u8]
    ) {
        let [low, high] = bounds.map(i32::from);
        let scaled = |side: usize, code: u8| {
            let (zero, multiplier, shift) = operands[side];
            fixed_point((i32::from(code) - zero) << up, multiplier, shift)
        };
        for ((a, b), y) in x[0].iter().zip(x[1]).zip(y) {
            let sum = fixed_point(scaled(0, *a) + scaled(1, *b), multiplier, shift);
            *y = sum.saturating_add(i32::from(zero)).clamp(low, high) as u8;
        }
    }
}

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
        for (channel, y) in y.iter_mut().enumerate() {
            let codes = x.iter().skip(channel).step_by(channels.max(1));
            let sum: i32 = codes.map(|code| i32::from(*code) - from).sum();
            let scaled = fixed_point(sum, multiplier, shift);
            *y = scaled.saturating_add(i32::from(zero)).clamp(low, high) as u8;
        }
    });
}

/// Lists the pixels of the image under the window of an output pixel.
pub type Taps<'a> = &'a (dyn Fn(usize, &mut dyn FnMut(usize)) + Sync);

/// The largest code of each window.
pub fn max_pool(
    ctx: Context<'_>,
    [examples, image, output, channels]: [usize; 4],
    taps: Taps<'_>,
    x: &[u8],
    y: &mut [u8],
) {
    let y = Shared::new(y);
    ctx.pool.run(examples, &|example, _| {
        // SAFETY: an example's image is one task's.
        let y = unsafe { y.part(example * output * channels, output * channels) };
        let x = &x[example * image * channels..][..image * channels];
        for (pixel, y) in y.chunks_exact_mut(channels.max(1)).enumerate() {
            y.fill(0);
            taps(pixel, &mut |at| {
                for (y, x) in y.iter_mut().zip(&x[at * channels..][..channels]) {
                    *y = (*y).max(*x);
                }
            });
        }
    });
}
