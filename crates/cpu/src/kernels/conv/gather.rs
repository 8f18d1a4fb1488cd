//! Convolution and its input gradient as matrix products over windows of an image.

use super::axis::Axis;
use super::image::{Image, View, Window};
#[cfg(target_arch = "x86_64")]
use super::tiles::Tiles;
use super::{ConvShape, share};
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, narrow};
use crate::kernels::gemm::chunks::{KC, chunks};
use crate::kernels::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::kernels::gemm::pack::{Strip, pack};
use crate::kernels::gemm::{SharedMut, shared_workspace, whole_lines};
use crate::kernels::math::Shared;
use std::ops::Range;

/// Floats of the image that a task works on at a time: with a chunk of a panel of weights, what the
/// first-level cache holds.
const BAND_FLOATS: usize = 8192;

/// A convolution in which every target pixel gathers from a window of the source image.
///
/// Both directions are of this kind. Going back through a stride, the target pixels fall into classes by
/// their position modulo the stride, and each class meets its own taps of the kernel; see [`Axis`].
pub(crate) struct Gather<'a> {
    pub(super) isa: Isa,
    kernels: &'static Kernels,
    pub(super) shape: &'a ConvShape,
    pub(super) source: Image,
    pub(super) target: Image,
    backward: bool,
}

/// Where a row's sums go.
#[derive(Clone, Copy)]
enum Place {
    /// To the target image.
    Image(*mut f32),
    /// To the worker's own memory: a group's channels of one row of a class, pixel by pixel.
    Own(*mut f32),
}

/// One class of target pixels: an evenly spaced grid of them, and the taps that they meet.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// Along rows and along columns.
    pub(super) axes: [Axis; 2],
    /// The number of its rows and columns.
    pub grid: [usize; 2],
    /// The windows of the source under its pixels.
    window: Window,
}

impl Class {
    /// The number of its taps.
    pub(super) fn taps(&self) -> usize {
        self.axes[0].taps * self.axes[1].taps
    }
}

impl<'a> Gather<'a> {
    pub(crate) fn forward(isa: Isa, shape: &'a ConvShape) -> Self {
        let (source, target) = (shape.input(), shape.output());
        Self { isa, kernels: Kernels::of(isa), shape, source, target, backward: false }
    }

    pub(crate) fn input_grad(isa: Isa, shape: &'a ConvShape) -> Self {
        let (source, target) = (shape.output(), shape.input());
        Self { isa, kernels: Kernels::of(isa), shape, source, target, backward: true }
    }

    /// Numbers of classes along rows and columns; no more than there are of those.
    fn class_grid(&self) -> [usize; 2] {
        let Image { h, w, .. } = self.target;
        if self.backward { [self.shape.stride_h.min(h), self.shape.stride_w.min(w)] } else { [1, 1] }
    }

    pub(crate) fn classes(&self) -> usize {
        self.class_grid().iter().product()
    }

    pub(crate) fn class(&self, index: usize) -> Class {
        let extents = self.shape.extents();
        let [_, columns] = self.class_grid();
        let first = [index / columns, index % columns];
        let axes = if self.backward {
            std::array::from_fn(|d| Axis::backward(extents[d], first[d]))
        } else {
            extents.map(Axis::forward)
        };
        Class { axes, grid: axes.map(|axis| axis.count), window: Window::of(axes) }
    }

    /// Source channels that a target pixel sums over.
    pub(super) fn channels(&self) -> usize {
        self.source.c / self.shape.groups
    }

    /// Target channels that sum over them.
    pub(crate) fn columns(&self) -> usize {
        self.target.c / self.shape.groups
    }

    /// The length of a class's sum.
    pub(crate) fn depth(&self, class: &Class) -> usize {
        class.taps() * self.channels()
    }

    /// The length of the parts of a class's sum that are contiguous in the image.
    pub(crate) fn contiguous(&self, class: &Class) -> usize {
        let [_, columns] = class.axes;
        let whole_row = columns.spread == 1 && self.shape.groups == 1;
        (self.channels() * if whole_row { columns.taps } else { 1 }).max(1)
    }

    /// Floats of a group's packed weights.
    pub(crate) fn packed_floats(&self, class: &Class) -> usize {
        whole_lines(self.depth(class) * self.columns().next_multiple_of(self.kernels.lanes))
    }

    /// Target rows that a task takes: a share of the rows as even as possible.
    pub(crate) fn band(&self, class: &Class) -> usize {
        let fit = class.window.rows_within(BAND_FLOATS, class.grid[1], self.source);
        let rows = class.grid[0].max(1);
        rows.div_ceil(rows.div_ceil(fit))
    }

    /// Floats of packed weights of all classes before this one.
    fn packed_before(&self, class: usize) -> usize {
        (0..class).map(|class| self.shape.groups * self.packed_floats(&self.class(class))).sum()
    }

