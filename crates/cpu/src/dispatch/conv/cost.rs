//! Predicted times of convolutions, from how the kernels split them into tiles.

use crate::dispatch::cost::{Core, TILES_RESULT, Tiles, level};
use crate::kernels::conv::{ConvShape, Gather, chunk_rows, weight_grad_is_tiled};
use crate::kernels::float::Float;
use crate::kernels::gemm::chunks::KC;

/// The part of memory's time for a tile's results that computation does not hide.
const TOUCH: f64 = 0.45;
/// How much longer a tile's results take where pixels do not fill whole vectors.
const UNALIGNED_STORE: f64 = 2.0;
/// The same of the images.
const IMAGES: f64 = 0.7;
/// The same when a band reads the packed weights, by cache level.
const WEIGHTS_READ: [f64; 3] = [0.02, 0.12, 0.7];
/// Times that memory takes for each packed byte of weights, by cache level: they are gathered in short segments.
const WEIGHTS_PACKED: [f64; 3] = [0.5, 3.2, 5.0];
/// Multiply-adds that pass while a sum moves to the next row or tap of the image.
const SEGMENT: f64 = 30.0;
/// The same of a block's sums of a weight gradient while pixels are added.
const SUMS_TOUCH: f64 = 0.3;
/// Times that memory takes for each byte of a block's sums when they are folded, by cache level.
const SUMS_FOLDED: [f64; 3] = [1.1, 2.1, 3.4];
/// The same of packing pixels.
const PIXELS_PACKED: f64 = 0.6;
/// Multiply-adds that one tap of a vector of channels takes where each channel is convolved by itself.
const DEPTHWISE_TAP: f64 = 1.5;

/// Multiply-adds that pass while the window of a pixel is copied for tiles: whatever its size, for each run of adjacent
/// channels, and for each vector.
const WINDOW: f64 = 20.0;
const WINDOW_RUN: f64 = 20.0;
const WINDOW_VECTOR: f64 = 8.0;
/// The same while an element of an image is turned for tiles, and while one of the output's gradient is packed.
const TURNED: f64 = 2.0;
const TILES_GRADIENT: f64 = 1.5;

/// A convolution or, `backward`, its input gradient, with so many bytes of operands: nanoseconds on one thread.
pub(crate) fn gather<T: Float>(core: &Core, shape: &ConvShape, backward: bool, bytes: f64) -> f64 {
    if shape.is_depthwise() {
        return depthwise(core, shape, bytes);
    }
    let gather =
        if backward { Gather::input_grad(core.isa, shape) } else { Gather::forward(core.isa, shape) };
    if gather.is_tiled::<T>() {
        return tiled(core, shape, &gather, bytes);
    }
    let (mut work, mut segments, mut weights_read) = (Tiles::default(), 0.0, 0.0);
    let (packed_level, groups) = (level(4.0 * shape.weights() as f64), shape.groups as f64);
    for index in 0..gather.classes() {
        let class = gather.class(index);
        let depth = gather.depth(&class);
        let chunks = depth.div_ceil(KC).max(1);
        let row = core.tiles(core.even_tiles(class.grid[1]), gather.columns(), depth, chunks);
        let rows = groups * shape.examples as f64 * class.grid[0] as f64;
        work.add(row, rows);
        let jumps = depth as f64 / gather.contiguous(&class) as f64 / chunks as f64;
        segments += rows * row.visits * jumps;
        let bands = class.grid[0].div_ceil(gather.band(&class).max(1)) * shape.examples;
        weights_read += bands as f64 * groups * 4.0 * gather.packed_floats(&class) as f64;
    }
    let weights = 4.0 * shape.weights() as f64;
    let slots = work.slots + SEGMENT * segments;
    let ragged = if core.is_ragged(gather.columns()) { UNALIGNED_STORE } else { 1.0 };
    let moved = TOUCH * ragged * work.touched
        + WEIGHTS_READ[packed_level] * weights_read
        + 2.0 * WEIGHTS_PACKED[packed_level] * weights;
    slots * core.slot + moved * core.byte + IMAGES * core.memory(bytes - weights)
}

