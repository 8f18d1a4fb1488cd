//! Convolutions over all channels and dense layers, as products.

use super::kernel::{Form, Kernels, TILE_BYTES, TILE_ROWS, Tile};
use super::lines::{ConvShape, Lines, MATRIX_LINE};
use super::pack::{COLUMNS, Finish, Packed, Sizes, WORD};
use crate::isa::{Context, Isa};
use crate::kernels::math::Shared;

/// Products of fewer multiply-adds run on the calling thread: waking others takes longer.
const WORTH_SHARING: usize = 1 << 18;

/// How a layer runs as a product: its lines, and its packed weights.
pub(super) struct Product {
    lines: Lines,
    sizes: Sizes,
    pub form: Form,
}

impl Product {
    pub fn conv(isa: Isa, shape: &ConvShape, threads: usize) -> Self {
        if shape.is_pointwise() {
            let rows = shape.examples * shape.output[0] * shape.output[1];
            return Self::dense(isa, [rows, shape.inputs, shape.outputs], threads);
        }
        let (runs, run) = Lines::runs_of(shape);
        let form = Form::of(isa, shape.output[1], run);
        let sizes = Sizes::new(runs, run, shape.outputs, form.unit());
        let behind = form.rows_behind(shape.output[1]) * shape.stride[1] * shape.inputs;
        Self { lines: Lines::of(shape, sizes.over() + behind, threads), sizes, form }
    }

    pub fn dense(isa: Isa, [rows, k, n]: [usize; 3], threads: usize) -> Self {
        let form = Form::of(isa, rows.min(MATRIX_LINE), k);
        let sizes = Sizes::new(1, k, n, form.unit());
        // The last line may be of any length.
        let behind = form.rows_behind(1) * k;
        Self { lines: Lines::of_matrix([rows, k, n], sizes.over() + behind, threads), sizes, form }
    }

    /// Bytes of where runs start: whole cache lines.
    fn starts_bytes(&self) -> usize {
        (self.sizes.runs * size_of::<usize>()).next_multiple_of(64)
    }

    pub fn workspace(&self, threads: usize) -> usize {
        self.sizes.bytes() + self.starts_bytes() + threads * self.lines.copy_bytes()
    }

    /// Computes the layer.
    ///
    /// # Safety
    ///
    /// The workspace has the bytes of [`Product::workspace`], aligned to cache lines, and nobody else uses it. The machine has the
    /// kernels' instructions.
    #[expect(clippy::too_many_arguments, reason = "operands, sizes and space, as every kernel has")]
    pub unsafe fn run(
        &self,
        ctx: Context<'_>,
        kernels: &Kernels,
        x: &[u8],
        (weights, zero): (&[u8], u8),
        finish: Finish<'_>,
        y: &mut [u8],
        workspace: *mut u8,
    ) {
        let sizes = self.sizes;
        let (runs, n) = (sizes.runs, sizes.n);
        let packed = Packed::new(sizes, workspace);
        // SAFETY: the workspace is the caller's.
        unsafe { packed.fill(ctx, weights, i32::from(zero) - kernels.offset, finish) };
        let behind = workspace.wrapping_add(sizes.bytes());
        // SAFETY: likewise; it is aligned, and nobody else writes to this part.
        let starts = unsafe { std::slice::from_raw_parts_mut(behind.cast::<usize>(), runs) };
        self.lines.starts(sizes.run, starts);
        let starts = &*starts;
        let (copies, y) = (Shared::from_ptr(behind.wrapping_add(self.starts_bytes())), Shared::new(y));

        let (panels, bands, threads) = (sizes.panels(), self.lines.bands(), ctx.pool.threads());
        let together = panels.div_ceil(kernels.panels());
        // Where there are few rows, threads share columns.
        let parts = if bands < threads { (2 * threads).div_ceil(bands.max(1)).min(together) } else { 1 };
        let task = |task: usize, worker: usize| {
            let (index, part) = (task / parts, task % parts);
            let copy = copies.at(worker * self.lines.copy_bytes());
            // SAFETY: every thread has its own copy.
            let band = unsafe { self.lines.band(index, x, zero, copy) };
            let tiles = band.pixels.div_ceil(kernels.rows()).max(1);
            // Tiles of a line are as even as possible; those of registers are full but for the last.
            let cut = |t: usize| match self.form {
                Form::Words => band.pixels * t / tiles,
                Form::Tiles => (t * kernels.rows()).min(band.pixels),
            };
            // SAFETY: the machine has the kernels' instructions.
            unsafe { (kernels.enter)() };
            let a_row = self.lines.shape.stride[1] * self.lines.shape.inputs;
            for group in together * part / parts..together * (part + 1) / parts {
                let panel = group * kernels.panels();
                let first = panel * COLUMNS;
                let mut tile = Tile {
                    a: band.first,
                    a_row,
                    runs: starts,
                    words: sizes.words,
                    b: packed.panel(panel),
                    channels: packed.channels(panel),
                    y: y.at(first),
                    y_row: n,
                    cols: (n - first).min(kernels.panels() * COLUMNS),
                    zero: i32::from(finish.zero),
                    bounds: finish.bounds.map(i32::from),
                };
                let micros = kernels.micro[tile.cols.div_ceil(COLUMNS) - 1];
                for line in 0..band.lines {
                    let from = band.first.wrapping_add(line * band.line);
                    let to = y.at((band.pixel + line * band.pixel_line) * n + first);
                    for t in 0..tiles {
                        let (start, end) = (cut(t), cut(t + 1));
                        if start < end {
                            tile.a = from.wrapping_add(start * a_row);
                            tile.y = to.wrapping_add(start * n);
                            // SAFETY: the band's lines can be read as far as runs reach, every task has its own codes, and the
                            // machine has the instructions.
                            unsafe { micros[end - start - 1](&tile) };
                        }
                    }
                }
            }
            // SAFETY: as above.
            unsafe { (kernels.leave)() };
        };
        match self.lines.shape.output_len() * runs * sizes.run < WORTH_SHARING {
            true => (0..bands * parts).for_each(|i| task(i, 0)),
            false => ctx.pool.run(bands * parts, &task),
        }
    }
}

