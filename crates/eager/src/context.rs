//! Contexts: an executor, its memory under a line, and the programs prepared so far.

use crate::error::{Error, Result};
use crate::memory::{LiveValue, Memory, Site};
use crate::pool::ALIGNMENT;
use crate::program::{Batch, Frame};
use crate::programs::Programs;
use crate::spill::Spill;
use crate::tensor::{Handle, Tensor};
use plimsoll_cpu::{Cpu, DISK_STAGING_BYTES};
use plimsoll_cuda::Cuda;
use plimsoll_plan::{Size, in_words};
use plimsoll_runtime::KernelExecutor;
use plimsoll_tensor::{DType, TensorType};
use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A context: what tensors compute on, and the memory that they are in. Clones are the same context.
///
/// ```
/// use plimsoll_eager::{Eager, Error};
/// use plimsoll_plan::MiB;
/// let eager = Eager::builder().line(MiB(4)).build()?;
/// let x = eager.tensor(vec![1.0f32; 500_000])?;
/// let Err(Error::OutOfMemory(short)) = (&x * 2.0 + &x).get() else { panic!("three times 2 MB in 4 MiB") };
/// assert_eq!((short.asked, short.holders.len()), (2_000_000, 2));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Eager(pub(crate) Arc<Context>);

pub(crate) struct Context {
    pub executor: Box<dyn KernelExecutor>,
    /// The name of its device.
    pub device: Arc<str>,
    state: Mutex<State>,
}

/// What ops change.
pub(crate) struct State {
    pub values: Values,
    pub programs: Programs,
}

/// The values of a context, and what runs of programs on them need.
pub(crate) struct Values {
    pub memory: Memory,
    pub frame: Frame,
    /// Types of numbers beside tensors.
    pub scalars: [Arc<TensorType>; DType::ALL.len()],
}

/// How a context is made; see [`Eager::builder`].
pub struct EagerBuilder {
    executor: Option<Box<dyn KernelExecutor>>,
    on: Option<String>,
    device: Option<String>,
    threads: Option<usize>,
    line: usize,
    spill: Option<(PathBuf, u64)>,
}

/// Contexts made so far: devices without a name have a number.
static MADE: AtomicUsize = AtomicUsize::new(0);
static DEFAULT: OnceLock<Eager> = OnceLock::new();

impl Eager {
    /// A context of the CPU with all of its cores and without a line, unless told otherwise.
    pub fn builder() -> EagerBuilder {
        EagerBuilder { executor: None, on: None, device: None, threads: None, line: usize::MAX, spill: None }
    }

    /// Logical devices of the CPU, `cpu:0`, `cpu:1` and so on: each has its line, and its part of the cores.
    ///
    /// ```
    /// use plimsoll_eager::{Eager, Error, Tape};
    /// use plimsoll_plan::MiB;
    /// let devices = Eager::logical(&[MiB(8), MiB(4)])?;
    /// let (w1, w2) = (devices[0].tensor([[1.0f32, -1.0]])?, devices[1].tensor([[2.0f32], [3.0]])?);
    /// let x = devices[0].tensor([[0.5f32], [4.0]])?;
    /// let tape = Tape::new();
    /// tape.watch(&w1);
    /// tape.watch(&w2);
    /// let hidden = x.matmul(&w1).relu().to(&devices[1])?;
    /// let loss = hidden.matmul(&w2).sum(&[0, 1], false).get()?;
    /// assert_eq!((hidden.device(), loss.device()), ("cpu:1", "cpu:1"));
    /// let gradients = tape.gradient(loss, &[&w1, &w2])?;
    /// assert_eq!((gradients[0].device(), gradients[1].device()), ("cpu:0", "cpu:1"));
    /// assert!(x.matmul(&w2).get().is_err_and(|error| error.to_string().contains("cpu:0 and cpu:1")));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn logical<S: Into<Size> + Copy>(lines: &[S]) -> Result<Vec<Self>> {
        let threads = (cores() / lines.len().max(1)).max(1);
        let made = |(number, line): (usize, &S)| {
            Self::builder().device(format!("cpu:{number}")).threads(threads).line(*line).build()
        };
        lines.iter().enumerate().map(made).collect()
    }

    /// The name of its device.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// The context of tensors that are made without one. It is made on first use; [`EagerBuilder::make_default`] before
    /// that sets another.
    pub fn default_context() -> Result<Self> {
        if let Some(made) = DEFAULT.get() {
            return Ok(made.clone());
        }
        let made = Self::builder().build()?;
        Ok(DEFAULT.get_or_init(|| made).clone())
    }

    /// A tensor of these elements: a vector, nested arrays, or a host tensor.
    #[track_caller]
    pub fn tensor(&self, elements: impl Into<plimsoll_tensor::Tensor>) -> Result<Tensor> {
        let elements = elements.into();
        self.0.copied(Arc::new(elements.ty().clone()), Location::caller(), elements.as_bytes())
    }

    /// A tensor of zeros.
    #[track_caller]
    pub fn zeros(&self, ty: TensorType) -> Result<Tensor> {
        self.0.made(Arc::new(ty), Location::caller(), Memory::clear)
    }

    /// The values that are alive, the largest first.
    pub fn memory_report(&self) -> Vec<LiveValue> {
        self.0.lock().values.memory.live(0)
    }

    /// How the memory is used.
    pub fn pool(&self) -> PoolReport {
        let state = self.0.lock();
        let (memory, pool) = (&state.values.memory, &state.values.memory.pool);
        PoolReport {
            line: pool.line(),
            mapped: pool.mapped(),
            peak: memory.peak,
            held: memory.held - memory.kept(),
            cached: pool.cached(),
            free: pool.free() + memory.kept(),
            in_file: memory.spill.as_ref().map_or(0, Spill::used),
            offloaded: memory.offloaded,
        }
    }

    /// Waits until the device has run everything that was queued on it; the error is that of what failed there. Reading a value
    /// waits by itself, and on the CPU there is nothing to wait for.
    pub fn finish(&self) -> Result<()> {
        let _state = self.0.lock();
        self.0.executor.kernel_device().finish().map_err(Error::Device)
    }

    /// Gives memory that no value is in back to the system.
    pub fn trim(&self) {
        self.0.lock().values.memory.trim();
    }

    /// Begins a scope that tells which values outlive it.
    ///
    /// ```
    /// # use plimsoll_eager::{Eager, Error};
    /// let eager = Eager::builder().build()?;
    /// let scope = eager.scope();
    /// let kept = eager.tensor([1.0f32])?;
    /// let sum = (&kept + 1.0).get()?;
    /// drop(sum);
    /// let leaked = scope.finish();
    /// assert_eq!(leaked.len(), 1);
    /// assert_eq!(leaked[0].ty.to_string(), "f32[1]");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn scope(&self) -> Scope {
        let mut state = self.0.lock();
        state.values.memory.ops += 1;
        Scope { context: self.clone(), since: state.values.memory.ops }
    }
}

