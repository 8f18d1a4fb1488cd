//! Convolutions of 16-bit floats by tensor cores: products whose patches are gathered tile by tile, and never in memory.
//!
//! Every sum has its terms in one order, whatever rows are beside it.

use super::gather::Gather;
use super::weight_grad::{Parts, fold, parts};
use super::{CHUNK_BYTES, Shape};
use crate::kernels::builder::{CallBuilder, define, flag, index_type, parameters};
use crate::kernels::{Call, Operand, Parameter, Pointer};
use plimsoll_tensor::DType;

const TILES: &str = include_str!("tiles.cu");

/// Threads of a block.
const THREADS: u32 = 128;
/// Rows of a tile of sums.
const TILE_ROWS: usize = 128;
/// Terms of a tile.
const TILE_TERMS: usize = 32;
/// Elements that are copied at once.
const PIECE: usize = 8;
/// Columns of a tile of sums.
const LEAST_COLUMNS: usize = 64;
const MOST_COLUMNS: usize = 128;
/// Taps that the kernels take at most.
const MOST_TAPS: usize = 31;
/// Blocks that keep a device busy, of those with most columns; of the others twice as many.
const BLOCKS: usize = 264;
/// Terms of a part of a sum over pixels at least.
const LEAST_TERMS: usize = 1024;

/// A product of patches with so many columns.
pub(super) struct Implicit {
    patches: Gather,
    /// Elements from pixel to pixel.
    pixel: usize,
    columns: usize,
}

/// Where the rows of a product belong: in images of a size, at multiples of a step from an offset on.
pub(super) struct Out {
    pub size: [usize; 2],
    pub step: [usize; 2],
    pub offset: [usize; 2],
}

/// The gradient of kernels, or a convolution, of an image whose pixels have few channels: the image is copied, with zeros around it
/// and behind its channels, so that a row of a window is one piece of memory.
struct Padded {
    /// Channels of the copy.
    channels: usize,
    /// Elements of a row of a window, with those behind it.
    terms: usize,
    /// Height and width of the copy.
    size: [usize; 2],
}

impl Implicit {
    /// If the kernels take such a product: one that is not better left to the library.
    pub fn new(patches: Gather, columns: usize) -> Option<Self> {
        let library = patches.is_identity();
        let pixel = patches.channels;
        let product = Self { patches, pixel, columns };
        (!library && product.fits()).then_some(product)
    }

    fn fits(&self) -> bool {
        let Gather { dtype, source, channels, groups, .. } = self.patches;
        let most = i32::MAX as usize;
        let small = |factors: [usize; 3]| {
            factors.iter().try_fold(1, |p: usize, &f| p.checked_mul(f)).is_some_and(|p| p < most)
        };
        dtype.is_low()
            && groups == 1
            && self.patches.taps[0] * self.patches.taps[1] <= MOST_TAPS
            && channels.is_multiple_of(PIECE)
            && self.columns.is_multiple_of(PIECE)
            && small([source[0], source[1], self.pixel])
            && small([self.patches.columns(), self.columns, 2])
    }

    /// Columns of a tile: fewer where there are few tiles. Tiles change no bit.
    fn tile_columns(&self, rows: usize) -> usize {
        let tiles = rows.div_ceil(TILE_ROWS) * self.columns.div_ceil(MOST_COLUMNS);
        if self.columns <= LEAST_COLUMNS || tiles < 2 * BLOCKS { LEAST_COLUMNS } else { MOST_COLUMNS }
    }

    fn source(&self, columns: usize, rows: [bool; 2], index: &str, text: &str) -> String {
        let columns = columns.to_string();
        let macros = [
            ("T", self.patches.dtype.name()),
            // The instruction's name of the type.
            ("MMA", if self.patches.dtype == DType::BF16 { "\"bf16\"" } else { "\"f16\"" }),
            ("BN", &columns),
            ("A_ROWS", flag(rows[0])),
            ("B_ROWS", flag(rows[1])),
            ("INDEX", index),
        ];
        define(&macros, &[TILES, text].join("\n"))
    }

