//! A run with its memory: the loop, its steps, evaluation, and what listens to it.
//!
//! - `fit.rs`: the loop of steps, validations and checkpoints; `step.rs`: one optimizer step;
//! - `batch_plan.rs` and `feed.rs`: which plan a batch runs, and the inputs it gets;
//! - `evaluate.rs`: evaluation and prediction; `states.rs`, `init.rs`, `checkpoints.rs`: reading and writing states;
//! - `event.rs`, `callback.rs`, `watch.rs`, `log.rs`: what a run reports; `monitor.rs`, `schedule.rs`: what it remembers of
//!   validations; `diverged.rs`: the search for the first number that is not finite; `trace.rs`: the trace of the first steps.

mod batch_plan;
mod callback;
mod checkpoints;
mod diverged;
mod evaluate;
mod event;
mod feed;
mod fit;
mod init;
mod log;
mod monitor;
mod schedule;
mod sharded;
mod show_progress;
mod states;
mod step;
mod trace;
mod watch;

pub use callback::{Callback, EarlyStopping, OwnSchedule};
pub use checkpoints::Resumed;
pub use diverged::{Diverged, Origin};
pub use event::{Control, Ending, Evaluation, Report, Scale, TrainEvent};
pub(crate) use init::{averaged, parameter_of};
pub use monitor::{Best, Monitor};
pub use schedule::{Plateau, Schedule};
pub use show_progress::ShowProgress;
pub use states::Kept;
pub use watch::{Held, Overload, Saved, Watch};

use crate::files::STATE_BUFFER_BYTES;
use crate::metrics::Metric;
use crate::trainer::{Replication, check_equal};
use crate::{BatchKind, Progress, TrainError, Trainer};
use batch_plan::{BatchPlan, MAX_INPUTS};
use feed::Feed;
use init::initialize;
use plimsoll_data::{Batches, Cursor, Dataset, Pipeline};
use plimsoll_nn::{LOSS_SCALE, Model, SKIPPED_STEPS};
use plimsoll_plan::sheet::NEXT_BATCH;
use plimsoll_plan::{PlanSet, Prepared, Whole, exchange_order};
use plimsoll_runtime::{ReplicaDevice, prepare_placed, prepare_replicas};
use plimsoll_transform::OwnedState;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use trace::StepTrace;

/// A trainer's plan with its memory: trains, evaluates, predicts. Dropping it frees the memory.
pub struct Session {
    trainer: Rc<Trainer>,
    data: Rc<Dataset>,
    /// The first device's, with the account of the process.
    plans: Arc<PlanSet>,
    /// The plans of every device that has a part of the model: the first one's alone, unless layers are placed.
    parts: Vec<Arc<PlanSet>>,
    /// What those are together.
    whole: Whole,
    /// States that one process of several updates.
    owned: Vec<OwnedState>,
    prepared: Box<dyn Prepared>,
    /// Inputs of at least so many bytes are given to it ahead of their step; none if the plan has no memory for them.
    prefetches_from: Option<usize>,
    /// The bounce buffer for states on their way to and from files.
    buffer: RefCell<Vec<u8>>,
    batch_plans: Vec<BatchPlan>,
    /// The optimizer's settings for this step, and the same as elements.
    settings: Vec<f64>,
    setting_bytes: Vec<Vec<u8>>,
    /// Which of the settings is the learning rate.
    learning_rate_setting: Option<usize>,
    /// Labels, row weights and example numbers of the current batch.
    feed: Feed,
    /// The plan that ran last, whose outputs are still in the arena.
    ran: Option<usize>,
    /// Predictions or outputs of one batch, in 4-byte words.
    output_buffer: Vec<f32>,
    /// The sum of losses that an evaluation has so far of the current group of batches.
    loss_before: f32,
    steps_done: u64,
    /// The step at which the learning rate schedule started: each `fit` starts its own unless it resumes a run.
    schedule_start: u64,
    plateau: Plateau,
    /// The callbacks' factor of the learning rate, on top of the schedule's.
    callback_scale: f64,
    /// Steps of the whole run, for the schedule.
    total_steps: u64,
    /// Training examples of an epoch.
    train_examples: u64,
    /// The fingerprint of the training data, for runs with checkpoints.
    fingerprint: String,
    /// The position in the training data.
    cursor: Cursor,
    /// Whether the next `fit` continues the run of a checkpoint, and the folder of that checkpoint.
    resumed: bool,
    resumed_from: Option<PathBuf>,
    /// Bad records that were skipped, and the first one's error.
    skipped: (u64, Option<String>),
    /// The states that hold the loss scale and the count of skipped steps.
    loss_scale_states: Option<[usize; 2]>,
    /// Whether a step or a load failed after it had begun to write states. They are then not saved.
    poisoned: bool,
    /// Whether the states follow from the trainer and the data alone, so that the run can be replayed from step 0.
    replayable: bool,
    /// The best validation of the run.
    best: Best,
    /// Steps done at the last validation.
    validated: u64,
    /// The trainer's metrics.
    metrics: Vec<Box<dyn Metric>>,
    callbacks: Vec<Rc<RefCell<dyn Callback>>>,
    /// The trace of its first steps.
    trace: Option<StepTrace>,
}

