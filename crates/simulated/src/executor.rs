//! The executor: its links, and the planner's view of it.

use crate::copy_queue::CopyQueue;
use crate::device::{SimulatedDevice, SimulatedTarget};
use crate::store::Store;
use plimsoll_cpu::{CpuDevice, CpuTarget};
use plimsoll_plan::{Connection, ExecuteError, Executor, Link, PlanSet, Prepared, Target, TierSpec, Tiers};
use plimsoll_runtime::spill::{SpillFile, TransferError};
use plimsoll_runtime::transfer::{FileQueue, STAGING_BYTES};
use plimsoll_runtime::{
    KernelDevice, KernelExecutor, KernelSession, Options, Queues, StepTimes, TransferQueue, prepare,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A simulated accelerator.
pub struct Simulated {
    target: SimulatedTarget,
    device: Arc<SimulatedDevice>,
    options: Options,
    /// The folder of the spill file, and the link between host memory and its disk.
    spill: Option<(PathBuf, Link)>,
}

/// The link to host memory by default: 4 GiB a second each way, 20 µs latency.
const LINK: Link = Link {
    load_ns_per_mib: 244_140,
    store_ns_per_mib: 244_140,
    latency_ns: 20_000,
    single_request_ns: 0,
    request_cpu_ns: 0,
};

/// Resident stack and kernel-side records of a copy thread.
const THREAD_BYTES: usize = 32 << 10;

/// Inputs of so many bytes are copied ahead of their step.
const PREFETCHED_BYTES: usize = 64 << 10;

impl Simulated {
    /// An accelerator whose kernels run on so many threads with this machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::with_link(threads, LINK)
    }

    /// As [`Simulated::new`], behind another link to host memory. Of a link, bandwidth and latency are simulated.
    pub fn with_link(threads: usize, link: Link) -> std::io::Result<Self> {
        let cpu = CpuDevice::new(threads)?;
        let target = SimulatedTarget { cpu: CpuTarget::new(cpu.isa(), cpu.threads()), link };
        let device = Arc::new(SimulatedDevice::new(cpu, link));
        Ok(Self { target, device, options: Options::default(), spill: None })
    }

    /// An accelerator that may offload to a file in a folder, too, at the speed of a link between host memory and disk.
    pub fn spilling(self, folder: impl Into<PathBuf>, disk: Link) -> Self {
        Self { spill: Some((folder.into(), disk)), ..self }
    }

    /// An accelerator with so many bytes of memory; all that the host has, unless told.
    pub fn memory(self, bytes: usize) -> Self {
        self.device.set_free_bytes(bytes);
        self
    }

    /// What loses it, once it is set: every kernel and copy fails from then on.
    pub fn lost(&self) -> Arc<AtomicBool> {
        self.device.lost.clone()
    }

    /// An accelerator in the runtime's checked mode.
    pub fn checked(self) -> Self {
        Self { options: Options { checked: true, ..self.options }, ..self }
    }

    /// An accelerator that records how long every step takes, for the plans of its last [`Executor::prepare`].
    pub fn timed(self, times: Arc<StepTimes>) -> Self {
        Self { options: Options { times: Some(times), ..self.options }, ..self }
    }

    fn queues(&self, plans: &PlanSet) -> Result<Queues, TransferError> {
        let mut queues = Queues::default();
        let boxed = |queue: CopyQueue| Box::new(queue) as Box<dyn TransferQueue>;
        if plans.tier_bytes.host > 0 {
            let store = Store::memory(plans.tier_bytes.host as usize)?;
            queues.host = Some(boxed(CopyQueue::new(store, self.device.link)?));
        }
        if plans.tier_bytes.file > 0 {
            let missing =
                || TransferError::Start { reason: "this executor has no folder to spill to".into() };
            let (folder, disk) = self.spill.as_ref().ok_or_else(missing)?;
            let file = SpillFile::create(folder, plans.tier_bytes.file)?;
            let store = Store::file(FileQueue::new(file, 1)?)?;
            queues.file = Some(boxed(CopyQueue::new(store, self.device.link.through(*disk))?));
        }
        Ok(queues)
    }
}

impl Executor for Simulated {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn tiers(&self) -> Tiers {
        let tier = |link, staging_bytes| TierSpec { capacity_bytes: u64::MAX, link, staging_bytes };
        let host = tier(self.device.link, 2 * THREAD_BYTES);
        let file_staging = Store::staging_bytes() + STAGING_BYTES + 2 * THREAD_BYTES;
        let file = self.spill.as_ref().map(|(_, disk)| tier(self.device.link.through(*disk), file_staging));
        Tiers { host: Some(host), file }
    }

    fn prefetches_from(&self) -> Option<usize> {
        Some(PREFETCHED_BYTES)
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

impl KernelExecutor for Simulated {
    fn kernel_device(&self) -> Arc<dyn KernelDevice> {
        self.device.clone()
    }

    fn prepare_session(&self, plans: Arc<PlanSet>) -> Result<Box<dyn KernelSession>, ExecuteError> {
        self.prepare_with(plans, &self.options)
    }
}

impl Simulated {
    fn prepare_with(
        &self,
        plans: Arc<PlanSet>,
        options: &Options,
    ) -> Result<Box<dyn KernelSession>, ExecuteError> {
        let queues = |plans: &PlanSet| self.queues(plans).map_err(|e| ExecuteError::Transfer(e.to_string()));
        prepare(plans, &self.target, self.device.clone(), queues, options)
    }
}
