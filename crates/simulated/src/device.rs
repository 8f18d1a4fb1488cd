//! The accelerator as the planner and the runtime see it: the CPU's kernels, in memory behind a link.

use plimsoll_cpu::{CpuDevice, CpuTarget};
use plimsoll_graph::Numerics;
use plimsoll_plan::{Kernel, KernelQuery, Link, Target, Unsupported};
use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::{Device, InputLane, Memory, Operands};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The planner's view: the CPU's, behind a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SimulatedTarget {
    pub cpu: CpuTarget,
    pub link: Link,
}

impl Target for SimulatedTarget {
    fn name(&self) -> String {
        format!("simulated accelerator on {}", self.cpu.name())
    }

    fn instructions(&self) -> String {
        self.cpu.instructions()
    }

    fn alignment(&self) -> usize {
        self.cpu.alignment()
    }

    fn numerics(&self) -> Numerics {
        self.cpu.numerics()
    }

    fn copy_ns_per_mib(&self) -> u64 {
        self.cpu.copy_ns_per_mib()
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        query.exchange_over(self.link).map_or_else(|| self.cpu.kernel(query), Ok)
    }
}

/// Addresses of device memory are the host's plus this, where no processor has memory: the host cannot follow one by mistake.
const APART: usize = 1 << 52;

/// The device's address of memory that the host has at an address.
pub(crate) fn device_address(host: *mut u8) -> *mut u8 {
    host.wrapping_add(APART)
}

/// Where the host has what is at an address of the device.
pub(crate) fn host_address(device: *mut u8) -> *mut u8 {
    if device.is_null() { device } else { device.wrapping_sub(APART) }
}

/// The CPU's kernels, and a link that batches and values pass.
pub(crate) struct SimulatedDevice {
    cpu: CpuDevice,
    pub(crate) link: Link,
    /// Bytes of memory that nobody has.
    free: Arc<AtomicUsize>,
    /// Whether it is lost.
    pub(crate) lost: Arc<AtomicBool>,
    /// The operands of the kernel that runs.
    operands: Mutex<HostOperands>,
}

/// Operands by the host's addresses, kept so that running a kernel allocates nothing.
struct HostOperands {
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
}

// SAFETY: the addresses are those of the last kernel that ran, and are not followed any more.
unsafe impl Send for HostOperands {}

/// Operands of most kernels.
const OPERANDS: usize = 64;

impl SimulatedDevice {
    pub fn new(cpu: CpuDevice, link: Link) -> Self {
        let (reads, writes) = (Vec::with_capacity(OPERANDS), Vec::with_capacity(OPERANDS));
        let operands = Mutex::new(HostOperands { reads, writes });
        let (free, lost) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
        Self { cpu, link, free, lost, operands }
    }

    /// Sets how many bytes of memory nobody has.
    pub fn set_free_bytes(&self, bytes: usize) {
        self.free.store(bytes, Ordering::Relaxed);
    }
}

/// Memory of the device: an arena behind addresses of its own.
pub(crate) struct SimulatedMemory {
    arena: Arena,
    free: Arc<AtomicUsize>,
    lost: Arc<AtomicBool>,
}

/// The words of a device that is lost.
const LOST: &str = "it does not answer";

fn check(lost: &AtomicBool) -> Result<(), String> {
    if lost.load(Ordering::Relaxed) { Err(LOST.into()) } else { Ok(()) }
}

impl Drop for SimulatedMemory {
    fn drop(&mut self) {
        self.free.fetch_add(self.arena.bytes(), Ordering::Relaxed);
    }
}

impl Memory for SimulatedMemory {
    fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        device_address(self.arena.at(offset, bytes))
    }

    unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String> {
        check(&self.lost)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.arena.read(offset, into) }
    }

    unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        check(&self.lost)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.arena.write(offset, from) }
    }

    unsafe fn fill(&self, offset: usize, bytes: usize, byte: u8) -> Result<(), String> {
        check(&self.lost)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.arena.fill(offset, bytes, byte) }
    }
}

impl Device for SimulatedDevice {
    type Call = <CpuDevice as Device>::Call;
    type Memory = SimulatedMemory;

    fn map(&self, bytes: usize) -> Result<SimulatedMemory, String> {
        let left = |free: usize| free.checked_sub(bytes);
        if let Err(free) = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            return Err(format!("{bytes} bytes of memory are needed on the accelerator, {free} are free"));
        }
        match self.cpu.map(bytes) {
            Ok(arena) => Ok(SimulatedMemory { arena, free: self.free.clone(), lost: self.lost.clone() }),
            Err(reason) => {
                self.free.fetch_add(bytes, Ordering::Relaxed);
                Err(reason)
            }
        }
    }

    fn find(&self, query: &KernelQuery<'_>) -> Option<Self::Call> {
        self.cpu.find(query)
    }

    fn workspace_bytes(&self, call: &Self::Call) -> usize {
        self.cpu.workspace_bytes(call)
    }

    unsafe fn run(&self, call: &Self::Call, operands: &Operands<'_>) -> Result<(), String> {
        check(&self.lost)?;
        let mut host = self.operands.lock().unwrap_or_else(PoisonError::into_inner);
        let HostOperands { reads, writes } = &mut *host;
        reads.clear();
        reads.extend(operands.reads.iter().map(|read| host_address(read.cast_mut()).cast_const()));
        writes.clear();
        writes.extend(operands.writes.iter().map(|&write| host_address(write)));
        let workspace = host_address(operands.workspace);
        let operands = Operands { reads, writes, workspace, ..*operands };
        // SAFETY: the caller's promise is passed on, of the same memory.
        unsafe { self.cpu.run(call, &operands) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        check(&self.lost)?;
        // SAFETY: the caller's promise is passed on, of the same memory.
        unsafe { self.cpu.copy(host_address(from.cast_mut()), host_address(to), bytes) }
    }

    unsafe fn copy_in(&self, memory: &SimulatedMemory, offset: usize, from: &[u8]) -> Result<(), String> {
        let start = Instant::now();
        // SAFETY: the caller's promise is passed on.
        unsafe { memory.write(offset, from)? };
        pass(self.link, from.len(), self.link.load_ns_per_mib, start);
        Ok(())
    }

    unsafe fn copy_out(
        &self,
        memory: &SimulatedMemory,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), String> {
        let start = Instant::now();
        // SAFETY: the caller's promise is passed on.
        unsafe { memory.read(offset, into)? };
        pass(self.link, into.len(), self.link.store_ns_per_mib, start);
        Ok(())
    }

    fn input_lane(&self) -> Result<Option<Box<dyn InputLane>>, String> {
        Ok(Some(Box::new(LinkLane(self.link))))
    }

    fn lost(&self) -> Option<String> {
        check(&self.lost).err()
    }
}

/// Sleeps until bytes have passed a link, in a direction of which a MiB takes so long.
fn pass(link: Link, bytes: usize, ns_per_mib: u64, start: Instant) {
    let moving = (bytes as u128 * u128::from(ns_per_mib)) >> 20;
    let time = Duration::from_nanos(moving as u64 + link.latency_ns);
    std::thread::sleep(time.saturating_sub(start.elapsed()));
}

/// Kernels have run when they are queued, so that nothing is beside them: a copy is done when it is started.
struct LinkLane(Link);

impl InputLane for LinkLane {
    unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        let start = Instant::now();
        // SAFETY: the caller's promise; the slice is apart from a device's memory.
        unsafe { host_address(to).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        pass(self.0, from.len(), self.0.load_ns_per_mib, start);
        Ok(())
    }

    fn join(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) -> Result<(), String> {
        Ok(())
    }
}
