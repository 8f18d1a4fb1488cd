//! A run with its memory.

use crate::checkpoint::newest;
use crate::feed::Feed;
use crate::init::{CHUNK_BYTES, initialise, push};
use crate::log::Hits;
use crate::metrics::{Metric, Outputs, Rows, Targets};
use crate::nearest::nearest;
use crate::trainer::{BatchType, types_in_words};
use crate::{
    BatchKind, Best, Callback, Diverged, Evaluation, Names, Plateau, Scale, TrainError, Trainer, weights,
};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_data::{Batch, Batches, Cursor, Dataset, Pipeline};
use plimsoll_graph::NodeId;
use plimsoll_nn::step::{LABELS, OUTPUT, PREDICTIONS, WEIGHTS, input_name};
use plimsoll_nn::{EXAMPLES, LOSS_SCALE, MIN_LOSS_SCALE, RANDOM, SKIPPED_STEPS};
use plimsoll_plan::{ExecuteError, PlanSet, Prepared};
use plimsoll_tensor::{DType, HostTensor};
use plimsoll_transform::LOSS;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Inputs of a step at most: the batch's, what random numbers are made of, and the optimizer's settings.
const MOST_INPUTS: usize = 24;

/// A trainer's plan with its memory: trains, evaluates, predicts. Dropping it gives the memory back.
pub struct Session<'t> {
    pub(crate) trainer: &'t Trainer,
    pub(crate) plans: Arc<PlanSet>,
    pub(crate) prepared: Box<dyn Prepared>,
    /// Through which states pass to and from files.
    pub(crate) buffer: RefCell<Vec<u8>>,
    types: Vec<Planned>,
    /// The optimizer's numbers for this step, and the same as elements.
    settings: (Vec<f64>, Vec<Vec<u8>>),
    /// Labels, weights and numbers of the batch at work.
    feed: Feed<'t>,
    /// Predictions or outputs of one batch: words of four bytes.
    results: Vec<f32>,
    pub(crate) steps_done: u64,
    /// Where the learning rate's schedule started: each `fit` runs one of its own, unless it goes on with a run.
    pub(crate) schedule_start: u64,
    /// What the learning rate's schedule remembers of losses.
    pub(crate) plateau: Plateau,
    /// What callbacks say of the learning rate, besides the schedule.
    pub(crate) own_scale: f64,
    /// Steps of the whole run, for the learning rate.
    pub(crate) total_steps: u64,
    /// Examples of an epoch of training.
    pub(crate) train_examples: u64,
    /// Where the training data goes on.
    pub(crate) cursor: Cursor,
    /// Whether the next `fit` goes on with a run that a checkpoint holds.
    pub(crate) resumed: bool,
    /// The folder of that checkpoint.
    pub(crate) resumed_from: Option<PathBuf>,
    /// Bad records that were skipped, and what was wrong with the first.
    skipped: (u64, Option<String>),
    /// The states of the loss scale and of the count of skipped steps.
    scale_states: Option<[usize; 2]>,
    /// Whether a step went wrong after it had begun to write states.
    pub(crate) spoilt: bool,
    /// Whether all that happened to the states follows from the trainer.
    pub(crate) from_seed: bool,
    /// The best validation of the run.
    pub(crate) best: Best,
    /// Steps done at the last validation.
    pub(crate) validated: u64,
    /// The trainer's metrics.
    pub(crate) metrics: Vec<Box<dyn Metric>>,
    /// Who looks on during `fit`.
    pub(crate) callbacks: Vec<Box<dyn Callback + 't>>,
}

