//! Long short-term memory, position after position.
//!
//! The kernel is packed once for all positions. A task has some units of a tile of examples: it computes their products with the
//! whole state before, and then their cells. A thread keeps its units at every position, so that their part of the kernel stays
//! in its core's cache. It goes on to a tile's next position when all units of that tile are there, and has other tiles
//! until then: threads rarely wait. Bits depend on neither tasks nor threads.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{LstmGradOperands, lstm_grad, lstm_grad_workspace};
pub use forward::{LstmOperands, lstm, lstm_workspace};

use crate::isa::Context;
use crate::kernels::gemm::WORTH_SHARING;
use crate::kernels::gemm::kernel::{Finish, Form, Kernels, Tile, Walk, assert_available};
use crate::kernels::gemm::pack::{Strip, pack};
use crate::kernels::math::{Shared, whole_lines};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Units of a block: whole panels of every instruction set.
const BLOCK: usize = 32;

/// Rows of the tallest tile of any instruction set.
const ROWS: usize = 16;

/// Tasks of a step, at most.
const TASKS: usize = 256;

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
}

/// The steps of a recurrence, each of which is cut into groups of examples and spans of blocks of units.
struct Steps<'a> {
    ctx: Context<'a>,
    spec: LstmSpec,
    groups: usize,
    spans: usize,
    /// Steps that each task was taken in, the tasks of a span adjacent.
    taken: [AtomicU32; TASKS],
    /// Tasks of each group that are done, over all steps.
    done: [AtomicUsize; TASKS],
}

impl<'a> Steps<'a> {
    fn new(ctx: Context<'a>, spec: &LstmSpec) -> Self {
        let groups = spec.examples.div_ceil(Kernels::of(ctx.isa).mr).clamp(1, TASKS);
        Self {
            ctx,
            spec: *spec,
            groups,
            spans: spec.blocks().clamp(1, TASKS / groups),
            taken: [const { AtomicU32::new(0) }; TASKS],
            done: [const { AtomicUsize::new(0) }; TASKS],
        }
    }

    /// Runs so many steps, one after another for every example: `part(step, part, worker)` for every block of units of every
    /// tile of examples.
    fn run(&self, steps: usize, part: impl Fn(usize, Part, usize) + Sync) {
        let (spec, threads) = (&self.spec, self.ctx.pool.threads());
        let parts = |step: usize, group: usize, span: usize, worker: usize| {
            for examples in self.tiles(group) {
                for block in share(spec.blocks(), self.spans, span) {
                    let first = block * BLOCK;
                    let units = BLOCK.min(spec.units - first);
                    part(step, Part { block, first, units, examples: examples.clone() }, worker);
                }
            }
        };
        if threads == 1 || spec.examples * spec.kernel() < WORTH_SHARING {
            for step in 0..steps {
                for group in 0..self.groups {
                    (0..self.spans).for_each(|span| parts(step, group, span, 0));
                }
            }
            return;
        }
        // Threads share the units first: each needs its part of the kernel only.
        let across = threads.min(self.spans);
        let along = (threads / across).min(self.groups);
        self.ctx.pool.run(across * along, &|own, worker| {
            let take = |step: usize, group: usize, spans: Range<usize>| {
                for span in spans {
                    let taken = &self.taken[span * self.groups + group];
                    let (from, to) = (step as u32, step as u32 + 1);
                    if taken.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                        let _done = Done(&self.done[group]);
                        parts(step, group, span, worker);
                    }
                }
            };
            // Until a step of a group is complete; what nobody has begun is taken, and so is all if no other thread has come.
            let complete = |step: usize, group: usize| {
                let complete = || self.done[group].load(Ordering::Acquire) >= (step + 1) * self.spans;
                if !complete() {
                    take(step, group, 0..self.spans);
                }
                let mut spins = 0u32;
                while !complete() {
                    std::hint::spin_loop();
                    spins += 1;
                    if spins.is_multiple_of(SPINS) {
                        std::thread::yield_now();
                    }
                }
            };
            let groups = share(self.groups, along, own / across);
            let spans = share(self.spans, across, own % across);
            for step in 0..steps {
                for group in groups.clone() {
                    if step > 0 {
                        complete(step - 1, group);
                    }
                    take(step, group, spans.clone());
                }
            }
            if steps > 0 {
                groups.for_each(|group| complete(steps - 1, group));
            }
        });
    }

    /// The examples of a group, in tiles as even as possible.
    fn tiles(&self, group: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let examples = share(self.spec.examples, self.groups, group);
        let tiles = examples.len().div_ceil(Kernels::of(self.ctx.isa).mr);
        (0..tiles).map(move |tile| {
            let tile = share(examples.len(), tiles, tile);
            examples.start + tile.start..examples.start + tile.end
        })
    }
}

/// How often a thread looks for what it waits for before it lets others run.
const SPINS: u32 = 512;

/// One of a number of even parts.
fn share(count: usize, parts: usize, part: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}

/// Counts a task as done at its end, also when it panics: others wait for it.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// A block of units of a tile of examples.
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

    /// `sums = a · block` for a tile of examples, `sums` in rows of `step` floats; or, behind the start of k, `sums += ..`.
    ///
    /// # Safety
    /// The rows are written, and `sums` is good for writes of rows of [`BLOCK`] floats.
    unsafe fn multiply(
        &self,
        block: usize,
        k: Range<usize>,
        a: Rows,
        examples: &Range<usize>,
        sums: *mut f32,
        step: usize,
    ) {
        debug_assert!(examples.len() <= ROWS, "the sums have fewer rows");
        let width = self.kernels.nr();
        for column in (0..BLOCK).step_by(width) {
            let panel = self.start.wrapping_add((block * BLOCK + column) * self.k);
            let tile = Tile {
                a: a.at(examples.start, k.start),
                a_step: a.step,
                walk: Walk::STRAIGHT,
                k_start: 0,
                k_len: k.len(),
                b: panel.wrapping_add(k.start * width),
                b_step: width,
                c: sums.wrapping_add(column),
                ldc: step,
                load: k.start > 0,
                ahead: std::ptr::null(),
                cols: width,
                finish: Finish::NONE,
            };
            // SAFETY: as the caller promises; panels are packed whole, and an instruction set was checked when they were.
            unsafe { self.kernels.micro(Form::Rows, examples.len(), width)(&tile) };
        }
    }
}

/// Calls `f` with rows of a block to read and to write, which are copies, with zeros past the units, where the block is not whole.
///
/// # Safety
///
/// The pointers are good for reads and writes of so many floats, at most [`BLOCK`], and nothing else touches what is written.
unsafe fn whole<const N: usize, const M: usize>(
    units: usize,
    from: [*const f32; N],
    to: [*mut f32; M],
    f: impl FnOnce([*const f32; N], [*mut f32; M]),
) {
    if units == BLOCK {
        return f(from, to);
    }
    let (mut read, mut written) = ([[0.0f32; BLOCK]; N], [[0.0f32; BLOCK]; M]);
    for (row, from) in read.iter_mut().zip(from) {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), units) };
    }
    f(read.each_ref().map(|row| row.as_ptr()), written.each_mut().map(|row| row.as_mut_ptr()));
    for (row, to) in written.iter().zip(to) {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), to, units) };
    }
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
