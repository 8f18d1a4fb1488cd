//! The [`Trainer`]: a builder that holds a run's settings.
//!
//! `planning.rs` plans a run; the choice of micro-batches, rematerialization and offload is `plimsoll_plan`'s `choice`, which
//! asks for `graphs.rs` (the graphs of each batch type) and `accounting.rs` (the load sheet's entries outside the arena).
//! `devices.rs` and `replicas.rs` are for runs on several devices, `placement.rs` for those whose layers are on different ones, `ranks.rs` for those of several processes. `plan_cache.rs` keeps plans in files, and `forecast.rs` plans one run under many lines.

mod accounting;
mod auto_placement;
mod batch_types;
mod devices;
mod executor;
mod forecast;
mod graphs;
mod largest_batch;
mod loop_settings;
mod models;
mod overlap;
mod placement;
mod plan_cache;
mod planning;
mod ranks;
mod replicas;
mod training_plan;
mod validation;

pub use batch_types::BatchKind;
pub(crate) use batch_types::{BatchType, types_in_words};
pub(crate) use devices::Replication;
pub use devices::{DeviceName, LogicalDevices};
pub use forecast::{Forecast, Tally, tally};
pub use largest_batch::largest_that;
pub use placement::Placement;
pub use ranks::communication;
pub(crate) use ranks::{agree, check_equal, gather, tell};
pub use training_plan::TrainingPlan;

use crate::memory::Process;
use crate::metrics::MetricSpec;
use crate::progress::{Listen, Progress};
use crate::{Callback, Control, Monitor, Schedule, ShowProgress, Watch};
use executor::ChosenExecutor;
use loop_settings::CheckpointSettings;
pub(crate) use loop_settings::TraceSettings;
use plan_cache::PlanCache;
use plimsoll_graph::{Graph, GraphError};
use plimsoll_nn::{Model, Optimizer, Policy, step};
use plimsoll_plan::{Entry, Size, Target};
use plimsoll_transform::{Pass, Reduction, Shard};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Makes another graph of one.
type GraphPass = dyn Fn(Graph) -> Result<Graph, GraphError>;

/// A model, an optimizer, and how to train. A clone shares them.
#[derive(Clone)]
pub struct Trainer {
    pub(crate) model: Arc<dyn Model>,
    /// The model for examples of other types.
    variants: Vec<Arc<dyn Model>>,
    pub(crate) optimizer: Arc<dyn Optimizer>,
    executor: ChosenExecutor,
    /// The devices that steps run on, and which of them this trainer's plans are for.
    pub(crate) replication: Option<Replication>,
    /// Whether micro-batches flow through placed devices; `None`: where that is predicted to be faster.
    overlap: Option<bool>,
    pub(crate) shard: Shard,
    pub(crate) reduction: Reduction,
    pub(crate) callbacks: Vec<Rc<RefCell<dyn Callback>>>,
    batch: usize,
    /// Batches per step, for gradient accumulation.
    accumulate: usize,
    epochs: u64,
    steps: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    /// Steps of warm-up before the schedule starts.
    pub(crate) warmup: u64,
    pub(crate) checkpoints: Option<CheckpointSettings>,
    /// How many of the last checkpoints to keep, besides the best.
    pub(crate) keep: usize,
    pub(crate) monitor: Monitor,
    metrics: Vec<MetricSpec>,
    /// Steps between two validations; `None` for one after each epoch.
    pub(crate) validate_every: Option<u64>,
    pub(crate) steps_per_epoch: Option<u64>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) trace: Option<TraceSettings>,
    pub(crate) watch: Option<Rc<dyn Watch>>,
    progress: Option<Listen>,
    line_bytes: usize,
    /// The account of the rest of the process; `None` if the line covers only what is declared.
    process: Option<Process>,
    device_line_bytes: usize,
    outside: Vec<Entry>,
    /// Entries of so many bytes for each node of the graphs.
    outside_per_node: Vec<Entry>,
    heap_bytes: Option<usize>,
    /// `None`: as few as the line allows.
    micro_batches: Option<usize>,
    split_batch_norm: bool,
    without: Vec<Pass>,
    pub(crate) policy: Policy,
    report: step::Report,
    /// Elements kept of parameters that are stored sparse in runs that do not train.
    sparse: BTreeMap<String, usize>,
    /// What else is done to graphs that do not train.
    inference_pass: Option<Rc<GraphPass>>,
    kinds: Vec<BatchKind>,
    plan_cache: Option<PlanCache>,
    /// Calls of the planner, without hits of the plan cache.
    searches: Rc<Cell<u64>>,
}

