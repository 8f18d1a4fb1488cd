//! A run with its memory.

use crate::init::{initialise, push};
use crate::{BatchKind, Control, Evaluation, Report, TrainError, TrainEvent, Trainer, weights};
use plimsoll_data::{Batch, Batches, Cursor, Dataset, Order, Source};
use plimsoll_nn::step::{INPUTS, LABELS, LOGITS, PREDICTIONS, WEIGHTS};
use plimsoll_plan::{ExecuteError, PlanSet, Prepared};
use plimsoll_tensor::{DType, HostTensor};
use plimsoll_transform::LOSS;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Inputs of a step at most: examples, labels, weights, and the optimizer's settings.
const MOST_INPUTS: usize = 16;

/// Step times kept for the median.
const TIMES_KEPT: usize = 4096;

/// A trainer's plan with its memory: trains, evaluates, predicts. Dropping it gives the memory back.
pub struct Session<'t> {
    trainer: &'t Trainer,
    plans: Arc<PlanSet>,
    prepared: Box<dyn Prepared>,
    types: Vec<BatchType>,
    /// The optimizer's numbers for this step, and the same as elements.
    settings: (Vec<f64>, Vec<Vec<u8>>),
    /// Labels and predictions of one batch, for the accuracy.
    predictions: Vec<u8>,
    steps_done: u64,
    /// Where the learning rate's schedule started: each `fit` runs one of its own.
    schedule_start: u64,
    /// Steps of the whole run, for the learning rate.
    total_steps: u64,
    /// Where the training data goes on.
    cursor: Cursor,
    /// Whether a step went wrong after it had begun to write states.
    spoilt: bool,
}

/// One plan of the set, with what its inputs and outputs are.
struct BatchType {
    kind: BatchKind,
    examples: usize,
    inputs: Vec<InputRole>,
    /// Row weights, `1 / rows` each.
    weights: Vec<u8>,
    /// Place and type of the loss output.
    loss: Option<(usize, DType)>,
    predictions: Option<(usize, usize)>,
    logits: Option<usize>,
}

#[derive(Clone, Copy)]
enum InputRole {
    Inputs,
    Labels,
    Weights,
    Setting(usize),
}

impl<'t> Session<'t> {
    pub(crate) fn new(trainer: &'t Trainer, plans: PlanSet, data: &Dataset) -> Result<Self, TrainError> {
        if trainer.optimizer.setting_names().len() + 3 > MOST_INPUTS {
            return Err(TrainError::Setting(format!(
                "an optimizer may have at most {} settings",
                MOST_INPUTS - 3
            )));
        }
        let plans = Arc::new(plans);
        let declared = trainer.batch_types(data);
        if declared.len() != plans.plans.len() {
            return Err(TrainError::Setting("this plan was made for other data or another trainer".into()));
        }
        let types: Vec<BatchType> = (declared.iter().enumerate())
            .map(|(i, &(kind, examples))| BatchType::new(trainer, &plans, i, kind, examples))
            .collect::<Result<_, _>>()?;
        let mut prepared = trainer.executor.prepare(plans.clone())?;
        initialise(prepared.as_mut(), &plans.states, trainer.seed)?;
        let settings = trainer.optimizer.setting_names().len();
        let predictions =
            types.iter().filter_map(|t| t.predictions).map(|(_, bytes)| bytes).max().unwrap_or(0);
        Ok(Self {
            trainer,
            plans,
            prepared,
            types,
            settings: (vec![0.0; settings], (0..settings).map(|_| Vec::with_capacity(8)).collect()),
            predictions: vec![0; predictions],
            steps_done: 0,
            schedule_start: 0,
            total_steps: trainer.total_steps(data),
            cursor: Cursor::default(),
            spoilt: false,
        })
    }