    /// Floats of each worker's copy of a few rows with zeros around them.
    fn copy_floats<T: Float>(&self) -> usize {
        let floats = |class: Class| {
            let inside = class.window.needs_no_copy::<T>(class.grid, self.source);
            let floats = class.window.copy_floats(self.band(&class), class.grid[1], self.source);
            if inside { 0 } else { whole_lines(floats) }
        };
        (0..self.classes()).map(|class| floats(self.class(class))).max().unwrap_or(0)
    }

    /// Floats of each worker's sums of one row of a class, which are complete before they are rounded.
    fn sums_floats<C: Float>(&self) -> usize {
        let widest = (0..self.classes()).map(|class| self.class(class).grid[1]).max().unwrap_or(0);
        if C::LOW { whole_lines(widest * self.columns()) } else { 0 }
    }

    /// Whether operands of a type are multiplied in tiles.
    pub(crate) fn is_tiled<T: Float>(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return Tiles::of::<T>(self).is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    pub(super) fn workspace_floats<T: Float, C: Float>(&self, threads: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = Tiles::of::<T>(self) {
            return tiles.workspace_floats(threads);
        }
        let own = self.copy_floats::<T>() + self.sums_floats::<C>();
        self.packed_before(self.classes()) + threads * own
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
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = Tiles::of::<T>(self) {
            return tiles.run(ctx, source, w, target, finish, workspace);
        }
        if target.is_empty() {
            return;
        }
        assert_available(self.isa);
        let space = shared_workspace(workspace, self.workspace_floats::<T, C>(ctx.pool.threads()));
        let copies = self.packed_before(self.classes());
        let copy_floats = self.copy_floats::<T>();
        let own_floats = copy_floats + self.sums_floats::<C>();
        let target = Shared::new(target);
        for index in 0..self.classes() {
            let class = self.class(index);
            let weights = SharedMut(space.at(self.packed_before(index)));
            let taps = class.taps();
            let packed = self.packed_floats(&class);
            if self.source.c > 0 {
                ctx.pool.run(self.shape.groups * taps, &|task, _| {
                    let (group, tap) = (task / taps, task % taps);
                    self.pack_tap(&class, (group, tap), w, SharedMut(weights.at(group * packed)));
                });
            }
            let band = self.band(&class);
            let bands = class.grid[0].div_ceil(band);
            ctx.pool.run(self.shape.examples * bands, &|task, worker| {
                let example = task / bands;
                let first = task % bands * band;
                let rows = first..(first + band).min(class.grid[0]);
                let image = &source[example * self.source.floats()..][..self.source.floats()];
                let copy = space.at(copies + worker * own_floats);
                // SAFETY: the copy is the worker's own, and big enough for a band of any class.
                let view = unsafe {
                    class.window.view(self.isa, image, self.source, rows.clone(), class.grid, copy)
                };
                let first = example * self.target.floats();
                for group in 0..self.shape.groups {
                    let weights = SharedMut(weights.at(group * packed));
                    if C::LOW {
                        let (sums, target) =
                            (copy.wrapping_add(copy_floats), Shared::from_ptr(target.at(first)));
                        for row in rows.clone() {
                            let part = (row - rows.start, row..row + 1);
                            self.band_product(&class, part, group, &view, weights, Place::Own(sums), finish);
                            self.round_row(&class, row, group, sums, target);
                        }
                    } else {
                        // A type that is not low is f32.
                        let place = Place::Image(target.at(first).cast());
                        self.band_product(&class, (0, rows.clone()), group, &view, weights, place, finish);
                    }
                }
            });
        }
    }

    /// The weights of one tap of one group, as a matrix of source channels by target channels: its first element, the distance
    /// between columns and that between rows.
    pub(super) fn weights_of<'w, T>(
        &self,
        class: &Class,
        (group, tap): (usize, usize),
        w: &'w [T],
    ) -> (&'w [T], usize, usize) {
        let [rows, cols] = class.axes;
        let row = rows.tap + tap / cols.taps * rows.tap_pitch;
        let column = cols.tap + tap % cols.taps * cols.tap_pitch;
        let (in_c, out_c) = (self.shape.in_c / self.shape.groups, self.shape.out_c);
        let w = &w[(row * self.shape.kernel_w + column) * in_c * out_c..][..in_c * out_c];
        let w = &w[group * (out_c / self.shape.groups)..];
        if self.backward { (w, out_c, 1) } else { (w, 1, out_c) }
    }

    /// Packs the rows of B that belong to one tap of one group, in all panels.
    fn pack_tap<T: Float>(&self, class: &Class, (group, tap): (usize, usize), w: &[T], weights: SharedMut) {
        let (depth, channels, columns) = (self.depth(class), self.channels(), self.columns());
        let (w, lane_step, k_step) = self.weights_of(class, (group, tap), w);
        for start in (0..columns).step_by(self.kernels.nr()) {
            let lanes = (columns - start).min(self.kernels.nr());
            let width = self.kernels.panel_width(lanes);
            let dst = weights.at(start * depth + tap * channels * width);
            let strip = Strip { src: w[start * lane_step..].as_ptr(), lane_step, k_step, lanes };
            // SAFETY: a group's weights of the tap are a matrix of channels by columns, in either order, inside the
            // matrix of all groups; a tap's rows of a panel have one writer.
            unsafe { pack(self.isa, strip, dst, width, channels) };
        }
    }

