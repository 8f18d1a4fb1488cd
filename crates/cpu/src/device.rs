//! The CPU as the runtime sees it: kernels on a pool of threads.

use crate::CpuError;
use crate::dispatch::{self, Call};
use crate::isa::{Context, Isa};
use crate::threads::Pool;
use plimsoll_plan::KernelQuery;
use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::{Device, Operands};

/// The CPU's kernels, on threads of its own.
pub struct CpuDevice {
    pool: Pool,
    isa: Isa,
}

impl CpuDevice {
    /// Starts the threads, for the machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self { pool: Pool::new(threads)?, isa: Isa::detect() })
    }

    /// Starts the threads, for an instruction set that the machine has.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        let isa = isa.available()?;
        Ok(Self { isa, ..Self::new(threads)? })
    }

    /// As [`CpuDevice::with_isa`], for a machine that need not have the set's instructions for products of bf16: where it
    /// has not, others are used that have their bits. Slow: for tests.
    pub fn emulating(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        isa.vectors().available()?;
        Ok(Self { isa, ..Self::new(threads)? })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// A kernel of the CPU with its sizes.
pub struct CpuCall(Box<dyn Call>);

impl Device for CpuDevice {
    type Call = CpuCall;
    type Memory = Arena;

    fn map(&self, bytes: usize) -> Result<Arena, String> {
        Arena::new(bytes).map_err(|e| e.to_string())
    }

    fn find(&self, query: &KernelQuery<'_>) -> Option<CpuCall> {
        dispatch::find(query).map(CpuCall)
    }

    fn workspace_bytes(&self, call: &CpuCall) -> usize {
        call.0.workspace(self.isa, self.threads())
    }

    unsafe fn run(&self, call: &CpuCall, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { call.0.run(Context { pool: &self.pool, isa: self.isa }, operands) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise; `copy` allows for overlap.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }

    fn in_host_memory(&self) -> bool {
        true
    }
}
