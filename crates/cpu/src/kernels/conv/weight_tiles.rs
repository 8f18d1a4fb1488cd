//! The gradient of a convolution in bf16 with respect to its weights, for kernels that multiply tiles.
//!
//! The sums run over pixels, so that the channels of a pixel have to become rows of pixels. An image is turned once for every
//! column of the kernel; a tap is then a constant distance in one of those planes, for all pixels.

use super::weight_grad::Split;
use super::{ConvShape, share};
use crate::isa::Isa;
use crate::kernels::float::Float;
use crate::kernels::gemm::amx::Block;
use crate::kernels::gemm::avx512;
use crate::kernels::gemm::kernel::Kernels;
use crate::kernels::gemm::pack::Strip;
use crate::kernels::gemm::pairs::{Layout, PER_SLOT, TILE, load_bits, pack_pairs};
use crate::kernels::gemm::{SharedMut, whole_lines};
use plimsoll_tensor::DType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Floats of the planes of a few output rows, about: with their pixels' gradients they fit the second-level cache.
const PLANES_FLOATS: usize = 128 * 1024;

/// A product whose rows are (tap, input channel), whose columns are output channels, and whose k are pixels.
pub(super) struct TileGrad<'a> {
    kernels: &'static Kernels,
    shape: &'a ConvShape,
    split: Split,
    /// Output rows of a chunk, and examples, of which it takes several if it takes whole ones.
    chunk_rows: usize,
    chunk_examples: usize,
    /// Places between the channels of a plane.
    pitch: usize,
    /// Floats of a block's sums, of a worker's planes, and of its packed gradients.
    pub sums_floats: usize,
    planes_floats: usize,
    packed_floats: usize,
}

impl<'a> TileGrad<'a> {
    /// For operands of a type that the instruction set multiplies in tiles, whole tiles of channels, and pairs of pixels in
    /// a row.
    pub(super) fn new<T: Float>(isa: Isa, shape: &'a ConvShape, split: Split) -> Option<Self> {
        let kernels = Kernels::multiplying(isa, T::DTYPE);
        let whole = |n: usize, of: usize| n > 0 && n.is_multiple_of(of);
        let multiplies = T::DTYPE == DType::BF16 && kernels.packing.is_tiles();
        let is_whole = whole(shape.in_c, TILE) && whole(shape.out_c, TILE) && whole(shape.out_w, PER_SLOT);
        let is_empty = shape.input().floats() == 0 || shape.weights() == 0;
        if !multiplies || !is_whole || is_empty || shape.groups != 1 {
            return None;
        }
        let mut grad = Self {
            kernels,
            shape,
            split,
            chunk_rows: 1,
            chunk_examples: 1,
            pitch: 0,
            sums_floats: whole_lines(shape.weights()),
            planes_floats: 0,
            packed_floats: 0,
        };
        let row = grad.planes() * shape.in_c * shape.out_w / PER_SLOT;
        let fit = (PLANES_FLOATS / row.max(1)).saturating_sub(grad.more_rows()).max(1);
        let rows = shape.out_h.max(1);
        grad.chunk_rows = rows.div_ceil(rows.div_ceil(fit));
        if grad.chunk_rows == rows {
            let example = grad.planes() * shape.in_c * grad.places(rows);
            grad.chunk_examples = (PLANES_FLOATS / example.max(1)).clamp(1, split.block_examples);
        }
        let places = (grad.chunk_examples * grad.places(grad.chunk_rows)).next_multiple_of(TILE);
        // The last tile of the last tap may reach over the end, where zeros are.
        grad.pitch = places + TILE + grad.more_rows() * shape.out_w / PER_SLOT;
        grad.planes_floats = grad.planes() * shape.in_c * grad.pitch;
        grad.packed_floats = places * shape.out_c;
        Some(grad)
    }

    /// Rows of a plane besides those of the first row of taps.
    fn more_rows(&self) -> usize {
        (self.shape.kernel_h - 1) * self.shape.dilation_h / self.shape.stride_h
    }

