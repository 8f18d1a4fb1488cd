//! Resizing NHWC images, and the gradient.
//!
//! A forward task computes rows of the result, a backward task rows of the image's gradient: it gathers from the rows of
//! the result that used its own, in their order.

#[cfg(test)]
mod tests;

use crate::isa::Context;
use crate::kernels::math::{Shared, rows_per_task, simd_fn, whole_lines};
pub use plimsoll_graph::op::ResizeMode;
use std::ops::Range;

/// The sizes of a resizing: height first, then width.
#[derive(Clone, Copy, Debug)]
pub struct ResizeShape {
    /// The interpolation.
    pub mode: ResizeMode,
    /// Images.
    pub examples: usize,
    /// Extents of the image.
    pub from: [usize; 2],
    /// Extents of the result.
    pub to: [usize; 2],
    /// Channels of a pixel.
    pub channels: usize,
}

impl ResizeShape {
    /// Floats of image and result.
    pub fn floats(&self) -> [usize; 2] {
        [self.from, self.to].map(|[h, w]| self.examples * h * w * self.channels)
    }

    /// Floats of a worker's row, in whole cache lines.
    fn line(&self, [_, width]: [usize; 2]) -> usize {
        whole_lines(width * self.channels)
    }

    fn check(&self, x: usize, y: usize) {
        assert!(!self.from.contains(&0) && !self.to.contains(&0), "images have elements");
        assert_eq!([x, y], self.floats(), "the operands' lengths");
    }

    fn axis(&self, axis: usize) -> Axis {
        let (from, to) = (self.from[axis], self.to[axis]);
        let scale = match self.mode {
            ResizeMode::Bilinear { align_corners: true } => (from - 1) as f64 / (to - 1).max(1) as f64,
            _ => from as f64 / to as f64,
        };
        Axis { mode: self.mode, from, to, scale }
    }
}

/// The sources of a result's elements along one axis.
#[derive(Clone, Copy)]
struct Axis {
    mode: ResizeMode,
    from: usize,
    to: usize,
    /// The image's elements for one of the result.
    scale: f64,
}

/// What one element of the result is made of: `(1 - share) · image[first] + share · image[second]`.
#[derive(Clone, Copy)]
struct Source {
    first: usize,
    second: usize,
    share: f32,
}

impl Axis {
    #[inline(always)]
    fn source(&self, i: usize) -> Source {
        let place = match self.mode {
            ResizeMode::Nearest => {
                let first = i * self.from / self.to;
                return Source { first, second: first, share: 0.0 };
            }
            ResizeMode::Bilinear { align_corners: false } => ((i as f64 + 0.5) * self.scale - 0.5).max(0.0),
            ResizeMode::Bilinear { align_corners: true } => i as f64 * self.scale,
        };
        let first = (place as usize).min(self.from - 1);
        Source { first, second: (first + 1).min(self.from - 1), share: (place - first as f64) as f32 }
    }

    /// The elements of the result that an element of the image may have a share in. Both sources grow with the
    /// result's element, so a binary search finds them.
    fn around(&self, element: usize) -> Range<usize> {
        self.search(|source| source.second < element)..self.search(|source| source.first <= element)
    }

