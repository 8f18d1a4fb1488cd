//! Planning a run on several devices: a plan for each under its own line, and the account of the process that holds them all.
//!
//! Every device has the same number of micro-batches, because all of them work on each: the one that needs most
//! decides. Beside that, devices are planned one by one.

use super::{BatchKind, BatchType, DeviceName, LogicalDevices, Replication, Trainer, TrainingPlan};
use crate::memory::{Tag, tagged, thread_bytes};
use crate::{Monitor, TrainError};
use plimsoll_data::Dataset;
use plimsoll_graph::op::Norm;
use plimsoll_graph::{BatchRelation, Graph, Node, Op};
use plimsoll_nn::step;
use plimsoll_plan::{
    Chooser, DeviceRow, Entry, Infeasible, LoadSheet, PlanError, PlanSet, Space, Whole, sheet, verify,
};
use plimsoll_transform::{
    OwnedState, Reduction, Replica, Shard, SplitError, check_same_ops, check_split, count_whole_batch,
    fetch_parameters, optimize, owned_states, replicate,
};
use std::sync::Arc;

/// What a process takes if only the lines of its devices hold.
struct Unlimited {
    /// Beside the devices that share what its line leaves.
    outside_bytes: usize,
    /// What each of those takes.
    each: Vec<usize>,
}

impl Unlimited {
    /// Of a process with this load sheet, in which the entries of the first device come first, and devices that share its line. Plans with
    /// rematerialized runs and transfers are longer: `more_heap` bytes are for these.
    fn new(
        process: &LoadSheet,
        first: (&str, &LoadSheet),
        each: &[(String, usize)],
        more_heap: usize,
    ) -> Self {
        let shares = |name: &str| each.iter().any(|(device, _)| device == name);
        let own = outside_of(first.1).len();
        let others = outside_of(process).iter().skip(own).filter(|entry| !shares(&entry.name));
        let first_bytes = if shares(first.0) { 0 } else { device_entry(first.0, first.1).bytes };
        Self {
            outside_bytes: others.map(|entry| entry.bytes).sum::<usize>() + first_bytes + more_heap,
            each: each.iter().map(|(_, bytes)| *bytes).collect(),
        }
    }
}

/// The entries of host memory outside of arenas.
fn outside_of(sheet: &LoadSheet) -> &[Entry] {
    sheet.host.as_ref().map_or(&sheet.outside, |host| &host.outside)
}

/// What a device takes of the process's memory.
fn device_entry(name: &str, sheet: &LoadSheet) -> Entry {
    match &sheet.host {
        Some(host) => Entry::new(name, host.total_bytes, "what the device takes of host memory"),
        None => Entry::new(name, sheet.total_bytes, "the arena of the device, with what belongs to it"),
    }
}

/// How often devices without lines of their own are planned under a lower one, because the process as a whole was over its line.
const TRIALS: usize = 6;

impl Trainer {
    /// The examples of a micro-batch that each device takes, and the number of micro-batches: equal parts in as many as asked
    /// for, or, for a remainder, in the fewest that are no larger; else one in which each takes whole blocks, and the last
    /// ones less or nothing.
    pub(super) fn replica_parts(&self, examples: usize, micro_batches: usize) -> (Vec<usize>, usize) {
        let (devices, block, whole) = (self.device_count(), self.block().max(1), self.step_examples());
        let fits = |k: &usize| self.splits_evenly(examples, *k);
        let most = whole.div_ceil(devices.saturating_mul(micro_batches));
        let asked = Some(micro_batches).filter(|k| examples == whole && fits(k));
        let fewest = || (1..=examples / block).find(|k| fits(k) && examples / (devices * k) <= most);
        let k = asked.or_else(fewest).unwrap_or(1);
        (self.device_parts(examples, k), k)
    }

    /// Whether every device has as many examples, of whole blocks, in each of so many micro-batches.
    fn splits_evenly(&self, examples: usize, micro_batches: usize) -> bool {
        let parts = self.device_count().saturating_mul(micro_batches);
        examples.is_multiple_of(parts) && (examples / parts).is_multiple_of(self.block().max(1))
    }