/// One plan of the set, with what its inputs and outputs are.
struct Planned {
    kind: BatchKind,
    /// Whose inputs it has.
    model: usize,
    examples: usize,
    inputs: Vec<InputRole>,
    /// Place and type of the loss output.
    loss: Option<(usize, DType)>,
    /// Place and bytes of the predicted classes, and of the model's first output.
    predictions: Option<(usize, usize)>,
    output: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
enum InputRole {
    Input(usize),
    Labels,
    Weights,
    Random,
    Examples,
    Setting(usize),
}

impl<'t> Session<'t> {
    pub(crate) fn new(trainer: &'t Trainer, plans: PlanSet, data: &Dataset) -> Result<Self, TrainError> {
        let inputs = trainer.most(|model| model.inputs().len()) + 4 + trainer.optimizer.setting_names().len();
        if inputs > MOST_INPUTS {
            return Err(TrainError::Setting(format!(
                "a step takes at most {MOST_INPUTS} inputs, model and optimizer have {inputs}"
            )));
        }
        let plans = Arc::new(plans);
        let micro_batches = plans.plans.iter().map(|p| p.graph.micro_batches).max().unwrap_or(1);
        let declared = trainer.batch_types(data, micro_batches);
        if declared.len() != plans.plans.len() {
            return Err(TrainError::Setting("this plan was made for other data or another trainer".into()));
        }
        let types: Vec<Planned> = (declared.iter().enumerate())
            .map(|(i, &batch)| Planned::new(trainer, &plans, i, batch))
            .collect::<Result<_, _>>()?;
        let metrics = trainer.make_metrics(&plans)?;
        let mut prepared = trainer.executor.prepare(plans.clone())?;
        let mut buffer = Vec::with_capacity(CHUNK_BYTES);
        initialise(prepared.as_mut(), &plans.states, trainer.seed, &mut buffer)?;
        buffer.resize(CHUNK_BYTES, 0);
        let settings = trainer.optimizer.setting_names().len();
        let results = types.iter().filter(|t| t.kind == BatchKind::Evaluate);
        let results = results.flat_map(|t| [t.predictions, t.output]).flatten().map(|(_, bytes)| bytes).max();
        let largest = types.iter().map(|t| t.examples).max().unwrap_or(0);
        let place = |name: &str| plans.states.iter().position(|s| s.name == name);
        let scale_states =
            place(LOSS_SCALE).zip(place(SKIPPED_STEPS)).map(|(scale, skipped)| [scale, skipped]);
        Ok(Self {
            scale_states,
            trainer,
            plans,
            prepared,
            buffer: RefCell::new(buffer),
            types,
            settings: (vec![0.0; settings], (0..settings).map(|_| Vec::with_capacity(8)).collect()),
            feed: Feed::new(trainer.models(), largest),
            results: vec![0.0; results.unwrap_or(0) / 4],
            steps_done: 0,
            schedule_start: 0,
            own_scale: 1.0,
            plateau: Plateau::default(),
            total_steps: trainer.total_steps(data),
            train_examples: trainer.epoch_examples(data),
            skipped: (0, None),
            cursor: Cursor::default(),
            resumed: false,
            resumed_from: None,
            spoilt: false,
            from_seed: true,
            best: Best::default(),
            validated: 0,
            metrics,
            callbacks: Vec::new(),
        })
    }

    /// The plan.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// The trainer's metrics, with what the last validation counted.
    pub fn metrics(&self) -> &[Box<dyn Metric>] {
        &self.metrics
    }

    /// Steps done so far.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Steps of a whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Where the training data goes on: [`Session::fit`] keeps it.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Says where the training data goes on, for a loop of one's own that saves checkpoints.
    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Bad records that were skipped so far, and what was wrong with the first.
    pub fn skipped(&self) -> (u64, Option<&str>) {
        (self.skipped.0, self.skipped.1.as_deref())
    }

    pub(crate) fn count_skipped(&mut self, batches: &Batches) {
        let (count, first) = batches.skipped();
        self.skipped.0 += count;
        if self.skipped.1.is_none() {
            self.skipped.1 = first;
        }
    }

