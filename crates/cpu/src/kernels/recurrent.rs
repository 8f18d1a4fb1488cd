//! Long short-term memory, position after position.
//!
//! The kernel is packed once for all positions. A task has a block of units of some examples: it computes their products with the
//! whole state before, and then their cells, so that threads meet once for each position. Bits depend on neither tasks nor
//! threads.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{LstmGradOperands, lstm_grad, lstm_grad_workspace};
pub use forward::{LstmOperands, lstm, lstm_workspace};

use crate::isa::{Context, Isa};
use crate::kernels::gemm::WORTH_SHARING;
use crate::kernels::gemm::chunks::{KC, chunks};
use crate::kernels::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::kernels::gemm::pack::{Strip, pack};
use crate::kernels::math::{Shared, whole_lines};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Units of a block: whole panels of every instruction set.
const BLOCK: usize = 32;

/// Examples of a task, at most: their sums stay in the first-level cache.
const ROWS: usize = 64;

/// Shares of a step's tasks, at most.
const SHARES: usize = 256;

/// Gates of a unit.
const GATES: usize = 4;

/// The sizes of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LstmSpec {
    /// Examples.
    pub examples: usize,
    /// Positions of the sequence.
    pub positions: usize,
    /// Units.
    pub units: usize,
    /// Whether the last position is the first.
    pub reverse: bool,
}

impl LstmSpec {
    fn blocks(&self) -> usize {
        self.units.div_ceil(BLOCK)
    }

    /// Elements of a sequence of units.
    pub fn sequence(&self) -> usize {
        self.examples * self.positions * self.units
    }

    /// Elements of a state.
    pub fn state(&self) -> usize {
        self.examples * self.units
    }

    /// Elements of the recurrent kernel.
    pub fn kernel(&self) -> usize {
        GATES * self.units * self.units
    }

    /// The position of a step.
    fn position(&self, step: usize) -> usize {
        if self.reverse { self.positions - 1 - step } else { step }
    }

    /// Where an example's units are at a position of a sequence.
    fn at(&self, example: usize, position: usize) -> usize {
        (example * self.positions + position) * self.units
    }

    /// Groups of examples: the rows of a task.
    fn groups(&self) -> usize {
        self.examples.div_ceil(ROWS)
    }

    /// The examples of a group.
    fn group(&self, group: usize) -> Range<usize> {
        group * ROWS..((group + 1) * ROWS).min(self.examples)
    }
}

/// Steps whose tasks go to the same threads again, as far as those are free: a block's part of the kernel is then in the cache of
/// its core.
struct Steps<'a> {
    ctx: Context<'a>,
    spec: LstmSpec,
    /// The last step that each share of the tasks was taken in.
    taken: [AtomicU32; SHARES],
    step: u32,
}

impl<'a> Steps<'a> {
    fn new(ctx: Context<'a>, spec: &LstmSpec) -> Self {
        Self { ctx, spec: *spec, taken: [const { AtomicU32::new(0) }; SHARES], step: 0 }
    }

    /// Runs the tasks of a step: a block of units of a group of examples each.
    fn run(&mut self, task: impl Fn(Part, usize) + Sync) {
        self.step += 1;
        let (spec, step, taken) = (self.spec, self.step, &self.taken);
        let (blocks, threads) = (spec.blocks(), self.ctx.pool.threads());
        let tasks = blocks * spec.groups();
        let run = |i: usize, worker: usize| {
            let (block, group) = (i % blocks, i / blocks);
            let first = block * BLOCK;
            let units = BLOCK.min(spec.units - first);
            task(Part { block, first, units, group, rows: spec.group(group) }, worker);
        };
        if threads == 1 || spec.examples * spec.kernel() < WORTH_SHARING {
            return (0..tasks).for_each(|i| run(i, 0));
        }
        let shares = tasks.min(SHARES);
        self.ctx.pool.run(threads, &|_, worker| {
            let own = worker * shares / threads;
            for share in (own..shares).chain(0..own) {
                let free =
                    taken[share].compare_exchange(step - 1, step, Ordering::Relaxed, Ordering::Relaxed);
                if free.is_ok() {
                    (share * tasks / shares..(share + 1) * tasks / shares).for_each(|i| run(i, worker));
                }
            }
        });
    }
}

/// A block of units of some examples.
struct Part {
    block: usize,
    /// The first unit.
    first: usize,
    units: usize,
    group: usize,
    rows: Range<usize>,
}

/// A first operand of `k` columns, one row for each example, packed into tiles: in each, the rows of a column lie together.
#[derive(Clone, Copy)]
struct Tiles {
    mr: usize,
    k: usize,
    start: Shared<f32>,
}

impl Tiles {
    fn floats(isa: Isa, spec: &LstmSpec, k: usize) -> usize {
        let mr = Kernels::of(isa).mr;
        whole_lines(spec.groups() * ROWS.min(spec.examples).div_ceil(mr) * mr * k)
    }

    fn new(isa: Isa, k: usize, space: &mut [f32]) -> Self {
        Self { mr: Kernels::of(isa).mr, k, start: Shared::new(space) }
    }

    /// Where a tile of a group begins; groups before the last are full.
    fn tile(&self, group: usize, index: usize) -> *mut f32 {
        self.start.at((group * ROWS.div_ceil(self.mr) + index) * self.mr * self.k)
    }

