//! The CPU as the planner sees it.

use crate::call;
use crate::cost::{self, Core};
use crate::isa::Isa;
use plimsoll_graph::Op;
use plimsoll_graph::op::Attention;
use plimsoll_plan::{Kernel, KernelQuery, Target, Unsupported};

/// Alignment of buffers: more than a cache line and a vector, and what disks ask of memory that they move bytes of straight.
const ALIGNMENT: usize = 512;

/// Instruction set, threads and ceilings of a CPU. Plain data: a laptop can plan for a machine it does not have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTarget {
    /// The instruction set.
    pub isa: Isa,
    /// Threads.
    pub threads: usize,
    /// Floating-point operations per nanosecond of one thread whose vectors multiply and add without a pause.
    pub flops_per_ns: f64,
    /// Bytes per nanosecond that one thread moves from and to memory.
    pub bytes_per_ns: f64,
}

impl CpuTarget {
    /// A target with typical ceilings of its instruction set.
    pub fn new(isa: Isa, threads: usize) -> Self {
        let flops_per_ns = match isa {
            Isa::Portable => 24.0,
            Isa::Avx2 => 80.0,
            Isa::Avx512 => 160.0,
        };
        Self { isa, threads, flops_per_ns, bytes_per_ns: 13.0 }
    }
}

impl Target for CpuTarget {
    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{}, {} thread{plural}", self.instructions(), self.threads)
    }

    fn instructions(&self) -> String {
        format!("cpu {}", self.isa.name())
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        let call = call::find(query).ok_or_else(|| Unsupported {
            target: self.name(),
            op: query.op.name(),
            types: query.inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Kernel {
            workspace: call.workspace(self.isa, self.threads),
            in_place: in_place(query),
            nanoseconds: cost::on_threads(call.cost(&Core::of(self), query), call.tasks(query), self.threads),
        })
    }
}

/// Elementwise code reads a chunk of all its inputs before it writes, and so do rotations: results may go over operands
/// of their shape.
fn in_place(query: &KernelQuery<'_>) -> Vec<(usize, usize)> {
    let rotary = matches!(query.op, Op::Attention(Attention::Rotary { .. }));
    if !rotary && !matches!(query.op, Op::Elementwise(_) | Op::Fused(_)) {
        return Vec::new();
    }
    let fits = |o: usize, i: usize| {
        let (output, input) = (query.outputs[o], query.inputs[i]);
        output.shape == input.shape && output.dtype.bytes() == input.dtype.bytes()
    };
    let pairs = (0..query.outputs.len()).flat_map(|o| (0..query.inputs.len()).map(move |i| (o, i)));
    pairs.filter(|&(o, i)| fits(o, i)).collect()
}
