//! Planning a run: checks of its settings, the choice by [`Chooser`], and notes on the load sheet.

use super::{Replication, Trainer, TrainingPlan};
use crate::memory::{Tag, tagged};
use crate::{Progress, TrainError};
use plimsoll_data::Dataset;
use plimsoll_graph::{BatchRelation, Graph, ValueId};
use plimsoll_nn::Precision;
use plimsoll_plan::{
    Batches, Budget, BufferKind, Candidates, Chooser, Entry, Executor, Infeasible, LeastMemory, LoadSheet,
    PlanError, PlanSet, PlanningProgress, SearchCache, Target, Tiers, Whole, in_words, least_memory,
};
use plimsoll_transform::SplitError;
use std::sync::Arc;

/// Room for the next batch is looked for where its copy takes at least this fraction (1/100) of a step.
const WORTH_COPYING_AHEAD: u64 = 100;

/// A trainer and its data, as candidates for the planner.
struct Run<'t> {
    trainer: &'t Trainer,
    data: &'t Dataset,
}

impl Candidates for Run<'_> {
    type Error = TrainError;

    fn target(&self) -> &dyn Target {
        self.trainer.chosen_executor().target()
    }

    fn tiers(&self) -> Tiers {
        self.trainer.chosen_executor().tiers()
    }

    fn micro_batches(&self) -> Vec<usize> {
        self.trainer.micro_batch_counts()
    }

    fn graphs(&self, micro_batches: usize) -> Result<Vec<(String, Graph)>, TrainError> {
        self.trainer.batch_graphs(self.data, micro_batches)
    }

    fn outside(&self, micro_batches: usize, graphs: &[(String, Arc<Graph>)]) -> Vec<Entry> {
        // With several devices in a process, these are entries of the process and not of a device.
        match self.trainer.replication {
            Some(Replication::Logical { .. } | Replication::Placed { .. }) => {
                self.trainer.exchange_entry(graphs).into_iter().collect()
            }
            _ => self.trainer.outside_entries(self.data, micro_batches, graphs),
        }
    }

    fn heap_bytes(&self) -> Option<usize> {
        self.trainer.heap_bytes
    }

    fn splits_mixed(&self) -> bool {
        self.trainer.split_batch_norm && self.trainer.device_count() == 1
    }

    fn is_unsplittable(error: &TrainError) -> bool {
        matches!(error, TrainError::Split(_))
    }

    fn infeasible(error: &TrainError) -> Option<&Infeasible> {
        match error {
            TrainError::Plan(PlanError::Infeasible(short)) => Some(short),
            _ => None,
        }
    }

    fn progress(&self, progress: &PlanningProgress) {
        self.trainer.report_progress(&Progress::Planning(*progress));
    }

    fn plan_lowest(
        &self,
        batches: &Batches,
        budget: &Budget,
        search_cache: &SearchCache,
    ) -> Result<PlanSet, PlanError> {
        self.trainer.plan_cached(batches, budget, search_cache)
    }
}

impl Trainer {
    /// Plans every batch type under the line, and verifies the plans. [`Chooser`] chooses micro-batches (unless their number is
    /// set), rematerialization and offload. Nothing of what is planned is allocated.
    ///
    /// ```
    /// # use plimsoll_data::datasets;
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_plan::MiB;
    /// # use plimsoll_train::Trainer;
    /// let data = datasets::mnist()?;
    /// let plan = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(MiB(64)).steps(3).plan(&data)?;
    /// println!("{}", plan.load_sheet());
    /// let report = plan.start()?.fit()?;
    /// assert_eq!(report.steps, 3);
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn plan(&self, data: &Dataset) -> Result<TrainingPlan, TrainError> {
        match &self.replication {
            Some(Replication::Logical { .. } | Replication::Placed { .. }) => {
                return self.accounted(data).plan_several(data);
            }
            Some(Replication::Rank { connection: Some(ranks), .. }) => {
                return self.plan_rank(data, ranks.as_ref());
            }
            Some(Replication::Rank { .. }) | None => {}
        }
        let trainer = self.accounted(data);
        let chooser = Chooser::new(trainer.computing_line_bytes(), trainer.line_bytes);
        trainer.plan_with(data, chooser)
    }