    /// The examples of a micro-batch that each device takes, in the number of micro-batches that [`Trainer::replica_parts`] came to.
    pub(super) fn device_parts(&self, examples: usize, micro_batches: usize) -> Vec<usize> {
        let (devices, block) = (self.device_count(), self.block().max(1));
        if self.splits_evenly(examples, micro_batches) {
            return vec![examples / (devices * micro_batches); devices];
        }
        let (blocks, mut left) = (examples.div_ceil(block), examples);
        let part = |device: usize| {
            let own = blocks / devices + usize::from(device < blocks % devices);
            let taken = (own * block).min(left);
            left -= taken;
            taken
        };
        (0..devices).map(part).collect()
    }

    /// The graph of a training step on one of several devices.
    pub(super) fn replica_graph(
        &self,
        device: usize,
        batch: BatchType,
        micro_batches: usize,
    ) -> Result<Graph, TrainError> {
        self.of_replica(device, batch, micro_batches, replicate)
    }

    /// The states that one device updates and holds, if they are sharded.
    pub(crate) fn owned_states(&self) -> Result<Vec<OwnedState>, TrainError> {
        if self.shard == Shard::None || self.device_count() < 2 {
            return Ok(Vec::new());
        }
        let batch = BatchType { kind: BatchKind::Train, model: 0, examples: self.step_examples() };
        self.of_replica(0, batch, 1, owned_states)
    }

    /// A step that does not train, of one of several processes: what it reads of parameters that others hold passes.
    pub(super) fn fetching(&self, step: Graph) -> Result<Graph, TrainError> {
        let count = self.device_count();
        match &self.replication {
            Some(Replication::Rank { rank, .. }) if self.shard >= Shard::Parameters && count > 1 => {
                Ok(fetch_parameters(&step, &self.owned_states()?, *rank, count)?)
            }
            _ => Ok(step),
        }
    }

    /// Bytes of all sums over the batch, of which a device with sharded gradients has a part.
    pub(super) fn whole_gradient_bytes(&self) -> Result<u64, TrainError> {
        let batch = BatchType { kind: BatchKind::Train, model: 0, examples: self.step_examples() };
        let graph = Self { shard: Shard::None, ..self.clone() }.of_replica(0, batch, 1, replicate)?;
        Ok(graph.accumulators.iter().map(|sum| graph.ty(sum.input).bytes() as u64).sum())
    }

