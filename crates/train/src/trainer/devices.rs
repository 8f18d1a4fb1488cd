//! Logical devices: what a run computes on, each with an arena and a line of its own.

use super::Trainer;
use super::placement::{PlacedModel, Placement};
use crate::TrainError;
use crate::memory::available;
use plimsoll_cpu::Cpu;
use plimsoll_plan::{Executor, Ranks, Size};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a logical device. The processor may be several; `cpu` is its first.
///
/// ```
/// use plimsoll_train::DeviceName;
/// assert_eq!("cpu".parse(), Ok(DeviceName::Cpu(0)));
/// assert_eq!("cuda:1".parse(), Ok(DeviceName::Cuda(1)));
/// assert_eq!(DeviceName::Cpu(0).to_string(), "cpu:0");
/// assert!("cuda".parse::<DeviceName>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceName {
    /// A part of the processor, `cpu:0`, `cpu:1` and so on, with threads of its own.
    Cpu(usize),
    /// An accelerator by its number, `cuda:0`, `cuda:1` and so on.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        let most = LogicalDevices::MOST - 1;
        let numbered = |kind: &str| {
            let number: usize = name.strip_prefix(kind)?.strip_prefix(':')?.parse().ok()?;
            (number <= most).then_some(number)
        };
        match name.as_str() {
            "cpu" => Ok(Self::Cpu(0)),
            "cuda" | "gpu" => Err(format!("names `{text}`: name one GPU, like cuda:0")),
            _ => numbered("cpu").map(Self::Cpu).or_else(|| numbered("cuda").map(Self::Cuda)).ok_or_else(|| {
                format!(
                    "names `{text}`, which does not exist: the devices are cpu:0 to cpu:{most} and the GPUs, cuda:0 and so on"
                )
            }),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(number) => write!(f, "cpu:{number}"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// The devices of a run: the CPU as several, `cpu:0`, `cpu:1` and so on, each with its own threads, arena and line; for placed layers
/// accelerators, too, `cuda:0` and so on. Clones are the same devices.
///
/// ```
/// use plimsoll_plan::MiB;
/// use plimsoll_train::LogicalDevices;
/// let devices = LogicalDevices::cpu(2, 1)?; // two, of one thread each
/// devices.set_memory("cpu:1", MiB(64))?;
/// assert_eq!(devices.names().map(|name| name.to_string()).collect::<Vec<_>>(), ["cpu:0", "cpu:1"]);
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
#[derive(Clone)]
pub struct LogicalDevices {
    shared: Rc<Shared>,
}

struct Shared {
    executors: Vec<(DeviceName, Arc<dyn Executor>)>,
    /// The line of each; `None`: a share of what the process's line leaves, or, of an accelerator's memory, all that there is.
    lines: RefCell<Vec<Option<usize>>>,
    /// Whether a run was planned on them.
    used: Cell<bool>,
}

impl LogicalDevices {
    /// The most logical devices of a run.
    pub const MOST: usize = 64;

    /// So many devices of the CPU with so many threads each.
    pub fn cpu(devices: usize, threads: usize) -> Result<Self, TrainError> {
        let start = |_| Cpu::new(threads).map(|cpu| Arc::new(cpu) as Arc<dyn Executor>);
        let executors = (0..devices.min(Self::MOST + 1)).map(start).collect::<std::io::Result<Vec<_>>>();
        let failed = |e| TrainError::Setting(format!("cannot start {threads} threads for each device: {e}"));
        Self::new(executors.map_err(failed)?)
    }

    /// A device of the CPU for each of these executors, which must compute the same bits.
    pub fn new(executors: Vec<Arc<dyn Executor>>) -> Result<Self, TrainError> {
        let named = executors.into_iter().enumerate();
        Self::named(named.map(|(number, executor)| (DeviceName::Cpu(number), executor)))
    }

    /// Devices of different kinds, each with its executor. Those of the CPU must compute the same bits.
    ///
    /// ```
    /// use plimsoll_cpu::Cpu;
    /// use plimsoll_train::{DeviceName, LogicalDevices};
    /// use std::sync::Arc;
    /// let cpu: Arc<dyn plimsoll_plan::Executor> = Arc::new(Cpu::new(1)?);
    /// let devices = LogicalDevices::named([(DeviceName::Cpu(0), cpu)])?; // beside it, (DeviceName::Cuda(0), gpu)
    /// assert_eq!(devices.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn named(
        devices: impl IntoIterator<Item = (DeviceName, Arc<dyn Executor>)>,
    ) -> Result<Self, TrainError> {
        let executors: Vec<_> = devices.into_iter().collect();
        if !(1..=Self::MOST).contains(&executors.len()) {
            let (count, most) = (executors.len(), Self::MOST);
            return Err(TrainError::Setting(format!("{count} logical devices: there can be 1 to {most}")));
        }
        for (at, (name, _)) in executors.iter().enumerate() {
            if executors[..at].iter().any(|(other, _)| other == name) {
                return Err(TrainError::Setting(format!(
                    "there are two {name}: give each device its own name"
                )));
            }
        }
        let mut processors = executors.iter().filter(|(name, _)| matches!(name, DeviceName::Cpu(_)));
        let first = processors.next().map(|(_, executor)| executor.target());
        let differs = |target: &dyn plimsoll_plan::Target| {
            first.is_some_and(|first| {
                target.numerics() != first.numerics() || target.instructions() != first.instructions()
            })
        };
        if let (Some(first), Some((_, other))) =
            (first, processors.find(|(_, executor)| differs(executor.target())))
        {
            let (first, other) = (first.instructions(), other.target().instructions());
            return Err(TrainError::Setting(format!(
                "devices on {first} and on {other} would not have the same bits: use executors of one kind"
            )));
        }
        let lines = RefCell::new(vec![None; executors.len()]);
        Ok(Self { shared: Rc::new(Shared { executors, lines, used: Cell::new(false) }) })
    }

    /// Sets a device's line: a limit for its arena with what belongs to it, of an accelerator in its own memory. Lines are set before the
    /// first plan.
    pub fn set_memory(&self, device: &str, size: impl Into<Size>) -> Result<(), TrainError> {
        let name: DeviceName =
            device.parse().map_err(|e| TrainError::Setting(format!("the line of `{device}` {e}")))?;
        if self.shared.used.get() {
            return Err(TrainError::Setting(format!(
                "{name} is in use: set the memory of logical devices before the first plan on them"
            )));
        }
        let index = self.index(name).ok_or_else(|| {
            TrainError::Setting(format!("there is no {name}: the devices are {}", self.in_words()))
        })?;
        let bytes = match size.into() {
            Size::Percent(_) if self.is_apart(index) => {
                return Err(TrainError::Setting(format!(
                    "a share of the memory of {name} is of no known size: say how many bytes"
                )));
            }
            size => size.bytes(available().unwrap_or(usize::MAX)),
        };
        self.shared.lines.borrow_mut()[index] = Some(bytes);
        Ok(())
    }

    /// How many there are; at least one.
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.shared.executors.len()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = DeviceName> + '_ {
        self.shared.executors.iter().map(|(name, _)| *name)
    }

    /// Their names as a list.
    pub(super) fn in_words(&self) -> String {
        self.names().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The name of one.
    pub(super) fn name(&self, device: usize) -> DeviceName {
        self.shared.executors[device].0
    }

    /// Where the device of a name is among them.
    pub(super) fn index(&self, name: DeviceName) -> Option<usize> {
        self.names().position(|own| own == name)
    }

    /// Whether a device computes in memory of its own, and not in the host's.
    pub(super) fn is_apart(&self, device: usize) -> bool {
        self.executor(device).tiers().host.is_some()
    }

    /// A device's line, if it has its own.
    pub(super) fn line(&self, device: usize) -> Option<usize> {
        self.shared.lines.borrow()[device]
    }

    /// Lines are fixed from now on.
    pub(super) fn begin_use(&self) {
        self.shared.used.set(true);
    }

    pub(crate) fn executor(&self, device: usize) -> &dyn Executor {
        self.shared.executors[device].1.as_ref()
    }
}

/// The devices that a run has, and which of them plans are for.
#[derive(Clone)]
pub(crate) enum Replication {
    /// Those of this process.
    Logical {
        /// All of them.
        devices: LogicalDevices,
        /// The device's number.
        device: usize,
    },
    /// Those of this process, each of which has a part of the model, and takes whole batches.
    Placed {
        /// All of them.
        devices: LogicalDevices,
        /// The device's number.
        device: usize,
        /// Where layers are.
        placement: Rc<Placement>,
        /// Where those of the model are, once that is settled.
        model: Option<Rc<PlacedModel>>,
        /// Whether micro-batches flow through the devices, which work at the same time.
        overlaps: bool,
    },
    /// One for each process of the run.
    Rank {
        /// This process's number.
        rank: usize,
        /// How many there are.
        count: usize,
        /// The way to the others; none where the run is only planned.
        connection: Option<Arc<dyn Ranks>>,
    },
}

impl Replication {
    /// The number of the device that plans are for.
    pub fn device(&self) -> usize {
        match *self {
            Self::Logical { device, .. } | Self::Placed { device, .. } => device,
            Self::Rank { rank, .. } => rank,
        }
    }
}

impl Trainer {
    /// Runs every training step on several devices at once, each on its part of the batch, instead of on the trainer's executor.
    /// Sums over the batch pass from device to device, so results have the bits of one device with the whole batch. Parameters and
    /// optimizer state are on every device. Evaluation and prediction run on the first one.
    ///
    /// ```
    /// use plimsoll_data::datasets;
    /// use plimsoll_nn::{AdamW, zoo};
    /// use plimsoll_train::{LogicalDevices, Trainer};
    /// let data = datasets::mnist()?;
    /// let trainer = || Trainer::new(zoo::lenet(), AdamW::new(1e-3)).steps(2);
    /// let mut one = trainer().threads(1).plan(&data)?.start()?;
    /// let mut two = trainer().replicas(&LogicalDevices::cpu(2, 1)?).plan(&data)?.start()?;
    /// assert_eq!(one.fit()?.final_loss, two.fit()?.final_loss);
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn replicas(self, devices: &LogicalDevices) -> Self {
        Self { replication: Some(Replication::Logical { devices: devices.clone(), device: 0 }), ..self }
    }

    /// How many devices share every batch.
    pub(crate) fn device_count(&self) -> usize {
        match &self.replication {
            None | Some(Replication::Placed { .. }) => 1,
            Some(Replication::Logical { devices, .. }) => devices.len(),
            Some(Replication::Rank { count, .. }) => *count,
        }
    }
}
