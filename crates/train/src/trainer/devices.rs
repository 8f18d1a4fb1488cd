//! Logical devices: one machine as several, each with threads and a line of its own.

use super::Trainer;
use super::placement::{PlacedModel, Placement};
use crate::TrainError;
use crate::memory::available;
use plimsoll_cpu::Cpu;
use plimsoll_plan::{Executor, Ranks, Size};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The CPU as several devices, `cpu:0`, `cpu:1` and so on. Each has its own threads, arena and line. Clones are the same devices.
///
/// ```
/// use plimsoll_plan::MiB;
/// use plimsoll_train::LogicalDevices;
/// let devices = LogicalDevices::cpu(2, 1)?; // two, of one thread each
/// devices.set_memory(1, MiB(64))?;
/// assert_eq!(devices.names().collect::<Vec<_>>(), ["cpu:0", "cpu:1"]);
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
#[derive(Clone)]
pub struct LogicalDevices {
    shared: Rc<Shared>,
}

struct Shared {
    executors: Vec<Arc<dyn Executor>>,
    /// The line of each; `None`: an equal share of what the process's line leaves.
    lines: RefCell<Vec<Option<usize>>>,
    /// Whether a run was planned on them.
    used: Cell<bool>,
}

impl LogicalDevices {
    /// The most logical devices of a run.
    pub const MOST: usize = 64;

    /// So many devices with so many threads each.
    pub fn cpu(devices: usize, threads: usize) -> Result<Self, TrainError> {
        let start = |_| Cpu::new(threads).map(|cpu| Arc::new(cpu) as Arc<dyn Executor>);
        let executors = (0..devices.min(Self::MOST + 1)).map(start).collect::<std::io::Result<Vec<_>>>();
        let failed = |e| TrainError::Setting(format!("cannot start {threads} threads for each device: {e}"));
        Self::new(executors.map_err(failed)?)
    }

    /// A device for each of these executors, which must compute the same bits.
    pub fn new(executors: Vec<Arc<dyn Executor>>) -> Result<Self, TrainError> {
        if !(1..=Self::MOST).contains(&executors.len()) {
            let (count, most) = (executors.len(), Self::MOST);
            return Err(TrainError::Setting(format!("{count} logical devices: there can be 1 to {most}")));
        }
        let first = executors[0].target();
        let differs = |executor: &&Arc<dyn Executor>| {
            let target = executor.target();
            target.numerics() != first.numerics() || target.instructions() != first.instructions()
        };
        if let Some(other) = executors.iter().find(differs) {
            let (first, other) = (first.instructions(), other.target().instructions());
            return Err(TrainError::Setting(format!(
                "devices on {first} and on {other} would not have the same bits: use executors of one kind"
            )));
        }
        let lines = RefCell::new(vec![None; executors.len()]);
        Ok(Self { shared: Rc::new(Shared { executors, lines, used: Cell::new(false) }) })
    }

    /// Sets a device's line: a limit for its arena with what belongs to it. Lines are set before the first plan.
    pub fn set_memory(&self, device: usize, size: impl Into<Size>) -> Result<(), TrainError> {
        if self.shared.used.get() {
            return Err(TrainError::Setting(format!(
                "cpu:{device} is in use: set the memory of logical devices before the first plan on them"
            )));
        }
        let bytes = size.into().bytes(available().unwrap_or(usize::MAX));
        let (mut lines, count) = (self.shared.lines.borrow_mut(), self.len());
        let line = lines.get_mut(device).ok_or_else(|| {
            TrainError::Setting(format!(
                "there is no cpu:{device}: the devices are cpu:0 to cpu:{}",
                count - 1
            ))
        })?;
        *line = Some(bytes);
        Ok(())
    }

    /// How many there are; at least one.
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.shared.executors.len()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.len()).map(name)
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
        self.shared.executors[device].as_ref()
    }
}

/// The name of a device.
pub(crate) fn name(device: usize) -> String {
    format!("cpu:{device}")
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