/// A weight gradient whose sums fold after so many examples, with so many bytes of operands: nanoseconds on one thread.
pub(crate) fn weight_grad<T: Float>(
    core: &Core,
    shape: &ConvShape,
    block_examples: usize,
    bytes: f64,
) -> f64 {
    if shape.is_depthwise() {
        return depthwise(core, shape, bytes);
    }
    if weight_grad_is_tiled::<T>(core.isa, shape) {
        let turned = (shape.examples * shape.in_h * shape.in_w * shape.in_c) as f64 * shape.kernel_w as f64;
        let pixels = shape.examples * shape.out_h * shape.out_w;
        let rows = shape.kernel_h * shape.kernel_w * shape.in_c;
        let slots = TURNED * turned
            + TILES_GRADIENT * (pixels * shape.out_c) as f64
            + core.tile_blocks([rows, shape.out_c, pixels]);
        return slots * core.slot + core.memory(bytes);
    }
    let (channels, columns) = (shape.in_c / shape.groups, shape.out_c / shape.groups);
    let whole_rows = shape.groups == 1 && shape.dilation_w <= 1;
    let (taps, adjacent) = if whole_rows {
        (shape.kernel_h, shape.kernel_w * channels)
    } else {
        (shape.kernel_h * shape.kernel_w, channels)
    };
    let (rows, width) = (chunk_rows(shape), shape.out_w.clamp(1, KC));
    let chunks = shape.out_h.div_ceil(rows) * shape.out_w.div_ceil(width);
    let pixels = shape.out_h * shape.out_w;
    let tiles = core.tiles(core.even_tiles(adjacent), columns, pixels, chunks);
    let mut work = Tiles::default();
    work.add(tiles, (taps * shape.groups * shape.examples) as f64);
    let weights = 4.0 * shape.weights() as f64;
    // A block's sums are written, read, and added to the result.
    let folded = shape.examples.div_ceil(block_examples.max(1)) as f64 * 4.0 * weights;
    let in_place = shape.groups == 1 && core.is_panel(columns);
    let packed = if in_place { 0.0 } else { 4.0 * (shape.examples * pixels * shape.out_c) as f64 };
    let moved = SUMS_TOUCH * work.touched + SUMS_FOLDED[level(weights)] * folded + PIXELS_PACKED * packed;
    work.slots * core.slot + moved * core.byte + core.memory(bytes - weights)
}

/// A convolution or its input gradient in tiles.
fn tiled(core: &Core, shape: &ConvShape, gather: &Gather<'_>, bytes: f64) -> f64 {
    let mut slots = 0.0;
    for index in 0..gather.classes() {
        let class = gather.class(index);
        let (pixels, depth) = (shape.examples * class.grid[0] * class.grid[1], gather.depth(&class));
        let runs = depth.div_ceil(gather.contiguous(&class)) as f64;
        let window = WINDOW + WINDOW_RUN * runs + WINDOW_VECTOR * depth as f64 / 32.0;
        let one = window * pixels as f64
            + core.tile_blocks([pixels, gather.columns(), depth])
            + TILES_RESULT * (pixels * gather.columns()) as f64;
        slots += shape.groups as f64 * one;
    }
    slots * core.slot + core.memory(bytes)
}

/// Channels that are convolved by themselves, in any direction.
fn depthwise(core: &Core, shape: &ConvShape, bytes: f64) -> f64 {
    let taps = (shape.kernel_h * shape.kernel_w * core.vectors(shape.out_c)) as f64;
    let pixels = (shape.examples * shape.out_h * shape.out_w) as f64;
    DEPTHWISE_TAP * taps * pixels * core.slot + core.memory(bytes)
}
