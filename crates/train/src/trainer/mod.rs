//! What a run is, before it has any memory.

mod accounting;
mod batch_types;
mod forecast;
mod graphs;
mod loop_settings;
mod plan_cache;
mod planning;

pub(crate) use batch_types::{BatchType, in_words as types_in_words};
pub use forecast::{Forecast, Tally, tally};

use crate::files::Checkpoints;
use crate::metrics::MetricSpec;
use crate::{Control, Monitor, Report, Schedule, Session, TrainError, TrainEvent, Watch};
use plan_cache::PlanCache;
use plimsoll_data::{Dataset, Pipeline};
use plimsoll_nn::{Model, Optimizer, Policy, step};
use plimsoll_plan::{Entry, Executor, PlanSet};
use plimsoll_transform::Pass;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Records of the buffer through which a stream is shuffled that does not say how itself.
const SHUFFLED_RECORDS: usize = 1024;

/// What a batch is for. With its number of examples, a batch type; every type is planned before step one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Forward, backward, update.
    Train,
    /// Loss and predicted classes.
    Evaluate,
    /// The model's outputs.
    Predict,
}

impl BatchKind {
    /// The name in load sheets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Evaluate => "evaluate",
            Self::Predict => "predict",
        }
    }
}

/// A model, an optimizer, an executor, and how to train.
pub struct Trainer {
    pub(crate) model: Box<dyn Model>,
    /// The same for other inputs.
    pub(crate) variants: Vec<Box<dyn Model>>,
    pub(crate) optimizer: Box<dyn Optimizer>,
    pub(crate) executor: Box<dyn Executor>,
    batch: usize,
    /// Batches of a step.
    accumulate: usize,
    pub(crate) epochs: u64,
    pub(crate) steps: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    /// Steps over which the rate rises before its schedule starts.
    pub(crate) warmup: u64,
    pub(crate) checkpoints: Option<Checkpoints>,
    /// How many of the last checkpoints stay; the best stays besides.
    pub(crate) keep: usize,
    pub(crate) monitor: Monitor,
    metrics: Vec<MetricSpec>,
    /// Steps between two validations; `None` for one after each epoch.
    pub(crate) validate_every: Option<u64>,
    pub(crate) steps_per_epoch: Option<u64>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) watch: Option<Box<dyn Watch>>,
    line_bytes: usize,
    outside: Vec<Entry>,
    heap_bytes: Option<usize>,
    /// `None`: as few as the line allows.
    micro_batches: Option<usize>,
    split_batch_norm: bool,
    without: Vec<Pass>,
    pub(crate) policy: Policy,
    report: step::Report,
    kinds: Vec<BatchKind>,
    pub(crate) plan_cache: Option<PlanCache>,
    /// How often plans were searched for.
    pub(crate) searches: Cell<u64>,
}

impl Trainer {
    /// A trainer with batches of 64, one epoch, seed 0 and no line.
    pub fn new(
        model: impl Model + 'static,
        optimizer: impl Optimizer + 'static,
        executor: impl Executor + 'static,
    ) -> Self {
        Self {
            model: Box::new(model),
            variants: Vec::new(),
            optimizer: Box::new(optimizer),
            executor: Box::new(executor),
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
            watch: None,
            line_bytes: usize::MAX,
            outside: Vec::new(),
            heap_bytes: None,
            micro_batches: None,
            split_batch_norm: false,
            without: Vec::new(),
            policy: Policy::default(),
            report: step::Report::Classes,
            kinds: vec![BatchKind::Train, BatchKind::Evaluate, BatchKind::Predict],
            plan_cache: None,
            searches: Cell::new(0),
        }
    }

    /// Examples per step, or per batch of one with [`Trainer::accumulate`].
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Makes a step of so many batches, whose gradients are summed: it has the bits of one batch of all their examples, in
    /// the memory of one of them. Batches must end at blocks of examples ([`Trainer::block`]).
    pub fn accumulate(self, batches: usize) -> Self {
        Self { accumulate: batches, ..self }
    }

    /// Examples of a step.
    pub fn step_examples(&self) -> usize {
        self.batch.saturating_mul(self.accumulate)
    }

    /// How often to go through the training part.
    pub fn epochs(self, epochs: u64) -> Self {
        Self { epochs, ..self }
    }