    /// The product with kernels that have a row for each column of the result, and so many elements from tap to tap.
    pub fn by_columns(
        &self,
        b: &mut CallBuilder,
        examples: usize,
        image: Operand,
        kernels: Pointer,
        taps: [usize; 2],
        out: &Out,
    ) {
        self.launch(b, examples, image.at(0), kernels, Some(taps), out);
    }

    fn launch(
        &self,
        b: &mut CallBuilder,
        examples: usize,
        image: Pointer,
        kernels: Pointer,
        taps: Option<[usize; 2]>,
        out: &Out,
    ) {
        let Gather { grid, source, channels, window_step, tap_step, offset, .. } = self.patches;
        let rows = examples * grid[0] * grid[1];
        let index = index_type(rows + TILE_ROWS);
        let width = self.tile_columns(rows);
        let text = self.source(width, [true, taps.is_some()], index, include_str!("implicit.cu"));
        let mut all = parameters![image, kernels, Operand::Write(0), rows, self.columns];
        all.extend([grid, source].concat().into_iter().map(Parameter::from));
        all.extend([self.pixel, channels].map(Parameter::from));
        all.extend(self.patches.taps.map(Parameter::from));
        all.extend([window_step, tap_step, offset].concat().into_iter().map(Parameter::Integer));
        all.extend(taps.unwrap_or_default().map(Parameter::from));
        all.extend([out.size, out.step, out.offset].concat().into_iter().map(Parameter::from));
        let tiles = rows.div_ceil(TILE_ROWS) * self.columns.div_ceil(width);
        b.kernel([tiles, 1, 1], THREADS, text, all);
    }

    /// The sums over pixels of patches times a gradient, in parts, each [terms, columns] of f32; `finish` adds them.
    fn sums(
        &self,
        b: &mut CallBuilder,
        rows: usize,
        block: usize,
        image: Pointer,
        mut finish: impl FnMut(&mut CallBuilder, Pointer, usize, bool),
    ) -> Option<()> {
        let Gather { grid, source, channels, window_step, tap_step, offset, .. } = self.patches;
        let terms = self.patches.columns();
        if rows >= i32::MAX as usize {
            return None;
        }
        let tiles = terms.div_ceil(TILE_ROWS) * self.columns.div_ceil(LEAST_COLUMNS);
        let wanted = (2 * BLOCKS).div_ceil(tiles);
        let part = block.div_ceil(wanted).max(LEAST_TERMS).next_multiple_of(TILE_TERMS);
        let part_bytes = terms * self.columns * size_of::<f32>();
        let most = (CHUNK_BYTES / part_bytes).max(1);
        let all = parts(rows, block, part, most);
        let space = b.scratch(all.iter().map(|parts| parts.count).max().unwrap_or(0) * part_bytes);
        for (i, &Parts { first, rows, count }) in all.iter().enumerate() {
            let text = self.source(LEAST_COLUMNS, [false; 2], "u32", include_str!("implicit_weight.cu"));
            let mut parameters =
                parameters![image, Operand::Read(1), space, first, rows, terms, self.columns];
            parameters.extend([grid, source].concat().into_iter().map(Parameter::from));
            parameters.extend([self.pixel, channels, self.patches.taps[1]].map(Parameter::from));
            let steps = [window_step, tap_step, offset].concat();
            parameters.extend(steps.into_iter().map(Parameter::Integer));
            b.kernel([tiles, count, 1], THREADS, text, parameters);
            finish(b, space, count, i > 0);
        }
        Some(())
    }
}

impl Padded {
    /// If the image has so few channels.
    fn new(shape: &Shape) -> Option<Self> {
        let geometry = shape.geometry;
        let [height, width] = shape.result;
        if shape.inputs >= PIECE || geometry.dilation[1] != 1 || height * width == 0 {
            return None;
        }
        // Windows start at whole pieces.
        let channels = if shape.inputs <= 4 && geometry.stride[1].is_multiple_of(2) { 4 } else { PIECE };
        let terms = (geometry.window[1] * channels).next_multiple_of(PIECE);
        let below = (height - 1) * geometry.stride[0] + (geometry.window[0] - 1) * geometry.dilation[0] + 1;
        let beside = (width - 1) * geometry.stride[1] + terms / channels;
        Some(Self { channels, terms, size: [below, beside.next_multiple_of(2)] })
    }

