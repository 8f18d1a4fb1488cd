//! One node made ready to run: which kernel, on which sizes, with how much scratch.
//!
//! Target and executor both ask here, so the workspace that is planned is the workspace that is used. Each family of
//! ops has its file: it picks the kernel for a node and says how the kernel is called.

mod attention;
mod conv;
mod elementwise;
mod index;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod quantise;
mod random;
mod reduce;
mod resize;

use crate::cost::Core;
use crate::isa::{Context, Isa};
use crate::math::TASK_ELEMENTS;
use plimsoll_graph::Op;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};

/// A node's kernel with its sizes.
pub(crate) trait Call: Send + Sync {
    /// Bytes of scratch.
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        let _ = (isa, threads);
        0
    }

    /// Predicted nanoseconds of its work on one thread; the query is the one this call was made for. Calls that do
    /// little with each element take as long as memory does.
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        core.memory(bytes(query))
    }

    /// Tasks that its threads share: the kernels over plain memory give each so many elements.
    fn tasks(&self, query: &KernelQuery<'_>) -> usize {
        let elements = query.inputs.iter().chain(&query.outputs).map(|ty| ty.shape.elements());
        elements.max().unwrap_or(0).div_ceil(TASK_ELEMENTS)
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// The operands are those of the node this call was made for, each valid for its type and apart from the others
    /// but for what the target allows in place; the workspace has [`Call::workspace`] bytes.
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String>;
}

/// A family's answer: the kernel, if there is one for these types.
type Found = Option<Box<dyn Call>>;

/// A kernel, boxed.
fn found(call: impl Call + 'static) -> Found {
    Some(Box::new(call))
}

/// The kernel for a node, if there is one.
pub(crate) fn find(query: &KernelQuery<'_>) -> Found {
    match query.op {
        Op::Elementwise(op) => elementwise::single(*op, query),
        Op::Fused(region) => elementwise::fused(region, query),
        Op::Movement(op) => movement::find(op, query),
        Op::Reduce(op) => reduce::find(op, query),
        Op::MatMul(op) => matmul::find(op, query),
        Op::Conv(op) => conv::find(op, query),
        Op::Pool(op) => pooling::find(op, query),
        Op::Resize(op) => resize::find(op, query),
        Op::Norm(op) => norm::find(op, query),
        Op::Attention(op) => attention::find(op, query),
        Op::Index(op) => index::find(op, query),
        Op::Loss(op) => loss::find(op, query),
        Op::Random(op) => random::find(op, query),
        Op::Quantise(op) => quantise::find(*op, query),
    }
}

/// Bytes of all operands.
fn bytes(query: &KernelQuery<'_>) -> f64 {
    query.op.bytes(&query.inputs, &query.outputs) as f64
}

/// The memory of a step.
pub(crate) struct Operands<'a> {
    pub reads: &'a [*const u8],
    pub writes: &'a [*mut u8],
    pub workspace: *mut u8,
    pub workspace_bytes: usize,
}

impl Operands<'_> {
    /// # Safety
    /// The operand has that many elements of that type, and nothing writes to it meanwhile.
    unsafe fn read<T>(&self, i: usize, elements: usize) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.reads[i].cast(), elements) }
    }

    /// # Safety
    /// The operand has that many elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan keeps a step's outputs apart")]
    unsafe fn write<T>(&self, i: usize, elements: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.writes[i].cast(), elements) }
    }

    /// # Safety
    /// Nothing else uses the workspace meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan gives each step its own workspace")]
    unsafe fn scratch(&self) -> &mut [f32] {
        if self.workspace_bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; the arena is aligned and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts_mut(self.workspace.cast(), self.workspace_bytes / 4) }
    }
}

/// `read!(o, i, n)`: operand i as n elements.
macro_rules! read {
    ($o:expr, $i:expr, $n:expr) => {
        // SAFETY: inside `Call::run`, whose caller vouches for the operands; the length follows from the node's types.
        unsafe { $o.read($i, $n) }
    };
}

/// `write!(o, i, n)`: output i as n elements.
macro_rules! write {
    ($o:expr, $i:expr, $n:expr) => {
        // SAFETY: as for `read!`; the plan keeps outputs apart from everything else.
        unsafe { $o.write($i, $n) }
    };
}

/// `scratch!(o)`: the workspace.
macro_rules! scratch {
    ($o:expr) => {
        // SAFETY: inside `Call::run`; the plan gives each step its own workspace.
        unsafe { $o.scratch() }
    };
}

use {read, scratch, write};

fn all_f32(types: &[&TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

/// Rows of a block in which a sum over the first operand's examples folds, with so many rows `inside` a row of the
/// query's count; a sum over no examples is one block.
fn block_rows(query: &KernelQuery<'_>, inside: usize, rows: usize) -> usize {
    // No rows are left where an axis inside an example is empty.
    if query.fold_rows == 0 { rows.max(1) } else { (query.fold_rows * inside).max(1) }
}
