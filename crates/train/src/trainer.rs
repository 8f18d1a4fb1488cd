//! What a run is, before it has any memory.

mod ahead;
mod looping;
mod variants;

pub(crate) use variants::{BatchType, in_words as types_in_words};

use crate::checkpoint::Checkpoints;
use crate::metrics::MetricSpec;
use crate::plan_cache::PlanCache;
use crate::planning::Planning;
use crate::{Control, Monitor, Report, Schedule, Session, TrainError, TrainEvent, Watch};
pub use ahead::BATCHES_AHEAD;
use plimsoll_data::{BATCHES, CACHE, DATA_SET, DECODERS, Dataset, Pipeline};
use plimsoll_graph::{Flow, Graph, Node, Op, ValueId};
use plimsoll_nn::{Model, Optimizer, Policy, Precision, step};
use plimsoll_plan::{
    Action, Budget, BufferKind, Entry, ExecutionPlan, Executor, PlanError, PlanSet, in_words, verify,
};
use plimsoll_transform::{
    LOSS, Pass, SplitError, accumulate, accumulate_local, check_same_ops, check_split, optimize,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Heap that a plan and its prepared form hold for each node and for each instruction inside one, measured on the zoo's
/// models (560 to 690 bytes) and rounded up.
const PLAN_BYTES_PER_PART: usize = 720;

/// Micro-batches tried at most.
const MOST_SPLITS: usize = 1 << 16;

/// The load sheet's entry for batches on their way to the arena.
pub const BATCH_BUFFERS: &str = "batch buffers";

/// The load sheet's entry for the stacks of input workers.
pub const INPUT_STACKS: &str = "input stacks";

/// Records of the buffer through which a stream is shuffled that does not say how itself.
const SHUFFLED_RECORDS: usize = 1024;

/// The load sheet's entry for a model's outputs.
pub const OUTPUTS: &str = "outputs";

/// The load sheet's entry for states on their way to and from files.
pub const STATE_BUFFER: &str = "state buffer";

/// The load sheet's entry for the heap.
pub const HEAP_CAP: &str = "heap cap";

/// The load sheet's entry for metrics.
pub const METRICS: &str = "metrics";

/// Page tables of an arena: eight bytes for every page of 4 KiB. Huge pages need fewer, but the system may have none to
/// give.
fn page_tables(arena_bytes: usize) -> Entry {
    Entry::new("page tables", arena_bytes.div_ceil(4 << 10) * 8, "of the arena, in the kernel")
}

/// Heap bytes of nodes: their own, and those of the instructions inside.
fn plan_bytes<'n>(nodes: impl Iterator<Item = &'n Node>) -> usize {
    let parts = nodes.map(|node| match &node.op {
        Op::Fused(region) => 1 + region.instructions.len(),
        _ => 1,
    });
    parts.sum::<usize>() * PLAN_BYTES_PER_PART
}

/// Heap bytes of plans: of their graphs, of every step that is not the first of its node, and of transfers.
fn plans_bytes(plans: &PlanSet) -> usize {
    let of = |plan: &ExecutionPlan| {
        let again = plan.repeats().map(|node| plan.graph.node(node));
        let transfers =
            plan.steps.iter().filter(|s| matches!(s.action, Action::Load { .. } | Action::Store { .. }));
        plan_bytes(again) + plan_bytes(plan.graph.nodes.iter()) + transfers.count() * PLAN_BYTES_PER_PART
    };
    plans.plans.iter().map(of).sum()
}

/// The largest arena that with its page tables takes so many bytes.
fn largest_arena(bytes: usize) -> usize {
    let pages = bytes / ((4 << 10) + 8);
    pages * (4 << 10)
}

/// A disk wears out as it is written: spilling what would fit without it has to save a part in so many of a step.
const WORTH_SPILLING: u64 = 32;

/// What a plan may do to stay under the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// Every step runs once.
    Once,
    /// Steps may run again.
    Repeat,
    /// Steps may run again, and states and values may be spilled.
    Spill,
}