    /// Examples of a full batch of this kind; zero if none was planned.
    pub fn batch_size(&self, kind: BatchKind) -> usize {
        self.types.iter().filter(|t| t.kind == kind).map(|t| t.examples).max().unwrap_or(0)
    }

    /// The plan for a batch: of its kind, its types and its number of examples.
    pub(crate) fn find(&self, kind: BatchKind, batch: &Batch) -> Result<usize, TrainError> {
        let (model, examples) = (self.feed.model_of(batch), batch.examples());
        let found = self
            .types
            .iter()
            .position(|t| t.kind == kind && Some(t.model) == model && t.examples == examples);
        found.ok_or_else(|| {
            let declared = self.types.iter().zip(&self.plans.plans).filter(|(t, _)| t.kind == kind);
            let declared: Vec<_> = declared.map(|(_, plan)| format!("`{}`", plan.name)).collect();
            let (name, planned) = (kind.name(), declared.join(", "));
            let of = types_in_words(batch.example_types());
            TrainError::Setting(format!(
                "no plan for {name} batches of {examples} examples of {of}: planned were {planned}"
            ))
        })
    }

    /// Runs a plan on a batch; returns how much the batch's rows count, beside those of others, and where all that is written
    /// is looked at, the first node that wrote something that is not finite.
    pub(crate) fn run(
        &mut self,
        plan: usize,
        batch: &Batch,
        look: bool,
    ) -> Result<(f64, Option<NodeId>), TrainError> {
        let share = self.feed.take(self.types[plan].model, batch, self.trainer.seed, self.steps_done)?;
        // States may be half written from here on, until the whole step is done.
        self.spoilt |= self.types[plan].kind == BatchKind::Train;
        // A fixed array, because the step loop allocates nothing.
        let mut inputs: [&[u8]; MOST_INPUTS] = [&[]; MOST_INPUTS];
        let batch_type = &self.types[plan];
        for (slot, role) in inputs.iter_mut().zip(&batch_type.inputs) {
            *slot = match *role {
                InputRole::Input(i) => batch.input(i).unwrap_or(&[]),
                InputRole::Labels => cast_slice(self.feed.labels()),
                InputRole::Weights => cast_slice(self.feed.weights()),
                InputRole::Random => cast_slice(self.feed.key()),
                InputRole::Examples => cast_slice(self.feed.examples()),
                InputRole::Setting(i) => &self.settings.1[i],
            };
        }
        let inputs = &inputs[..batch_type.inputs.len()];
        if look {
            return Ok((share, self.prepared.run_until_bad(plan, inputs)?));
        }
        self.prepared.run(plan, inputs)?;
        Ok((share, None))
    }

    fn read_loss(&self, plan: usize) -> Result<f64, TrainError> {
        let Some((output, dtype)) = self.types[plan].loss else { return Ok(f64::NAN) };
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..dtype.bytes()];
        self.prepared.read_output(plan, output, bytes)?;
        Ok(match dtype {
            DType::F64 => f64::from_ne_bytes((&*bytes).try_into().unwrap_or_default()),
            _ => f64::from(f32::from_ne_bytes((&*bytes).try_into().unwrap_or_default())),
        })
    }

    /// One training step on a batch; returns its loss.
    pub fn train_step(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        self.from_seed = false;
        self.step_on(batch)
    }

    /// Sets the optimizer's numbers for the next step.
    pub(crate) fn set_settings(&mut self, plan: usize) -> Result<(), TrainError> {
        let (schedule, step) = (self.trainer.schedule, self.steps_done - self.schedule_start);
        let scale = schedule.scale_after(self.trainer.warmup, step, self.total_steps);
        let scale = scale * self.plateau.scale(schedule) * self.own_scale;
        // Steps that f16 skipped are none to the optimizer.
        let done = self.steps_done.saturating_sub(self.scale()?.map_or(0, |found| found.skipped));
        self.trainer.optimizer.settings(done, scale, &mut self.settings.0);
        let dtype = self.types[plan].loss.map_or(DType::F32, |(_, dtype)| dtype);
        for (value, bytes) in self.settings.0.iter().zip(&mut self.settings.1) {
            bytes.clear();
            push(bytes, dtype, *value);
        }
        Ok(())
    }

