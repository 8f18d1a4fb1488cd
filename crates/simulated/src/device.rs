//! The accelerator as the planner and the runtime see it: the CPU's kernels, in memory behind a link.

use plimsoll_cpu::{CpuDevice, CpuTarget};
use plimsoll_graph::Numerics;
use plimsoll_plan::{Kernel, KernelQuery, Link, Target, Unsupported};
use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::{Device, InputLane, Operands};
use std::time::{Duration, Instant};

/// The planner's view: the CPU's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SimulatedTarget(pub CpuTarget);

impl Target for SimulatedTarget {
    fn name(&self) -> String {
        format!("simulated accelerator on {}", self.0.name())
    }

    fn instructions(&self) -> String {
        self.0.instructions()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn numerics(&self) -> Numerics {
        self.0.numerics()
    }

    fn copy_ns_per_mib(&self) -> u64 {
        self.0.copy_ns_per_mib()
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        self.0.kernel(query)
    }
}

/// The CPU's kernels, and a link that batches pass.
pub(crate) struct SimulatedDevice {
    pub(crate) cpu: CpuDevice,
    pub(crate) link: Link,
}

impl Device for SimulatedDevice {
    type Call = <CpuDevice as Device>::Call;
    type Memory = Arena;

    fn map(&self, bytes: usize) -> Result<Arena, String> {
        self.cpu.map(bytes)
    }

    fn find(&self, query: &KernelQuery<'_>) -> Option<Self::Call> {
        self.cpu.find(query)
    }

    fn workspace_bytes(&self, call: &Self::Call) -> usize {
        self.cpu.workspace_bytes(call)
    }

    unsafe fn run(&self, call: &Self::Call, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.cpu.run(call, operands) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.cpu.copy(from, to, bytes) }
    }

    unsafe fn copy_in(&self, memory: &Arena, offset: usize, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { pass(self.link, memory.at(offset, from.len()), from) };
        Ok(())
    }

    fn input_lane(&self) -> Result<Option<Box<dyn InputLane>>, String> {
        Ok(Some(Box::new(LinkLane(self.link))))
    }
}

/// Copies bytes over a link.
///
/// # Safety
/// The memory is valid, and nothing else uses it meanwhile.
unsafe fn pass(link: Link, to: *mut u8, from: &[u8]) {
    let start = Instant::now();
    // SAFETY: the caller's promise; the slice is apart from a device's memory.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    let moving = (from.len() as u128 * u128::from(link.load_ns_per_mib)) >> 20;
    let time = Duration::from_nanos(moving as u64 + link.latency_ns);
    std::thread::sleep(time.saturating_sub(start.elapsed()));
}

/// Kernels have run when they are queued, so that nothing is beside them: a copy is done when it is started.
struct LinkLane(Link);

impl InputLane for LinkLane {
    unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { pass(self.0, to, from) };
        Ok(())
    }

    fn join(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) -> Result<(), String> {
        Ok(())
    }
}