/// Whether a plan failed for want of memory.
fn is_short(result: &Result<PlanSet, TrainError>) -> bool {
    matches!(result, Err(TrainError::Plan(PlanError::Infeasible(_))))
}

/// The faster of two plans; of two that do not fit, the one that needs less.
fn better(
    one: Result<PlanSet, TrainError>,
    other: Result<PlanSet, TrainError>,
) -> Result<PlanSet, TrainError> {
    let time = |plans: &PlanSet| plans.plans.first().map_or(0, |p| p.nanoseconds);
    let needed = |error: &TrainError| match error {
        TrainError::Plan(PlanError::Infeasible(short)) => short.needed_bytes,
        _ => usize::MAX,
    };
    match (one, other) {
        // A plan that failed for another reason is a fault to be seen.
        (Err(e), _) | (_, Err(e)) if needed(&e) == usize::MAX => Err(e),
        (Ok(a), Ok(b)) => Ok(if time(&b) < time(&a) { b } else { a }),
        (Ok(a), Err(_)) => Ok(a),
        (Err(_), Ok(b)) => Ok(b),
        (Err(a), Err(b)) => Err(if needed(&b) < needed(&a) { b } else { a }),
    }
}

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

    /// Memory of a run's input: batches of training and of the rest with their labels, weights and numbers, and what the
    /// pipelines take besides.
    fn input_entries(&self, data: &Dataset, types: &[BatchType]) -> Vec<Entry> {
        let largest = |trains: bool| {
            let kinds = types.iter().filter(|t| (t.kind == BatchKind::Train) == trains);
            kinds.map(|t| t.examples).max().unwrap_or(0)
        };
        let sizes = [largest(true), largest(false)];
        // The labels once more, share and weight of each row, and a number for each example.
        let label = self.most(|model| model.target().ty.bytes());
        let row_bytes = self.most(|model| step::rows(model).elements()).saturating_mul(8);
        let feed = label.saturating_add(row_bytes).saturating_add(4).saturating_mul(sizes[0].max(sizes[1]));
        let mut batches = Entry::new(BATCH_BUFFERS, feed, "batches on the way in, row weights");
        let mut others: Vec<Entry> = Vec::new();
        let pipelines = [self.training_batches(data), data.test.batch(sizes[1])];
        let pipelines = pipelines.map(|pipeline| pipeline.prefetch_within(0));
        for (pipeline, _) in pipelines.iter().zip(sizes).filter(|(_, size)| *size > 0) {
            let stacks = (pipeline.stack_bytes() > 0).then(|| {
                let how = format!("{} input workers", pipeline.worker_count());
                Entry::new(INPUT_STACKS, pipeline.stack_bytes(), how)
            });
            let shares =
                pipeline.bytes().into_iter().filter(|share| ![DATA_SET, CACHE].contains(&share.name));
            let entries = shares.map(|share| Entry::new(share.name, share.bytes, share.how));
            for entry in entries.chain(stacks) {
                let same = others.iter_mut().find(|e| e.name == entry.name);
                match (entry.name.as_str(), same) {
                    (BATCHES, _) => batches.bytes = batches.bytes.saturating_add(entry.bytes),
                    // Training's workers rest during an evaluation.
                    (DECODERS, Some(same)) if entry.bytes > same.bytes => *same = entry,
                    (DECODERS, Some(_)) => {}
                    (_, Some(same)) => same.bytes = same.bytes.saturating_add(entry.bytes),
                    (_, None) => others.push(entry),
                }
            }
        }
        others.insert(0, batches);
        others
    }

    /// Whether steps are split with statistics of each micro-batch.
    fn splits_statistics(&self) -> bool {
        let mixes = |graph: &Graph| graph.flows().contains(&Flow::Mixed);
        self.split_batch_norm && self.training_step().is_ok_and(|graph| mixes(&graph))
    }

    /// Examples that a micro-batch has a multiple of; of several models' blocks, powers of two, the largest. Where the bits differ anyhow, blocks do not matter; statistics need
    /// two examples.
    pub fn block(&self) -> usize {
        if self.splits_statistics() { 2 } else { self.most(step::example_block) }
    }

    /// The numbers of micro-batches to try, at least one, the fewest first: they cost least.
    fn splits(&self) -> Vec<usize> {
        let block = self.block();
        let fits = |k: &usize| {
            self.step_examples().is_multiple_of(*k) && (self.step_examples() / k).is_multiple_of(block)
        };
        match self.micro_batches {
            Some(asked) => vec![asked],
            None if !self.kinds.contains(&BatchKind::Train) => vec![1],
            None => {
                let most = (self.step_examples() / block.max(1)).min(MOST_SPLITS);
                // At least one for each batch of a step.
                let least = self.accumulate.max(1);
                let more = (2..=most / least).map(|k| k * least).filter(fits);
                std::iter::once(least).chain(more).collect()
            }
        }
    }

    /// The graph of a batch type, optimized and split.
    fn graph(&self, batch: BatchType, micro_batches: usize) -> Result<Graph, TrainError> {
        let BatchType { kind, examples, .. } = batch;
        let model = self.model_at(batch.model);
        if kind != BatchKind::Train {
            let graph = match kind {
                BatchKind::Evaluate => step::evaluation(model, examples, self.report)?,
                _ => step::prediction(model, examples)?,
            };
            let graph = step::inference_as(&self.policy, graph)?;
            return Ok(optimize(step::averaged(graph, self.optimizer.as_ref()), &self.without)?);
        }
        let split = self.split(examples, micro_batches);
        let training = |examples| step::training_as(&self.policy, model, self.optimizer.as_ref(), examples);
        let graph = training(examples / split)?;
        if split == 1 {
            return Ok(optimize(graph, &self.without)?);
        }
        if self.splits_statistics() {
            check_same_ops(&training(examples)?, &graph)?;
            return Ok(accumulate_local(&optimize(graph, &self.without)?, split)?);
        }
        check_split(&training(examples)?, &graph)?;
        Ok(accumulate(&optimize(graph, &self.without)?, split)?)
    }

    /// The training step of a whole batch, as it was built.
    pub(crate) fn training_step(&self) -> Result<Graph, TrainError> {
        let (model, optimizer) = (self.model.as_ref(), self.optimizer.as_ref());
        Ok(step::training_as(&self.policy, model, optimizer, self.step_examples())?)
    }

    /// Whether there is a number of micro-batches other than one that steps may be split into.
    pub fn can_split(&self) -> Result<bool, TrainError> {
        let Some(&parts) = self.splits().get(1) else { return Ok(false) };
        let whole = BatchType { kind: BatchKind::Train, model: 0, examples: self.step_examples() };
        match self.graph(whole, parts) {
            Ok(_) => Ok(true),
            Err(TrainError::Split(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// In how many micro-batches a step of so many examples runs: as many as were asked for, or, for a remainder, the
    /// fewest that keep each no larger than the full batch's and end at a block.
    fn split(&self, examples: usize, micro_batches: usize) -> usize {
        let asked = micro_batches.clamp(1, examples.max(1));
        if asked == 1 || examples == self.step_examples() {
            return if examples.is_multiple_of(asked) { asked } else { 1 };
        }
        let (block, most) = (self.block(), self.step_examples() / asked);
        let fits = |k: &usize| {
            examples.is_multiple_of(*k) && (examples / k).is_multiple_of(block) && examples / k <= most
        };
        (1..=examples).find(fits).unwrap_or(1)
    }

    /// Plans every batch type and checks the plan, in as few micro-batches as the line allows unless their number is
    /// given. Nothing of what is planned is allocated.
    pub fn plan(&self, data: &Dataset) -> Result<PlanSet, TrainError> {
        self.plan_under(data, &mut Planning::new(self.line_bytes))
    }

    /// As [`Trainer::plan`], under a line of its own.
    pub(crate) fn plan_under(&self, data: &Dataset, planning: &mut Planning) -> Result<PlanSet, TrainError> {
        if self.step_examples() == 0 {
            return Err(TrainError::Setting(
                "a batch needs at least one example: set the batch size to 1 or more".into(),
            ));
        }
        self.check_accumulation()?;
        if let Some(parts) = self.micro_batches.filter(|&k| k > 1 && !self.step_examples().is_multiple_of(k))
        {
            let batch = self.step_examples();
            return Err(TrainError::Setting(format!(
                "a batch of {batch} does not split into {parts} equal micro-batches"
            )));
        }
        if self.micro_batches.is_some_and(|k| k > 1 && self.step_examples() / k < 2)
            && self.splits_statistics()
        {
            return Err(TrainError::Setting(
                "batch norm needs two examples for statistics: use fewer micro-batches".into(),
            ));
        }
        self.check(data)?;
        let mut found = self.fastest(data, planning);
        if is_short(&found) && planning.line_bytes > 0 {
            // Plans that go as low as they can sometimes fit where those that aim at the line do not.
            planning.lowest = true;
            let lowest = self.fastest(data, planning);
            planning.lowest = false;
            found = better(found, lowest);
        }
        if let (Err(TrainError::Split(SplitError::Mixes { layer, op })), 2..) = (&found, self.accumulate) {
            return Err(TrainError::Setting(format!(
                "layer `{layer}`: {op} mixes the examples of a batch, so that several batches are not one large one: make \
                 steps of one batch, or allow statistics of each batch (`Trainer::allow_split_batch_norm`, \
                 `--allow-split-batchnorm`)"
            )));
        }
        match &mut found {
            Ok(plans) => {
                self.check_monitor(plans)?;
                plans.sheet.unlimited_ns = planning.unlimited_ns;
                if let Some(entry) = self.batches_ahead(data, &plans.sheet) {
                    plans.sheet.add_outside(entry);
                }
                plans.sheet.notes.extend(self.precision_note(plans));
                let parts = plans.plans.first().map_or(1, |p| p.graph.micro_batches);
                if parts > 1 && self.splits_statistics() {
                    let examples = self.step_examples() / parts;
                    plans.sheet.notes.push(format!(
                        "Batch norm takes the statistics of {examples} examples at a time: the results differ from those \
                         of the whole batch."
                    ));
                }
            }
            Err(TrainError::Plan(PlanError::Infeasible(short))) => {
                short.sheet.unlimited_ns = planning.unlimited_ns;
            }
            Err(_) => {}
        }
        found
    }

    /// Refuses batches that cannot be accumulated.
    fn check_accumulation(&self) -> Result<(), TrainError> {
        let (batches, batch, block) = (self.accumulate, self.batch, self.block());
        if batches <= 1 {
            return Ok(());
        }
        if !batch.is_multiple_of(block) {
            return Err(TrainError::Setting(format!(
                "a step of {batches} batches needs batches that end at blocks of examples, and {batch} examples do not: \
                 make the batch a multiple of {block}"
            )));
        }
        match self.micro_batches {
            Some(parts) if !parts.is_multiple_of(batches) => Err(TrainError::Setting(format!(
                "a step of {batches} batches cannot run in {parts} micro-batch{}: make their number a multiple of {batches}, \
                 or leave it out",
                if parts == 1 { "" } else { "es" }
            ))),
            _ => Ok(()),
        }
    }

    /// What the precision saves at the fullest moment, in words.
    fn precision_note(&self, plans: &PlanSet) -> Option<String> {
        let precision = self.policy.precision;
        if precision == Precision::F32 {
            return None;
        }
        let plan = plans.plans.iter().max_by_key(|plan| plan.peak_bytes)?;
        let flows = plan.graph.flows();
        let at_peak = plan.buffers.iter().filter(|b| (b.first..=b.last).contains(&plan.peak_step));
        // Casts of parameters are there because of the precision, and moments are low or not without it.
        let low = at_peak.filter(|b| {
            let low = |v: ValueId| plan.graph.ty(v).dtype.is_low() && flows[v.index()] != Flow::Shared;
            !matches!(b.kind, BufferKind::State(_)) && b.value.is_some_and(low)
        });
        let bytes = in_words(low.map(|b| b.bytes).sum());
        Some(format!(
            "Precision {precision}: {bytes} at the peak are {precision}, and would be as many again in f32. Parameters are \
             f32."
        ))
    }

    /// The fastest plan found under a line.
    fn fastest(&self, data: &Dataset, planning: &mut Planning) -> Result<PlanSet, TrainError> {
        let splits = self.splits();
        let mut plain = self.plan_split(data, splits[0], Means::Once, planning);
        let mut tried = 1;
        for &split in &splits[1..] {
            if !is_short(&plain) {
                break;
            }
            match self.plan_split(data, split, Means::Once, planning) {
                // A batch that cannot be split is as short as it was whole.
                Err(TrainError::Split(_)) => break,
                other => plain = other,
            }
            tried += 1;
        }
        if tried == 1 && !is_short(&plain) {
            return plain;
        }
        // Fewer micro-batches in which steps run again may be faster, and may fit where none else does. What is tried under
        // a line is tried under those above it, too, unless it fits there without.
        let middle = splits.len() / 2;
        let mut again: Vec<usize> = match is_short(&plain) {
            false => vec![0, middle.min(tried - 2), tried - 2],
            true => vec![0, middle.min(tried - 1), tried - 1],
        };
        again.dedup();
        let disk = self.executor.disk();
        // States alone that do not fit are not helped by running steps again. A line of nothing asks for the lowest there is.
        let line = planning.aim_bytes();
        let hopeless = disk.is_some() && line > 0 && planning.state_bytes > line;
        let best = if hopeless {
            plain
        } else {
            let others = again.iter().map(|&at| self.plan_split(data, splits[at], Means::Repeat, planning));
            others.fold(plain, better)
        };
        let time = |plans: &PlanSet| plans.plans.first().map_or(0, |p| p.nanoseconds);
        let worth = planning.unlimited_ns / WORTH_SPILLING;
        let slow = |plans: &PlanSet| time(plans) > planning.unlimited_ns + worth;
        if disk.is_none() || best.as_ref().is_ok_and(|plans| !slow(plans)) {
            return best;
        }
        // From the smallest micro-batches to ever larger ones that spill more, while that is faster; and the whole batch, which
        // needs no room for sums over micro-batches.
        let mut known = best;
        let mut in_vain = 0;
        for (at, &split) in splits[..tried].iter().enumerate().rev() {
            if at > 0 && in_vain > 1 {
                continue;
            }
            planning.worth_ns = match &known {
                Ok(plans) if plans.spill_bytes > 0 => time(plans),
                Ok(plans) => time(plans).saturating_sub(worth),
                Err(_) => u64::MAX,
            };
            let spilled = self.plan_split(data, split, Means::Spill, planning);
            let faster = spilled.as_ref().is_ok_and(|spilled| time(spilled) < planning.worth_ns);
            in_vain = if faster { 0 } else { in_vain + 1 };
            known = match (known, spilled) {
                (Ok(_), Ok(spilled)) if faster => Ok(spilled),
                (Ok(known), Ok(_)) => Ok(known),
                (known, spilled) => better(known, spilled),
            };
        }
        known
    }

    /// The plan in so many micro-batches.
    fn plan_split(
        &self,
        data: &Dataset,
        micro_batches: usize,
        means: Means,
        planning: &mut Planning,
    ) -> Result<PlanSet, TrainError> {
        let line_bytes = planning.line_bytes;
        let mut plans = match means {
            // The same under every line.
            Means::Once => planning
                .once(micro_batches, |planning| self.plan_as_low(data, micro_batches, means, planning))?,
            Means::Repeat | Means::Spill => self.plan_as_low(data, micro_batches, means, planning)?,
        };
        plans.sheet.line_bytes = line_bytes;
        plans.sheet.check_line()?;
        verify(&plans)?;
        Ok(plans)
    }

    /// The graphs of every batch type, in so many micro-batches.
    fn batches(&self, data: &Dataset, micro_batches: usize) -> Result<Vec<(String, Graph)>, TrainError> {
        let types = self.batch_types(data, micro_batches);
        let named = types.iter().map(|&batch| Ok((self.type_name(batch), self.graph(batch, micro_batches)?)));
        let graphs: Vec<(String, Graph)> = named.collect::<Result<_, TrainError>>()?;
        self.check_variants(&types, &graphs)?;
        Ok(graphs)
    }

    /// The plan in so many micro-batches; under the line if the means allow it.
    fn plan_as_low(
        &self,
        data: &Dataset,
        micro_batches: usize,
        means: Means,
        planning: &mut Planning,
    ) -> Result<PlanSet, TrainError> {
        let types = self.batch_types(data, micro_batches);
        let batches = planning.batches(micro_batches, || self.batches(data, micro_batches))?;
        let mut outside = self.outside.clone();
        if self.heap_bytes.is_some() {
            outside.extend(self.input_entries(data, &types));
        }
        let outputs = self.output_bytes(batches.graphs());
        if outputs > 0 {
            outside.push(Entry::new(OUTPUTS, outputs, "of one batch, on their way out"));
        }
        // Heap and page tables depend on the plan: they are reserved, and counted once it is known. Steps that run again
        // and transfers add to the plan, seldom as much as an eighth.
        let mut reserved = self.heap_bytes.map_or(0, |heap| {
            let bytes = plan_bytes(batches.graphs().iter().flat_map(|(_, g)| &g.nodes));
            heap + bytes + if means == Means::Once { 0 } else { bytes / 8 }
        });
        loop {
            let outside_bytes = outside.iter().fold(reserved, |sum, e| sum.saturating_add(e.bytes));
            let arena = largest_arena(planning.aim_bytes().saturating_sub(outside_bytes));
            let line_bytes = match means {
                Means::Once => usize::MAX,
                Means::Repeat | Means::Spill => arena.saturating_add(outside_bytes - reserved),
            };
            let budget = Budget {
                recompute: means != Means::Once,
                spill: self.executor.disk().filter(|_| means == Means::Spill),
                worth_ns: planning.worth_ns,
                ..Budget::new(line_bytes, outside.clone())
            };
            let mut plans = self.toward(&batches, &budget, &planning.searches)?;
            if let Some(heap) = self.heap_bytes {
                let bytes = heap + plans_bytes(&plans);
                let total = plans.sheet.total_bytes + bytes + page_tables(plans.arena_bytes).bytes;
                // What does not even fit what was left does not fit less.
                let again = plans.arena_bytes <= arena && total > planning.aim_bytes();
                if bytes > reserved && again && means != Means::Once {
                    reserved = bytes + bytes / 16;
                    continue;
                }
                let nodes: usize = plans.plans.iter().map(|p| p.steps.len()).sum();
                plans.sheet.add_outside(Entry::new(
                    HEAP_CAP,
                    bytes,
                    format!("plans of {nodes} steps, names, text"),
                ));
            }
            plans.sheet.add_outside(page_tables(plans.arena_bytes));
            return Ok(plans);
        }
    }

    /// Heap bytes of what evaluations report and predictions give. A run that trains predicts when its program asks for
    /// it, and holds the result itself.
    fn output_bytes(&self, batches: &[(String, Graph)]) -> usize {
        let trains = self.kinds.contains(&BatchKind::Train);
        let read = |name: &str| name.starts_with(step::OUTPUT) || name == step::PREDICTIONS;
        let of = |graph: &Graph| {
            let outputs = graph.outputs.iter().filter(|o| read(&o.name));
            outputs.map(|o| graph.ty(o.value).bytes()).sum::<usize>()
        };
        let reported = batches.iter().filter(|(_, g)| g.output(LOSS).is_some() || !trains);
        reported.map(|(_, graph)| of(graph)).max().unwrap_or(0)
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