    /// Steps to do, whatever epochs that makes.
    pub fn steps(self, steps: u64) -> Self {
        Self { steps: Some(steps), ..self }
    }

    /// The seed that fixes initial values and the order of examples.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// How the learning rate goes over the run.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Lets the learning rate rise along a line over the first steps, before its schedule starts.
    pub fn warmup(self, steps: u64) -> Self {
        Self { warmup: steps, ..self }
    }

    /// Adds a note to checkpoints, like what a program needs to build this trainer again.
    pub fn note(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.notes.insert(key.into(), value.into());
        self
    }

    /// Watches the process's memory between steps: where a line is drawn, a run whose process comes close to it with
    /// what no plan knows of stops with [`TrainError::Overload`] and a checkpoint.
    pub fn watch(self, watch: impl Watch + 'static) -> Self {
        Self { watch: Some(Box::new(watch)), ..self }
    }

    /// The memory line in bytes: arena and everything declared with [`Trainer::outside`] stay under it.
    pub fn line(self, line_bytes: usize) -> Self {
        Self { line_bytes, ..self }
    }

    /// Declares memory outside the arena: code, stacks, heap, data.
    pub fn outside(mut self, entry: Entry) -> Self {
        self.outside.push(entry);
        self
    }

    /// Declares a cap for the program's heap: `bytes`, and what the plans themselves hold there.
    pub fn heap(self, bytes: usize) -> Self {
        Self { heap_bytes: Some(bytes), ..self }
    }

    /// Splits every training step into this many micro-batches; the numbers stay the same to the bit. Without it, steps
    /// are split into as few as the line allows.
    pub fn micro_batches(self, micro_batches: usize) -> Self {
        Self { micro_batches: Some(micro_batches), ..self }
    }

    /// Lets steps with batch norm be split, too. The statistics are then those of each micro-batch, and the running ones
    /// move towards their mean: the numbers differ from those of the whole batch. Other steps stay as they are.
    pub fn allow_split_batch_norm(self) -> Self {
        Self { split_batch_norm: true, ..self }
    }

    /// Switches a pass off.
    pub fn without(mut self, pass: Pass) -> Self {
        self.without.push(pass);
        self
    }

    /// What layers hand on to each other and products multiply: [`Policy::new`] of a [`plimsoll_nn::Precision`], and the
    /// layers that stay f32.
    pub fn precision(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// What evaluations give besides the loss: [`step::Report::Output`] for metrics that look at scores or values.
    pub fn report(self, report: step::Report) -> Self {
        Self { report, ..self }
    }

    /// Plans only batches of these kinds: a trained model that is only looked at needs no optimizer's state.
    pub fn kinds(self, kinds: &[BatchKind]) -> Self {
        Self { kinds: kinds.to_vec(), ..self }
    }

    /// Examples that an epoch trains on.
    pub(crate) fn epoch_examples(&self, data: &Dataset) -> u64 {
        data.train.batch(self.step_examples()).batched_len().unwrap_or(0) as u64
    }

    /// Steps of a run over this data.
    pub fn total_steps(&self, data: &Dataset) -> u64 {
        let batches = self.epoch_examples(data).div_ceil(self.step_examples().max(1) as u64);
        let per_epoch = self.steps_per_epoch.unwrap_or(batches);
        self.steps.unwrap_or(self.epochs.saturating_mul(per_epoch))
    }

    /// The batches to train on, in another order each epoch.
    pub fn training_batches(&self, data: &Dataset) -> Pipeline {
        let train = data.train.clone();
        let train = if train.is_shuffled() { train } else { train.shuffle(SHUFFLED_RECORDS, self.seed) };
        train.batch(self.step_examples())
    }

    /// Takes the memory of a plan that [`Trainer::plan`] made for the same data, and sets the states' initial values.
    pub fn prepare(&self, plans: PlanSet, data: &Dataset) -> Result<Session<'_>, TrainError> {
        Session::new(self, plans, data)
    }

    /// Plans, prepares and trains.
    pub fn fit(
        &self,
        data: &Dataset,
        listen: &mut dyn FnMut(&TrainEvent<'_>) -> Control,
    ) -> Result<Report, TrainError> {
        let plans = self.plan(data)?;
        self.prepare(plans, data)?.fit(data, listen)
    }
}
