//! Plans of one run under many lines: the floor, the curve of time over memory, and summaries of plans.

use super::Replication;
use crate::{TrainError, Trainer, TrainingPlan};
use plimsoll_data::Dataset;
use plimsoll_graph::op::Elementwise;
use plimsoll_graph::{Graph, Op, ValueId};
use plimsoll_plan::sheet::{PAGE_TABLES, PLANNING};
use plimsoll_plan::{
    Action, Chooser, PerTier, PlanError, PlanSet, Space, StateHome, Tier, least_rematerialization,
};
use plimsoll_tensor::DType;
use plimsoll_transform::LOSS;
use std::collections::BTreeMap;

/// Plans one run under any line of the space that kernels compute in. What does not depend on the line is computed once. Nothing is run.
///
/// ```
/// # use plimsoll_nn::{AdamW, zoo};
/// # use plimsoll_plan::NullExecutor;
/// # use plimsoll_train::{TrainError, Trainer};
/// # use plimsoll_data::{OpenOptions, open};
/// let data = open("mnist", &OpenOptions::default())?;
/// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).executor(NullExecutor::default()).batch(64);
/// let mut forecast = trainer.forecast(&data);
/// let floor = forecast.floor()?;
/// assert!(forecast.plan(floor)?.sheet.total_bytes <= floor);
/// assert!(floor < forecast.plan(usize::MAX)?.sheet.total_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Forecast {
    trainer: Trainer,
    data: Dataset,
    chooser: Chooser,
    /// Plans found so far, by line.
    known: BTreeMap<usize, TrainingPlan>,
    floor: Option<usize>,
}

/// What a plan keeps, rematerializes and offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Values of the training step that forward computes once and backward reads.
    pub kept: usize,
    /// Rematerialized nodes: runs beyond the first of each.
    pub recomputed: usize,
    /// Bytes of their outputs.
    pub recomputed_bytes: usize,
    /// States that live in each tier, and values of the training step that are offloaded to it.
    pub offloaded: PerTier<usize>,
    /// Their bytes.
    pub offloaded_bytes: PerTier<usize>,
    /// Bytes written to each tier in a training step.
    pub stored_bytes: PerTier<u64>,
    /// Bytes of all states.
    pub state_bytes: usize,
    /// The arena over the largest sum of bytes live at one time, minus one.
    pub fragmentation: f64,
}

impl Tally {
    /// Adds what a device with another part of the model has; the fragmentation is that of the worse one.
    pub fn add(&mut self, other: &Self) {
        self.kept += other.kept;
        self.recomputed += other.recomputed;
        self.recomputed_bytes += other.recomputed_bytes;
        self.state_bytes += other.state_bytes;
        for tier in Tier::ALL {
            self.offloaded[tier] += other.offloaded[tier];
            self.offloaded_bytes[tier] += other.offloaded_bytes[tier];
            self.stored_bytes[tier] += other.stored_bytes[tier];
        }
        self.fragmentation = self.fragmentation.max(other.fragmentation);
    }
}

impl Trainer {
    /// Plans this run under any line.
    pub fn forecast(&self, data: &Dataset) -> Forecast {
        let (chooser, known) = (Chooser::reusable(self.line_bytes), BTreeMap::new());
        Forecast { trainer: self.accounted(data), data: data.clone(), chooser, known, floor: None }
    }
}

impl Forecast {
    /// The plan under a line.
    pub fn plan(&mut self, line_bytes: usize) -> Result<TrainingPlan, TrainError> {
        if let Some(known) = self.known.get(&line_bytes) {
            return Ok(known.clone());
        }
        let plan = match &self.trainer.replication {
            None => {
                self.chooser.line_bytes = line_bytes;
                let plans = self.trainer.plan_under(&self.data, &mut self.chooser)?;
                TrainingPlan::new(self.trainer.clone(), self.data.clone(), plans)
            }
            Some(Replication::Logical { .. } | Replication::Placed { .. }) => {
                self.trainer.clone().line(line_bytes).plan_several(&self.data)?
            }
            Some(Replication::Rank { .. }) => {
                let reason = "a forecast is for one process: plan ranks with `Trainer::plan`";
                return Err(TrainError::Setting(reason.into()));
            }
        };
        self.known.insert(line_bytes, plan.clone());
        Ok(plan)
    }

    /// Bytes that the plan under a line needs, whether it fits or not.
    fn needed(&mut self, line_bytes: usize) -> Result<usize, TrainError> {
        match self.plan(line_bytes) {
            Ok(plans) => Ok(plans.sheet.total_bytes),
            Err(TrainError::Plan(PlanError::Infeasible(short))) if short.space == Space::Computing => {
                Ok(short.needed_bytes)
            }
            Err(other) => Err(other),
        }
    }

    /// The smallest line found under which the run can be planned; planning under it succeeds.
    pub fn floor(&mut self) -> Result<usize, TrainError> {
        if let Some(floor) = self.floor {
            return Ok(floor);
        }
        // What an infeasible plan needs is not always feasible as a line: raise the line until a plan fits.
        let mut floor = self.needed(0)?;
        loop {
            let needed = self.needed(floor)?;
            if needed <= floor {
                break;
            }
            floor = needed;
        }
        self.floor = Some(floor);
        Ok(floor)
    }

