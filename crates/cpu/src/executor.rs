//! The executor: its options, and the planner's view of it.

use crate::dispatch::CpuTarget;
use crate::isa::{Isa, UnavailableIsa};
use crate::runtime::transfer::{Rates, STAGING_BYTES};
use crate::runtime::{self, Options, StepTimes};
use crate::threads::Pool;
use plimsoll_plan::{Disk, ExecuteError, Executor, PlanSet, Prepared, Target, verify};
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
    pool: Arc<Pool>,
    checked: bool,
    spill: Option<PathBuf>,
    disk: Disk,
    times: Option<Arc<StepTimes>>,
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

/// The disk that plans assume by default: 2.5 GiB a second both ways, 0.1 ms latency, and another 0.1 ms for a MiB with
/// nothing else in flight.
const DISK: Disk = Disk {
    read_ns_per_mib: 400_000,
    write_ns_per_mib: 400_000,
    latency_ns: 100_000,
    single_request_ns: 100_000,
    request_cpu_ns: 20_000,
    staging_bytes: STAGING_BYTES + TRANSFER_THREAD_BYTES,
};

impl Cpu {
    /// An executor on this many threads with this machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::on(threads, Isa::detect())
    }

    /// An executor with a given instruction set; an error if the machine does not have it.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, CpuError> {
        Ok(Self::on(threads, isa.available()?)?)
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.target.isa
    }

    /// An executor with an instruction set that the machine has.
    fn on(threads: usize, isa: Isa) -> std::io::Result<Self> {
        let pool = Arc::new(Pool::new(threads)?);
        Ok(Self {
            target: CpuTarget::new(isa, pool.threads()),
            pool,
            checked: false,
            times: None,
            spill: None,
            disk: DISK,
        })
    }

    /// An executor that may offload states and values to a spill file in a folder. The file is created, without a name,
    /// when a plan that offloads is prepared.
    pub fn spilling(self, folder: impl Into<PathBuf>) -> Self {
        Self { spill: Some(folder.into()), ..self }
    }

    /// An executor whose plans assume a disk of this speed, as [`disk_rates`](crate::disk_rates) measures it.
    pub fn disk_rates(self, rates: Rates) -> Self {
        Self { disk: rates.disk(self.disk.staging_bytes), ..self }
    }

    /// As [`Cpu::disk_rates`], with the same bytes per nanosecond both ways and a typical latency.
    pub fn disk_rate(self, bytes_per_ns: f64) -> Self {
        let Disk { latency_ns, single_request_ns, request_cpu_ns, .. } = DISK;
        let [read_bytes_per_ns, write_bytes_per_ns] = [bytes_per_ns; 2];
        self.disk_rates(Rates {
            read_bytes_per_ns,
            write_bytes_per_ns,
            latency_ns,
            single_request_ns,
            request_cpu_ns,
        })
    }

    /// An executor in the checked mode: it fills dead memory with NaN and checks after every step that nothing was
    /// written outside the step's own buffers. Slow, and needs a second arena: for debugging.
    pub fn checked(self) -> Self {
        Self { checked: true, ..self }
    }

    /// An executor that records how long every step takes, for the plans of its last [`Executor::prepare`].
    pub fn timed(self, times: Arc<StepTimes>) -> Self {
        Self { times: Some(times), ..self }
    }
}

impl Executor for Cpu {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn disk(&self) -> Option<Disk> {
        self.spill.is_some().then_some(self.disk)
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        // Kernels trust the plan with raw memory, so a plan from anywhere is checked here.
        if plans.numerics != self.target.numerics() {
            let other = &plans.target;
            return Err(ExecuteError::Input(format!("the plan was made for {other}, whose numerics differ")));
        }
        verify(&plans).map_err(|e| ExecuteError::Input(format!("the plan failed its check: {e}")))?;
        let options = Options {
            target: &self.target,
            pool: &self.pool,
            spill: self.spill.as_deref(),
            checked: self.checked,
            times: self.times.as_ref(),
        };
        Ok(Box::new(runtime::prepare(plans, &options)?))
    }
}
