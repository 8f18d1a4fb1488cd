//! Max pooling over NHWC images.

use crate::gemm::SharedMut;
use crate::isa::Context;
use std::ops::Range;

/// The sizes of a pooling. Windows may reach over any edge of the input; what lies outside never wins.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    /// Images.
    pub examples: usize,
    /// Rows of an input image.
    pub in_h: usize,
    /// Columns of an input image.
    pub in_w: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Rows of an output image.
    pub out_h: usize,
    /// Columns of an output image.
    pub out_w: usize,
    /// Rows of a window.
    pub window_h: usize,
    /// Columns of a window.
    pub window_w: usize,
    /// Rows between windows.
    pub stride_h: usize,
    /// Columns between windows.
    pub stride_w: usize,
    /// Rows of the first window above the image.
    pub pad_top: usize,
    /// Columns of the first window left of the image.
    pub pad_left: usize,
}

impl PoolShape {
    fn check(&self, x: usize, y: usize, index: usize) {
        assert!(self.window_h * self.window_w <= 256, "a position in a window fits a byte");
        assert_eq!(x, self.examples * self.in_floats(), "the input's length");
        assert_eq!(y, self.examples * self.out_floats(), "the output's length");
        assert_eq!(index, y, "the index's length");
    }

    fn in_floats(&self) -> usize {
        self.in_h * self.in_w * self.channels
    }

    fn out_floats(&self) -> usize {
        self.out_h * self.out_w * self.channels
    }

    /// The rows of window `row` that lie in the image, counted from the window's first.
    fn rows(&self, row: usize) -> Range<usize> {
        inside(row * self.stride_h, self.pad_top, self.window_h, self.in_h)
    }

    /// The columns of window `column` that lie in the image.
    fn columns(&self, column: usize) -> Range<usize> {
        inside(column * self.stride_w, self.pad_left, self.window_w, self.in_w)
    }

    /// Where in its image the pixel at a position of a window starts; the position must lie in the image.
    fn pixel(&self, (row, column): (usize, usize), (kh, kw): (usize, usize)) -> usize {
        let h = row * self.stride_h + kh - self.pad_top;
        let w = column * self.stride_w + kw - self.pad_left;
        (h * self.in_w + w) * self.channels
    }
}

fn inside(start: usize, pad: usize, window: usize, size: usize) -> Range<usize> {
    pad.saturating_sub(start).min(window)..(size + pad).saturating_sub(start).min(window)
}

/// The largest value of every window, per channel, and where in the window it is: `kh * window_w + kw`.
///
/// The first of equal values wins. A NaN wins over all numbers, the first one if there are several. A window
/// that lies wholly outside gives negative infinity and position 0.
///
/// # Panics
///
/// When an operand's length does not fit the shape, or a window has more than 256 positions.
pub fn max_pool(ctx: Context<'_>, shape: &PoolShape, x: &[f32], y: &mut [f32], index: &mut [u8]) {
    shape.check(x.len(), y.len(), index.len());
    let row_floats = shape.out_w * shape.channels;
    if y.is_empty() {
        return;
    }
    let (y, index) = (SharedMut(y.as_mut_ptr()), SharedBytes(index.as_mut_ptr()));
    ctx.pool.run(shape.examples, &|example, _| {
        let x = &x[example * shape.in_floats()..][..shape.in_floats()];
        for row in 0..shape.out_h {
            let start = example * shape.out_floats() + row * row_floats;
            // SAFETY: both slices hold one value for every output, and every example has one task.
            let (y, index) = unsafe {
                let y = std::slice::from_raw_parts_mut(y.at(start), row_floats);
                (y, std::slice::from_raw_parts_mut(index.at(start), row_floats))
            };
            let pixels = y.chunks_exact_mut(shape.channels).zip(index.chunks_exact_mut(shape.channels));
            for (column, (y, index)) in pixels.enumerate() {
                window_max(shape, x, (row, column), y, index);
            }
        }
    });
}

