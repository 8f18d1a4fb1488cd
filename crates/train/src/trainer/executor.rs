//! The executor of a run: the CPU's by default.

use super::{Replication, Trainer};
use plimsoll_cpu::Cpu;
use plimsoll_plan::Executor;
use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;

/// What runs the plans.
#[derive(Clone)]
pub(super) enum ChosenExecutor {
    /// The caller's.
    Given(Arc<dyn Executor>),
    /// The CPU's, started when it is first needed.
    Cpu(CpuChoice),
}

/// How to start the CPU's executor.
#[derive(Clone, Default)]
pub(super) struct CpuChoice {
    /// `None`: one for each core.
    threads: Option<usize>,
    spill: Option<PathBuf>,
    started: OnceCell<Arc<dyn Executor>>,
}

impl CpuChoice {
    /// The CPU with the threads of choice, or as many as the system starts; one thread, the caller's, needs no start.
    fn start(&self) -> Arc<dyn Executor> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = self.threads.unwrap_or(cores).max(1);
        let cpu = loop {
            match Cpu::new(threads) {
                Ok(cpu) => break cpu,
                Err(_) => threads = (threads / 2).max(1),
            }
        };
        match &self.spill {
            Some(folder) => Arc::new(cpu.spilling(folder)),
            None => Arc::new(cpu),
        }
    }
}

impl Default for ChosenExecutor {
    fn default() -> Self {
        Self::Cpu(CpuChoice::default())
    }
}

impl ChosenExecutor {
    /// The choice of the CPU, not started; that of before, unless the executor was given.
    fn into_cpu(self) -> CpuChoice {
        match self {
            Self::Given(_) => CpuChoice::default(),
            Self::Cpu(choice) => CpuChoice { started: OnceCell::new(), ..choice },
        }
    }
}

impl Trainer {
    /// Runs on this executor, instead of the CPU with all its cores.
    ///
    /// ```
    /// use plimsoll_cpu::Cpu;
    /// use plimsoll_nn::{Sgd, zoo};
    /// use plimsoll_train::Trainer;
    /// let trainer = Trainer::new(zoo::lenet(), Sgd::new(0.1)).executor(Cpu::new(1)?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn executor(self, executor: impl Executor + 'static) -> Self {
        Self { executor: ChosenExecutor::Given(Arc::new(executor)), ..self }
    }

    /// Runs on the CPU with this many threads, instead of one for each core. Their number changes no bit of the results.
    pub fn threads(self, threads: usize) -> Self {
        let choice = CpuChoice { threads: Some(threads), ..self.executor.into_cpu() };
        Self { executor: ChosenExecutor::Cpu(choice), ..self }
    }

    /// Runs on the CPU with a spill file in this folder: parameters, optimizer state and activations that do not fit under the
    /// line may be offloaded to it.
    pub fn spill(self, folder: impl Into<PathBuf>) -> Self {
        let choice = CpuChoice { spill: Some(folder.into()), ..self.executor.into_cpu() };
        Self { executor: ChosenExecutor::Cpu(choice), ..self }
    }

    /// The executors of all devices of the run in this process.
    pub(super) fn executors(&self) -> impl Iterator<Item = &dyn Executor> {
        let devices = match &self.replication {
            Some(Replication::Logical { devices, .. } | Replication::Placed { devices, .. }) => Some(devices),
            Some(Replication::Rank { .. }) | None => None,
        };
        let several =
            devices.into_iter().flat_map(|devices| (0..devices.len()).map(move |at| devices.executor(at)));
        several.chain(devices.is_none().then(|| self.chosen_executor()))
    }

    /// The executor of the run.
    pub(crate) fn chosen_executor(&self) -> &dyn Executor {
        if let Some(Replication::Logical { devices, device } | Replication::Placed { devices, device, .. }) =
            &self.replication
        {
            return devices.executor(*device);
        }
        match &self.executor {
            ChosenExecutor::Given(executor) => executor.as_ref(),
            ChosenExecutor::Cpu(choice) => choice.started.get_or_init(|| choice.start()).as_ref(),
        }
    }
}
