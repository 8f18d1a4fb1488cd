//! What the predicted time of a call is made of: tiles of products, vector work and memory, on one thread.
//!
//! Every family says in its file under `call` how much it has of each. The numbers here and there are what the kernels
//! reach on a typical core with the instruction set's ceilings; nothing is measured when a plan is made.

use crate::gemm::chunks::KC;
use crate::gemm::kernel::Kernels;
use crate::isa::Isa;
use crate::target::CpuTarget;

/// Nanoseconds that a call takes whatever its size.
const CALL: f64 = 1_200.0;
/// Nanoseconds to wake the other threads.
const WAKE: f64 = 1_000.0;
/// Bytes that stay in a core's own cache from one step to the next.
const NEAR: f64 = 1048576.0;
/// Bytes that stay in the cache that cores share.
const MIDDLE: f64 = 12.0 * 1048576.0;
/// How much faster than memory these are.
const SPEED_UP: [f64; 3] = [2.0, 1.5, 1.0];
/// Multiply-adds that must be under way at once to hide their latency.
const LATENCY: usize = 8;

/// How much of memory's time for a tile's results shows in a product.
const PRODUCT_TOUCH: f64 = 0.85;
/// How much longer it takes where rows are no whole vectors, and every store falls on two cache lines.
const RAGGED: f64 = 5.0;
/// Multiply-adds that pass while a vector of results waits for the next chunk of its sum.
const CHUNK: f64 = 4.0;

/// One thread of a target.
pub(crate) struct Core {
    /// The instruction set.
    pub isa: Isa,
    /// Rows of a tile, and columns of a vector.
    mr: usize,
    lanes: usize,
    /// Nanoseconds of a multiply-add of vectors: the unit of work.
    pub slot: f64,
    /// Nanoseconds of a byte from or to memory.
    pub byte: f64,
}

impl Core {
    pub(crate) fn of(target: &CpuTarget) -> Self {
        let kernels = Kernels::of(target.isa);
        Self {
            isa: target.isa,
            mr: kernels.mr,
            lanes: kernels.lanes,
            slot: 2.0 * kernels.lanes as f64 / target.flops_per_ns,
            byte: 1.0 / target.bytes_per_ns,
        }
    }

    /// Whether so many columns are one full panel, which needs no packing.
    pub(crate) fn is_panel(&self, columns: usize) -> bool {
        columns == self.lanes || columns == 2 * self.lanes
    }

    /// Whether so many columns are no whole vectors.
    pub(crate) fn is_ragged(&self, columns: usize) -> bool {
        !columns.is_multiple_of(self.lanes)
    }

    /// Vectors that so many elements side by side take.
    pub(crate) fn vectors(&self, elements: usize) -> usize {
        elements.div_ceil(self.lanes)
    }

    /// Nanoseconds to move so many bytes once, end to end: few bytes are still in a cache.
    pub(crate) fn memory(&self, bytes: f64) -> f64 {
        bytes * self.byte / SPEED_UP[level(bytes)]
    }

    /// Tiles of at most the kernels' height: full ones, and what is left.
    pub(crate) fn full_tiles(&self, rows: usize) -> [(usize, usize); 2] {
        [(self.mr, rows / self.mr), (rows % self.mr, 1)]
    }

    /// Tiles of at most the kernels' height, as even as possible.
    pub(crate) fn even_tiles(&self, rows: usize) -> [(usize, usize); 2] {
        let tiles = rows.div_ceil(self.mr).max(1);
        [(rows / tiles, tiles - rows % tiles), (rows / tiles + 1, rows % tiles)]
    }

    /// The work of tiles, given as (rows, how many), over all panels of `columns` columns and a sum of length `k` that
    /// is cut into so many chunks.
    pub(crate) fn tiles(&self, tiles: [(usize, usize); 2], columns: usize, k: usize, chunks: usize) -> Tiles {
        let panel = 2 * self.lanes;
        let rest = columns % panel;
        let panels = [(2, columns / panel), (self.vectors(rest), 1)];
        let mut work = Tiles::default();
        for (rows, times) in tiles {
            for (vectors, panels) in panels {
                if rows == 0 || vectors == 0 {
                    continue;
                }
                let tiles = times as f64 * panels as f64;
                // Each k loads the panel's vectors and a number for every row.
                let busy = (rows * vectors).max(rows + vectors).max(LATENCY);
                work.slots += tiles * k as f64 * busy as f64;
                work.visits += tiles * chunks as f64;
                work.touched += tiles * chunks as f64 * (2 * 4 * rows * vectors * self.lanes) as f64;
            }
        }
        work
    }

    /// A matrix product of one thread, all of whose operands together have so many bytes. The sum is cut at multiples of
    /// `fold`.
    pub(crate) fn product(&self, [m, n, k]: [usize; 3], fold: usize, bytes: f64) -> f64 {
        let blocks = k.div_ceil(KC).max(1);
        let tiles = self.tiles(self.full_tiles(m), n, k, blocks);
        let cuts = k.div_ceil(fold.clamp(1, KC)).max(blocks) - blocks;
        let vectors = m as f64 * self.vectors(n) as f64;
        let ragged = self.is_ragged(n) && level(4.0 * m as f64 * n as f64) > 0;
        let touch = PRODUCT_TOUCH * if ragged { RAGGED } else { 1.0 };
        let slots = tiles.slots + CHUNK * cuts as f64 * vectors;
        slots * self.slot + touch * tiles.touched * self.byte + self.memory(bytes)
    }
}

/// The work of a product's tiles.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tiles {
    /// Multiply-adds of vectors, idle ones with them.
    pub slots: f64,
    /// Calls of a micro-kernel.
    pub visits: f64,
    /// Bytes of results read and written.
    pub touched: f64,
}

impl Tiles {
    /// Adds other work, so many times.
    pub(crate) fn add(&mut self, other: Self, times: f64) {
        self.slots += times * other.slots;
        self.visits += times * other.visits;
        self.touched += times * other.touched;
    }
}

/// Where bytes come from if they were used a short while ago: 0 from a core's own cache, 1 from a shared one, 2 from
/// memory.
pub(crate) fn level(bytes: f64) -> usize {
    usize::from(bytes > NEAR) + usize::from(bytes > MIDDLE)
}

/// The time of a call on all threads, from that of its work on one.
pub(crate) fn on_threads(work: f64, threads: usize) -> u64 {
    let wake = if threads > 1 { WAKE } else { 0.0 };
    (CALL + wake + work / threads.max(1) as f64) as u64
}