    fn product(&self, shape: &Shape) -> Option<Implicit> {
        let geometry = shape.geometry;
        let patches = Gather {
            dtype: shape.dtype,
            source: self.size,
            channels: self.terms,
            groups: shape.groups,
            grid: shape.result,
            taps: [geometry.window[0], 1],
            window_step: geometry.stride.map(|step| step as i64),
            tap_step: [geometry.dilation[0] as i64, 1],
            offset: [0; 2],
        };
        let product = Implicit { patches, pixel: self.channels, columns: shape.outputs };
        product.fits().then_some(product)
    }

    /// Copies the image.
    fn copy(&self, b: &mut CallBuilder, shape: &Shape) -> Pointer {
        let pixels = shape.examples * self.size[0] * self.size[1];
        let to = b.scratch(pixels * self.channels * shape.dtype.bytes());
        let channels = self.channels.to_string();
        let macros = [("T", shape.dtype.name()), ("CHANNELS", &channels), ("INDEX", index_type(pixels))];
        let mut parameters = parameters![Operand::Read(0), to, pixels];
        parameters.extend(shape.image.map(Parameter::from));
        parameters.push(shape.inputs.into());
        parameters.extend(self.size.map(Parameter::from));
        parameters.extend(shape.geometry.padding.map(|[before, _]| Parameter::from(before)));
        b.each(pixels, define(&macros, include_str!("pad.cu")), parameters);
        to
    }

    /// Copies the kernels as the copied image needs them.
    fn kernels(&self, b: &mut CallBuilder, shape: &Shape) -> Pointer {
        let [height, width] = shape.geometry.window;
        let elements = height * self.terms * shape.outputs;
        let to = b.scratch(elements * shape.dtype.bytes());
        let channels = self.channels.to_string();
        let macros = [("T", shape.dtype.name()), ("CHANNELS", channels.as_str())];
        let parameters =
            parameters![Operand::Read(1), to, elements, self.terms, width, shape.inputs, shape.outputs];
        b.each(elements, define(&macros, include_str!("pad_kernels.cu")), parameters);
        to
    }
}

/// The convolution, if the kernels take it.
pub(super) fn forward(shape: &Shape) -> Option<Call> {
    let mut b = CallBuilder::default();
    let out = Out { size: shape.result, step: [1; 2], offset: [0; 2] };
    if let Some(product) = Implicit::new(shape.windows(), shape.outputs) {
        product.launch(&mut b, shape.examples, Operand::Read(0).at(0), Operand::Read(1).at(0), None, &out);
        return Some(b.finish());
    }
    let padded = Padded::new(shape)?;
    let product = padded.product(shape)?;
    let (image, kernels) = (padded.copy(&mut b, shape), padded.kernels(&mut b, shape));
    product.launch(&mut b, shape.examples, image, kernels, None, &out);
    Some(b.finish())
}

/// The gradient of the kernels, with sums over blocks of so many rows, if the kernels take it.
pub(super) fn weight_grad(shape: &Shape, block: usize, accumulate: bool) -> Option<Call> {
    let mut b = CallBuilder::default();
    if let Some(product) = Implicit::new(shape.windows(), shape.outputs) {
        product.sums(&mut b, shape.rows(), block, Operand::Read(0).at(0), |b, parts, count, later| {
            fold(b, shape, parts, count, accumulate || later);
        })?;
        return Some(b.finish());
    }
    let padded = Padded::new(shape)?;
    let product = padded.product(shape)?;
    let image = padded.copy(&mut b, shape);
    let [height, width] = shape.geometry.window;
    let part = height * padded.terms * shape.outputs;
    let channels = padded.channels.to_string();
    product.sums(&mut b, shape.rows(), block, image, |b, parts, count, later| {
        let elements = shape.terms() * shape.outputs;
        let accumulate = usize::from(accumulate || later);
        let mut parameters = parameters![parts, Operand::Write(0), elements, count, accumulate];
        parameters.extend([part, padded.terms, width, shape.inputs, shape.outputs].map(Parameter::from));
        let source = define(&[("CHANNELS", channels.as_str())], include_str!("pad_fold.cu"));
        b.each(elements, source, parameters);
    })?;
    Some(b.finish())
}