    /// Rounds a group's sums of one row of a class into the target image.
    fn round_row<C: Float>(
        &self,
        class: &Class,
        row: usize,
        group: usize,
        sums: *const f32,
        target: Shared<C>,
    ) {
        let [row_axis, column_axis] = class.axes;
        let (columns, c_row) = (self.columns(), row_axis.first + row * row_axis.pitch);
        for pixel in 0..class.grid[1] {
            let c_column = column_axis.first + pixel * column_axis.pitch;
            let at = (c_row * self.target.w + c_column) * self.target.c + group * columns;
            // SAFETY: the sums are the worker's own, the pixels lie in the target image and belong to this task.
            let (sums, target) = unsafe {
                (std::slice::from_raw_parts(sums.add(pixel * columns), columns), target.part(at, columns))
            };
            narrow(self.isa, sums, target);
        }
    }

    /// A group's channels of all target pixels in a few rows of one class, `before` of the view's rows before them.
    #[expect(clippy::too_many_arguments, reason = "the part, its operands and its result")]
    fn band_product(
        &self,
        class: &Class,
        (before, rows): (usize, Range<usize>),
        group: usize,
        view: &View,
        weights: SharedMut,
        place: Place,
        finish: Finish,
    ) {
        let (kernels, depth, columns) = (self.kernels, self.depth(class), self.columns());
        let (a, walk) = self.walk(class, view);
        let a = a.wrapping_add(group * self.channels());
        let first_column = group * columns;
        let [row_axis, column_axis] = class.axes;
        let tiles = class.grid[1].div_ceil(kernels.mr);
        // A chunk of one panel of weights stays in the first-level cache for the whole band.
        for chunk in chunks(depth, KC) {
            for start in (0..columns).step_by(kernels.nr()) {
                let cols = (columns - start).min(kernels.nr());
                let width = kernels.panel_width(cols);
                let last = chunk.end == depth;
                let mut tile = Tile {
                    a,
                    a_step: class.window.step[1] * self.source.c,
                    walk,
                    k_start: chunk.start,
                    k_len: chunk.len(),
                    b: weights.at(start * depth + chunk.start * width),
                    b_step: width,
                    c: std::ptr::null_mut(),
                    ldc: match place {
                        Place::Image(_) => column_axis.pitch * self.target.c,
                        Place::Own(_) => columns,
                    },
                    load: chunk.start > 0,
                    ahead: std::ptr::null(),
                    cols,
                    finish: if last { finish.at_column(first_column + start) } else { Finish::NONE },
                };
                for row in rows.clone() {
                    let a = a.wrapping_add((before + row - rows.start) * view.window_pitch);
                    let c_row = row_axis.first + row * row_axis.pitch;
                    for index in 0..tiles {
                        let pixels = share(class.grid[1], tiles, index);
                        let c_column = column_axis.first + pixels.start * column_axis.pitch;
                        tile.a = a.wrapping_add(pixels.start * tile.a_step);
                        tile.c = match place {
                            Place::Image(target) => {
                                let pixel = (c_row * self.target.w + c_column) * self.target.c;
                                target.wrapping_add(pixel + first_column + start)
                            }
                            Place::Own(sums) => sums.wrapping_add(pixels.start * columns + start),
                        };
                        // SAFETY: the view covers the windows of these pixels, the panel is packed, the
                        // pixels lie in the target image and belong to this task; the machine has the
                        // instructions.
                        unsafe { kernels.micro(Form::Rows, pixels.len(), cols)(&tile) };
                    }
                }
            }
        }
    }

    /// Where the first group's sum of the view's first pixel starts, and its walk along k.
    fn walk(&self, class: &Class, view: &View) -> (*const f32, Walk) {
        let [rows, columns] = class.axes;
        let c = self.source.c as isize;
        if columns.spread == 1 && self.shape.groups == 1 {
            // What is adjacent in the kernel is adjacent in the image.
            let len = (columns.taps * self.source.c).max(1);
            let outer_step = rows.spread.signum() * view.tap_pitch as isize;
            return (view.first, Walk { len, inner: 1, inner_step: 0, outer_step });
        }
        let (inner_step, outer_step) = (columns.spread * c, rows.spread.signum() * view.tap_pitch as isize);
        let walk = Walk { len: self.channels().max(1), inner: columns.taps.max(1), inner_step, outer_step };
        // Where the taps run against the source, the window's last pixel meets the first of them.
        let last = |taps: usize, step: isize| taps.saturating_sub(1) * step.min(0).unsigned_abs();
        let first = last(rows.taps, outer_step) + last(columns.taps, inner_step);
        (view.first.wrapping_add(first), walk)
    }
}