impl Trainer {
    /// A trainer with batches of 64, one epoch, seed 0, no line, and all cores of the CPU.
    pub fn new(model: impl Model + 'static, optimizer: impl Optimizer + 'static) -> Self {
        Self {
            model: Arc::new(model),
            variants: Vec::new(),
            optimizer: Arc::new(optimizer),
            executor: ChosenExecutor::default(),
            replication: None,
            overlap: None,
            shard: Shard::None,
            reduction: Reduction::Chain,
            callbacks: Vec::new(),
            batch: 64,
            accumulate: 1,
            epochs: 1,
            steps: None,
            seed: 0,
            schedule: Schedule::Constant,
            warmup: 0,
            checkpoints: None,
            keep: 2,
            monitor: Monitor::default(),
            metrics: Vec::new(),
            validate_every: None,
            steps_per_epoch: None,
            time_limit: None,
            notes: BTreeMap::new(),
            trace: None,
            watch: None,
            progress: None,
            line_bytes: usize::MAX,
            process: Some(Process::default()),
            device_line_bytes: usize::MAX,
            outside: Vec::new(),
            outside_per_node: Vec::new(),
            heap_bytes: None,
            micro_batches: None,
            split_batch_norm: false,
            without: Vec::new(),
            policy: Policy::default(),
            report: step::Report::Classes,
            sparse: BTreeMap::new(),
            inference_pass: None,
            kinds: vec![BatchKind::Train, BatchKind::Evaluate, BatchKind::Predict],
            plan_cache: None,
            searches: Rc::default(),
        }
    }

    /// Examples per step, or per batch of one with [`Trainer::accumulate`].
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Gradient accumulation over `batches` batches per step: the bits of one large batch, in the memory of one of them. The
    /// batch size must be a multiple of [`Trainer::block`].
    pub fn accumulate(self, batches: usize) -> Self {
        Self { accumulate: batches, ..self }
    }

    /// Epochs over the training part.
    pub fn epochs(self, epochs: u64) -> Self {
        Self { epochs, ..self }
    }

    /// Steps to do, instead of epochs.
    pub fn steps(self, steps: u64) -> Self {
        Self { steps: Some(steps), ..self }
    }

    /// The seed that fixes initial values and the order of examples.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The learning rate schedule.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Lets the learning rate rise linearly over the first steps, before its schedule starts.
    pub fn warmup(self, steps: u64) -> Self {
        Self { warmup: steps, ..self }
    }

    /// Adds a note to checkpoints, like what a program needs to rebuild this trainer.
    pub fn note(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.notes.insert(key.into(), value.into());
        self
    }

    /// Watches the process's memory between steps. If memory outside the plan brings it close to the line, the run stops with
    /// [`crate::TrainError::Overload`] and a checkpoint.
    pub fn watch(self, watch: impl Watch + 'static) -> Self {
        Self { watch: Some(Rc::new(watch)), ..self }
    }

