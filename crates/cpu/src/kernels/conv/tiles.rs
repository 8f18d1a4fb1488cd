//! Convolution and its input gradient in bf16, for kernels that multiply tiles: the windows of a few pixels at a time are copied
//! side by side, and are then rows of a product.

use super::gather::{Class, Gather};
use crate::isa::Context;
use crate::kernels::float::{Float, narrow};
use crate::kernels::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::kernels::gemm::pack::Strip;
use crate::kernels::gemm::pairs::{Layout, PER_SLOT, TILE, pack_pairs};
use crate::kernels::gemm::{SharedMut, shared_workspace, whole_lines};
use crate::kernels::math::Shared;
use plimsoll_tensor::DType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Pixels whose windows are copied at a time: a panel of weights serves all of them while it is in the first-level cache.
const PIXELS: usize = 64;

/// Pixels that a task takes, at least, where an image has so many.
const TASK_PIXELS: usize = 256;

/// Channels below which copying windows takes longer than multiplying f32.
const FEWEST_CHANNELS: usize = 8;

/// A gathering convolution on kernels that multiply tiles.
pub(super) struct Tiles<'a, 'b> {
    gather: &'a Gather<'b>,
    kernels: &'static Kernels,
}

/// The pixels of a class that a task takes: those of whole rows of one image.
struct Pixels<'a> {
    class: &'a Class,
    example: usize,
    rows: Range<usize>,
}

impl<'a, 'b> Tiles<'a, 'b> {
    /// For operands of a type that the instruction set multiplies in tiles, and pairs of channels.
    pub(super) fn of<T: Float>(gather: &'a Gather<'b>) -> Option<Self> {
        let kernels = Kernels::multiplying(gather.isa, T::DTYPE);
        let channels = gather.channels();
        let fits = channels >= FEWEST_CHANNELS && channels.is_multiple_of(PER_SLOT);
        (T::DTYPE == DType::BF16 && kernels.packing.is_tiles() && fits).then_some(Self { gather, kernels })
    }

    /// Places of a class's sum: whole tiles.
    fn depth(&self, class: &Class) -> usize {
        self.kernels.packing.slots(self.gather.depth(class))
    }

    /// The distance between the windows of two pixels: not a multiple of a page.
    fn pitch(&self, class: &Class) -> usize {
        self.depth(class) + TILE
    }

    /// Floats of a group's packed weights.
    fn packed(&self, class: &Class) -> usize {
        self.depth(class) * self.gather.columns().next_multiple_of(self.kernels.lanes)
    }

    /// Floats of packed weights of all classes before this one.
    fn packed_before(&self, class: usize) -> usize {
        let groups = self.gather.shape.groups;
        (0..class).map(|class| groups * self.packed(&self.gather.class(class))).sum()
    }

    /// Floats of each worker's windows, and of its sums.
    fn own(&self) -> [usize; 2] {
        let pitches = (0..self.gather.classes()).map(|class| self.pitch(&self.gather.class(class)));
        [PIXELS * pitches.max().unwrap_or(0), whole_lines(PIXELS * self.gather.columns())]
    }

    pub(super) fn workspace_floats(&self, threads: usize) -> usize {
        self.packed_before(self.gather.classes()) + threads * self.own().iter().sum::<usize>()
    }

    pub(super) fn run<T: Float, C: Float>(
        &self,
        ctx: Context<'_>,
        source: &[T],
        w: &[T],
        target: &mut [C],
        finish: Finish,
        workspace: &mut [f32],
    ) {
        if target.is_empty() {
            return;
        }
        let Self { gather, kernels } = self;
        assert_available(gather.isa);
        let space = shared_workspace(workspace, self.workspace_floats(ctx.pool.threads()));
        let own = self.packed_before(gather.classes());
        let [windows, sums] = self.own();
        let target = Shared::new(target);
        for index in 0..gather.classes() {
            let class = gather.class(index);
            let weights = SharedMut(space.at(self.packed_before(index)));
            let (taps, packed) = (class.taps(), self.packed(&class));
            ctx.pool.run(gather.shape.groups * taps.max(1), &|task, _| {
                let (group, tap) = (task / taps.max(1), task % taps.max(1));
                self.pack_tap(&class, (group, tap), w, SharedMut(weights.at(group * packed)));
            });
            let [height, width] = class.grid;
            let band = TASK_PIXELS.div_ceil(width.max(1)).clamp(1, height.max(1));
            let bands = height.div_ceil(band);
            ctx.pool.run(gather.shape.examples * bands, &|task, worker| {
                let first = task % bands * band;
                let rows = first..(first + band).min(height);
                let pixels = Pixels { class: &class, example: task / bands, rows };
                let windows_at = space.at(own + worker * (windows + sums));
                let own = [windows_at, windows_at.wrapping_add(windows)];
                // SAFETY: the machine has the kernels' instructions.
                unsafe { (kernels.enter)() };
                for group in 0..gather.shape.groups {
                    let weights = SharedMut(weights.at(group * packed));
                    self.multiply(&pixels, group, source, weights, own, target, finish);
                }
                // SAFETY: as above.
                unsafe { (kernels.leave)() };
            });
        }
    }

