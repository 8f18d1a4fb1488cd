//! The matrix-product driver.
//!
//! The blocking follows Goto and BLIS: B is packed once, by all threads, into panels as wide as a micro-kernel's tile;
//! every task packs a block of A and passes it over its panels of B. Threads and blocking decide how the output is cut into
//! tasks, and where the sum over k is cut; the result depends on neither, for each sum is one left fold along k.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod batch;
pub(crate) mod chunks;
mod direct;
pub(crate) mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pairs;
pub(crate) mod panels;
mod pass;
mod portable;
#[cfg(test)]
mod tests;

pub use batch::{gemm_batch, gemm_batch_workspace};
pub use direct::{gemm_direct, is_direct};

use crate::isa::{Context, Isa};
use crate::kernels::float::Float;
use crate::kernels::math::Shared;
use crate::threads::Pool;
use chunks::{chunks, longest};
use kernel::{Finish, Kernels};
use pass::Pass;
use plimsoll_tensor::DType;

/// The length of the sums that is packed at a time, at most: a tile of A of that length fits the first-level cache.
const DEPTH: usize = 384;

/// Columns of B that are packed at a time, at most.
const NC: usize = 1024;

/// Floats of the panels of B that a task passes over before it comes back to the first: with a block of A they fit the
/// second-level cache.
const GROUP_FLOATS: usize = 96 * 1024;

/// Floats of B that are packed at a time where that is along all of k.
const DEEP_FLOATS: usize = 256 * 1024;

/// Products of fewer multiply-adds run on the calling thread: waking others takes longer.
pub(crate) const WORTH_SHARING: usize = 1 << 16;

/// A read-only matrix operand: element (i, j) is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub struct Mat<'a, T = f32> {
    /// The elements.
    pub data: &'a [T],
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub col_stride: usize,
}

impl<T> Mat<'_, T> {
    fn check(&self, rows: usize, cols: usize) {
        if rows > 0 && cols > 0 {
            let last = (rows - 1) * self.row_stride + (cols - 1) * self.col_stride;
            assert!(last < self.data.len(), "a matrix operand is shorter than its shape");
        }
    }
}

/// Applied last to every element of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// `x` where it is positive or NaN, zero elsewhere.
    Relu,
}

/// What follows a product: `activation(c + bias)`, each step rounded.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// One value per column.
    pub bias: Option<&'a [f32]>,
    /// Applied last.
    pub activation: Activation,
}

impl Epilogue<'_> {
    /// Leaves the product as it is.
    pub const NONE: Self = Self { bias: None, activation: Activation::None };

    /// The micro-kernels' form, checked against the number of columns.
    pub(crate) fn finish(&self, n: usize) -> Finish {
        assert!(self.bias.is_none_or(|bias| bias.len() == n), "the bias has one value per column");
        let bias = self.bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
        Finish { bias, relu: self.activation == Activation::Relu }
    }
}

/// The sizes of a product C = A B, with A of m by k and B of k by n.
#[derive(Clone, Copy, Debug)]
pub struct GemmSpec {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Whether the sums start at what C holds, not at +0: C += A B rather than C = A B. Two products one after the other
    /// over the parts of a cut k have the bits of one over all of it.
    pub accumulate: bool,
    /// The distance between the places where k may be cut that way; 0 for none. Instructions that take several k at a time
    /// stop there. Sums over the batch are cut between blocks of examples.
    pub block: usize,
}

impl GemmSpec {
    /// C = A B of these sizes.
    pub fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, accumulate: false, block: 0 }
    }
}

/// The bytes of workspace that [`gemm`] needs for operands and a result of these types: a multiple of 64.
pub fn gemm_workspace<A: Float, B: Float, C: Float>(isa: Isa, threads: usize, spec: &GemmSpec) -> usize {
    gemm_in_workspace::<C>(product_type::<A, B>(), isa, threads, spec)
}

/// The bytes of workspace that [`gemm_in`] needs for a result of this type: a multiple of 64.
pub fn gemm_in_workspace<C: Float>(ty: DType, isa: Isa, threads: usize, spec: &GemmSpec) -> usize {
    Blocking::new::<C>(ty, isa, threads, spec).workspace_floats(threads) * size_of::<f32>()
}

/// The type that operands of these types are multiplied in, where the instruction set has it.
fn product_type<A: Float, B: Float>() -> DType {
    if [A::DTYPE, B::DTYPE].contains(&DType::BF16) { DType::BF16 } else { DType::F32 }
}

/// The overheads of a product.
pub(crate) struct Passes {
    /// Elements of A that are packed, counted for every block of columns.
    pub packed: usize,
    /// How often tasks are distributed.
    pub runs: usize,
    /// How often the sums are stored.
    pub blocks: usize,
}