    /// Calls `listen` often while plans are searched for, states get their first values, and data is evaluated or predicted. If
    /// it answers [`Control::Leave`], an evaluation or prediction ends with [`crate::TrainError::Interrupted`]; during
    /// [`crate::Session::fit`] a checkpoint is saved first, as for any stop.
    ///
    /// ```
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_data::datasets;
    /// use plimsoll_train::{Control, Progress, Trainer};
    /// use std::{cell::Cell, rc::Rc};
    /// let data = datasets::mnist()?;
    /// let plans = Rc::new(Cell::new(0));
    /// let seen = plans.clone();
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).on_progress(move |progress| {
    ///     if let Progress::Planning(plan) = progress {
    ///         seen.set(plan.tried);
    ///     }
    ///     Control::Continue
    /// });
    /// trainer.plan(&data)?;
    /// assert_eq!(plans.get(), 2); // without a line the first plan fits, and one in two micro-batches is not faster
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_progress(self, listen: impl Fn(&Progress) -> Control + 'static) -> Self {
        Self { progress: Some(Rc::new(listen)), ..self }
    }

    /// Tells the listener, and returns its answer.
    pub(crate) fn report_progress(&self, progress: &Progress) -> Control {
        self.progress.as_ref().map_or(Control::Continue, |listen| listen(progress))
    }

    /// The line of host memory, for the whole process: arena, program, threads, heap and data ([`Process`]).
    ///
    /// ```
    /// use plimsoll_data::datasets;
    /// use plimsoll_nn::{AdamW, zoo};
    /// use plimsoll_plan::{MiB, Size};
    /// use plimsoll_train::Trainer;
    ///
    /// let data = datasets::mnist()?;
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(MiB(128));
    /// assert!(trainer.plan(&data)?.load_sheet().total_bytes <= 128 << 20);
    /// let half = trainer.memory("50%".parse::<Size>()?); // of what is available
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(self, size: impl Into<Size>) -> Self {
        let line_bytes = size.into().bytes(crate::memory::available().unwrap_or(usize::MAX));
        let process = Some(self.process.clone().unwrap_or_default());
        Self { line_bytes, process, ..self }
    }

    /// A line that covers the arena, where kernels compute in host memory, and what is declared with [`Trainer::outside`], but
    /// not the rest of the process: for programs that account for themselves. [`Trainer::memory`] covers everything.
    pub fn line(self, line_bytes: usize) -> Self {
        Self { line_bytes, process: None, ..self }
    }

    /// Whether the line covers the whole process.
    pub(crate) fn accounts_for_process(&self) -> bool {
        self.process.is_some()
    }

    /// How the rest of the process is accounted for, where the default measurement does not suit a program.
    pub fn process(self, process: Process) -> Self {
        Self { process: Some(process), ..self }
    }

    /// Shows the run's progress on standard error ([`ShowProgress`]).
    pub fn progress(self) -> Self {
        self.callback(ShowProgress::new())
    }

    /// Adds a callback to every run of this trainer.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Rc::new(RefCell::new(callback)));
        self
    }

    /// The line of the device's memory in bytes, if the executor computes in a device's. The arena is there then, and
    /// [`Trainer::line`] holds for the rest.
    pub fn device_line(self, device_line_bytes: usize) -> Self {
        Self { device_line_bytes, ..self }
    }

    /// The line of the space that kernels compute in: [`Trainer::device_line`] on a device, else [`Trainer::line`].
    pub fn computing_line(self, line_bytes: usize) -> Self {
        if self.computes_on_device() { self.device_line(line_bytes) } else { self.line(line_bytes) }
    }

    /// Bytes of the device's memory that its executor holds now, by the driver's account; none where kernels compute in host
    /// memory.
    pub fn device_bytes(&self) -> Option<usize> {
        self.chosen_executor().device_bytes()
    }

    /// Whether kernels compute in the memory of a device.
    pub(super) fn computes_on_device(&self) -> bool {
        self.chosen_executor().tiers().host.is_some()
    }

    /// Declares memory outside the arena: code, stacks, heap, data.
    pub fn outside(mut self, entry: Entry) -> Self {
        self.outside.push(entry);
        self
    }

    /// Declares memory outside the arena that grows with the model: the entry's bytes are for each node of a run's graphs.
    pub fn outside_per_node(mut self, entry: Entry) -> Self {
        self.outside_per_node.push(entry);
        self
    }

    /// The target that runs of this trainer are planned for.
    pub fn target(&self) -> &dyn Target {
        self.chosen_executor().target()
    }

    /// Puts entries in front of those that were declared.
    pub(crate) fn outside_first(mut self, entries: impl Iterator<Item = Entry>) -> Self {
        self.outside.splice(0..0, entries);
        self
    }

    /// Declares a cap for the program's heap: `bytes`, plus what the plans themselves hold there.
    pub fn heap(self, bytes: usize) -> Self {
        Self { heap_bytes: Some(bytes), ..self }
    }

    /// Splits every training step into this many micro-batches; results stay the same to the bit. By default, as few as the
    /// line allows.
    pub fn micro_batches(self, micro_batches: usize) -> Self {
        Self { micro_batches: Some(micro_batches), ..self }
    }

    /// Allows micro-batches in models with batch norm. Statistics are then those of each micro-batch, and the running ones
    /// move towards their mean, so results differ from those of the whole batch. Other models are not affected.
    pub fn allow_split_batch_norm(self) -> Self {
        Self { split_batch_norm: true, ..self }
    }

    /// Disables a pass.
    pub fn without(mut self, pass: Pass) -> Self {
        self.without.push(pass);
        self
    }

    /// The precision of activations and matrix products ([`Policy::new`] of a [`plimsoll_nn::Precision`]), and the layers that
    /// stay f32.
    pub fn precision(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// What evaluations output besides the loss: [`step::Report::Output`] for metrics of scores or values.
    pub fn report(self, report: step::Report) -> Self {
        Self { report, ..self }
    }

    /// Holds these parameters sparse in evaluations and predictions, by name and number of kept elements: as their kept elements and
    /// a mask, expanded where they are read. For runs that do not train; [`crate::sparse_parameters`] asks a weights file. The names
    /// are those after [`Trainer::inference_pass`]: of layers on bytes, those of their codes.
    pub fn sparse_parameters(self, kept: BTreeMap<String, usize>) -> Self {
        Self { sparse: kept, ..self }
    }

    /// Rewrites the graphs of evaluations and predictions, for runs that do not train: layers on bytes, for example.
    pub fn inference_pass(self, pass: impl Fn(Graph) -> Result<Graph, GraphError> + 'static) -> Self {
        Self { inference_pass: Some(Rc::new(pass)), ..self }
    }

    /// Plans only batches of these kinds: evaluation and prediction alone need no optimizer state.
    pub fn kinds(self, kinds: &[BatchKind]) -> Self {
        Self { kinds: kinds.to_vec(), ..self }
    }
}