    /// Packs the rows of B that belong to one tap of one group, in all panels; after the last, zeros. The taps of a row follow
    /// each other as the pixels do that they meet.
    fn pack_tap<T: Float>(&self, class: &Class, (group, tap): (usize, usize), w: &[T], weights: SharedMut) {
        let (depth, columns) = (self.depth(class), self.gather.columns());
        let (slots, is_last) = (self.gather.channels() / PER_SLOT, tap + 1 >= class.taps());
        let (position, cols) = (tap, class.axes[1]);
        let tap = if cols.spread < 0 && class.taps() > 0 {
            tap + cols.taps - 1 - 2 * (tap % cols.taps)
        } else {
            tap
        };
        for start in (0..columns).step_by(self.kernels.nr()) {
            let lanes = (columns - start).min(self.kernels.nr());
            let width = self.kernels.panel_width(lanes);
            let rows = position * slots..if is_last { depth } else { (position + 1) * slots };
            let to = weights.at(start * depth + rows.start * width);
            if class.taps() == 0 {
                // SAFETY: the panel lies in the packed weights, and has one writer.
                unsafe { to.write_bytes(0, rows.len() * width) };
                continue;
            }
            let (w, lane_step, k_step) = self.gather.weights_of(class, (group, tap), w);
            let strip = Strip { src: w[start * lane_step..].as_ptr(), lane_step, k_step, lanes };
            // SAFETY: a group's weights of the tap are a matrix of channels by columns, in either order, inside the matrix of
            // all groups; a tap's rows of a panel have one writer, and the machine has AVX-512.
            unsafe {
                pack_pairs(strip, (to, width), self.gather.channels(), rows.len(), Layout::Panel);
            }
        }
    }

    /// A group's channels of a task's pixels.
    #[expect(clippy::too_many_arguments, reason = "the part, its operands and its result")]
    fn multiply<T: Float, C: Float>(
        &self,
        pixels: &Pixels<'_>,
        group: usize,
        source: &[T],
        weights: SharedMut,
        [windows, sums]: [*mut f32; 2],
        target: Shared<C>,
        finish: Finish,
    ) {
        let Self { gather, kernels } = self;
        let class = pixels.class;
        let (depth, pitch, columns) = (self.depth(class), self.pitch(class), gather.columns());
        let count = pixels.rows.len() * class.grid[1];
        for first in (0..count).step_by(PIXELS) {
            let here = first..(first + PIXELS).min(count);
            // SAFETY: the windows are the worker's own and have room for so many pixels; the machine has AVX-512.
            unsafe { self.copy_windows(pixels, here.clone(), group, source, windows) };
            for start in (0..columns).step_by(kernels.nr()) {
                let cols = (columns - start).min(kernels.nr());
                for row in (0..here.len()).step_by(kernels.mr) {
                    let tile = Tile {
                        a: windows.wrapping_add(row * pitch),
                        a_step: pitch,
                        walk: Walk::STRAIGHT,
                        k_start: 0,
                        k_len: depth,
                        b: weights.at(start * depth),
                        b_step: kernels.panel_width(cols),
                        c: sums.wrapping_add(row * columns + start),
                        ldc: columns,
                        load: false,
                        ahead: std::ptr::null(),
                        cols,
                        finish: finish.at_column(group * columns + start),
                    };
                    let rows = (here.len() - row).min(kernels.mr);
                    // SAFETY: windows and panels hold all places of the sum, the windows those of whole tiles of pixels; the
                    // sums are the worker's own; the machine has the instructions, and the thread is prepared for them.
                    unsafe { kernels.micro(Form::Rows, rows, cols)(&tile) };
                }
            }
            self.store(pixels, here, group, sums, target);
        }
    }

