//! Images, and windows over them.

use super::axis::Axis;
use crate::isa::Isa;
use crate::kernels::float::{Float, widen};
use std::ops::Range;

/// The sizes of an image: rows, columns, channels.
#[derive(Clone, Copy)]
pub(super) struct Image {
    pub h: usize,
    pub w: usize,
    pub c: usize,
}

impl Image {
    pub(super) fn floats(self) -> usize {
        self.h * self.w * self.c
    }
}

/// Evenly spaced windows over an image, in (rows, columns).
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// The corner of the first window; it may lie outside of the image.
    pub corner: [isize; 2],
    /// How far apart the windows are.
    pub step: [usize; 2],
    /// How many pixels of the image a window takes.
    pub taps: [usize; 2],
    /// How far apart those are.
    pub spread: [usize; 2],
}

/// Rows of an image, or of a copy with zeros around it.
pub(super) struct View {
    /// The corner of the first window.
    pub first: *const f32,
    /// Floats between rows of windows.
    pub window_pitch: usize,
    /// Floats between the rows of a window.
    pub tap_pitch: usize,
}

impl Window {
    /// The windows of the target positions of two axes.
    pub(super) fn of(axes: [Axis; 2]) -> Self {
        Self {
            corner: axes.map(|axis| axis.ends()[0]),
            step: axes.map(|axis| axis.step),
            taps: axes.map(|axis| axis.taps),
            spread: axes.map(|axis| axis.spread.unsigned_abs()),
        }
    }

    /// From a window's first pixel to its last, gaps included.
    fn span(&self, d: usize) -> usize {
        if self.taps[d] == 0 { 0 } else { (self.taps[d] - 1) * self.spread[d] + 1 }
    }

    /// Rows of the source under so many rows of windows, gaps included.
    fn covered_rows(&self, rows: usize) -> usize {
        rows.saturating_sub(1) * self.step[0] + self.span(0)
    }

    /// Whether so many rows of windows are copied one by one, each with the rows that it takes, because that is less
    /// than all that they cover.
    fn one_by_one(&self, rows: usize) -> bool {
        rows * self.taps[0] < self.covered_rows(rows)
    }

    /// Floats of a copy of the source under so many rows and columns of windows.
    pub(super) fn copy_floats(&self, rows: usize, columns: usize, source: Image) -> usize {
        (rows * self.taps[0]).min(self.covered_rows(rows)) * self.pitch(columns, source)
    }

    /// Floats of one source row under so many columns of windows.
    fn pitch(&self, columns: usize, source: Image) -> usize {
        (columns.saturating_sub(1) * self.step[1] + self.span(1)) * source.c
    }

    /// How many rows of windows fit into so many floats of source: at least one.
    pub(super) fn rows_within(&self, floats: usize, columns: usize, source: Image) -> usize {
        let source_rows = floats / self.pitch(columns, source).max(1);
        let covered = source_rows.saturating_sub(self.span(0)) / self.step[0] + 1;
        covered.max(source_rows / self.taps[0].max(1))
    }

    /// Whether no window of the grid reaches over an edge, so that the image needs no copy.
    pub(super) fn stays_inside(&self, grid: [usize; 2], source: Image) -> bool {
        let size = [source.h, source.w];
        (0..2).all(|d| {
            let end = self.corner[d] + (grid[d].saturating_sub(1) * self.step[d] + self.span(d)) as isize;
            self.corner[d] >= 0 && end <= size[d] as isize
        })
    }

    /// Whether the image is read in place: it holds f32, and no window of the grid reaches over an edge.
    pub(super) fn needs_no_copy<T: Float>(&self, grid: [usize; 2], source: Image) -> bool {
        !T::LOW && self.stays_inside(grid, source)
    }

    /// The source under these rows of windows: the image itself if all windows stay inside and it needs no widening,
    /// otherwise a copy.
    ///
    /// # Safety
    ///
    /// `copy` must be good for writing `copy_floats(rows.len(), grid[1])` floats where a copy is needed.
    pub(super) unsafe fn view<T: Float>(
        &self,
        isa: Isa,
        image: &[T],
        source: Image,
        rows: Range<usize>,
        grid: [usize; 2],
        copy: *mut f32,
    ) -> View {
        let top = self.corner[0] + (rows.start * self.step[0]) as isize;
        let row_floats = source.w * source.c;
        if self.needs_no_copy::<T>(grid, source) {
            let corner = top as usize * row_floats + self.corner[1] as usize * source.c;
            return View {
                first: image.as_ptr().cast::<f32>().wrapping_add(corner),
                window_pitch: self.step[0] * row_floats,
                tap_pitch: self.spread[0] * row_floats,
            };
        }
        let pitch = self.pitch(grid[1], source);
        let columns = (pitch / source.c.max(1)) as isize;
        // The columns of the copy that lie in the image.
        let inside = |at: isize| at.clamp(0, columns) as usize * source.c;
        let (begin, end) = (inside(-self.corner[1]), inside(source.w as isize - self.corner[1]));
        let from = self.corner[1].max(0) as usize * source.c;
        let copy_row = |to: usize, at: isize| {
            // SAFETY: as the caller promises; rows do not overlap.
            let to = unsafe { std::slice::from_raw_parts_mut(copy.add(to * pitch), pitch) };
            if at < 0 || at >= source.h as isize || begin >= end {
                return to.fill(0.0);
            }
            to[..begin].fill(0.0);
            widen(isa, &image[at as usize * row_floats + from..][..end - begin], &mut to[begin..end]);
            to[end..].fill(0.0);
        };
        if self.one_by_one(rows.len()) {
            let taps = self.taps[0];
            for row in 0..rows.len() * taps {
                let at = row / taps * self.step[0] + row % taps * self.spread[0];
                copy_row(row, top + at as isize);
            }
            return View { first: copy, window_pitch: taps * pitch, tap_pitch: pitch };
        }
        (0..self.covered_rows(rows.len())).for_each(|row| copy_row(row, top + row as isize));
        View { first: copy, window_pitch: self.step[0] * pitch, tap_pitch: self.spread[0] * pitch }
    }
}