    /// Places of an example in a plane, and as many in its gradients, for so many output rows.
    fn places(&self, rows: usize) -> usize {
        (rows + self.more_rows()) * self.shape.out_w / PER_SLOT
    }

    /// Rows of the image modulo the stride, as far as a kernel reaches.
    fn residues(&self) -> usize {
        self.shape.stride_h.min((self.shape.kernel_h - 1) * self.shape.dilation_h + 1)
    }

    fn planes(&self) -> usize {
        self.shape.kernel_w * self.residues()
    }

    /// Floats of a worker's planes, packed gradients, and sums that nobody needs: a tile of rows of all columns.
    fn own_floats(&self) -> usize {
        self.planes_floats + self.packed_floats + TILE * self.shape.out_c
    }

    pub(super) fn workspace_floats(&self, threads: usize) -> usize {
        self.split.together * self.sums_floats + threads * self.own_floats()
    }

    /// One slice of the rows of one block's sums.
    pub(super) fn block<T: Float>(
        &self,
        x: &[T],
        dy: &[T],
        examples: Range<usize>,
        slice: usize,
        space: SharedMut,
        (slot, worker): (usize, usize),
    ) {
        let Self { shape, kernels, .. } = self;
        let (input, output) = (shape.input().floats(), shape.output().floats());
        let sums = space.at(slot * self.sums_floats);
        let own = self.split.together * self.sums_floats + worker * self.own_floats();
        let planes = space.at(own);
        let packed = space.at(own + self.planes_floats);
        let spare = space.at(own + self.planes_floats + self.packed_floats);
        // SAFETY: the machine has the kernels' instructions.
        unsafe { (kernels.enter)() };
        for first in examples.clone().step_by(self.chunk_examples) {
            let chunk = first..(first + self.chunk_examples).min(examples.end);
            for row in (0..shape.out_h).step_by(self.chunk_rows) {
                let rows = row..(row + self.chunk_rows).min(shape.out_h);
                let (pixels, each) = (rows.len() * shape.out_w, self.places(rows.len()));
                let places = (chunk.len() * each).next_multiple_of(TILE);
                let is_first = first == examples.start && row == 0;
                // SAFETY: planes, packed gradients and spare sums are the worker's own, and big enough for a chunk; only this
                // task writes its rows of the block's sums; the machine has AVX-512.
                unsafe {
                    self.turn(&x[chunk.start * input..chunk.end * input], rows, planes);
                    for start in (0..shape.out_c).step_by(kernels.nr()) {
                        let cols = (shape.out_c - start).min(kernels.nr());
                        let panel = packed.add(start * places);
                        for (i, example) in chunk.clone().enumerate() {
                            let dy = &dy[example * output + row * shape.out_w * shape.out_c..][start..];
                            let (src, k_step) = (dy.as_ptr(), shape.out_c);
                            let strip = Strip { src, lane_step: 1, k_step, lanes: cols };
                            // Rows that only reach over the end of the example have no gradients.
                            let end = if i + 1 == chunk.len() { places } else { (i + 1) * each };
                            let to = (panel.add(i * each * cols), cols);
                            pack_pairs(strip, to, pixels, end - i * each, Layout::Panel);
                        }
                        self.panel((start, cols), slice, planes, panel, places, [sums, spare], !is_first);
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe { (kernels.leave)() };
    }

    /// Adds a chunk of pixels to one slice of the rows of a panel of columns.
    ///
    /// # Safety
    ///
    /// Planes and panel must hold the chunk, the sums be good for writes of all weights and of a spare tile of rows, and the thread
    /// have entered the kernels.
    #[expect(clippy::too_many_arguments, reason = "the part, its operands and its result")]
    unsafe fn panel(
        &self,
        (start, cols): (usize, usize),
        slice: usize,
        planes: *const f32,
        panel: *const f32,
        places: usize,
        [sums, spare]: [*mut f32; 2],
        load: bool,
    ) {
        let shape = self.shape;
        let groups = shape.in_c / TILE;
        // Rows of the product in tiles: a tap's channels.
        let units = share(shape.kernel_h * shape.kernel_w * groups, self.split.slices, slice);
        let a = |unit: usize| {
            let (tap, group) = (unit / groups, unit % groups);
            let (down, across) = (tap / shape.kernel_w * shape.dilation_h, tap % shape.kernel_w);
            let plane = across * self.residues() + down % shape.stride_h;
            let channel = plane * shape.in_c + group * TILE;
            let row = down / shape.stride_h * shape.out_w / PER_SLOT;
            planes.wrapping_add(channel * self.pitch + row)
        };
        let c = |unit: usize| sums.wrapping_add(unit * TILE * shape.out_c + start);
        for unit in units.clone().step_by(2) {
            // A last one by itself is computed twice, the second time for nobody.
            let (second, second_c) =
                if unit + 1 < units.end { (unit + 1, c(unit + 1)) } else { (unit, spare) };
            let block = Block {
                a: [a(unit), a(second)],
                a_step: self.pitch,
                a_tile: TILE,
                b: panel,
                b_step: cols,
                tiles: places / TILE,
                c: [c(unit), second_c],
                ldc: shape.out_c,
                load,
            };
            // SAFETY: as the caller promises.
            unsafe { block.add(cols) };
        }
    }

    /// Turns the images under some output rows into planes: for every column of the kernel and every row modulo the stride,
    /// the pixels that it meets, channel by channel, of one example after the other; then zeros.
    ///
    /// # Safety
    ///
    /// The planes must be good for writing those of a chunk, and the machine must have the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn turn<T: Float>(&self, x: &[T], rows: Range<usize>, planes: *mut f32) {
        let Self { shape, pitch, .. } = *self;
        let pairs = shape.out_w / PER_SLOT;
        let (image, height) = (shape.input().floats(), rows.len() + self.more_rows());
        let examples = x.len() / image;
        let mut turned = [_mm512_setzero_si512(); TILE];
        for plane in 0..self.planes() {
            let (across, residue) = (plane / self.residues() * shape.dilation_w, plane % self.residues());
            for channel in (0..shape.in_c).step_by(TILE) {
                let plane = planes.wrapping_add((plane * shape.in_c + channel) * pitch);
                for (example, row) in (0..examples).flat_map(|e| (0..height).map(move |row| (e, row))) {
                    let x = &x[example * image..][..image];
                    let y = (rows.start + row) * shape.stride_h + residue;
                    let inside = y >= shape.pad_top && y - shape.pad_top < shape.in_h;
                    let line = if inside { (y - shape.pad_top) * shape.in_w } else { 0 };
                    let pixel = |column: usize| {
                        let at = column * shape.stride_w + across;
                        let here = inside && at >= shape.pad_left && at - shape.pad_left < shape.in_w;
                        let from = if here { (line + at - shape.pad_left) * shape.in_c + channel } else { 0 };
                        // SAFETY: a pixel inside of the image has all channels, of which some are read, or none.
                        unsafe { load_bits(x[from..].as_ptr(), if here { TILE } else { 0 }) }
                    };
                    for first in (0..pairs).step_by(TILE) {
                        let count = (pairs - first).min(TILE);
                        for (pair, both) in turned.iter_mut().enumerate().take(count) {
                            let column = PER_SLOT * (first + pair);
                            let [even, odd] = [pixel(column), pixel(column + 1)];
                            *both = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
                        }
                        // SAFETY: as the caller promises: a plane has room for its rows.
                        unsafe {
                            let from = (turned.as_ptr().cast(), TILE * size_of::<f32>(), count);
                            let to = plane.add((example * height + row) * pairs + first);
                            avx512::transpose(from, (to, pitch, count), TILE);
                        }
                    }
                }
                for lane in 0..TILE {
                    let used = examples * height * pairs;
                    // SAFETY: as above.
                    unsafe { plane.add(lane * pitch + used).write_bytes(0, pitch - used) };
                }
            }
        }
    }
}