    /// One training step.
    pub(crate) fn step_on(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let plan = self.find(BatchKind::Train, batch)?;
        self.set_settings(plan)?;
        let (spoilt, before) = (self.spoilt, self.scale()?);
        self.run(plan, batch, false)?;
        let loss = self.read_loss(plan)?;
        // The loss itself is not scaled. Gradients that overflow may be better at half the scale, until it is the smallest.
        let skipped = |(before, after): (Scale, Scale)| before.skipped < after.skipped;
        let at_least = before.is_some_and(|found| found.scale <= MIN_LOSS_SCALE);
        let gradients = at_least && before.zip(self.scale()?).is_some_and(skipped);
        if !loss.is_finite() || gradients {
            let step = self.steps_done;
            let diverged = Diverged { step, loss, gradients, origin: None, checkpoint: None };
            return Err(TrainError::Diverged(Box::new(diverged)));
        }
        self.spoilt = spoilt;
        self.steps_done += 1;
        Ok(loss)
    }

    /// The loss scale and the steps that were skipped, in f16.
    pub fn scale(&self) -> Result<Option<Scale>, TrainError> {
        let Some(states) = self.scale_states else { return Ok(None) };
        let mut numbers = [0.0; 2];
        for (number, state) in numbers.iter_mut().zip(states) {
            let mut bytes = [0; 4];
            self.prepared.read_state(state, 0, &mut bytes)?;
            *number = f64::from(f32::from_ne_bytes(bytes));
        }
        Ok(Some(Scale { scale: numbers[0], skipped: numbers[1] as u64 }))
    }

    /// The batches to train on, as many ahead as the plan leaves room for.
    pub(crate) fn training_batches(&self, data: &Dataset) -> Pipeline {
        self.trainer.within(&self.plans.sheet, BatchKind::Train, self.trainer.training_batches(data))
    }

    /// Loss and, for classes, accuracy over one epoch of a part of the data.
    pub fn evaluate(&mut self, part: &Pipeline) -> Result<Evaluation, TrainError> {
        self.evaluate_with(part, &mut [])
    }

    /// As [`Session::evaluate`], and metrics beside it. They need plans that give the model's output
    /// ([`Trainer::report`]).
    pub fn evaluate_with(
        &mut self,
        part: &Pipeline,
        metrics: &mut [Box<dyn Metric>],
    ) -> Result<Evaluation, TrainError> {
        let size = self.batch_size(BatchKind::Evaluate);
        let part = self.trainer.within(&self.plans.sheet, BatchKind::Evaluate, part.batch(size));
        let mut batches = part.start_epoch(Cursor::default())?;
        let (mut loss, mut shares, mut examples) = (0.0, 0.0, 0u64);
        let mut hits = Hits::default();
        while let Some(batch) = batches.next()? {
            let plan = self.find(BatchKind::Evaluate, batch)?;
            let (share, _) = self.run(plan, batch, false)?;
            loss += self.read_loss(plan)? * share;
            shares += share;
            examples += batch.examples() as u64;
            if let Some((output, bytes)) = self.types[plan].predictions {
                let predictions = &mut self.results[..bytes / 4];
                self.prepared.read_output(plan, output, cast_slice_mut(predictions))?;
                hits.count(cast_slice(predictions), batch.labels());
            }
            if !metrics.is_empty() {
                self.tell(plan, batch, metrics)?;
            }
        }
        self.count_skipped(&batches);
        let classes = self.trainer.model.target().bound.is_some();
        let loss = loss / shares.max(f64::MIN_POSITIVE);
        Ok(Evaluation { loss, accuracy: hits.accuracy(), examples, classes })
    }