impl Session {
    pub(crate) fn new(
        trainer: Trainer,
        plans: PlanSet,
        others: &[Arc<PlanSet>],
        data: Dataset,
    ) -> Result<Self, TrainError> {
        let settings = trainer.optimizer.setting_names();
        let learning_rate_setting = settings.iter().position(|name| name == "rate");
        let setting_count = settings.len();
        let inputs = trainer.max_over_models(|model| model.inputs().len()) + 5 + setting_count;
        if inputs > MAX_INPUTS {
            return Err(TrainError::Setting(format!(
                "a step takes at most {MAX_INPUTS} inputs, model and optimizer have {inputs}"
            )));
        }
        let plans = Arc::new(plans);
        let parts: Vec<Arc<PlanSet>> = match trainer.is_placed() {
            true => std::iter::once(&plans).chain(others).cloned().collect(),
            false => vec![plans.clone()],
        };
        let mut whole = Whole::new(parts.iter().map(Arc::as_ref));
        trainer.sort_states(&mut whole)?;
        let declared = trainer.planned_types(&data, whole.plans.iter().map(|plan| plan.name.as_str()))?;
        let batch_plans: Vec<BatchPlan> = (declared.iter().zip(&whole.plans))
            .map(|(&batch, plan)| BatchPlan::new(&trainer, plan, batch))
            .collect::<Result<_, _>>()?;
        let metrics = trainer.make_metrics(&whole)?;
        // Before the arena is mapped: reading examples takes memory.
        let fingerprint = match trainer.checkpoints.is_some() || trainer.connected().is_some() {
            true => data.train.fingerprint()?,
            false => String::new(),
        };
        // What is prepared looks whether there is one.
        let trace = trainer.trace.as_ref().map(StepTrace::create).transpose()?;
        let owned = trainer.owned_states()?;
        let mut prepared = prepare(&trainer, &data, &plans, &owned, others, &whole)?;
        let prefetches_from = trainer.chosen_executor().prefetches_from();
        let prefetches_from = prefetches_from.filter(|_| plans.sheet.outside_bytes(NEXT_BATCH) > 0);
        let mut buffer = Vec::with_capacity(STATE_BUFFER_BYTES);
        let values = trainer.model.initial_values();
        initialize(prepared.as_mut(), &whole.states, trainer.seed, values, &mut buffer, |bytes, of| {
            trainer.report_progress(&Progress::Initializing { bytes, of });
        })?;
        buffer.resize(STATE_BUFFER_BYTES, 0);
        let output_bytes = batch_plans.iter().filter(|p| p.batch.kind == BatchKind::Evaluate);
        let output_bytes = output_bytes.flat_map(|p| [p.predictions, p.output]).flatten().map(|o| o.bytes);
        // Of a training batch no more than is read.
        let read = trainer.batches_to_read(&data, |_| 1).held_rows();
        let most = |plan: &BatchPlan| match plan.batch.kind {
            BatchKind::Train => plan.batch.examples.min(read),
            BatchKind::Evaluate | BatchKind::Predict => plan.batch.examples,
        };
        let largest = batch_plans.iter().map(most).max().unwrap_or(0);
        let position = |name: &str| whole.states.iter().position(|s| s.name == name);
        let loss_scale_states =
            position(LOSS_SCALE).zip(position(SKIPPED_STEPS)).map(|(scale, skipped)| [scale, skipped]);
        let output_buffer = vec![0.0; output_bytes.max().unwrap_or(0) / 4];
        Ok(Self {
            plans,
            parts,
            whole,
            owned,
            prepared,
            prefetches_from,
            buffer: RefCell::new(buffer),
            batch_plans,
            settings: vec![0.0; setting_count],
            setting_bytes: (0..setting_count).map(|_| Vec::with_capacity(8)).collect(),
            learning_rate_setting,
            feed: Feed::new(trainer.shared_models(), largest),
            ran: None,
            output_buffer,
            loss_before: 0.0,
            steps_done: 0,
            schedule_start: 0,
            plateau: Plateau::default(),
            callback_scale: 1.0,
            total_steps: trainer.total_steps(&data),
            train_examples: trainer.epoch_examples(&data),
            fingerprint,
            cursor: Cursor::default(),
            resumed: false,
            resumed_from: None,
            skipped: (0, None),
            loss_scale_states,
            poisoned: false,
            replayable: true,
            best: Best::default(),
            validated: 0,
            metrics,
            callbacks: trainer.callbacks.clone(),
            trace,
            trainer: Rc::new(trainer),
            data: Rc::new(data),
        })
    }

