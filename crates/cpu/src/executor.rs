//! The executor: its options, and the planner's view of it.

use crate::device::CpuDevice;
use crate::dispatch::CpuTarget;
use crate::isa::{Isa, UnavailableIsa};
use plimsoll_plan::{Connection, ExecuteError, Executor, Link, PlanSet, Prepared, Target, Tiers};
use plimsoll_runtime::transfer::{DISK, FileQueue, Rates, STAGING_BYTES};
use plimsoll_runtime::{KernelDevice, KernelExecutor, KernelSession, Options, Queues, StepTimes, prepare};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// The CPU executor.
///
/// ```
/// use plimsoll_cpu::Cpu;
/// use plimsoll_plan::Executor;
/// let cpu = Cpu::new(2)?;
/// assert!(cpu.target().name().ends_with("2 threads"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Cpu {
    target: CpuTarget,
    device: Arc<CpuDevice>,
    options: Options,
    /// The folder of the spill file, if states and values may be offloaded.
    spill: Option<PathBuf>,
    disk: Link,
}

/// Why there is no executor with a given instruction set.
#[derive(Debug, Error)]
pub enum CpuError {
    /// The machine does not have it.
    #[error(transparent)]
    Isa(#[from] UnavailableIsa),
    /// Its threads do not start.
    #[error(transparent)]
    Threads(#[from] std::io::Error),
}

/// Kernel-side records and resident stack of the transfer queue's threads.
const TRANSFER_THREAD_BYTES: usize = 32 << 10;

/// Memory that transfers to and from the spill file need outside the arena.
pub const DISK_STAGING_BYTES: usize = STAGING_BYTES + TRANSFER_THREAD_BYTES;

impl Cpu {
    /// An executor on this many threads with this machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self::on(CpuDevice::new(threads)?))
    }

    /// An executor with a given instruction set; an error if the machine does not have it.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        Ok(Self::on(CpuDevice::with_isa(threads, isa)?))
    }

    /// As [`CpuDevice::emulating`].
    pub fn emulating(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        Ok(Self::on(CpuDevice::emulating(threads, isa)?))
    }

    fn on(device: CpuDevice) -> Self {
        let target = CpuTarget::new(device.isa(), device.threads());
        Self { target, device: Arc::new(device), options: Options::default(), spill: None, disk: DISK }
    }

    /// What its plans are for.
    pub fn cpu_target(&self) -> &CpuTarget {
        &self.target
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.target.isa
    }

    /// An executor that may offload states and values to a spill file in a folder. The file is created, without a name,
    /// when a plan that offloads is prepared.
    pub fn spilling(self, folder: impl Into<PathBuf>) -> Self {
        Self { spill: Some(folder.into()), ..self }
    }

    /// An executor whose plans assume a disk of this speed, as [`disk_rates`](plimsoll_runtime::transfer::disk_rates) measures it.
    pub fn disk_rates(self, rates: Rates) -> Self {
        Self { disk: rates.link(), ..self }
    }

    /// An executor whose plans assume threads that compute and move so much in a nanosecond while all of them work, in place of a typical
    /// processor's: see [`CpuTarget`].
    pub fn core_rates(self, flops_per_ns: f64, bytes_per_ns: f64) -> Self {
        Self { target: CpuTarget { flops_per_ns, bytes_per_ns, ..self.target }, ..self }
    }

    /// An executor in the checked mode: it fills dead memory with NaN and checks after every step that nothing was
    /// written outside the step's own buffers. Slow, and needs a second arena: for debugging.
    pub fn checked(self) -> Self {
        Self { options: Options { checked: true, ..self.options }, ..self }
    }

    fn prepare_with(
        &self,
        plans: Arc<PlanSet>,
        options: &Options,
    ) -> Result<Box<dyn KernelSession>, ExecuteError> {
        let queues = |plans: &PlanSet| {
            let file = FileQueue::for_run(self.spill.as_deref(), plans.tier_bytes.file)?;
            Ok(Queues { host: None, file })
        };
        prepare(plans, &self.target, self.device.clone(), queues, options)
    }

    /// An executor that records how long every step takes, for the plans of its last [`Executor::prepare`].
    pub fn timed(self, times: Arc<StepTimes>) -> Self {
        Self { options: Options { times: Some(times), ..self.options }, ..self }
    }
}

impl Executor for Cpu {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn tiers(&self) -> Tiers {
        match self.spill {
            Some(_) => Tiers::disk(self.disk, DISK_STAGING_BYTES),
            None => Tiers::default(),
        }
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(self.prepare_session(plans)?)
    }

    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        let options = Options { connection: Some(connection), ..self.options.clone() };
        Ok(self.prepare_with(plans, &options)?)
    }
}

impl KernelExecutor for Cpu {
    fn kernel_device(&self) -> Arc<dyn KernelDevice> {
        self.device.clone()
    }

    fn prepare_session(&self, plans: Arc<PlanSet>) -> Result<Box<dyn KernelSession>, ExecuteError> {
        self.prepare_with(plans, &self.options)
    }
}
