//! The executor: opens a GPU, and runs plans on it.

use crate::device::{CudaDevice, words};
use crate::driver::{CudaError, Event, Gpu, HostMemory, Stream};
use crate::file_lane::FileLane;
use crate::host_queue::HostQueue;
use crate::kernels::{Call, find};
use crate::rates::Rates;
use crate::staging::{LEAST, STAGING_BYTES};
use crate::target::CudaTarget;
use plimsoll_plan::{
    Action, Connection, Entry, ExecuteError, Executor, KernelQuery, Link, PlanSet, Prepared, Target,
    TierSpec, Tiers,
};
use plimsoll_runtime::transfer::{DEVICE_STAGING_BYTES, StagedQueue};
use plimsoll_runtime::{KernelDevice, KernelExecutor, KernelSession, Options, Queues, StepTimes, prepare};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A GPU that runs plans.
///
/// ```no_run
/// use plimsoll_cuda::Cuda;
/// use plimsoll_plan::Executor;
/// let gpu = Cuda::open(0, None)?;
/// assert!(gpu.target().name().starts_with("cuda:0"));
/// # Ok::<(), plimsoll_cuda::CudaError>(())
/// ```
pub struct Cuda {
    target: CudaTarget,
    device: Arc<CudaDevice>,
    options: Options,
    /// Bytes of the GPU's memory that others held when it was opened.
    held_by_others: Option<usize>,
    /// The folder of the spill file, if states and values may be offloaded to one, and the link between host memory and its disk.
    spill: Option<(PathBuf, Link)>,
}

/// What was measured when this process opened a GPU for the first time. Later its context is there already, and its memory
/// holds arenas.
#[derive(Clone, Copy)]
struct Opened {
    held_by_others: Option<usize>,
    context_bytes: Option<usize>,
    link: Link,
    rates: Option<Rates>,
}

/// The GPUs that this process has opened, by number.
static OPENED: Mutex<BTreeMap<usize, Opened>> = Mutex::new(BTreeMap::new());

/// Bytes of a trial of the link to host memory, and how often they are copied.
const TRIAL_BYTES: usize = 16 << 20;
const TRIALS: usize = 4;

/// Rates of the link are rounded to this, so that plans do not change with the noise of a trial.
const RATE_STEP_GB: f64 = 5.0;

/// What the driver and the libraries take of host memory while kernels are compiled and loaded, beyond what opening the GPU
/// took. Measured on an H200: 159 MiB for ResNet-20, 208 MiB for GPT-2. The room above that is for other models.
const LIBRARY_BYTES: usize = 256 << 20;

/// The latency of a copy.
const LATENCY_NS: u64 = 10_000;

impl Cuda {
    /// Opens a GPU by its number. Compiled kernels and the fastest algorithms of products are kept in a folder, if one is given.
    ///
    /// # Errors
    /// If there is no driver, no such GPU, or a library is missing.
    pub fn open(index: usize, kernel_cache: Option<PathBuf>) -> Result<Self, CudaError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Gpu::describe(index)?.used_bytes();
        let device = CudaDevice::open(index, kernel_cache)?;
        let gpu = device.context.gpu.clone();
        let measure = || -> Result<Opened, CudaError> {
            let link = measure_link(&device.stream)?;
            let context_bytes =
                before.zip(gpu.used_bytes()).map(|(before, after)| after.saturating_sub(before));
            // Last, because the library loads kernels for it, which are no part of the context.
            let rates = device.rates()?;
            Ok(Opened { held_by_others: before, context_bytes, link, rates })
        };
        let found = opened.get(&index).copied().map_or_else(measure, Ok)?;
        opened.insert(index, found);
        let Opened { held_by_others, context_bytes, link, rates } = found;
        let libraries =
            format!("NVRTC {}, cuBLASLt {}", device.compiler.version_text(), device.products.version());
        let target = CudaTarget { gpu, libraries, context_bytes, link, tf32: false, rates };
        let device = Arc::new(device);
        Ok(Self { target, device, options: Options::default(), held_by_others, spill: None })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.target.gpu
    }

    /// How long each launch of a node takes, with what it is, in memory of its own that holds zeros. For finding what is slow.
    ///
    /// # Errors
    /// If the device fails, or its memory is too small.
    pub fn launch_times(&self, query: &KernelQuery<'_>) -> Result<Vec<(String, Duration)>, ExecuteError> {
        self.device.launch_times(query).map_err(ExecuteError::Device)
    }

    /// An executor that may offload to a spill file in a folder, too, what host memory has no room for, over this link between
    /// host memory and its disk.
    pub fn spilling(self, folder: impl Into<PathBuf>, disk: Link) -> Self {
        Self { spill: Some((folder.into(), disk)), ..self }
    }

    /// An executor whose tensor cores multiply f32 as TF32: products, convolutions and attention round f32 operands to 10 bits behind the
    /// binary point, with sums in f32. For runs in that precision (`Precision::TF32`).
    ///
    /// # Errors
    /// If the GPU is older than compute capability 8.0.
    pub fn tf32(mut self) -> Result<Self, CudaError> {
        if !self.target.gpu.has_tf32() {
            return Err(CudaError::NoTf32 { gpu: self.target.gpu.name.clone() });
        }
        self.target.tf32 = true;
        self.device.tf32.store(true, Ordering::Relaxed);
        Ok(self)
    }

    /// An executor in the checked mode: it fills dead memory with NaN and checks after every step that nothing was
    /// written outside the step's own buffers. Slow: for debugging.
    pub fn checked(self) -> Self {
        Self { options: Options { checked: true, ..self.options }, ..self }
    }

    /// An executor that records how long every step takes, for the plans of its last [`Executor::prepare`]. The host waits for
    /// every step.
    pub fn timed(self, times: Arc<StepTimes>) -> Self {
        Self { options: Options { times: Some(times), ..self.options }, ..self }
    }
}

