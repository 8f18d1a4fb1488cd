//! A planned run.

use super::Trainer;
use crate::memory::{trim_code, trim_heap};
use crate::{Session, TrainError};
use plimsoll_data::Dataset;
use plimsoll_plan::{LoadSheet, PlanSet, StepTime, Tiers};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A run that was planned: the trainer, the data, and the plans of every batch type, to which it derefs. Nothing of what is
/// planned is allocated until [`TrainingPlan::start`].
#[derive(Clone)]
pub struct TrainingPlan {
    trainer: Trainer,
    data: Dataset,
    plans: PlanSet,
    /// Those of the other devices.
    others: Vec<Arc<PlanSet>>,
}

impl TrainingPlan {
    pub(super) fn new(trainer: Trainer, data: Dataset, plans: PlanSet) -> Self {
        Self { trainer, data, plans, others: Vec::new() }
    }

    /// The plan of several devices, of which this is the first one's.
    pub(super) fn beside(self, others: Vec<Arc<PlanSet>>) -> Self {
        Self { others, ..self }
    }

    /// The plans of every device, the first one's first.
    pub fn devices(&self) -> impl Iterator<Item = &PlanSet> {
        std::iter::once(&self.plans).chain(self.others.iter().map(Arc::as_ref))
    }

    /// When each step of a plan is predicted to run.
    pub fn step_times(&self, plan: usize) -> Result<Vec<StepTime>, TrainError> {
        let executor = self.trainer.chosen_executor();
        let times = self.plans.step_times(plan, executor.target(), &executor.tiers());
        times.map_err(|e| TrainError::Setting(e.to_string()))
    }

    /// The tiers that the plan could offload to.
    pub fn tiers(&self) -> Tiers {
        self.trainer.chosen_executor().tiers()
    }

    /// The account of every byte.
    pub fn load_sheet(&self) -> &LoadSheet {
        &self.plans.sheet
    }

    /// The same, to add notes.
    pub fn load_sheet_mut(&mut self) -> &mut LoadSheet {
        &mut self.plans.sheet
    }

    /// Allocates the memory of the plan, and initializes the states.
    pub fn start(self) -> Result<Session, TrainError> {
        if self.trainer.accounts_for_process() {
            // Memory of planning goes back to the system before the arena is mapped.
            trim_heap();
            trim_code();
        }
        Session::new(self.trainer, self.plans, &self.others, self.data)
    }

    /// The plans alone.
    pub fn into_plans(self) -> PlanSet {
        self.plans
    }
}

impl fmt::Debug for TrainingPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrainingPlan({:?}, {} bytes)", self.data, self.plans.sheet.total_bytes)
    }
}

impl Deref for TrainingPlan {
    type Target = PlanSet;
    fn deref(&self) -> &PlanSet {
        &self.plans
    }
}