    /// The model.
    pub(crate) fn model(&self) -> Arc<dyn Model> {
        self.trainer.model.clone()
    }

    /// The plan; of several devices, the first one's.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// The trainer's metrics, with the counts of the last validation.
    pub fn metrics(&self) -> &[Box<dyn Metric>] {
        &self.metrics
    }

    /// The data that the run was planned for.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Adds a callback to every later [`Session::fit`]: one that depends on where a resumed run stands. Others are set with
    /// [`Trainer::callback`].
    pub fn add(&mut self, callback: impl Callback + 'static) {
        self.callbacks.push(Rc::new(RefCell::new(callback)));
    }

    /// Steps done so far.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The position in the training data, which [`Session::fit`] advances.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Sets the position in the training data, for a custom loop that saves checkpoints.
    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Bad records skipped so far, and the first one's error.
    pub fn skipped(&self) -> (u64, Option<&str>) {
        (self.skipped.0, self.skipped.1.as_deref())
    }

    /// Refuses ranks that would not do the same from here on.
    fn check_ranks(&self) -> Result<(), TrainError> {
        let Some(ranks) = self.trainer.connected() else { return Ok(()) };
        let mut state = self.train_state();
        // A program's own notes do not decide results.
        state.notes.clear();
        let mut notes = state.to_notes();
        // Of a full batch every rank takes a part.
        let step = self.plans.plans.first().map(|plan| exchange_order(&plan.graph));
        notes.extend(step.map(|order| ("order_of_exchanges".to_string(), order.to_string())));
        notes.insert("sharding".to_string(), self.trainer.shard.to_string());
        check_equal(ranks.as_ref(), &notes)
    }

    fn count_skipped(&mut self, batches: &Batches) {
        let (count, first) = batches.skipped();
        self.skipped.0 += count;
        if self.skipped.1.is_none() {
            self.skipped.1 = first;
        }
    }

    /// Examples of a full batch of this kind; zero if none was planned.
    pub fn batch_size(&self, kind: BatchKind) -> usize {
        let plans = self.batch_plans.iter().filter(|p| p.batch.kind == kind);
        plans.map(|p| p.batch.examples).max().unwrap_or(0)
    }

    /// The batches to train on as this process reads them, prefetched within what the plan accounts for.
    fn prefetched_training_batches(&self) -> Pipeline {
        let trains = |plan: &BatchPlan, examples| {
            plan.batch.kind == BatchKind::Train && plan.batch.examples == examples
        };
        let micro_batches = |examples| {
            let plan = self.batch_plans.iter().position(|plan| trains(plan, examples));
            plan.map_or(1, |plan| self.whole.plans[plan].micro_batches)
        };
        let pipeline = self.trainer.batches_to_read(&self.data, micro_batches);
        self.trainer.prefetch_within_plan(&self.plans.sheet, BatchKind::Train, pipeline)
    }
}

/// Allocates the memory of a plan, on its device or on all of them.
fn prepare(
    trainer: &Trainer,
    data: &Dataset,
    plans: &Arc<PlanSet>,
    owned: &[OwnedState],
    others: &[Arc<PlanSet>],
    whole: &Whole,
) -> Result<Box<dyn Prepared>, TrainError> {
    let devices = match &trainer.replication {
        Some(Replication::Logical { devices, .. } | Replication::Placed { devices, .. })
            if !others.is_empty() =>
        {
            devices
        }
        _ => {
            let (executor, plans_of) = (trainer.chosen_executor(), plans.clone());
            return Ok(match trainer.connection(data, plans, owned)? {
                Some(connection) => executor.prepare_connected(plans_of, connection)?,
                None => executor.prepare(plans_of)?,
            });
        }
    };
    let sets = std::iter::once(plans).chain(others).enumerate();
    let device = |(device, plans): (usize, &Arc<PlanSet>)| ReplicaDevice {
        executor: devices.executor(device),
        plans: plans.clone(),
    };
    let devices: Vec<ReplicaDevice<'_>> = sets.map(device).collect();
    Ok(match trainer.is_placed() {
        true => prepare_placed(&devices, whole.clone())?,
        false => prepare_replicas(&devices)?,
    })
}