/// One window, all channels.
fn window_max(shape: &PoolShape, x: &[f32], at: (usize, usize), y: &mut [f32], index: &mut [u8]) {
    y.fill(f32::NEG_INFINITY);
    index.fill(0);
    let mut first = true;
    for kh in shape.rows(at.0) {
        for kw in shape.columns(at.1) {
            let position = (kh * shape.window_w + kw) as u8;
            let x = &x[shape.pixel(at, (kh, kw))..][..shape.channels];
            if first {
                y.copy_from_slice(x);
                index.fill(position);
                first = false;
                continue;
            }
            for ((y, index), &x) in y.iter_mut().zip(index.iter_mut()).zip(x) {
                let wins = (x > *y) | (x.is_nan() & !y.is_nan());
                *y = if wins { x } else { *y };
                *index = if wins { position } else { *index };
            }
        }
    }
}

/// The gradient of [`max_pool`]: every output's gradient goes to the input that won, zero to the others.
///
/// Where windows overlap, an input's gradients are added to +0 in order of (output row, output column).
///
/// # Panics
///
/// As [`max_pool`], and when an index lies outside of the window.
pub fn max_pool_grad(ctx: Context<'_>, shape: &PoolShape, dy: &[f32], index: &[u8], dx: &mut [f32]) {
    shape.check(dx.len(), dy.len(), index.len());
    if dx.is_empty() {
        return;
    }
    // Where each position lies from the window's corner.
    let mut offsets = [0; 256];
    for (position, offset) in offsets.iter_mut().enumerate().take(shape.window_h * shape.window_w) {
        *offset = (position / shape.window_w * shape.in_w + position % shape.window_w) * shape.channels;
    }
    let shared = SharedMut(dx.as_mut_ptr());
    ctx.pool.run(shape.examples, &|example, _| {
        let start = example * shape.in_floats();
        // SAFETY: `dx` holds every example's input, and every example has one task.
        let dx = unsafe { std::slice::from_raw_parts_mut(shared.at(start), shape.in_floats()) };
        dx.fill(0.0);
        for row in 0..shape.out_h {
            for column in 0..shape.out_w {
                if shape.rows(row).is_empty() || shape.columns(column).is_empty() {
                    continue;
                }
                // The corner may lie outside of the image, left of it or above; the winner does not.
                let h = (row * shape.stride_h).wrapping_sub(shape.pad_top);
                let w = (column * shape.stride_w).wrapping_sub(shape.pad_left);
                let corner = h.wrapping_mul(shape.in_w).wrapping_add(w).wrapping_mul(shape.channels);
                let at = ((example * shape.out_h + row) * shape.out_w + column) * shape.channels;
                let pixel = dy[at..][..shape.channels].iter().zip(&index[at..][..shape.channels]);
                for (channel, (dy, &position)) in pixel.enumerate() {
                    dx[corner.wrapping_add(offsets[usize::from(position)]).wrapping_add(channel)] += dy;
                }
            }
        }
    });
}

/// As [`SharedMut`], for indices.
#[derive(Clone, Copy)]
struct SharedBytes(*mut u8);