    /// Plans from no line down to the floor, `lines` at most. A line that is no faster than a lower one is left out.
    pub fn curve(&mut self, lines: usize) -> Result<Vec<TrainingPlan>, TrainError> {
        let whole = self.plan(usize::MAX)?;
        let floor = self.floor()?;
        let top = whole.sheet.total_bytes.max(floor);
        let parts = lines.saturating_sub(2).max(1);
        let between = (1..=parts).map(|i| floor + (top - floor) / parts * (i - 1));
        let mut found: Vec<TrainingPlan> = Vec::new();
        for line in between.chain([usize::MAX]) {
            let plans = match self.plan(line) {
                Err(TrainError::Plan(PlanError::Infeasible(_))) => continue,
                other => other?,
            };
            if found.last().is_none_or(|lower| nanoseconds(&plans) < nanoseconds(lower)) {
                found.push(plans);
            }
        }
        found.reverse();
        Ok(found)
    }

    /// A lower bound of the time that rematerialization adds to a step of the whole batch under a line; zero if the batch may
    /// be split instead.
    pub fn least_rematerialization(&mut self, line_bytes: usize) -> Result<u64, TrainError> {
        let whole = self.plan(usize::MAX)?;
        let Some(first) = whole.plans.first() else { return Ok(0) };
        if first.graph.step_micro_batches() > 1 || self.trainer.can_split()? {
            return Ok(0);
        }
        // A smaller arena has smaller page tables, and planning is over before it is mapped.
        let fixed =
            whole.sheet.outside.iter().filter(|e| ![PAGE_TABLES, PLANNING].contains(&e.name.as_str()));
        let outside: usize = fixed.map(|e| e.bytes).sum();
        let arena_limit = line_bytes.saturating_sub(outside);
        let target = self.trainer.chosen_executor().target();
        Ok(least_rematerialization(&first.name, &first.graph, target, arena_limit)?)
    }

    /// Bytes of every value that forward computes and a later node reads, in the step before optimization: what a framework
    /// without a planner keeps.
    pub fn naive_activation_bytes(&self) -> Result<usize, TrainError> {
        let graph = self.trainer.training_step()?;
        Ok(saved_activations(&graph).into_iter().map(|v| graph.ty(v).bytes()).sum())
    }
}

fn nanoseconds(plans: &PlanSet) -> u64 {
    plans.plans.first().map_or(0, |p| p.nanoseconds)
}

/// Values computed up to the loss and read after it, each once; a view counts as its base.
fn saved_activations(graph: &Graph) -> Vec<ValueId> {
    let Some(last) = graph.output(LOSS).and_then(|loss| graph.producer(loss)) else { return Vec::new() };
    let mut bases: Vec<ValueId> = graph.value_ids().collect();
    let mut found = Vec::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        // A widening cast, or a cast of a parameter, holds nothing besides its input.
        let cast = matches!(node.op, Op::Elementwise(Elementwise::Cast(_)));
        let from = node.inputs.first().map(|v| graph.ty(*v).dtype);
        let computed = node.inputs.iter().all(|v| graph.producer(bases[v.index()]).is_some());
        if node.op.is_view() || cast && (!computed || from.is_some_and(DType::is_low)) {
            node.outputs.iter().for_each(|v| bases[v.index()] = bases[node.inputs[0].index()]);
        } else if id > last {
            found.extend(node.reads().map(|v| bases[v.index()]));
        }
    }
    found.retain(|&v| graph.producer(v).is_some_and(|p| p <= last));
    found.sort_unstable();
    found.dedup();
    found
}

/// Counts what a plan keeps, rematerializes and offloads.
pub fn tally(plans: &PlanSet) -> Tally {
    let live = plans.plans.iter().map(|p| p.live_bytes).max().unwrap_or(0);
    let mut tally = Tally {
        state_bytes: plans.states.iter().map(|s| s.ty.bytes()).sum(),
        fragmentation: plans.arena_bytes as f64 / live.max(1) as f64 - 1.0,
        ..Tally::default()
    };
    let states = plans.states.iter().filter_map(|s| match s.home {
        StateHome::Offloaded { tier, .. } => Some((tier, s.ty.bytes())),
        StateHome::Arena(_) => None,
    });
    let first = plans.plans.first();
    let values = first.map(|p| p.offloaded.iter().map(|s| (s.tier, p.graph.ty(s.value).bytes())));
    for (tier, bytes) in states.chain(values.into_iter().flatten()) {
        tally.offloaded[tier] += 1;
        tally.offloaded_bytes[tier] += bytes;
    }
    let Some(plan) = first else { return tally };
    let graph = &plan.graph;
    tally.stored_bytes = plan.stored_bytes(&plans.states);
    let mut runs = vec![0_usize; graph.nodes.len()];
    for step in &plan.steps {
        if let Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } = step.action {
            runs[node.index()] += 1;
        }
    }
    for node in plan.rematerialized() {
        tally.recomputed += 1;
        tally.recomputed_bytes +=
            graph.output_types(graph.node(node)).iter().map(|ty| ty.bytes()).sum::<usize>();
    }
    let once = |v: &ValueId| graph.producer(*v).is_some_and(|p| runs[p.index()] == 1);
    tally.kept = saved_activations(graph).iter().filter(|v| once(v)).count();
    tally
}