/// The overheads of [`gemm_in`].
pub(crate) fn passes<C: Float>(ty: DType, isa: Isa, threads: usize, spec: &GemmSpec) -> Passes {
    let blocking = Blocking::new::<C>(ty, isa, threads, spec);
    let blocks = blocking.slots.div_ceil(blocking.depth).max(1);
    let column_blocks = spec.n.div_ceil(blocking.nc).max(1);
    Passes {
        packed: spec.m * spec.k * column_blocks * blocking.col_blocks,
        runs: 2 * column_blocks * blocks,
        blocks,
    }
}

/// C = A B or C += A B, then the epilogue, on the threads of the context.
///
/// C is row-major without gaps. Operands are widened to f32 as they are packed, or, if one is bf16 and the instruction set
/// multiplies bf16, rounded to that. A sum is f32, and rounded once to C's type, after the epilogue. Bits depend on neither the
/// threads nor the other rows of A.
///
/// # Panics
///
/// When an operand is shorter than the sizes say, or the workspace is too small or not aligned to 64 bytes; when a sum is
/// to be added to 16-bit floats.
pub fn gemm<A: Float, B: Float, C: Float>(
    ctx: Context<'_>,
    spec: &GemmSpec,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    c: &mut [C],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) {
    gemm_in(product_type::<A, B>(), ctx, spec, a, b, c, epilogue, workspace);
}

/// As [`gemm`], multiplying in a type, where the instruction set has it, that operands need not have.
///
/// # Panics
///
/// As [`gemm`].
#[expect(clippy::too_many_arguments, reason = "operands, sizes and space, as every kernel has")]
pub fn gemm_in<A: Float, B: Float, C: Float>(
    ty: DType,
    ctx: Context<'_>,
    spec: &GemmSpec,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    c: &mut [C],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) {
    let threads = ctx.pool.threads();
    let work = spec.m.saturating_mul(spec.n).saturating_mul(spec.k);
    let runner = if work < WORTH_SHARING { Runner::Caller } else { Runner::Pool(ctx.pool) };
    let blocking = Blocking::new::<C>(ty, ctx.isa, threads, spec);
    product(runner, blocking, (a, b), (c, spec.n), epilogue, workspace);
}

/// The bytes of workspace that [`gemm_serial`] needs: a multiple of 64.
pub fn gemm_serial_workspace<A: Float, B: Float, C: Float>(isa: Isa, spec: &GemmSpec) -> usize {
    gemm_workspace::<A, B, C>(isa, 1, spec)
}

/// As [`gemm`], without epilogue and on the calling thread, for tiles inside another kernel; C has row stride
/// `ldc`.
///
/// # Panics
///
/// As [`gemm`], and when rows of C overlap.
pub fn gemm_serial<A: Float, B: Float, C: Float>(
    isa: Isa,
    spec: &GemmSpec,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    c: &mut [C],
    ldc: usize,
    workspace: &mut [f32],
) {
    let blocking = Blocking::new::<C>(product_type::<A, B>(), isa, 1, spec);
    product(Runner::Caller, blocking, (a, b), (c, ldc), Epilogue::NONE, workspace);
}

/// Who runs tasks.
#[derive(Clone, Copy)]
enum Runner<'a> {
    Caller,
    Pool(&'a Pool),
}

impl Runner<'_> {
    fn run(self, tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Self::Caller => (0..tasks).for_each(|task| f(task, 0)),
            Self::Pool(pool) => pool.run(tasks, f),
        }
    }
}

/// Memory that tasks write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(pub *mut f32);

// SAFETY: a pointer by itself; whoever writes through it says why the parts are disjoint.
unsafe impl Send for SharedMut {}
// SAFETY: likewise.
unsafe impl Sync for SharedMut {}