// SAFETY: a pointer by itself; whoever writes through it says why the parts are disjoint.
unsafe impl Send for SharedBytes {}
// SAFETY: likewise.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::testing::{bits, random};
    use crate::isa::Isa;
    use crate::pool::Pool;

    fn shape(examples: usize, size: [usize; 3], window: usize, stride: usize, pad: usize) -> PoolShape {
        let [in_h, in_w, channels] = size;
        PoolShape {
            examples,
            in_h,
            in_w,
            channels,
            out_h: (in_h + 2 * pad - window) / stride + 1,
            out_w: (in_w + 2 * pad - window) / stride + 1,
            window_h: window,
            window_w: window,
            stride_h: stride,
            stride_w: stride,
            pad_top: pad,
            pad_left: pad,
        }
    }

    fn shapes() -> [PoolShape; 8] {
        [
            shape(3, [28, 28, 6], 2, 2, 0),
            shape(2, [9, 7, 5], 3, 2, 1),
            shape(2, [8, 8, 16], 3, 1, 1),
            shape(1, [20, 20, 1], 16, 1, 2),
            shape(0, [4, 4, 1], 2, 2, 0),
            shape(2, [4, 4, 0], 2, 2, 0),
            PoolShape { window_w: 1, stride_w: 3, out_w: 2, ..shape(2, [5, 6, 3], 2, 1, 0) },
            PoolShape { out_h: 5, ..shape(1, [3, 3, 2], 2, 2, 2) },
        ]
    }

    fn run(ctx: Context<'_>, s: &PoolShape, x: &[f32]) -> (Vec<f32>, Vec<u8>) {
        let len = s.examples * s.out_floats();
        let (mut y, mut index) = (vec![7.0; len], vec![255; len]);
        max_pool(ctx, s, x, &mut y, &mut index);
        (y, index)
    }

    /// Every output's winner, as an index into the input, by plain loops.
    fn winners(s: &PoolShape, x: &[f32]) -> Vec<Option<(usize, u8)>> {
        let mut all = vec![];
        for out in 0..s.examples * s.out_floats() {
            let (c, pixel) = (out % s.channels, out / s.channels);
            let (ow, oh, e) = (pixel % s.out_w, pixel / s.out_w % s.out_h, pixel / s.out_w / s.out_h);
            let mut best: Option<(usize, u8)> = None;
            for position in 0..s.window_h * s.window_w {
                let h = (oh * s.stride_h + position / s.window_w).wrapping_sub(s.pad_top);
                let w = (ow * s.stride_w + position % s.window_w).wrapping_sub(s.pad_left);
                if h < s.in_h && w < s.in_w {
                    let at = ((e * s.in_h + h) * s.in_w + w) * s.channels + c;
                    let wins = |(best, _)| {
                        let best: f32 = x[best];
                        !best.is_nan() && (x[at].is_nan() || x[at] > best)
                    };
                    if best.is_none_or(wins) {
                        best = Some((at, position as u8));
                    }
                }
            }
            all.push(best);
        }
        all
    }

    /// With ties, NaNs and infinities.
    fn input(s: &PoolShape) -> Vec<f32> {
        let values = random(1, s.examples * s.in_floats());
        let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0, 0.0];
        let value = |(i, v): (usize, f32)| if i % 11 == 3 { odd[i / 11 % 5] } else { (v * 4.0).round() };
        values.into_iter().enumerate().map(value).collect()
    }

    #[test]
    fn agrees_with_plain_loops_on_any_threads() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads).expect("threads start");
            let ctx = Context { pool: &pool, isa: Isa::detect() };
            for s in shapes() {
                let x = input(&s);
                let (y, index) = run(ctx, &s, &x);
                let winners = winners(&s, &x);
                let expected: Vec<f32> =
                    winners.iter().map(|w| w.map_or(f32::NEG_INFINITY, |w| x[w.0])).collect();
                assert_eq!(bits(&y), bits(&expected), "{s:?}");
                assert_eq!(index, winners.iter().map(|w| w.map_or(0, |w| w.1)).collect::<Vec<_>>(), "{s:?}");

                let dy = random(2, y.len());
                let mut expected = vec![0.0; x.len()];
                winners.iter().zip(&dy).for_each(|(w, dy)| w.iter().for_each(|w| expected[w.0] += dy));
                let mut dx = vec![f32::NAN; x.len()];
                max_pool_grad(ctx, &s, &dy, &index, &mut dx);
                assert_eq!(bits(&dx), bits(&expected), "{s:?}");
            }
        }
    }

    #[test]
    fn an_example_alone_has_the_same_bits() {
        let pool = Pool::new(2).expect("threads start");
        let ctx = Context { pool: &pool, isa: Isa::detect() };
        let s = shape(3, [9, 7, 5], 3, 2, 1);
        let x = input(&s);
        let (y, index) = run(ctx, &s, &x);
        let one = PoolShape { examples: 1, ..s };
        for e in 0..s.examples {
            let (alone, alone_index) = run(ctx, &one, &x[e * s.in_floats()..][..s.in_floats()]);
            let outputs = e * s.out_floats()..(e + 1) * s.out_floats();
            assert_eq!(bits(&alone), bits(&y[outputs.clone()]));
            assert_eq!(alone_index, index[outputs]);
        }
    }
}