    /// Gives a batch's outputs to metrics.
    fn tell(
        &mut self,
        plan: usize,
        batch: &Batch,
        metrics: &mut [Box<dyn Metric>],
    ) -> Result<(), TrainError> {
        let (output, bytes) = self.types[plan].output.ok_or_else(|| {
            TrainError::Setting(
                "metrics need the model's output: plan with `Trainer::report(Report::Output)`".into(),
            )
        })?;
        let values = &mut self.results[..bytes / 4];
        self.prepared.read_output(plan, output, cast_slice_mut(values))?;
        let labels = self.feed.labels();
        let (targets, width) = match self.trainer.model.target().bound {
            Some(_) => (Targets::Classes(labels), values.len() / labels.len().max(1)),
            None => (Targets::Values(cast_slice(labels)), values.len() / batch.examples().max(1)),
        };
        let outputs = Outputs::Scores { values, width };
        // A loss of one row for several labels says nothing of each.
        let shares = self.feed.shares();
        let each = matches!(targets, Targets::Classes(labels) if labels.len() == shares.len());
        let rows = Rows::new(outputs, targets, if each { shares } else { &[] })?;
        metrics.iter_mut().try_for_each(|metric| metric.update(&rows))?;
        Ok(())
    }

    /// The model's outputs for one batch.
    pub fn predict(&mut self, batch: &Batch) -> Result<Vec<HostTensor>, TrainError> {
        let plan = self.find(BatchKind::Predict, batch)?;
        self.run(plan, batch, false)?;
        let plans = self.plans.clone();
        let graph = &plans.plans[plan].graph;
        let read = |(i, output): (usize, &plimsoll_graph::Output)| {
            let mut tensor = HostTensor::zeros(graph.ty(output.value).clone());
            self.prepared.read_output(plan, i, tensor.as_bytes_mut())?;
            Ok(tensor)
        };
        graph.outputs.iter().enumerate().map(read).collect()
    }

    /// The model's outputs for one epoch of a part of the data, given to `each` batch after batch, in order.
    pub fn predict_each<E: From<TrainError>>(
        &mut self,
        part: &Pipeline,
        mut each: impl FnMut(&[HostTensor]) -> Result<(), E>,
    ) -> Result<(), E> {
        let size = self.batch_size(BatchKind::Predict);
        let part = self.trainer.within(&self.plans.sheet, BatchKind::Predict, part.batch(size));
        let mut batches = part.start_epoch(Cursor::default()).map_err(TrainError::from)?;
        while let Some(batch) = batches.next().map_err(TrainError::from)? {
            each(&self.predict(batch)?)?;
        }
        self.count_skipped(&batches);
        Ok(())
    }

    /// A state by its name, like `dense1/kernel`.
    pub fn state(&self, name: &str) -> Result<HostTensor, TrainError> {
        let index = self.state_index(name)?;
        let mut tensor = HostTensor::zeros(self.plans.states[index].ty.clone());
        let mut bytes = vec![0; tensor.ty().bytes()];
        self.prepared.read_state(index, 0, &mut bytes)?;
        tensor.copy_from_bytes(&bytes);
        Ok(tensor)
    }

    /// Replaces a state.
    pub fn set_state(&mut self, name: &str, tensor: &HostTensor) -> Result<(), TrainError> {
        let index = self.state_index(name)?;
        let wanted = &self.plans.states[index].ty;
        if tensor.ty() != wanted {
            return Err(TrainError::Setting(format!("`{name}` is {wanted}, {} was given", tensor.ty())));
        }
        self.from_seed = false;
        Ok(self.prepared.write_state(index, 0, tensor.as_bytes())?)
    }

