//! Long short-term memory, position after position.
//!
//! The kernel is packed once for all positions. A task has a block of units of some examples: it computes their products with the
//! whole state before, and then their cells. Where there are many examples and the kernel stays in a core's cache, a thread has
//! examples of its own, and threads meet at the end; otherwise they share the units, and meet once for each position. Bits depend
//! on neither tasks nor threads.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{LstmGradOperands, lstm_grad, lstm_grad_workspace};
pub use forward::{LstmOperands, lstm, lstm_workspace};

use crate::isa::Context;
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

/// Examples that a thread has to itself, at least: fewer use a kernel that comes from the second-level cache too seldom.
const OWN_ROWS: usize = 8;

/// Floats of the largest kernel that stays in a core's second-level cache.
const OWN_KERNEL: usize = 256 * 1024;

/// Shares of a step's tasks, at most.
const SHARES: usize = 256;

/// Gates of a unit.
const GATES: usize = 4;

/// Floats of a cache line.
const LINE: usize = 16;

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

    /// How so many threads share the work.
    pub(crate) fn split(&self, threads: usize) -> Split {
        let each = self.examples.div_ceil(threads.max(1));
        let own_examples = threads > 1 && each >= OWN_ROWS && self.kernel() <= OWN_KERNEL;
        let groups = if own_examples { threads * each.div_ceil(ROWS) } else { self.examples.div_ceil(ROWS) };
        Split { own_examples, examples: self.examples, rows: self.examples.div_ceil(groups.max(1)) }
    }
}

/// How threads share the work of a recurrence.
#[derive(Clone, Copy)]
pub(crate) struct Split {
    /// Whether each thread has examples of its own.
    pub own_examples: bool,
    examples: usize,
    /// Examples of a group, but for the last: the rows of a task.
    pub rows: usize,
}

impl Split {
    /// Groups of examples.
    pub fn groups(&self) -> usize {
        self.examples.div_ceil(self.rows.max(1))
    }

    /// The examples of a group.
    fn group(&self, group: usize) -> Range<usize> {
        group * self.rows..((group + 1) * self.rows).min(self.examples)
    }
}

/// The steps of a recurrence.
struct Steps<'a> {
    ctx: Context<'a>,
    spec: LstmSpec,
    split: Split,
    /// The last step that each share of the tasks was taken in.
    taken: [AtomicU32; SHARES],
    step: u32,
}

impl<'a> Steps<'a> {
    fn new(ctx: Context<'a>, spec: &LstmSpec) -> Self {
        let split = spec.split(ctx.pool.threads());
        Self { ctx, spec: *spec, split, taken: [const { AtomicU32::new(0) }; SHARES], step: 0 }
    }

    /// Runs all steps, one after another for every example.
    fn run_all(&mut self, task: impl Fn(usize, Part, usize) + Sync) {
        if !self.split.own_examples {
            return (0..self.spec.positions)
                .for_each(|step| self.run(|part, worker| task(step, part, worker)));
        }
        self.ctx.pool.run(self.split.groups(), &|group, worker| {
            for step in 0..self.spec.positions {
                (0..self.spec.blocks()).for_each(|block| task(step, self.part(block, group), worker));
            }
        });
    }

    /// Runs the tasks of a step: a block of units of a group of examples each. They go to the same threads as in the step before,
    /// as far as those are free: a block's part of the kernel is then in the cache of its core.
    fn run(&mut self, task: impl Fn(Part, usize) + Sync) {
        self.step += 1;
        let (spec, step, taken) = (self.spec, self.step, &self.taken);
        let (blocks, threads) = (spec.blocks(), self.ctx.pool.threads());
        let tasks = blocks * self.split.groups();
        let run = |i: usize, worker: usize| task(self.part(i % blocks, i / blocks), worker);
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

    fn part(&self, block: usize, group: usize) -> Part {
        let first = block * BLOCK;
        let units = BLOCK.min(self.spec.units - first);
        Part { block, first, units, examples: self.split.group(group) }
    }
}

/// A block of units of some examples.
struct Part {
    block: usize,
    /// The first unit.
    first: usize,
    units: usize,
    examples: Range<usize>,
}

/// A first operand of `k` columns, one row for each example.
#[derive(Clone, Copy)]
struct Rows {
    /// The distance between rows.
    step: usize,
    start: Shared<f32>,
}

impl Rows {
    /// A line more than `k` takes: rows whole pages apart would share the few places of one cache set.
    fn step(k: usize) -> usize {
        whole_lines(k) + LINE
    }

    fn floats(spec: &LstmSpec, k: usize) -> usize {
        spec.examples * Self::step(k)
    }

    fn new(k: usize, space: &mut [f32]) -> Self {
        Self { step: Self::step(k), start: Shared::new(space) }
    }

    /// Where a column of an example's row is.
    fn at(&self, example: usize, column: usize) -> *mut f32 {
        self.start.at(example * self.step + column)
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

    /// `sums = a · block` for the rows of some examples, by rows of `step` floats.
    ///
    /// # Safety
    /// The rows are written, and `sums` is good for writes of rows of [`BLOCK`] floats.
    unsafe fn multiply(&self, block: usize, a: Rows, examples: &Range<usize>, sums: *mut f32, step: usize) {
        let (width, rows) = (self.kernels.nr(), examples.len());
        let tiles = rows.div_ceil(self.kernels.mr);
        for column in (0..BLOCK).step_by(width) {
            let panel = self.start.wrapping_add((block * BLOCK + column) * self.k);
            for chunk in chunks(self.k, KC) {
                for index in 0..tiles {
                    let (row, end) = (index * rows / tiles, (index + 1) * rows / tiles);
                    let tile = Tile {
                        a: a.at(examples.start + row, chunk.start),
                        a_step: a.step,
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
                    unsafe { self.kernels.micro(Form::Rows, end - row, width)(&tile) };
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
