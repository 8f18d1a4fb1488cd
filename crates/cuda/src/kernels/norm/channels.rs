//! Statistics and sums of channels, several of them to a thread: one pass over the rows.

use super::super::builder::{CallBuilder, define, flag, parameters};
use super::super::reduction::{FOLD, FOLDED, SUM, THREADS};
use super::super::{Operand, Parameter};
use plimsoll_plan::KernelQuery;

const CHANNELS: &str = include_str!("channels.cu");
const MOMENTS: &str = include_str!("moments.cu");

/// Vectors of a row that a block has at most: what a warp reads at once.
const MOST_COLUMNS: usize = 32;

/// Blocks of threads for a block of the fold at most, about: a few times as many as a GPU runs at once, so that it is busy to the end.
const STATS_BLOCKS: usize = 1024;
const SUMS_BLOCKS: usize = 512;
/// Channels of a block of the kernel that joins chunks.
const JOINED: usize = 8;

/// Channels of a thread: what 16 bytes hold of the widest operand.
fn width(query: &KernelQuery<'_>) -> usize {
    let widest = query.inputs.iter().filter(|x| x.shape.rank() > 1).map(|x| x.dtype.bytes()).max();
    16 / widest.unwrap_or(8)
}

/// Whether the kernels here take these sizes.
pub(super) fn fits(query: &KernelQuery<'_>, rows: usize, channels: usize) -> bool {
    rows > 0 && channels > 0 && channels.is_multiple_of(width(query))
}

/// How rows and channels are shared by blocks and threads.
struct Grid {
    vector: usize,
    columns: usize,
    chunk: usize,
    /// Chunks of all rows.
    chunks: usize,
    per_block: usize,
    blocks: usize,
}

impl Grid {
    /// From the rows of a block as the graph has it, so that a batch with fewer has the bits of its part of a longer one.
    fn new(vector: usize, [rows, channels]: [usize; 2], graph_block: usize, most: usize) -> Self {
        let columns = (channels / vector).next_power_of_two().min(MOST_COLUMNS);
        let lanes = THREADS / columns;
        let tiles = (channels / vector).div_ceil(columns);
        let chunk = (8 * lanes).max((graph_block * tiles).div_ceil(most).next_multiple_of(lanes));
        let block_rows = graph_block.clamp(1, rows);
        let per_block = block_rows.div_ceil(chunk);
        let chunks = rows.div_ceil(block_rows) * per_block;
        Self { vector, columns, chunk, chunks, per_block, blocks: tiles * chunks }
    }

    fn source(&self, macros: &[(&str, &str)], texts: &[&str]) -> String {
        let numbers = [self.vector, self.columns, self.chunk].map(|number| number.to_string());
        let names = ["V", "COLUMNS", "CHUNK"];
        let mut all = macros.to_vec();
        all.extend(names.into_iter().zip(&numbers).map(|(name, number)| (name, number.as_str())));
        define(&all, &texts.join("\n"))
    }
}

/// Mean and variance of each channel.
pub(super) fn stats(builder: &mut CallBuilder, query: &KernelQuery<'_>, size: [usize; 2]) {
    let [rows, channels] = size;
    let dtype = query.inputs[0].dtype;
    let wide = dtype.wide();
    let grid = Grid::new(width(query), size, rows, STATS_BLOCKS);
    let partial = builder.scratch(2 * grid.chunks * channels * wide.bytes());
    let macros = [("X", dtype.name()), ("W", wide.name())];
    let source = grid.source(&macros, &[CHANNELS, MOMENTS, include_str!("channel_stats.cu")]);
    let parameters = parameters![Operand::Read(0), partial, rows, channels, rows, grid.chunks];
    builder.kernel([grid.blocks, 1, 1], THREADS as u32, source, parameters);
    let source = grid.source(&macros[1..], &[MOMENTS, include_str!("channel_moments.cu")]);
    let parameters = parameters![partial, Operand::Write(0), Operand::Write(1), rows, channels, grid.chunks];
    builder.kernel([channels.div_ceil(JOINED), 1, 1], THREADS as u32, source, parameters);
}

/// The sums of a gradient, and of it times the normalised input, of each channel.
pub(super) fn sums(
    builder: &mut CallBuilder,
    query: &KernelQuery<'_>,
    by_row: bool,
    size: [usize; 2],
    block_rows: usize,
) {
    let [rows, channels] = size;
    let wide = query.inputs[1].dtype.wide();
    let grid = Grid::new(width(query), size, block_rows, SUMS_BLOCKS);
    let partial = builder.scratch(2 * grid.chunks * channels * wide.bytes());
    let [d, x] = [0, 1].map(|i| query.inputs[i].dtype.name());
    let macros = [("D", d), ("X", x), ("W", wide.name()), ("BY_ROW", flag(by_row))];
    let source = grid.source(&macros, &[CHANNELS, include_str!("channel_sums.cu")]);
    let mut parameters: Vec<Parameter> = (0..4).map(|i| Operand::Read(i).into()).collect();
    parameters.extend(parameters![partial, rows, channels, block_rows.clamp(1, rows), grid.chunks]);
    builder.kernel([grid.blocks, 1, 1], THREADS as u32, source, parameters);
    let macros = [
        ("W", wide.name()),
        ("Y", wide.name()),
        ("K", "2"),
        ("COMBINE", "Add"),
        ("IDENTITY", "0"),
        ("ACCUMULATE", if query.accumulate { "true" } else { "false" }),
    ];
    let parameters = parameters![
        Operand::Write(0),
        Operand::Write(1),
        partial,
        1_usize,
        rows,
        channels,
        grid.per_block,
        grid.chunks
    ];
    let source = define(&macros, &[SUM, FOLD].join("\n"));
    builder.kernel([channels.div_ceil(FOLDED), 1, 1], THREADS as u32, source, parameters);
}