/// What a layer's time is predicted from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    /// Dot products of words: of a row of codes with all columns of a panel.
    pub words: f64,
    /// Rows of tile registers that are multiplied, with all columns of a panel.
    pub tile_rows: f64,
    /// Calls of a micro-kernel: of vectors, and of tile registers.
    pub calls: [f64; 2],
    /// Vectors of sums, as long as a panel is wide, that become codes.
    pub codes: f64,
    /// Words of weights that are packed for all columns of a panel.
    pub packed: f64,
    /// Bytes of input that are copied.
    pub copied: f64,
}

impl Product {
    fn work(&self) -> Work {
        // Those of AVX-512; others have as much to do in smaller tiles.
        const ROWS: [usize; 2] = [12, 2 * TILE_ROWS];
        let panels = self.sizes.panels();
        let width = self.lines.shape.output[1].max(1);
        let (rows, lines) = (self.lines.pixels(), self.lines.pixels().div_ceil(width));
        let words = self.sizes.runs * self.sizes.words;
        let calls = ROWS.map(|rows| (lines * width.div_ceil(rows) * panels.div_ceil(2)) as f64);
        let tiles = (self.sizes.runs * self.sizes.words * WORD / TILE_BYTES) as f64;
        let multiplied = match self.form {
            Form::Words => [(rows * words * panels) as f64, 0.0],
            Form::Tiles => [0.0, (lines * width.next_multiple_of(TILE_ROWS) * panels) as f64 * tiles],
        };
        Work {
            words: multiplied[0],
            tile_rows: multiplied[1],
            calls: if self.form == Form::Words { [calls[0], 0.0] } else { [0.0, calls[1]] },
            codes: (rows * panels) as f64,
            packed: (words * panels) as f64,
            copied: self.lines.copied_bytes(),
        }
    }
}

/// The work of [`conv`].
pub(crate) fn conv_work(isa: Isa, shape: &ConvShape, threads: usize) -> Work {
    Product::conv(isa, shape, threads).work()
}

/// The work of [`dense`].
pub(crate) fn dense_work(isa: Isa, sizes: [usize; 3], threads: usize) -> Work {
    Product::dense(isa, sizes, threads).work()
}

/// Bytes of workspace of [`conv`]: whole cache lines.
pub fn conv_workspace(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    Product::conv(isa, shape, threads).workspace(threads)
}

/// A convolution over all channels.
///
/// # Safety
///
/// The workspace has the bytes of [`conv_workspace`], aligned to cache lines, and nobody else uses it.
pub unsafe fn conv(
    ctx: Context<'_>,
    shape: &ConvShape,
    x: &[u8],
    weights: (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    assert!(x.len() >= shape.input_len(), "the input is shorter than its shape");
    assert!(y.len() >= shape.output_len(), "the output is shorter than its shape");
    let product = Product::conv(ctx.isa, shape, ctx.threads());
    // SAFETY: as the caller promises; an instruction set is only chosen on machines that have it.
    unsafe { product.run(ctx, Kernels::of(ctx.isa, product.form), x, weights, finish, y, workspace) };
}

/// Bytes of workspace of [`dense`]: whole cache lines.
pub fn dense_workspace(isa: Isa, sizes: [usize; 3], threads: usize) -> usize {
    Product::dense(isa, sizes, threads).workspace(threads)
}

/// A dense layer: rows of k codes by weights of k rows and n columns.
///
/// # Safety
///
/// The workspace has the bytes of [`dense_workspace`], aligned to cache lines, and nobody else uses it.
pub unsafe fn dense(
    ctx: Context<'_>,
    [rows, k, n]: [usize; 3],
    x: &[u8],
    weights: (&[u8], u8),
    finish: Finish<'_>,
    y: &mut [u8],
    workspace: *mut u8,
) {
    assert!(x.len() >= rows * k, "the input is shorter than its shape");
    assert!(y.len() >= rows * n, "the output is shorter than its shape");
    let product = Product::dense(ctx.isa, [rows, k, n], ctx.threads());
    // SAFETY: as the caller promises; an instruction set is only chosen on machines that have it.
    unsafe { product.run(ctx, Kernels::of(ctx.isa, product.form), x, weights, finish, y, workspace) };
}