    /// Whether the run fits its line, and its load sheet. Takes less time than [`Trainer::plan`] where a line is far too low: the sheet is
    /// then that of a low plan, which need not be the lowest.
    ///
    /// ```
    /// # use plimsoll_data::datasets;
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_plan::MiB;
    /// # use plimsoll_train::Trainer;
    /// let data = datasets::mnist()?;
    /// let of = |batch| Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(MiB(32)).batch(batch).fits(&data);
    /// assert!(of(64)?.0);
    /// let (fits, sheet) = of(30_000)?;
    /// assert!(!fits && sheet.total_bytes > 32 << 20);
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn fits(&self, data: &Dataset) -> Result<(bool, LoadSheet), TrainError> {
        let planned = if self.replication.is_some() {
            self.plan(data)
        } else {
            let trainer = self.accounted(data);
            let chooser = Chooser::only_fit(trainer.computing_line_bytes(), trainer.line_bytes);
            trainer.plan_with(data, chooser)
        };
        match planned {
            Ok(plans) => Ok((true, plans.into_plans().sheet)),
            Err(TrainError::Plan(PlanError::Infeasible(short))) => Ok((false, short.sheet)),
            Err(other) => Err(other),
        }
    }

    /// The plans that a chooser finds for a trainer that has its account.
    fn plan_with(self, data: &Dataset, mut chooser: Chooser) -> Result<TrainingPlan, TrainError> {
        let mut plans = tagged(Tag::Planning, || self.plan_under(data, &mut chooser))?;
        // With what it remembers of its searches.
        drop(chooser);
        if self.accounts_for_process() {
            plans = tagged(Tag::Planning, || plans.moved_together());
        }
        Ok(TrainingPlan::new(self, data.clone(), plans))
    }

    /// The trainer with the account of its process, if it has one.
    pub(super) fn accounted(&self, data: &Dataset) -> Self {
        // The executor's threads are a part of the process.
        self.chosen_executor();
        match &self.process {
            Some(process) => process.account(self.clone(), data),
            None => self.clone(),
        }
    }