impl SharedMut {
    /// A method, so that closures capture the wrapper and not its field.
    pub(crate) fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// Checks a workspace that tasks share.
pub(crate) fn shared_workspace(workspace: &mut [f32], floats: usize) -> SharedMut {
    assert!(workspace.len() >= floats, "the workspace is too small");
    assert!(floats == 0 || workspace.as_ptr().addr().is_multiple_of(64), "the workspace is not aligned");
    SharedMut(workspace.as_mut_ptr())
}

/// Rounds a number of floats up to whole cache lines.
pub(crate) fn whole_lines(floats: usize) -> usize {
    floats.next_multiple_of(16)
}

/// How one product is split into tasks.
struct Blocking {
    isa: Isa,
    kernels: &'static Kernels,
    spec: GemmSpec,
    /// The length of the sums as they are packed, and that of a block.
    slots: usize,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only pairs are packed by blocks"))]
    block_slots: usize,
    /// Tasks along the rows, and along the columns that are packed at a time: even parts of the tiles and of the panels.
    row_blocks: usize,
    col_blocks: usize,
    /// Columns of B that are packed at a time: whole panels.
    nc: usize,
    /// Of that, what is packed at a time.
    depth: usize,
    /// Whether sums stay in a worker's memory until they are complete, and are then rounded.
    rounds: bool,
    /// Floats of packed B, of each worker's packed A, and of its sums.
    packed_b: usize,
    packed_a: usize,
    sums: usize,
}

impl Blocking {
    fn new<C: Float>(ty: DType, isa: Isa, threads: usize, spec: &GemmSpec) -> Self {
        let (kernels, rounds) = (Kernels::multiplying(isa, ty), C::LOW);
        let (mr, nr) = (kernels.mr, kernels.nr());
        let block = if spec.block == 0 { spec.k.max(1) } else { spec.block };
        let block_slots = kernels.packing.slots(block);
        let slots = spec.k / block * block_slots + kernels.packing.slots(spec.k % block);
        // Where sums have to be complete before they are stored, B is packed along all of k, and fewer columns at a time.
        let deep = (DEEP_FLOATS / slots.max(1) / nr * nr).clamp(2 * nr, NC / 4);
        let most = if rounds { deep } else { NC };
        let nc = spec.n.div_ceil(spec.n.div_ceil(most).max(1)).next_multiple_of(nr).max(nr);
        let (tiles, panels) = (spec.m.div_ceil(mr), nc / nr);
        // A few tasks per thread balance the load. Rows are split first: tasks of other columns pack the same rows of A
        // again.
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        let shortest = 4.min(tiles).max(1);
        let row_blocks = tiles.div_ceil(kernels.block_tiles).max(wanted.min(tiles / shortest)).max(1);
        let row_blocks = if row_blocks < threads { row_blocks } else { row_blocks.next_multiple_of(threads) };
        let row_blocks = row_blocks.min(tiles.max(1));
        let col_blocks = wanted.div_ceil(row_blocks).clamp(1, panels);
        let depth = longest(slots, DEPTH);
        let (block_rows, block_cols) = (tiles.div_ceil(row_blocks) * mr, panels.div_ceil(col_blocks) * nr);
        let packed_depth = if rounds { slots } else { depth.min(slots) };
        Self {
            isa,
            kernels,
            spec: GemmSpec { block, ..*spec },
            slots,
            block_slots,
            row_blocks,
            col_blocks,
            nc,
            depth,
            rounds,
            packed_b: whole_lines(packed_depth * spec.n.min(nc).next_multiple_of(kernels.lanes)),
            packed_a: whole_lines(depth.min(slots) * block_rows),
            sums: if rounds { whole_lines(block_rows * block_cols) } else { 0 },
        }
    }

    fn workspace_floats(&self, threads: usize) -> usize {
        self.packed_b + threads * (self.packed_a + self.sums)
    }
}

/// The product over all blocks of columns and of k.
fn product<A: Float, B: Float, C: Float>(
    runner: Runner<'_>,
    blocking: Blocking,
    (a, b): (Mat<'_, A>, Mat<'_, B>),
    (c, ldc): (&mut [C], usize),
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) {
    let spec = blocking.spec;
    let finish = epilogue.finish(spec.n);
    if spec.m == 0 || spec.n == 0 {
        return;
    }
    kernel::assert_available(blocking.isa);
    a.check(spec.m, spec.k);
    b.check(spec.k, spec.n);
    assert!(ldc >= spec.n || spec.m == 1, "rows of C overlap");
    assert!((spec.m - 1) * ldc + spec.n <= c.len(), "C is shorter than its shape");
    assert!(!(spec.accumulate && C::LOW), "sums go on in f32");
    let threads = if let Runner::Pool(pool) = runner { pool.threads() } else { 1 };
    let space = shared_workspace(workspace, blocking.workspace_floats(threads));
    let c = Shared::new(c);
    let (row_blocks, col_blocks) = (blocking.row_blocks, blocking.col_blocks);

    for n_start in (0..spec.n).step_by(blocking.nc) {
        let columns = n_start..(n_start + blocking.nc).min(spec.n);
        let panels = columns.len().div_ceil(blocking.kernels.nr());
        let pass = Pass { blocking: &blocking, a, b, c, ldc, finish, space, columns };
        for depth in chunks(blocking.slots, DEPTH) {
            if !depth.is_empty() {
                // A panel alone is too little for a task.
                const GROUP: usize = 4;
                runner.run(panels.div_ceil(GROUP), &|group, _| {
                    pass.pack_b(group * GROUP..panels.min((group + 1) * GROUP), &depth);
                });
            }
            if !blocking.rounds {
                runner.run(row_blocks * col_blocks, &|task, worker| {
                    // Neighbouring tasks share columns, whose packed panels are then still in the shared cache.
                    pass.multiply(task % row_blocks, task / row_blocks, worker, &depth);
                });
            }
        }
        if blocking.rounds {
            runner.run(row_blocks * col_blocks, &|task, worker| {
                let (row_block, col_block) = (task % row_blocks, task / row_blocks);
                for depth in chunks(blocking.slots, DEPTH) {
                    pass.multiply(row_block, col_block, worker, &depth);
                }
                pass.round(row_block, col_block, worker);
            });
        }
    }
}