impl Executor for Cuda {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn tiers(&self) -> Tiers {
        let tier = |link, staging_bytes| TierSpec { capacity_bytes: u64::MAX, link, staging_bytes };
        let link = self.target.link;
        let file = self.spill.as_ref().map(|(_, disk)| tier(link.through(*disk), DEVICE_STAGING_BYTES));
        Tiers { host: Some(tier(link, 0)), file }
    }

    fn host_entries(&self) -> Vec<Entry> {
        let libraries = "code of the compiler and the products, as kernels are loaded";
        vec![
            Entry::new("gpu libraries", LIBRARY_BYTES, libraries),
            Entry::new("input staging", STAGING_BYTES, "page-locked, for batches on their way to the device"),
        ]
    }

    fn prefetches_from(&self) -> Option<usize> {
        Some(LEAST)
    }

    fn device_bytes(&self) -> Option<usize> {
        Some(self.target.gpu.used_bytes()?.saturating_sub(self.held_by_others?))
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

impl KernelExecutor for Cuda {
    fn kernel_device(&self) -> Arc<dyn KernelDevice> {
        self.device.clone()
    }

    fn prepare_session(&self, plans: Arc<PlanSet>) -> Result<Box<dyn KernelSession>, ExecuteError> {
        self.prepare_with(plans, &self.options)
    }
}

impl Cuda {
    fn prepare_with(
        &self,
        plans: Arc<PlanSet>,
        options: &Options,
    ) -> Result<Box<dyn KernelSession>, ExecuteError> {
        let failed = |e: CudaError| ExecuteError::Device(e.to_string());
        for plan in &plans.plans {
            let marks = plan.graph.batch_marks();
            let nodes = plan.steps.iter().filter_map(|step| match step.action {
                Action::Run { node, .. } => Some(plan.graph.node(node)),
                _ => None,
            });
            let queries = nodes.map(|node| KernelQuery::new(&plan.graph, &marks, node));
            let found = queries.filter_map(|query| find(&query));
            let calls: Vec<Call> = found.map(|call| call.in_tf32(self.target.tf32)).collect();
            self.device.load_all(&calls).map_err(failed)?;
            self.device.tune(&calls, plans.arena_bytes).map_err(failed)?;
        }
        let queues = |plans: &PlanSet| {
            let bytes = plans.tier_bytes.host as usize;
            let host = if bytes > 0 {
                Some(HostQueue::new(&self.device.stream, bytes).map_err(failed)?)
            } else {
                None
            };
            let folder = self.spill.as_ref().map(|(folder, _)| folder.as_path());
            let lane = || Ok(Box::new(FileLane::new(&self.device.stream).map_err(words)?) as _);
            let file = StagedQueue::for_run(folder, plans.tier_bytes.file, lane)?;
            Ok(Queues { host: host.map(|queue| Box::new(queue) as _), file })
        };
        prepare(plans, &self.target, self.device.clone(), queues, options)
    }
}

/// How fast page-locked memory is copied to and from a device.
fn measure_link(stream: &Arc<Stream>) -> Result<Link, CudaError> {
    let context = &stream.context;
    let host = HostMemory::new(context, TRIAL_BYTES)?;
    let device = crate::driver::DeviceMemory::new(context, TRIAL_BYTES)?;
    let done = Event::new(context)?;
    let time = |load: bool| -> Result<u64, CudaError> {
        let mut best = f64::INFINITY;
        for _ in 0..TRIALS {
            let start = Instant::now();
            // SAFETY: both have so many bytes, and nobody else uses them.
            unsafe {
                if load {
                    stream.copy_in(device.start, host.start, TRIAL_BYTES)?;
                } else {
                    stream.copy_out(host.start, device.start, TRIAL_BYTES)?;
                }
            }
            done.record(stream)?;
            done.finish()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        let rate = TRIAL_BYTES as f64 / best / 1e9;
        let rate = (rate / RATE_STEP_GB).round().max(0.2) * RATE_STEP_GB;
        Ok((f64::from(1 << 20) / rate) as u64)
    };
    let (load_ns_per_mib, store_ns_per_mib) = (time(true)?, time(false)?);
    Ok(Link { load_ns_per_mib, store_ns_per_mib, latency_ns: LATENCY_NS, ..Link::default() })
}