impl EagerBuilder {
    /// Computes on the device of this name: `cpu`, or a GPU like `cuda:0`.
    ///
    /// ```no_run
    /// use plimsoll_eager::{Eager, Error};
    /// use plimsoll_plan::GiB;
    /// let (cpu, gpu) = (Eager::builder().build()?, Eager::builder().on("cuda:0").line(GiB(4)).build()?);
    /// let x = cpu.tensor([[1.0f32, 2.0], [3.0, 4.0]])?.to(&gpu)?;
    /// let y = x.matmul(&x).exp().get()?; // queued: the program goes on beside it
    /// assert_eq!(y.device(), "cuda:0");
    /// println!("{y}"); // waits for it
    /// # Ok::<(), Error>(())
    /// ```
    pub fn on(self, device: impl Into<String>) -> Self {
        Self { on: Some(device.into()), ..self }
    }

    /// Computes on another executor.
    pub fn executor(self, executor: impl KernelExecutor + 'static) -> Self {
        self.boxed_executor(Box::new(executor))
    }

    /// As [`EagerBuilder::executor`], for one that is chosen at run time.
    pub fn boxed_executor(self, executor: Box<dyn KernelExecutor>) -> Self {
        Self { executor: Some(executor), ..self }
    }

    /// Names the device, for messages and the placement log. Without a name it is a GPU's own, or the executor's kind with a
    /// number.
    pub fn device(self, name: impl Into<String>) -> Self {
        Self { device: Some(name.into()), ..self }
    }

    /// Computes on so many threads of the CPU.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// A hard limit for the memory of all values, scratch and what is kept for later: memory of the device, if that has its own.
    pub fn line(self, line: impl Into<Size>) -> Self {
        Self { line: line.into().bytes(usize::MAX), ..self }
    }

    /// Values that do not fit under the line may wait in a file of this size, which is created in the folder when it is first
    /// needed. Moving them takes about 2 MiB of host memory (6 MiB for a device), which count under the CPU's line.
    pub fn spill(self, folder: impl Into<PathBuf>, file: impl Into<Size>) -> Self {
        Self { spill: Some((folder.into(), file.into().bytes(usize::MAX) as u64)), ..self }
    }

