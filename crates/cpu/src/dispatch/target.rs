//! The planner's view of the CPU.

use super::cost::{self, Core};
use super::{find, in_place};
use crate::isa::Isa;
use plimsoll_graph::Op;
use plimsoll_plan::{Kernel, KernelQuery, Target, Unsupported};

/// Alignment of buffers: more than a cache line and a vector, and what direct I/O needs of memory.
const ALIGNMENT: usize = 512;

/// The revision of the kernels' arithmetic: it rises where a change to a kernel changes the bits of results on purpose, so that
/// resuming an older run says so. 2: products are one left fold along k. 3: the gradient of long
/// short-term memory is that of one op. 4: sums behind batch norm, and its statistics, fold in blocks of examples.
const ARITHMETIC: u32 = 4;

/// Instruction set, threads and ceilings of a CPU. Plain data: a laptop can plan for a machine it does not have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTarget {
    /// The instruction set.
    pub isa: Isa,
    /// Threads.
    pub threads: usize,
    /// Floating-point operations per nanosecond at the peak of one thread.
    pub flops_per_ns: f64,
    /// Bytes per nanosecond that one thread moves from and to memory.
    pub bytes_per_ns: f64,
}

impl CpuTarget {
    /// A target with typical ceilings of its instruction set.
    pub fn new(isa: Isa, threads: usize) -> Self {
        let flops_per_ns = match isa {
            Isa::Portable => 24.0,
            // Not measured: two pipes of four lanes, a multiplication and an addition in each, at 3 GHz.
            Isa::Neon => 48.0,
            Isa::Avx2 => 80.0,
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => 160.0,
        };
        Self { isa, threads, flops_per_ns, bytes_per_ns: 13.0 }
    }
}

impl Target for CpuTarget {
    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("cpu {}, {} thread{plural}", self.isa.name(), self.threads)
    }

    fn instructions(&self) -> String {
        format!("cpu {}, arithmetic {ARITHMETIC}", self.isa.name())
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn cores(&self) -> usize {
        self.threads
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        if let Op::Exchange(op) = query.op {
            let bytes = op.received_bytes() as u64;
            return Ok(Kernel { nanoseconds: (bytes * self.copy_ns_per_mib()) >> 20, ..Kernel::default() });
        }
        let call = find(query).ok_or_else(|| query.unsupported(self.name()))?;
        Ok(Kernel {
            workspace: call.workspace(self.isa, self.threads),
            in_place: in_place(query),
            nanoseconds: cost::on_threads(call.cost(&Core::of(self), query), call.tasks(query), self.threads),
        })
    }
}