    /// Writes columns of a row of a group with so many rows, from a column on.
    ///
    /// # Safety
    /// The row and the columns exist, and nothing else touches them.
    unsafe fn write(&self, group: usize, [row, rows]: [usize; 2], column: usize, values: &[f32]) {
        let tiles = rows.div_ceil(self.mr);
        let index = ((row + 1) * tiles - 1) / rows;
        let lane = row - index * rows / tiles;
        let tile = self.tile(group, index).wrapping_add(lane + column * self.mr);
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { *tile.add(i * self.mr) = value };
        }
    }
}

/// A second operand in blocks of columns, packed into panels.
#[derive(Clone, Copy)]
struct Panels {
    kernels: &'static Kernels,
    /// Terms of the sums.
    k: usize,
    start: *const f32,
}

// SAFETY: packed before tasks begin, and only read by them.
unsafe impl Sync for Panels {}

impl Panels {
    /// Floats of so many blocks.
    fn floats(k: usize, blocks: usize) -> usize {
        whole_lines(k * BLOCK * blocks)
    }

    /// Packs `count` blocks of [`BLOCK`] columns; `strip` gives the columns of a block from a column on.
    fn pack(
        ctx: Context<'_>,
        k: usize,
        count: usize,
        space: &mut [f32],
        strip: impl Fn(usize, usize) -> Strip + Sync,
    ) -> Self {
        assert_available(ctx.isa);
        assert!(space.len() >= Self::floats(k, count), "the workspace is too small");
        let kernels = Kernels::of(ctx.isa);
        let (width, all) = (kernels.nr(), Shared::new(space));
        ctx.pool.run(count, &|block, _| {
            for column in (0..BLOCK).step_by(width) {
                let strip = strip(block, column);
                let strip = Strip { lanes: strip.lanes.min(width), ..strip };
                // SAFETY: each panel has its own part, whose room was checked; a strip lies inside the kernel.
                unsafe { pack(ctx.isa, strip, all.at(block * k * BLOCK + column * k), width, k) };
            }
        });
        Self { kernels, k, start: all.at(0) }
    }

    /// `sums = a · block` for a group of rows, by rows of `step` floats.
    ///
    /// # Safety
    /// The group's rows are written, and `sums` is good for writes of rows of [`BLOCK`] floats.
    unsafe fn multiply(
        &self,
        block: usize,
        a: Tiles,
        group: usize,
        rows: usize,
        sums: *mut f32,
        step: usize,
    ) {
        let (width, mr) = (self.kernels.nr(), self.kernels.mr);
        let tiles = rows.div_ceil(mr);
        for column in (0..BLOCK).step_by(width) {
            let panel = self.start.wrapping_add((block * BLOCK + column) * self.k);
            for chunk in chunks(self.k, KC) {
                for index in 0..tiles {
                    let (row, end) = (index * rows / tiles, (index + 1) * rows / tiles);
                    let tile = Tile {
                        a: a.tile(group, index).wrapping_add(chunk.start * mr),
                        a_step: mr,
                        walk: Walk::STRAIGHT,
                        k_start: 0,
                        k_len: chunk.len(),
                        b: panel.wrapping_add(chunk.start * width),
                        b_step: width,
                        c: sums.wrapping_add(row * step + column),
                        ldc: step,
                        load: chunk.start > 0,
                        ahead: std::ptr::null(),
                        cols: width,
                        finish: Finish::NONE,
                    };
                    // SAFETY: as the caller promises; panels are packed whole, and an instruction set was checked when they were.
                    unsafe { self.kernels.micro(Form::Columns, end - row, width)(&tile) };
                }
            }
        }
    }
}

/// A row of a block: `[f32; BLOCK]` with zeros past its units.
///
/// # Safety
/// `from` is good for reads of so many floats, at most [`BLOCK`].
unsafe fn load(from: *const f32, units: usize) -> [f32; BLOCK] {
    if units == BLOCK {
        // SAFETY: the caller's contract. Of a known length, it is a few instructions.
        return unsafe { from.cast::<[f32; BLOCK]>().read_unaligned() };
    }
    let mut row = [0.0; BLOCK];
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), units) };
    row
}

/// Writes the units of a row of a block.
///
/// # Safety
/// `to` is good for writes of so many floats, at most [`BLOCK`], and nothing else touches them.
unsafe fn store(row: &[f32; BLOCK], to: *mut f32, units: usize) {
    if units == BLOCK {
        // SAFETY: the caller's contract.
        return unsafe { to.cast::<[f32; BLOCK]>().write_unaligned(*row) };
    }
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), to, units) };
}

/// Fetches a row of a block into the cache while products are computed: rows of one position lie far apart.
fn fetch(row: *const f32) {
    #[cfg(target_arch = "x86_64")]
    for line in [row, row.wrapping_add(BLOCK - 1)] {
        // SAFETY: a hint, which may name any address.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// The floats of a worker's sums of so many blocks a row.
fn sums_floats(blocks: usize) -> usize {
    ROWS * BLOCK * blocks
}

fn bytes(floats: &[usize]) -> usize {
    floats.iter().sum::<usize>() * size_of::<f32>()
}

/// Cuts a workspace into parts of so many floats.
fn parts<const N: usize>(mut space: &mut [f32], floats: [usize; N]) -> [&mut [f32]; N] {
    assert!(
        space.as_ptr().addr().is_multiple_of(64) || floats.iter().sum::<usize>() == 0,
        "the workspace is not aligned"
    );
    floats.map(|count| {
        let (part, rest) = std::mem::take(&mut space).split_at_mut(count);
        space = rest;
        part
    })
}