    /// Makes the context.
    pub fn build(self) -> Result<Eager> {
        let executor = match (self.executor, self.on) {
            (Some(executor), None) => executor,
            (None, name) => named_executor(name.as_deref().unwrap_or("cpu"), self.threads)?,
            (Some(_), Some(name)) => {
                return Err(Error::Argument(format!(
                    "a context is on one device: choose it by `executor`, or by `on(\"{name}\")`"
                )));
            }
        };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let device = self.device.unwrap_or_else(|| {
            let target = executor.target().name();
            let kind = target.split([' ', ',']).next().unwrap_or_default();
            if kind.contains(':') { kind.to_string() } else { format!("{kind}:{number}") }
        });
        if executor.target().alignment() > ALIGNMENT {
            let (name, alignment) = (executor.target().name(), executor.target().alignment());
            return Err(Error::Argument(format!(
                "{name} aligns buffers to {alignment} bytes, tensors to {ALIGNMENT}"
            )));
        }
        let spill = self.spill.map(|(folder, bytes)| Spill::new(folder, bytes));
        let kernels = executor.kernel_device();
        let staging = if spill.is_some() && kernels.in_host_memory() { DISK_STAGING_BYTES } else { 0 };
        let values = Values {
            memory: Memory::new(kernels, self.line.saturating_sub(staging), spill),
            frame: Frame::default(),
            scalars: DType::ALL.map(|dtype| Arc::new(TensorType::scalar(dtype))),
        };
        let state = State { values, programs: Programs::default() };
        Ok(Eager(Arc::new(Context { executor, device: device.into(), state: Mutex::new(state) })))
    }

    /// Makes the context the default one; an error if that is in use.
    pub fn make_default(self) -> Result<Eager> {
        let made = self.build()?;
        DEFAULT.set(made.clone()).map_err(|_| Error::Late)?;
        Ok(made)
    }
}

/// The executor of a device that is named.
fn named_executor(name: &str, threads: Option<usize>) -> Result<Box<dyn KernelExecutor>> {
    let gpu = match name.split_once(':') {
        None if name == "cuda" => Some(0),
        Some(("cuda", number)) => number.parse().ok(),
        _ => None,
    };
    match (name, gpu) {
        ("cpu", _) => Ok(Box::new(Cpu::new(threads.unwrap_or_else(cores))?)),
        (_, Some(gpu)) => Ok(Box::new(Cuda::open(gpu, None)?)),
        _ => Err(Error::Argument(format!(
            "there is no device `{name}`: name `cpu`, or a GPU like `cuda:0`; `Eager::logical` splits the CPU"
        ))),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Context {
    /// The state is consistent between any two ops: poison means nothing here.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new tensor whose bytes `fill` writes.
    pub fn filled(
        self: &Arc<Self>,
        ty: Arc<TensorType>,
        site: Site,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        self.made(ty, site, |memory, buffer| memory.fill(buffer, fill))
    }

    /// A new tensor of these bytes.
    pub fn copied(self: &Arc<Self>, ty: Arc<TensorType>, site: Site, bytes: &[u8]) -> Result<Tensor> {
        self.made(ty, site, |memory, buffer| memory.write(buffer, bytes))
    }

    /// A new tensor whose buffer `write` writes.
    pub fn made(
        self: &Arc<Self>,
        ty: Arc<TensorType>,
        site: Site,
        write: impl FnOnce(&mut Memory, u32) -> Result<()>,
    ) -> Result<Tensor> {
        let mut state = self.lock();
        state.values.memory.ops += 1;
        let buffer = state.values.memory.allocate(&ty, "tensor", site)?;
        let written = write(&mut state.values.memory, buffer);
        drop(state);
        let handle = Arc::new(Handle { context: self.clone(), buffer });
        written.map(|()| Tensor::of(ty, Batch::NONE, handle))
    }
}

/// How a context's memory is used, in bytes; see [`Eager::pool`].
///
/// What is mapped is never more than the line, nor than `held`, each value with a quarter or 512 bytes more, plus
/// [`MOST_FREE_BYTES`](crate::MOST_FREE_BYTES) plus `cached`. On a GPU a value of more than 1 MiB takes whole pages of 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The line, without what transfers to a spill file take of it.
    pub line: usize,
    /// Mapped from the system, or from the device.
    pub mapped: usize,
    /// The most that was ever mapped.
    pub peak: usize,
    /// All live values, also those in the file.
    pub held: usize,
    /// Mapped, without a value, and kept for later: a quarter of the line at most, and
    /// [`MOST_CACHED_BYTES`](crate::MOST_CACHED_BYTES).
    pub cached: usize,
    /// Free slots between small values, and scratch in one.
    pub free: usize,
    /// Taken of the spill file.
    pub in_file: u64,
    /// Written to the spill file so far.
    pub offloaded: u64,
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mapped, held, cached, free] = [self.mapped, self.held, self.cached, self.free].map(in_words);
        write!(f, "{mapped} mapped: {held} held, {cached} cached, {free} in free slots")?;
        if self.line < usize::MAX { write!(f, "; the line is {}", in_words(self.line)) } else { Ok(()) }
    }
}

/// A part of a program whose values should not outlive it; see [`Eager::scope`].
#[must_use = "`finish` tells which values outlive the scope"]
pub struct Scope {
    context: Eager,
    since: u64,
}

impl Scope {
    /// The values made since the scope began that are still alive.
    pub fn finish(self) -> Vec<LiveValue> {
        self.context.0.lock().values.memory.live(self.since)
    }
}