    /// The plan.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// Steps done so far.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    fn find(&self, kind: BatchKind, examples: usize) -> Result<usize, TrainError> {
        let found = self.types.iter().position(|t| t.kind == kind && t.examples == examples);
        found.ok_or_else(|| {
            let declared: Vec<_> =
                self.types.iter().filter(|t| t.kind == kind).map(|t| t.examples.to_string()).collect();
            let (name, declared) = (kind.name(), declared.join(" and "));
            TrainError::Setting(format!(
                "no plan for {name} batches of {examples} examples: planned were {declared}"
            ))
        })
    }

    fn run(&mut self, plan: usize, batch: &Batch) -> Result<(), TrainError> {
        let model = self.trainer.model.as_ref();
        let (Some(examples), None) = (batch.input(0), batch.input(1)) else {
            let has = batch.inputs().len();
            return Err(TrainError::Setting(format!("the model takes one input, the batch has {has}")));
        };
        check_range("label", batch.labels(), model.classes())?;
        if let Some(bound) = model.input_bound() {
            check_range("token", examples, bound)?;
        }
        // A fixed array, because the step loop allocates nothing.
        let mut inputs: [&[u8]; MOST_INPUTS] = [&[]; MOST_INPUTS];
        let batch_type = &self.types[plan];
        for (slot, role) in inputs.iter_mut().zip(&batch_type.inputs) {
            *slot = match *role {
                InputRole::Inputs => examples,
                InputRole::Labels => batch.labels(),
                InputRole::Weights => &batch_type.weights,
                InputRole::Setting(i) => &self.settings.1[i],
            };
        }
        Ok(self.prepared.run(plan, &inputs[..batch_type.inputs.len()])?)
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
        let plan = self.find(BatchKind::Train, batch.examples())?;
        let scale = self.trainer.schedule.scale(self.steps_done - self.schedule_start, self.total_steps);
        self.trainer.optimizer.settings(self.steps_done, scale, &mut self.settings.0);
        let dtype = self.types[plan].loss.map_or(DType::F32, |(_, dtype)| dtype);
        for (value, bytes) in self.settings.0.iter().zip(&mut self.settings.1) {
            bytes.clear();
            push(bytes, dtype, *value);
        }
        // States may be half written from here on; only a whole step with a finite loss makes them good again.
        let spoilt = std::mem::replace(&mut self.spoilt, true);
        self.run(plan, batch)?;
        let loss = self.read_loss(plan)?;
        if !loss.is_finite() {
            return Err(TrainError::Diverged { step: self.steps_done, loss });
        }
        self.spoilt = spoilt;
        self.steps_done += 1;
        Ok(loss)
    }

    /// Trains for the trainer's epochs or steps, evaluating the test part after every epoch and at the end. Called
    /// again, it goes on with the data where it stopped, and the learning rate's schedule starts anew.
    pub fn fit(
        &mut self,
        data: &Dataset,
        listen: &mut dyn FnMut(&TrainEvent) -> Control,
    ) -> Result<Report, TrainError> {
        let order = Order::Shuffled { seed: self.trainer.seed };
        let mut batches = Batches::new(data.train.as_ref(), self.trainer.batch, order, self.cursor)?;
        let mut batch = batches.batch()?;
        self.schedule_start = self.steps_done;
        let steps = self.total_steps;
        if steps == 0 {
            return Err(TrainError::Setting(
                "a run needs at least one step: set epochs or steps to 1 or more".into(),
            ));
        }
        let mut log = Log { times: Vec::with_capacity(TIMES_KEPT), ..Log::default() };
        let mut stopped = false;
        let mut evaluation = None;
        while log.steps < steps && !stopped {
            let start = Instant::now();
            let more = batches.next_into(&mut batch)?;
            if more {
                let epoch = batches.cursor().epoch;
                let loss = self.train_step(&batch)?;
                let time = start.elapsed();
                log.step(loss, batch.examples(), time);
                let examples = batch.examples();
                let event = TrainEvent::Step { step: log.steps, steps, epoch, loss, examples, time };
                stopped = listen(&event) == Control::Stop;
            }
            if !more || log.steps == steps || stopped {
                let epoch = batches.cursor().epoch - u64::from(!more);
                let figures = self.evaluate(data.test.as_ref())?;
                let train_loss = log.end_epoch();
                evaluation = Some(figures);
                let event = TrainEvent::Epoch { epoch, train_loss, evaluation: figures };
                stopped |= listen(&event) == Control::Stop;
            }
        }
        self.cursor = batches.cursor();
        let evaluation = match evaluation {
            Some(evaluation) => evaluation,
            None => self.evaluate(data.test.as_ref())?,
        };
        Ok(log.report(evaluation, self.plans.plans[0].graph.micro_batches))
    }

    /// Loss and accuracy over a source.
    pub fn evaluate(&mut self, source: &dyn Source) -> Result<Evaluation, TrainError> {
        let size = self.trainer.inference_batch();
        let mut batches = Batches::new(source, size, Order::Sequential, Cursor::default())?;
        let mut batch = batches.batch()?;
        let (mut loss, mut right, mut rows, mut examples) = (0.0, 0u64, 0u64, 0u64);
        let mut counted = false;
        while batches.next_into(&mut batch)? {
            let plan = self.find(BatchKind::Evaluate, batch.examples())?;
            self.run(plan, &batch)?;
            loss += self.read_loss(plan)? * batch.examples() as f64;
            examples += batch.examples() as u64;
            if let Some((output, bytes)) = self.types[plan].predictions {
                counted = true;
                let predictions = &mut self.predictions[..bytes];
                self.prepared.read_output(plan, output, predictions)?;
                let pairs = predictions.chunks_exact(4).zip(batch.labels().chunks_exact(4));
                right += pairs.filter(|(p, l)| p == l).count() as u64;
                rows += (bytes / 4) as u64;
            }
        }
        let accuracy = counted.then(|| right as f64 / rows.max(1) as f64);
        Ok(Evaluation { loss: loss / examples.max(1) as f64, accuracy, examples })
    }

    /// The logits of one batch, row by row.
    pub fn predict(&mut self, batch: &Batch) -> Result<HostTensor, TrainError> {
        let plan = self.find(BatchKind::Predict, batch.examples())?;
        self.run(plan, batch)?;
        let graph = &self.plans.plans[plan].graph;
        let output =
            self.types[plan].logits.ok_or_else(|| TrainError::Setting("the plan has no logits".into()))?;
        let mut logits = HostTensor::zeros(graph.ty(graph.outputs[output].value).clone());
        let mut bytes = vec![0; logits.ty().bytes()];
        self.prepared.read_output(plan, output, &mut bytes)?;
        logits.copy_from_bytes(&bytes);
        Ok(logits)
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
        Ok(self.prepared.write_state(index, 0, tensor.as_bytes())?)
    }

    fn state_index(&self, name: &str) -> Result<usize, TrainError> {
        let found = self.plans.states.iter().position(|s| s.name == name);
        found.ok_or_else(|| TrainError::Setting(format!("the model has no state named `{name}`")))
    }

    /// Writes parameters and running statistics as a safetensors file.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        if self.spoilt {
            return Err(TrainError::Setting("the last step failed, so the weights are not saved".into()));
        }
        weights::save(self.prepared.as_ref(), &self.plans, path)
    }
}

