//! Elementwise ops, alone or several in one pass.
//!
//! A [`Region`] is compiled once into a [`Program`]: steps over registers of a few hundred elements that stay in the
//! first-level cache. A run takes the elements chunk by chunk through all steps, so that a region reads its inputs
//! and writes its outputs once, whatever it computes between.

mod compile;
mod convert;
mod execute;
mod layout;
mod loops;
mod number;
#[cfg(test)]
mod tests;

use crate::isa::Context;
use crate::kernels::math::TASK_ELEMENTS;
use compile::Step;
use layout::Layout;
use plimsoll_graph::op::{Elementwise, Instruction, Operand, Region};
use plimsoll_tensor::{DType, TensorType};

/// Operands and steps of a program whose tasks take as many elements as those of any other kernel.
const LIGHT: usize = 4;

/// A region compiled for operands of fixed types.
#[derive(Debug)]
pub struct Program {
    layout: Layout,
    tasks: Tasks,
    inputs: Vec<DType>,
    outputs: Vec<Output>,
    /// Once for every task: what is the same for all elements.
    prologue: Box<[Step]>,
    /// Once for every chunk.
    body: Box<[Step]>,
    /// Registers of a chunk's length, their bytes, and the number of one-element registers.
    slots: usize,
    slot_bytes: usize,
    cells: usize,
}

/// How chunks are shared out.
#[derive(Clone, Copy, Debug)]
struct Tasks {
    chunks: usize,
    /// Chunks of a task.
    each: usize,
    count: usize,
}

impl Tasks {
    /// A task takes fewer chunks where an element takes much work; chunks are evenly distributed over the tasks.
    fn new(layout: &Layout, work: usize) -> Self {
        let elements = TASK_ELEMENTS * LIGHT / work.max(LIGHT);
        let chunks = layout.chunks();
        let tasks = chunks.div_ceil((elements / layout.chunk_elements().max(1)).max(1));
        let each = chunks.div_ceil(tasks.max(1)).max(1);
        Self { chunks, each, count: chunks.div_ceil(each) }
    }
}

#[derive(Debug)]
struct Output {
    dtype: DType,
    /// Inputs that are read at the step that could write the output, or later: if the output shares the memory of one of
    /// them, it stays in its register until the end of the chunk.
    late_inputs: Vec<usize>,
}

impl Program {
    /// Compiles a region for operands of these types.
    pub fn new(region: &Region, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Self, String> {
        compile::compile(region, inputs, outputs)
    }

    /// Compiles a single op.
    pub fn single(op: Elementwise, inputs: &[TensorType], output: &TensorType) -> Result<Self, String> {
        let operands = (0..inputs.len()).map(Operand::Input).collect();
        let instruction = Instruction { op, operands, dtype: output.dtype };
        let region = Region { instructions: vec![instruction], outputs: vec![0] };
        Self::new(&region, inputs, std::slice::from_ref(output))
    }

    /// The bytes of workspace that [`Program::run`] needs: a multiple of 64.
    pub fn workspace(&self, threads: usize) -> usize {
        threads * self.worker_bytes()
    }

    fn worker_bytes(&self) -> usize {
        self.slots * self.slot_bytes + (self.cells * size_of::<u64>()).next_multiple_of(64)
    }

    /// Tasks of a run.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.count
    }

    /// Computes all outputs.
    ///
    /// # Safety
    ///
    /// The pointers are aligned for their element types and good for the types that the program was compiled for, and
    /// the workspace, aligned to 64 bytes, for [`Program::workspace`]. An output may be in place, in the memory of an input
    /// of the same number of elements and element size; otherwise outputs overlap nothing.
    pub unsafe fn run(
        &self,
        ctx: Context<'_>,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        workspace: *mut u8,
    ) {
        assert!(
            inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len(),
            "operands are missing"
        );
        let operands = execute::Operands { inputs, outputs, direct: self.direct_outputs(inputs, outputs) };
        let memory = crate::kernels::math::Shared::from_ptr(workspace);
        let Tasks { chunks, each, count } = self.tasks;
        if count == 1 {
            // SAFETY: the caller vouches for the operands and the registers.
            return unsafe { execute::run_chunks(ctx.isa, self, &operands, workspace, 0..chunks) };
        }
        ctx.pool.run(count, &|task, worker| {
            let chunks = task * each..((task + 1) * each).min(chunks);
            let registers = memory.at(worker * self.worker_bytes());
            // SAFETY: the caller vouches for the operands; registers are the worker's own, chunks the task's.
            unsafe { execute::run_chunks(ctx.isa, self, &operands, registers, chunks) };
        });
    }

    /// Which outputs may be written directly by the step that computes them, one bit each.
    fn direct_outputs(&self, inputs: &[*const u8], outputs: &[*mut u8]) -> u64 {
        let free =
            |output: &Output, at: *mut u8| output.late_inputs.iter().all(|&k| inputs[k] != at.cast_const());
        let bits = self.outputs.iter().zip(outputs).take(64).enumerate();
        bits.fold(0, |direct, (o, (output, &at))| direct | u64::from(free(output, at)) << o)
    }
}