    /// Bytes declared outside the arena.
    pub(crate) fn declared_bytes(&self) -> usize {
        self.outside.iter().fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// Memory that every plan of this run needs, whatever it does to stay under a line; known as soon as the graphs are built.
    /// For executors that compute in host memory.
    ///
    /// ```
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_train::Trainer;
    /// # use plimsoll_data::datasets;
    /// let data = datasets::mnist()?;
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3));
    /// let least = trainer.least_memory(&data)?.bytes();
    /// assert!(0 < least && least < trainer.forecast(&data).floor()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn least_memory(&self, data: &Dataset) -> Result<LeastMemory, TrainError> {
        let trainer = self.accounted(data);
        trainer.check_batches()?;
        trainer.check(data)?;
        least_memory(&Run { trainer: &trainer, data })
    }

    /// The line of the space that kernels compute in.
    pub(super) fn computing_line_bytes(&self) -> usize {
        if self.computes_on_device() { self.device_line_bytes } else { self.line_bytes }
    }

    /// As [`Trainer::plan`], under the chooser's line.
    pub(super) fn plan_under(&self, data: &Dataset, chooser: &mut Chooser) -> Result<PlanSet, TrainError> {
        self.check_batches()?;
        self.check(data)?;
        let mut found = chooser.choose(&Run { trainer: self, data });
        if let (Err(TrainError::Split(SplitError::Mixes { layer, op })), 2..) = (&found, self.accumulate) {
            return Err(TrainError::Setting(format!(
                "layer `{layer}`: {op} mixes the examples of a batch, so several batches do not equal one large batch: \
                 make steps of one batch, or allow statistics of each batch (`Trainer::allow_split_batch_norm`, \
                 `--allow-split-batchnorm`)"
            )));
        }
        if let Ok(plans) = &mut found {
            plans.sheet.unlimited_ns = chooser.unlimited_ns();
            self.plan_next_batch(data, plans, chooser);
        }
        match &mut found {
            Ok(plans) => {
                self.check_monitor(&Whole::new([&*plans]))?;
                if let Some(entry) = self.reading_entry(data, &plans.sheet) {
                    plans.sheet.add_outside(entry);
                    plans.sheet.check_line()?;
                }
                if let Some(entry) = self.prefetch_entry(data, &plans.sheet) {
                    plans.sheet.add_outside(entry);
                }
                plans.sheet.notes.extend(self.precision_note(plans));
                if self.replication.is_none() {
                    plans.sheet.notes.extend(self.target().estimates());
                }
                if self.all_read_all(data) {
                    plans.sheet.notes.push(
                        "Every rank reads whole batches, not its rows alone: bad records may be skipped, or their number is not \
                         known."
                            .into(),
                    );
                }
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
                short.sheet.unlimited_ns = chooser.unlimited_ns();
            }
            Err(_) => {}
        }
        found
    }

    /// Adds the large inputs of the next batch to the sheet: where the plans leave room for them, else with plans under a line that does, if a
    /// step is then shorter.
    fn plan_next_batch(&self, data: &Dataset, plans: &mut PlanSet, chooser: &mut Chooser) {
        let Some(next) = self.next_batch(data, plans) else { return };
        // Without a line there is room.
        let unlimited_ns = plans.sheet.unlimited_ns.saturating_sub(next.copy_us * 1_000);
        plans.sheet.unlimited_ns = unlimited_ns;
        let step_us = |sheet: &LoadSheet| sheet.plans.first().map_or(0, |row| row.predicted_us);
        let worth = next.copy_us >= step_us(&plans.sheet) / WORTH_COPYING_AHEAD;
        if next.add_to(&mut plans.sheet) || !worth {
            return;
        }
        let line_bytes = chooser.line_bytes;
        let Some(lower) = line_bytes.checked_sub(next.bytes) else { return };
        chooser.line_bytes = lower;
        let found = chooser.choose(&Run { trainer: self, data });
        chooser.line_bytes = line_bytes;
        // A line without room for it is none.
        let Ok(mut found) = found else { return };
        (found.sheet.line_bytes, found.sheet.unlimited_ns) = (line_bytes, unlimited_ns);
        let next = self.next_batch(data, &found);
        let fits = next.is_some_and(|next| next.add_to(&mut found.sheet));
        if fits && step_us(&found.sheet) < step_us(&plans.sheet) {
            *plans = found;
        }
    }

    /// Refuses TF32 on what does not multiply in it.
    fn check_precision(&self) -> Result<(), TrainError> {
        if self.policy.precision != Precision::TF32 {
            return Ok(());
        }
        let without = |executor: &dyn Executor| {
            let target = executor.target();
            (!target.numerics().tf32).then(|| target.name())
        };
        let found = match &self.replication {
            Some(Replication::Logical { devices, .. } | Replication::Placed { devices, .. }) => {
                (0..devices.len()).find_map(|at| without(devices.executor(at)))
            }
            Some(Replication::Rank { .. }) | None => without(self.chosen_executor()),
        };
        match found {
            Some(target) => Err(TrainError::Setting(format!(
                "precision tf32 is for GPUs from compute capability 8.0 on (`--device cuda`, `Cuda::tf32`), and {target} does not \
                 multiply in it: use f32 or bf16"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a batch size that does not match the micro-batches.
    fn check_batches(&self) -> Result<(), TrainError> {
        let examples = self.step_examples();
        if examples == 0 {
            return Err(TrainError::Setting(
                "a batch needs at least one example: set the batch size to 1 or more".into(),
            ));
        }
        self.check_accumulation()?;
        self.check_precision()?;
        let Some(parts) = self.micro_batches.filter(|&parts| parts > 1) else { return Ok(()) };
        if !examples.is_multiple_of(parts) {
            return Err(TrainError::Setting(format!(
                "a batch of {examples} does not split into {parts} equal micro-batches"
            )));
        }
        if examples / parts < 2 && self.splits_statistics() {
            return Err(TrainError::Setting(
                "batch norm needs two examples for statistics: use fewer micro-batches".into(),
            ));
        }
        Ok(())
    }

    /// Refuses batches whose gradients cannot be accumulated.
    fn check_accumulation(&self) -> Result<(), TrainError> {
        let (batches, batch, block) = (self.accumulate, self.batch, self.block());
        if batches <= 1 {
            return Ok(());
        }
        if !batch.is_multiple_of(block) {
            return Err(TrainError::Setting(format!(
                "a step of {batches} batches needs batches of whole blocks, and {batch} examples are not: make the batch a \
                 multiple of {block}"
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

    /// What the precision saves at the peak, in words.
    fn precision_note(&self, plans: &PlanSet) -> Option<String> {
        let precision = self.policy.precision;
        if !precision.is_low() {
            return None;
        }
        let plan = plans.plans.iter().max_by_key(|plan| plan.peak_bytes)?;
        let batch_relations = plan.graph.batch_relations();
        let at_peak = plan.buffers.iter().filter(|b| (b.first..=b.last).contains(&plan.peak_step));
        // Not counted: casts of parameters, which exist only because of the precision, and states, whose types do not follow
        // from it.
        let low = at_peak.filter(|b| {
            let is_low = |v: ValueId| {
                plan.graph.ty(v).dtype.is_low() && batch_relations[v.index()] != BatchRelation::Independent
            };
            !matches!(b.kind, BufferKind::State(_)) && b.value.is_some_and(is_low)
        });
        let bytes = in_words(low.map(|b| b.bytes).sum());
        Some(format!(
            "Precision {precision}: {bytes} at the peak are {precision}, and would be twice that in f32. Parameters are f32."
        ))
    }
}
