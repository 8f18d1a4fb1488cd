//! Convolutions of every channel with its own kernel: vectors run over the channels.

use super::kernel::{Form, Kernels, finish_codes};
use super::lines::{Band, ConvShape, Lines};
use super::pack::{COLUMNS, Finish, Order, Packed, Sizes, WORD};
use super::product::Work;
use crate::isa::{Context, Isa};
use crate::kernels::math::{Shared, simd_fn};

/// Channels whose codes are loaded at a time.
pub(super) const BLOCK: usize = 64;

/// How such a layer runs: its lines, and its packed weights, whose k are taps.
struct Depthwise {
    lines: Lines,
    sizes: Sizes,
}

impl Depthwise {
    fn new(isa: Isa, shape: &ConvShape, threads: usize) -> Self {
        let (channels, taps) = (shape.inputs, shape.window[0] * shape.window[1]);
        let order = if isa.vectors() == Isa::Avx512 { Order::Interleaved } else { Order::Straight };
        let over = channels.next_multiple_of(BLOCK) - channels;
        Self {
            lines: Lines::of(shape, over, threads),
            sizes: Sizes { order, ..Sizes::new(1, taps, channels, WORD) },
        }
    }

    /// Where every tap starts, whole words of them.
    fn taps(&self) -> usize {
        self.sizes.words * WORD
    }

    fn starts_bytes(&self) -> usize {
        (self.taps() * size_of::<usize>()).next_multiple_of(64)
    }

    fn workspace(&self, threads: usize) -> usize {
        self.sizes.bytes() + self.starts_bytes() + threads * self.lines.copy_bytes()
    }
}

/// The work of [`depthwise`]: words are of four taps.
pub(crate) fn depthwise_work(isa: Isa, shape: &ConvShape, threads: usize) -> Work {
    let Depthwise { lines, sizes } = Depthwise::new(isa, shape, threads);
    let codes = (lines.pixels() * sizes.panels()) as f64;
    Work {
        words: codes * sizes.words as f64,
        tile_rows: 0.0,
        calls: [0.0; 2],
        codes,
        packed: (sizes.words * sizes.panels()) as f64,
        copied: lines.copied_bytes(),
    }
}

/// Bytes of workspace of [`depthwise`]: whole cache lines.
pub fn depthwise_workspace(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    Depthwise::new(isa, shape, threads).workspace(threads)
}

/// A line of output pixels.
pub(super) struct Line<'a> {
    /// The first byte under the first pixel, and bytes between pixels.
    pub x: *const u8,
    pub step: usize,
    /// Where taps start: whole words of them.
    pub starts: &'a [usize],
    /// Packed weights, and the same as they came.
    pub packed: &'a Packed,
    pub weights: &'a [u8],
    /// The first code, channels and pixels.
    pub y: *mut u8,
    pub channels: usize,
    pub pixels: usize,
    /// The output's code of zero, and its bounds.
    pub zero: i32,
    pub bounds: [i32; 2],
}

/// A convolution of every channel with its own kernel.
///
/// # Safety
///
/// The workspace has the bytes of [`depthwise_workspace`], aligned to cache lines, and nobody else uses it.
pub unsafe fn depthwise(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[u8],
    weights: (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    // SAFETY: as the caller promises; an instruction set is only chosen on machines that have it.
    unsafe {
        depthwise_with(ctx, Kernels::of(ctx.isa, Form::Words), shape, x, weights, finish, y, workspace)
    };
}

/// With these kernels.
///
/// # Safety
///
/// As for [`depthwise`], and the machine has the kernels' instructions.
#[expect(clippy::too_many_arguments, reason = "operands, sizes and space, as every kernel has")]
pub(super) unsafe fn depthwise_with(
    ctx: Context<'_>,
    kernels: &Kernels,
    shape: &ConvShape,
    x: &[u8],
    (weights, zero): (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    assert!(x.len() >= shape.input_len(), "the input is shorter than its shape");
    assert!(y.len() >= shape.output_len(), "the output is shorter than its shape");
    let layer = Depthwise::new(ctx.isa, shape, ctx.threads());
    let (packed, channels) = (Packed::new(layer.sizes, workspace), shape.inputs);
    // SAFETY: the workspace is the caller's.
    unsafe { packed.fill(ctx, weights, i32::from(zero), finish) };
    let behind = workspace.wrapping_add(layer.sizes.bytes());
    // SAFETY: likewise; it is aligned, and nobody else writes to this part.
    let starts = unsafe { std::slice::from_raw_parts_mut(behind.cast::<usize>(), layer.taps()) };
    // Taps that only fill a word up have no weights: any bytes will do.
    starts.fill(0);
    layer.lines.starts(channels, &mut starts[..layer.sizes.run]);
    let starts = &*starts;
    let (copies, y) = (Shared::from_ptr(behind.wrapping_add(layer.starts_bytes())), Shared::new(y));
    ctx.pool.run(layer.lines.bands(), &|index, worker| {
        // SAFETY: every thread has its own copy.
        let band = unsafe { layer.lines.band(index, x, zero, copies.at(worker * layer.lines.copy_bytes())) };
        let Band { first, line, lines, pixels, pixel, pixel_line } = band;
        for i in 0..lines {
            let line = Line {
                x: first.wrapping_add(i * line),
                step: shape.stride[1] * channels,
                starts,
                packed: &packed,
                weights,
                y: y.at((pixel + i * pixel_line) * channels),
                channels,
                pixels,
                zero: i32::from(finish.zero),
                bounds: finish.bounds.map(i32::from),
            };
            // SAFETY: the band's lines can be read as far as blocks of channels reach, every task has its own codes, and the
            // machine has the instructions.
            unsafe {
                match kernels.depthwise {
                    Some(codes) => codes(&line),
                    None => plain_line(ctx.isa, &line),
                }
            }
        }
    });
}

simd_fn! {
    /// As plain loops, which the compiler vectorises.
    ///
    /// # Safety
    ///
    /// The pointers are good for what the sizes say, nobody else touches the codes, and weights are packed straight.
    unsafe fn plain_line(isa: Isa, line: &Line<'_>) {
        let (channels, taps) = (line.channels, line.packed.sizes.run);
        for (pixel, panel) in (0..line.pixels).flat_map(|i| (0..channels.div_ceil(COLUMNS)).map(move |j| (i, j))) {
            let first = panel * COLUMNS;
            let count = COLUMNS.min(channels - first);
            // SAFETY: as the caller promises: a vector of codes can be read at every tap. Weights are those of the shape.
            unsafe {
                let panel = &*line.packed.channels(panel);
                let mut sums = panel.bias;
                for (tap, &start) in line.starts[..taps].iter().enumerate() {
                    let codes = *line.x.add(pixel * line.step + start + first).cast::<[u8; COLUMNS]>();
                    let mut weights = [0u8; COLUMNS];
                    let from = line.weights.as_ptr().add(tap * channels + first);
                    if count == COLUMNS {
                        weights = *from.cast();
                    } else {
                        weights[..count].copy_from_slice(std::slice::from_raw_parts(from, count));
                    }
                    for (sum, (code, weight)) in sums.iter_mut().zip(codes.into_iter().zip(weights)) {
                        *sum = sum.wrapping_add(i32::from(code) * i32::from(weight as i8));
                    }
                }
                let y = std::slice::from_raw_parts_mut(line.y.add(pixel * channels + first), count);
                finish_codes(panel, &sums, line.zero, line.bounds, y);
            }
        }
    }
}
