//! A kernel with its sizes.

use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::math::TASK_ELEMENTS;
use plimsoll_plan::KernelQuery;
pub(super) use plimsoll_runtime::Operands;
use plimsoll_tensor::{DType, TensorType};

/// A node's kernel with its sizes.
pub(crate) trait Call: Send + Sync {
    /// Bytes of scratch.
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        let _ = (isa, threads);
        0
    }

    /// Predicted nanoseconds of its work on one thread; the query is the one this call was made for. By default a call is
    /// bound by memory.
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        core.memory(bytes(query))
    }

    /// Tasks that its threads share. By default a task is [`TASK_ELEMENTS`] elements.
    fn tasks(&self, query: &KernelQuery<'_>) -> usize {
        let elements = query.inputs.iter().chain(&query.outputs).map(|ty| ty.shape.elements());
        elements.max().unwrap_or(0).div_ceil(TASK_ELEMENTS)
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// The operands are those of the node this call was made for, each valid for its type; they overlap only where
    /// the target allows in place; the workspace has [`Call::workspace`] bytes.
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String>;
}

/// A family's answer: the kernel, if there is one for these types.
pub(crate) type Found = Option<Box<dyn Call>>;

/// A kernel, boxed.
pub(super) fn found(call: impl Call + 'static) -> Found {
    Some(Box::new(call))
}

/// Bytes of all operands.
pub(super) fn bytes(query: &KernelQuery<'_>) -> f64 {
    query.op.bytes(&query.inputs, &query.outputs) as f64
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

pub(super) use {read, scratch, write};

pub(super) fn all_f32(types: &[&TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

/// Rows of a block of a sum over the batch, where an example (a row of the query's `fold_rows`) has so many rows `inside`;
/// a sum that is not over the batch is one block.
pub(super) fn block_rows(query: &KernelQuery<'_>, inside: usize, rows: usize) -> usize {
    // An example has no rows if one of its axes is empty.
    if query.fold_rows == 0 { rows.max(1) } else { (query.fold_rows * inside).max(1) }
}