    /// The partition point: the first element of the result whose source does not fulfil a condition.
    fn search(&self, holds: impl Fn(Source) -> bool) -> usize {
        let (mut low, mut high) = (0, self.to);
        while low < high {
            let middle = low.midpoint(high);
            if holds(self.source(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// The bytes of workspace that [`resize`] needs: a multiple of 64.
pub fn resize_workspace(threads: usize, shape: &ResizeShape) -> usize {
    match shape.mode {
        ResizeMode::Nearest => 0,
        ResizeMode::Bilinear { .. } => threads * shape.line(shape.from) * size_of::<f32>(),
    }
}

/// The image at another size.
///
/// # Panics
///
/// When an operand's length does not fit the shape, an extent is 0, or the workspace is too small.
pub fn resize(ctx: Context<'_>, shape: &ResizeShape, x: &[f32], y: &mut [f32], workspace: &mut [f32]) {
    shape.check(x.len(), y.len());
    let (rows, row) = (shape.examples * shape.to[0], shape.to[1] * shape.channels);
    let group = rows_per_task(row.max(shape.from[1] * shape.channels));
    let floats = resize_workspace(1, shape) / size_of::<f32>();
    let (y, lines) = (Shared::new(y), Shared::new(&mut workspace[..ctx.threads() * floats]));
    ctx.pool.run(rows.div_ceil(group), &|task, worker| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows, every worker its own line.
        let (y, line) =
            unsafe { (y.part(rows.start * row, rows.len() * row), lines.part(worker * floats, floats)) };
        resize_rows(ctx.isa, shape, rows, x, y, line);
    });
}

simd_fn! {
    /// Some rows of the result, counted over all examples. Between two rows first, then along what that gives.
    fn resize_rows(
        isa: Isa, shape: &ResizeShape, rows: Range<usize>, x: &[f32], y: &mut [f32], line: &mut [f32],
    ) {
        let (row_floats, channels) = (shape.from[1] * shape.channels, shape.channels);
        let (vertical, horizontal) = (shape.axis(0), shape.axis(1));
        for (i, row) in rows.enumerate() {
            let image = row / shape.to[0] * shape.from[0];
            let down = vertical.source(row % shape.to[0]);
            let upper = &x[(image + down.first) * row_floats..][..row_floats];
            let lower = &x[(image + down.second) * row_floats..][..row_floats];
            let y = &mut y[i * shape.to[1] * channels..(i + 1) * shape.to[1] * channels];
            if shape.mode == ResizeMode::Nearest {
                for column in 0..shape.to[1] {
                    let from = horizontal.source(column).first * channels;
                    y[column * channels..(column + 1) * channels].copy_from_slice(&upper[from..from + channels]);
                }
                continue;
            }
            for ((line, upper), lower) in line.iter_mut().zip(upper).zip(lower) {
                *line = (1.0 - down.share) * upper + down.share * lower;
            }
            for column in 0..shape.to[1] {
                let across = horizontal.source(column);
                let left = &line[across.first * channels..(across.first + 1) * channels];
                let right = &line[across.second * channels..(across.second + 1) * channels];
                let y = &mut y[column * channels..(column + 1) * channels];
                for ((y, left), right) in y.iter_mut().zip(left).zip(right) {
                    *y = (1.0 - across.share) * left + across.share * right;
                }
            }
        }
    }
}

/// The bytes of workspace that [`resize_grad`] needs: a multiple of 64.
pub fn resize_grad_workspace(threads: usize, shape: &ResizeShape) -> usize {
    threads * shape.line(shape.to) * size_of::<f32>()
}

/// The gradient of [`resize`]: every output's gradient to the inputs it is made of, by their weights.
///
/// # Panics
///
/// As [`resize`].
pub fn resize_grad(ctx: Context<'_>, shape: &ResizeShape, dy: &[f32], dx: &mut [f32], workspace: &mut [f32]) {
    shape.check(dx.len(), dy.len());
    let (rows, row) = (shape.examples * shape.from[0], shape.from[1] * shape.channels);
    // A row of the image takes as many of the result's as there are for one.
    let group = rows_per_task(row.max(dy.len() / rows.max(1)));
    let floats = shape.line(shape.to);
    let (dx, lines) = (Shared::new(dx), Shared::new(&mut workspace[..ctx.threads() * floats]));
    ctx.pool.run(rows.div_ceil(group), &|task, worker| {
        let rows = task * group..((task + 1) * group).min(rows);
        // SAFETY: every task has its own rows, every worker its own line.
        let (dx, line) =
            unsafe { (dx.part(rows.start * row, rows.len() * row), lines.part(worker * floats, floats)) };
        grad_rows(ctx.isa, shape, rows, dy, dx, line);
    });
}

simd_fn! {
    /// Some rows of the image's gradient, counted over all examples. Over the result's rows first, then along the sum.
    fn grad_rows(
        isa: Isa, shape: &ResizeShape, rows: Range<usize>, dy: &[f32], dx: &mut [f32], line: &mut [f32],
    ) {
        let (in_row, out_row) = (shape.from[1] * shape.channels, shape.to[1] * shape.channels);
        let (vertical, horizontal) = (shape.axis(0), shape.axis(1));
        let channels = shape.channels;
        dx.fill(0.0);
        for (i, row) in rows.enumerate() {
            let dx = &mut dx[i * in_row..(i + 1) * in_row];
            let (example, h) = (row / shape.from[0], row % shape.from[0]);
            line.fill(0.0);
            for made in vertical.around(h) {
                let down = vertical.source(made);
                // At the lower edge both sources are the same row.
                let upper = if down.first == h { 1.0 - down.share } else { 0.0 };
                let lower = if down.second == h { down.share } else { 0.0 };
                add(line, &dy[(example * shape.to[0] + made) * out_row..][..out_row], upper + lower);
            }
            for column in 0..shape.to[1] {
                let dy = &line[column * channels..(column + 1) * channels];
                let across = horizontal.source(column);
                add(&mut dx[across.first * channels..][..channels], dy, 1.0 - across.share);
                if across.share != 0.0 {
                    add(&mut dx[across.second * channels..][..channels], dy, across.share);
                }
            }
        }
    }
}

#[inline(always)]
fn add(sums: &mut [f32], terms: &[f32], weight: f32) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += weight * term;
    }
}