    /// What a pass makes of the training step of a device's part of the batch.
    fn of_replica<T>(
        &self,
        device: usize,
        batch: BatchType,
        micro_batches: usize,
        of: impl FnOnce(&Graph, &Replica<'_>) -> Result<T, SplitError>,
    ) -> Result<T, TrainError> {
        let (examples, micro_batches) = self.replica_parts(batch.examples, micro_batches);
        let (model, optimizer) = (self.model_at(batch.model), self.optimizer.as_ref());
        let numerics = &self.numerics();
        let training = |examples| step::training_as(&self.policy, numerics, model, optimizer, examples);
        // A device without examples has the update of any other.
        let own = if examples[device] > 0 { examples[device] } else { examples[0] };
        let (whole, mut part) = (training(batch.examples)?, training(own)?);
        match micro_batches {
            1 => check_same_ops(&whole, &part)?,
            _ => check_split(&whole, &part)?,
        }
        count_whole_batch(&mut part, &whole);
        let (shard, reduction) = (self.shard, self.reduction);
        let replica = Replica { device, examples: &examples, micro_batches, shard, reduction };
        Ok(of(&optimize(part, numerics, &self.without)?, &replica)?)
    }

    /// As [`Trainer::plan`], on several devices, of a trainer that accounts for its process already.
    pub(super) fn plan_several(&self, data: &Dataset) -> Result<TrainingPlan, TrainError> {
        match self.is_placed() {
            true => self.check_placed()?.plan_logical(data),
            false => {
                self.check_replicas()?;
                self.plan_logical(data)
            }
        }
    }

    /// The same of settings that were checked.
    fn plan_logical(&self, data: &Dataset) -> Result<TrainingPlan, TrainError> {
        let devices = self.logical_devices()?;
        devices.begin_use();
        // An accelerator's line is of its own memory: what it takes of the host's has none.
        let shared = (0..devices.len()).filter(|&at| devices.line(at).is_none() || devices.is_apart(at));
        let shared: Vec<usize> = shared.collect();
        // None has a line at first; then equal ones, and less where the rest of the process takes more; the lowest ones where those were
        // too low, because what the process takes with the lowest plans is only known once they are made.
        let (mut share, mut lowest, mut whole) = (usize::MAX, 0, None);
        let mut trials = 0..TRIALS;
        loop {
            let plans = match tagged(Tag::Planning, || self.plan_devices(data, share)) {
                Err(TrainError::Plan(PlanError::Infeasible(short)))
                    if short.needed_bytes > lowest && !has_own_line(devices, &short) =>
                {
                    lowest = short.needed_bytes;
                    share = lowest;
                    continue;
                }
                plans => plans?,
            };
            let heap: usize =
                plans.iter().map(|plans| sheet::process_heap(0, std::slice::from_ref(plans)).bytes).sum();
            let named =
                |at: &usize| (devices.name(*at).to_string(), plans[*at].sheet.host_total_and_line().0);
            let each: Vec<(String, usize)> = shared.iter().map(named).collect();
            let (first, first_sheet) = (devices.name(0).to_string(), plans[0].sheet.clone());
            let short = match self.process_plan(data, plans) {
                Err(TrainError::Plan(PlanError::Infeasible(short))) if !shared.is_empty() => short,
                found => return found,
            };
            if lowest > 0 || share == 0 {
                return Err(TrainError::Plan(PlanError::Infeasible(short)));
            }
            if trials.next().is_none() {
                share = 0;
                continue;
            }
            let less = share.saturating_sub(short.missing_bytes.div_ceil(shared.len()));
            let whole = whole
                .get_or_insert_with(|| Unlimited::new(&short.sheet, (&first, &first_sheet), &each, heap / 8));
            share = less.min(equal_share(&whole.each, self.line_bytes.saturating_sub(whole.outside_bytes)));
        }
    }

    /// Refuses runs whose replicas would not be one device's.
    pub(super) fn check_replicas(&self) -> Result<(), TrainError> {
        if let Some(Replication::Logical { devices, .. }) = &self.replication
            && let Some(other) = devices.names().find(|name| !matches!(name, DeviceName::Cpu(_)))
        {
            return Err(TrainError::Setting(format!(
                "replicas are on devices of the processor, not on {other}: leave it out, or place layers on it"
            )));
        }
        if self.shard != Shard::None && matches!(self.replication, Some(Replication::Logical { .. })) {
            return Err(TrainError::Setting(
                "states are sharded over processes, not over the devices of one: use ranks, or leave sharding out".into(),
            ));
        }
        if self.reduction == Reduction::Fast {
            if matches!(self.replication, Some(Replication::Logical { .. })) {
                return Err(TrainError::Setting(
                    "the devices of one process have no faster way for sums than their chain: use ranks, or leave the reduction out".into(),
                ));
            }
            if self.shard >= Shard::Gradients {
                return Err(TrainError::Setting(
                    "sharded gradients pass along the chain, so they cannot be reduced fast: shard the optimizer's state alone, or \
                     leave the reduction out"
                        .into(),
                ));
            }
        }
        let step = self.training_step()?;
        let marks = step.batch_marks();
        // Batch norm's statistics are sums, which pass from device to device.
        let mixes = |node: &&Node| {
            let own = step.own_relations(node, &marks);
            own.contains(&BatchRelation::Mixed) && !matches!(node.op, Op::Norm(Norm::Batch { .. }))
        };
        if let Some(node) = step.nodes.iter().find(mixes) {
            return Err(TrainError::Setting(format!(
                "layer `{}`: {} mixes the examples of a batch, so replicas do not equal one device: train on one device, or \
                 use a layer that works on each example alone",
                node.layer,
                node.op.name()
            )));
        }
        let (devices, block, examples) = (self.device_count(), self.block().max(1), self.step_examples());
        if examples.div_ceil(block) < devices {
            return Err(TrainError::Setting(format!(
                "{examples} examples of a step are {} block(s) of {block}, too few for {devices} devices: make the batch at least {}",
                examples.div_ceil(block),
                devices * block
            )));
        }
        let parts = self.micro_batches.unwrap_or(1).max(self.accumulate);
        let norm = step.nodes.iter().find(|node| matches!(node.op, Op::Norm(Norm::Batch { .. })));
        if let Some(node) = norm.filter(|_| parts > 1) {
            return Err(TrainError::Setting(format!(
                "layer `{}`: on several devices batch norm takes the statistics of the whole batch, so a step cannot be split \
                 into {parts} micro-batches: leave their number out, make steps of one batch, or use more devices",
                node.layer
            )));
        }
        if parts > 1 && !examples.is_multiple_of(parts * devices * block) {
            return Err(TrainError::Setting(format!(
                "{examples} examples in {parts} micro-batches on {devices} devices do not end at blocks of {block}: make the \
                 examples of a step a multiple of {}",
                parts * devices * block
            )));
        }
        Ok(())
    }

    pub(super) fn logical_devices(&self) -> Result<&LogicalDevices, TrainError> {
        match &self.replication {
            Some(Replication::Logical { devices, .. } | Replication::Placed { devices, .. }) => Ok(devices),
            _ => Err(TrainError::Setting("a run on several devices has logical ones".into())),
        }
    }

    /// The trainer of one device, without the process.
    fn on_device(&self, device: usize, share: usize) -> Self {
        let line = self.logical_devices().ok().and_then(|devices| devices.line(device));
        let mut replication = self.replication.clone();
        if let Some(Replication::Logical { device: own, .. } | Replication::Placed { device: own, .. }) =
            &mut replication
        {
            *own = device;
        }
        // Of a placed run's figures a device may have some: all are looked for in the whole.
        let sees_all = device == 0 && !self.is_placed();
        let own = Self {
            replication,
            outside: Vec::new(),
            monitor: if sees_all { self.monitor.clone() } else { Monitor::default() },
            heap_bytes: None,
            ..self.clone()
        };
        let own = own.kinds(&self.kinds_of_device(device));
        match own.computes_on_device() {
            true => own.line(share).device_line(line.unwrap_or(usize::MAX)),
            false => own.line(line.unwrap_or(share)),
        }
    }

    /// The plans of every device, in one number of micro-batches.
    fn plan_devices(&self, data: &Dataset, share: usize) -> Result<Vec<PlanSet>, TrainError> {
        let plans = self.plan_each(data, share, None)?;
        let most = plans.iter().map(micro_batches).max().unwrap_or(1);
        let plans = match plans.iter().all(|plans| micro_batches(plans) == most) {
            true => plans,
            false => self.plan_each(data, share, Some(most))?,
        };
        self.overlapped(data, share, plans)
    }

    /// The plans of every device, in so many micro-batches. Of devices with equal lines that are too low, the error is that
    /// of the one that needs most.
    pub(super) fn plan_each(
        &self,
        data: &Dataset,
        share: usize,
        micro_batches: Option<usize>,
    ) -> Result<Vec<PlanSet>, TrainError> {
        let devices = self.logical_devices()?;
        let plan = |device: usize| {
            let trainer = self.on_device(device, share);
            let trainer = Self { micro_batches: micro_batches.or(trainer.micro_batches), ..trainer };
            let chooser = &mut Chooser::new(trainer.computing_line_bytes(), trainer.line_bytes);
            let mut plans = trainer.plan_under(data, chooser);
            let name = Some(devices.name(device).to_string());
            match &mut plans {
                Ok(plans) => plans.sheet.device = name,
                Err(TrainError::Plan(PlanError::Infeasible(short))) => short.sheet.device = name,
                Err(_) => {}
            }
            plans
        };
        let needed = |error: &TrainError| match error {
            TrainError::Plan(PlanError::Infeasible(short)) => short.needed_bytes,
            _ => usize::MAX,
        };
        let (mut plans, mut worst): (Vec<PlanSet>, Option<TrainError>) = (Vec::new(), None);
        for device in 0..devices.len() {
            match plan(device) {
                Ok(found) => plans.push(found),
                Err(error) if worst.as_ref().is_none_or(|worst| needed(&error) > needed(worst)) => {
                    worst = Some(error);
                }
                Err(_) => {}
            }
        }
        worst.map_or(Ok(plans), Err)
    }

    /// The plan of the whole process: the first device's, with the others and everything else outside its arena.
    fn process_plan(&self, data: &Dataset, plans: Vec<PlanSet>) -> Result<TrainingPlan, TrainError> {
        let devices = self.logical_devices()?;
        let row = |(device, plans): (usize, &PlanSet)| DeviceRow {
            name: devices.name(device).to_string(),
            arena_bytes: plans.arena_bytes,
            total_bytes: plans.sheet.total_bytes,
            line_bytes: plans.sheet.line_bytes,
            received_bytes: plans.plans.first().map_or(0, |plan| plan.received_bytes(device)),
        };
        let rows: Vec<DeviceRow> = plans.iter().enumerate().map(row).collect();
        let parts = plans.first().map_or(1, micro_batches);
        let placed = self.is_placed();
        if placed {
            self.check_monitor(&Whole::new(&plans))?;
        }
        let graphs: Vec<(String, Arc<Graph>)> = plans
            .iter()
            .take(if placed { plans.len() } else { 1 })
            .flat_map(|set| &set.plans)
            .map(|p| (p.name.clone(), p.graph.clone()))
            .collect();
        let mut outside = self.outside_entries(data, parts, &graphs);
        let threads = plans.len() - usize::from(!placed);
        outside.extend(self.heap_bytes.map(|_| {
            let all = if placed { "" } else { " but the first" };
            let how = format!("{threads}, one for each device{all}");
            Entry::new("device threads", threads * thread_bytes(), how)
        }));
        let heap = self.heap_bytes.map(|heap| sheet::process_heap(heap, &plans));
        let others =
            rows.iter().zip(&plans).skip(1).map(|(row, plans)| device_entry(&row.name, &plans.sheet));
        let entries: Vec<Entry> = outside.into_iter().chain(heap).chain(others).collect();
        let together = if placed { Some(self.times_together(&plans)?) } else { None };
        let mut plans = plans.into_iter();
        let mut first = plans.next().ok_or_else(|| TrainError::Setting("there is no device".into()))?;
        let others: Vec<PlanSet> = plans.collect();
        let own_sheet = first.sheet.clone();
        if let Some((times, unlimited_ns)) = together {
            let rows = first.sheet.plans.iter_mut().zip(times);
            rows.for_each(|(row, ns)| row.predicted_us = ns / 1_000);
            first.sheet.unlimited_ns = unlimited_ns;
        }
        entries.into_iter().for_each(|entry| first.sheet.add_outside(entry));
        first.sheet.device = None;
        first.sheet.devices = rows;
        match &mut first.sheet.host {
            Some(host) => host.line_bytes = self.line_bytes,
            None => first.sheet.line_bytes = self.line_bytes,
        }
        let planning =
            self.heap_bytes.and_then(|_| sheet::process_planning(&first, &others, self.declared_bytes()));
        planning.into_iter().for_each(|entry| first.sheet.add_outside(entry));
        let reading = self.reading_entry(data, &first.sheet);
        reading.into_iter().for_each(|entry| first.sheet.add_outside(entry));
        first.sheet.check_line()?;
        if let Some(entry) = self.prefetch_entry(data, &first.sheet) {
            first.sheet.add_outside(entry);
        }
        verify(&first)?;
        let replicas = others.into_iter().map(Arc::new).collect();
        Ok(TrainingPlan::new(self.clone(), data.clone(), first).beside(own_sheet, replicas))
    }
}

/// Whether the line that is too low is that of one device alone.
fn has_own_line(devices: &LogicalDevices, short: &Infeasible) -> bool {
    let name = short.sheet.device.as_ref().and_then(|name| name.parse().ok());
    let line = name.and_then(|name| devices.index(name)).and_then(|device| devices.line(device));
    line.is_some() && short.space == Space::Computing
}

/// The largest equal share of some bytes that devices may have of which each needs so many at most.
fn equal_share(each: &[usize], bytes: usize) -> usize {
    let mut needs = each.to_vec();
    needs.sort_unstable();
    let mut left = bytes;
    for (at, &need) in needs.iter().enumerate() {
        let share = left / (needs.len() - at);
        if need > share {
            return share;
        }
        left -= need;
    }
    usize::MAX
}

/// Micro-batches of the training step.
fn micro_batches(plans: &PlanSet) -> usize {
    plans.plans.first().map_or(1, |plan| plan.graph.step_micro_batches())
}

#[cfg(test)]
mod tests {
    use super::equal_share;

    #[test]
    fn what_a_device_does_not_need_is_left_to_the_others() {
        assert_eq!(equal_share(&[50, 50], 80), 40);
        assert_eq!(equal_share(&[10, 100], 80), 70);
        assert_eq!(equal_share(&[100, 0, 100], 80), 40);
        assert_eq!(equal_share(&[10, 20], 30), usize::MAX);
        assert_eq!(equal_share(&[10, 20], 0), 0);
    }
}