    /// Copies the windows of pixels, each as the taps' channels in order, then zeros.
    ///
    /// # Safety
    ///
    /// `windows` must be good for writing those of so many pixels, and the machine must have the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn copy_windows<T: Float>(
        &self,
        pixels: &Pixels<'_>,
        here: Range<usize>,
        group: usize,
        source: &[T],
        windows: *mut f32,
    ) {
        let Gather { source: image, .. } = self.gather;
        let [rows, cols] = pixels.class.axes;
        let (channels, width) = (self.gather.channels(), pixels.class.grid[1]);
        let (pitch, used) = (self.pitch(pixels.class), self.gather.depth(pixels.class));
        let rest = self.depth(pixels.class) * PER_SLOT - used;
        let source = &source[pixels.example * image.floats()..][..image.floats()];
        // What is adjacent in the kernel is adjacent in the image.
        let adjacent = cols.spread.unsigned_abs() == 1 && self.gather.shape.groups == 1;
        let first_tap = if cols.spread < 0 { cols.taps.saturating_sub(1) } else { 0 };
        let (mut row, mut column) = (pixels.rows.start + here.start / width, here.start % width);
        for pixel in 0..here.len() {
            let mut to = windows.wrapping_add(pixel * pitch).cast::<u16>();
            for tap_row in 0..rows.taps {
                let y = rows.source(row, tap_row);
                if y < 0 || y as usize >= image.h {
                    // SAFETY: a window has room for its taps' channels.
                    unsafe { clear(to, cols.taps * channels) };
                    to = to.wrapping_add(cols.taps * channels);
                    continue;
                }
                let line = y as usize * image.w;
                if adjacent {
                    // The taps from the first inside the image to the last.
                    let inside = |at: isize| at.clamp(0, cols.taps as isize) as usize;
                    let x = cols.source(column, first_tap);
                    let (begin, end) = (inside(-x), inside(image.w as isize - x));
                    // SAFETY: as above; the pixels lie in the image.
                    unsafe {
                        clear(to, begin * channels);
                        if begin < end {
                            let at = (line + (x + begin as isize) as usize) * channels;
                            let from = source[at..at + (end - begin) * channels].as_ptr();
                            copy(from.cast(), to.add(begin * channels), (end - begin) * channels);
                        }
                        let end = end.max(begin) * channels;
                        clear(to.add(end), cols.taps * channels - end);
                    }
                    to = to.wrapping_add(cols.taps * channels);
                    continue;
                }
                for tap in 0..cols.taps {
                    let x = cols.source(column, if cols.spread < 0 { cols.taps - 1 - tap } else { tap });
                    // SAFETY: as above.
                    unsafe {
                        if x >= 0 && (x as usize) < image.w {
                            let at = (line + x as usize) * image.c + group * channels;
                            copy(source[at..at + channels].as_ptr().cast(), to, channels);
                        } else {
                            clear(to, channels);
                        }
                    }
                    to = to.wrapping_add(channels);
                }
            }
            // SAFETY: a window has room for whole tiles.
            unsafe { clear(to, rest) };
            column += 1;
            if column == width {
                (row, column) = (row + 1, 0);
            }
        }
    }

    /// Stores the sums of pixels in the target, rounded to its type.
    fn store<C: Float>(
        &self,
        pixels: &Pixels<'_>,
        here: Range<usize>,
        group: usize,
        sums: *const f32,
        target: Shared<C>,
    ) {
        let Gather { target: image, isa, .. } = self.gather;
        let (columns, width) = (self.gather.columns(), pixels.class.grid[1]);
        let [rows, cols] = pixels.class.axes;
        let first = pixels.example * image.floats() + group * columns;
        let at = |pixel: usize| {
            let (row, column) = (pixels.rows.start + pixel / width, pixel % width);
            let (y, x) = (rows.first + row * rows.pitch, cols.first + column * cols.pitch);
            first + (y * image.w + x) * image.c
        };
        // SAFETY: the sums are the worker's own; the pixels lie in the target image and belong to this task.
        let store = |pixel: usize, at: usize, len: usize| unsafe {
            let sums = std::slice::from_raw_parts(sums.add(pixel * columns), len);
            narrow(*isa, sums, target.part(at, len));
        };
        if self.gather.classes() == 1 && self.gather.shape.groups == 1 {
            // Every pixel of the image, in order.
            return store(0, at(here.start), here.len() * columns);
        }
        here.clone().for_each(|pixel| store(pixel - here.start, at(pixel), columns));
    }
}

/// Writes 16-bit zeros, a few vectors of them; mostly none.
///
/// # Safety
///
/// `to` must be good for writes, and the machine must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn clear(to: *mut u16, len: usize) {
    for at in (0..len).step_by(LANES) {
        // SAFETY: the mask stops at the end.
        unsafe { _mm512_mask_storeu_epi16(to.add(at).cast(), first(len - at), _mm512_setzero_si512()) };
    }
}

/// The lanes of a vector before the given one.
#[inline(always)]
fn first(len: usize) -> u32 {
    ((1u64 << len.min(LANES)) - 1) as u32
}

/// 16-bit numbers of a vector.
const LANES: usize = 32;

/// Copies 16-bit numbers, a few vectors of them.
///
/// # Safety
///
/// `from` must be good for reads, `to` for writes, and the machine must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy(from: *const u16, to: *mut u16, len: usize) {
    for at in (0..len).step_by(LANES) {
        let mask = first(len - at);
        // SAFETY: the mask stops at the end.
        unsafe {
            let numbers = _mm512_maskz_loadu_epi16(mask, from.add(at).cast());
            _mm512_mask_storeu_epi16(to.add(at).cast(), mask, numbers);
        }
    }
}