    fn state_index(&self, name: &str) -> Result<usize, TrainError> {
        let found = self.plans.states.iter().position(|s| s.name == name);
        found.ok_or_else(|| {
            let near = nearest(name, self.plans.states.iter().map(|s| s.name.as_str()));
            let near = near.map_or(String::new(), |near| format!(": the nearest is `{near}`"));
            TrainError::Setting(format!("the model has no state named `{name}`{near}"))
        })
    }

    /// Sets parameters and running statistics from a safetensors file, under this program's names, PyTorch's or
    /// Keras's (`layer1.0.conv1.weight` for `layer1/0/conv1/kernel`, with its axes in PyTorch's order). A tensor that is missing,
    /// of another shape, or that the model does not have is an error that names it.
    pub fn load(&mut self, path: &Path) -> Result<(), TrainError> {
        // Nothing may be half loaded and then saved.
        (self.spoilt, self.from_seed) = (true, false);
        weights::load(self.prepared.as_mut(), &self.plans, path)?;
        self.spoilt = false;
        Ok(())
    }

    /// Sets parameters (their running averages, where there are some) and running statistics from a folder's newest good
    /// checkpoint, for evaluating and predicting: optimizer and data may be others. Returns the checkpoint.
    pub fn load_checkpoint(&mut self, folder: &Path) -> Result<PathBuf, TrainError> {
        (self.spoilt, self.from_seed) = (true, false);
        let (path, _) = newest(folder, |path| {
            weights::load_checkpoint(self.prepared.as_mut(), &self.plans, path)?;
            Ok(path.to_path_buf())
        })?;
        self.spoilt = false;
        Ok(path)
    }

    /// Writes parameters and running statistics as a safetensors file, under this program's names.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        self.save_as(path, Names::Own)
    }

    /// As [`Session::save`], under names and in layouts of choice; [`Session::load`] reads them all.
    pub fn save_as(&self, path: &Path, names: Names) -> Result<(), TrainError> {
        self.check_unspoilt()?;
        weights::save(self.prepared.as_ref(), &self.plans, names, &mut self.buffer.borrow_mut(), path)
    }

    /// Refuses to save states that may be half written.
    pub(crate) fn check_unspoilt(&self) -> Result<(), TrainError> {
        if self.spoilt {
            return Err(TrainError::Setting(
                "the last step or load failed, so the weights are not saved".into(),
            ));
        }
        Ok(())
    }
}

impl Planned {
    fn new(trainer: &Trainer, plans: &PlanSet, plan: usize, batch: BatchType) -> Result<Self, TrainError> {
        let BatchType { kind, model, examples } = batch;
        let graph = &plans.plans[plan].graph;
        let names = trainer.optimizer.setting_names();
        let fields = trainer.model_at(model).inputs().len();
        let role = |name: &str| match name {
            LABELS => Some(InputRole::Labels),
            WEIGHTS => Some(InputRole::Weights),
            RANDOM => Some(InputRole::Random),
            EXAMPLES => Some(InputRole::Examples),
            _ => match name.strip_prefix("optimizer/") {
                Some(setting) => names.iter().position(|n| n == setting).map(InputRole::Setting),
                None => (0..fields).find(|&i| input_name(i) == name).map(InputRole::Input),
            },
        };
        let inputs = graph.inputs.iter().map(|input| {
            role(&input.name)
                .ok_or_else(|| ExecuteError::Input(format!("nothing feeds the input `{}`", input.name)))
        });
        let inputs: Vec<InputRole> = inputs.collect::<Result<_, _>>()?;
        let output = |name: &str| graph.outputs.iter().position(|o| o.name == name);
        let ty = |i: usize| graph.ty(graph.outputs[i].value);
        Ok(Self {
            kind,
            model,
            examples,
            inputs,
            loss: output(LOSS).map(|i| (i, ty(i).dtype)),
            predictions: output(PREDICTIONS).map(|i| (i, ty(i).bytes())),
            output: output(OUTPUT).map(|i| (i, ty(i).bytes())),
        })
    }
}