impl BatchType {
    fn new(
        trainer: &Trainer,
        plans: &PlanSet,
        plan: usize,
        kind: BatchKind,
        examples: usize,
    ) -> Result<Self, TrainError> {
        let graph = &plans.plans[plan].graph;
        let names = trainer.optimizer.setting_names();
        let role = |name: &str| match name {
            INPUTS => Some(InputRole::Inputs),
            LABELS => Some(InputRole::Labels),
            WEIGHTS => Some(InputRole::Weights),
            _ => {
                let setting = name.strip_prefix("optimizer/")?;
                names.iter().position(|n| *n == setting).map(InputRole::Setting)
            }
        };
        let inputs = graph.inputs.iter().map(|input| {
            role(&input.name)
                .ok_or_else(|| ExecuteError::Input(format!("nothing feeds the input `{}`", input.name)))
        });
        let inputs: Vec<InputRole> = inputs.collect::<Result<_, _>>()?;
        let rows = examples * trainer.model.labels().elements();
        let mut weights = Vec::new();
        if let Some(input) = graph.input(WEIGHTS) {
            let dtype = graph.ty(input.value).dtype;
            weights.reserve_exact(rows * dtype.bytes());
            (0..rows).for_each(|_| push(&mut weights, dtype, 1.0 / rows as f64));
        }
        let output = |name: &str| graph.outputs.iter().position(|o| o.name == name);
        let ty = |i: usize| graph.ty(graph.outputs[i].value);
        Ok(Self {
            kind,
            examples,
            inputs,
            weights,
            loss: output(LOSS).map(|i| (i, ty(i).dtype)),
            predictions: output(PREDICTIONS).map(|i| (i, ty(i).bytes())),
            logits: output(LOGITS),
        })
    }
}

/// Refuses i32 elements outside `0..bound`.
fn check_range(what: &str, bytes: &[u8], bound: usize) -> Result<(), TrainError> {
    for (i, element) in bytes.chunks_exact(4).enumerate() {
        let value = i32::from_ne_bytes([element[0], element[1], element[2], element[3]]);
        if usize::try_from(value).is_ok_and(|v| v < bound) {
            continue;
        }
        return Err(TrainError::Setting(format!(
            "{what} {value} at place {i} of the batch is not in 0..{bound}"
        )));
    }
    Ok(())
}

/// Figures of a run in the making.
#[derive(Default)]
struct Log {
    steps: u64,
    examples: u64,
    last_loss: f64,
    epoch_loss: f64,
    epoch_steps: u64,
    warm_examples: u64,
    warm_time: Duration,
    times: Vec<Duration>,
}

impl Log {
    fn step(&mut self, loss: f64, examples: usize, time: Duration) {
        if self.steps > 0 {
            self.warm_examples += examples as u64;
            self.warm_time += time;
        }
        // A long run keeps its latest times.
        let place = self.steps as usize % TIMES_KEPT;
        if place < self.times.len() {
            self.times[place] = time
        } else {
            self.times.push(time)
        }
        self.steps += 1;
        self.examples += examples as u64;
        self.last_loss = loss;
        self.epoch_loss += loss;
        self.epoch_steps += 1;
    }

    fn end_epoch(&mut self) -> f64 {
        let mean = self.epoch_loss / self.epoch_steps.max(1) as f64;
        (self.epoch_loss, self.epoch_steps) = (0.0, 0);
        mean
    }

    fn report(mut self, evaluation: Evaluation, micro_batches: usize) -> Report {
        let warm = if self.times.len() > 1 { &mut self.times[1..] } else { &mut self.times[..] };
        warm.sort_unstable();
        let step_median = warm.get(warm.len() / 2).copied().unwrap_or_default();
        let (examples, time) =
            if self.steps > 1 { (self.warm_examples, self.warm_time) } else { (self.examples, step_median) };
        Report {
            steps: self.steps,
            examples: self.examples,
            final_loss: self.last_loss,
            evaluation,
            step_median,
            samples_per_second: examples as f64 / time.as_secs_f64().max(1e-9),
            micro_batches,
        }
    }
}
