//! A planned run.

use super::{Replication, Trainer};
use crate::memory::{trim_code, trim_heap};
use crate::{Session, TrainError};
use plimsoll_data::Dataset;
use plimsoll_graph::Role;
use plimsoll_plan::{LoadSheet, PlanSet, StatePlacement, StepTime, Tiers};
use plimsoll_transform::{Shard, StateBytes};
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
    /// Those of the other devices, and the first one's own account.
    others: Vec<Arc<PlanSet>>,
    first_sheet: Option<Box<LoadSheet>>,
}

impl TrainingPlan {
    pub(super) fn new(trainer: Trainer, data: Dataset, plans: PlanSet) -> Self {
        Self { trainer, data, plans, others: Vec::new(), first_sheet: None }
    }

    /// The plan of several devices, of which this is the first one's, with the account of the whole process; `first_sheet` is its own.
    pub(super) fn beside(self, first_sheet: LoadSheet, others: Vec<Arc<PlanSet>>) -> Self {
        Self { first_sheet: Some(Box::new(first_sheet)), others, ..self }
    }

    /// The plans of every device, the first one's first.
    pub fn devices(&self) -> impl Iterator<Item = &PlanSet> {
        std::iter::once(&self.plans).chain(self.others.iter().map(Arc::as_ref))
    }

    /// The account of each device's arena and of what belongs to it, in the order of [`TrainingPlan::devices`]; empty for a run on one
    /// device, whose only account is [`TrainingPlan::load_sheet`].
    pub fn device_sheets(&self) -> impl Iterator<Item = &LoadSheet> {
        let others = self.others.iter().map(|plans| &plans.sheet);
        self.first_sheet.as_deref().into_iter().chain(others)
    }

    /// When each step of a plan is predicted to run.
    pub fn step_times(&self, plan: usize) -> Result<Vec<StepTime>, TrainError> {
        self.device_step_times(0, plan)
    }

    /// The same of one of several devices' plans.
    pub fn device_step_times(&self, device: usize, plan: usize) -> Result<Vec<StepTime>, TrainError> {
        let count = self.others.len() + 1;
        let plans = self.devices().nth(device);
        let plans =
            plans.ok_or_else(|| TrainError::Setting(format!("there is no device {device} of {count}")))?;
        let executor = match &self.trainer.replication {
            Some(Replication::Logical { devices, .. } | Replication::Placed { devices, .. }) => {
                devices.executor(device)
            }
            _ => self.trainer.chosen_executor(),
        };
        let times = plans.step_times(plan, executor.target(), &executor.tiers());
        times.map_err(|e| TrainError::Setting(e.to_string()))
    }

    /// What this process holds for its parameters, wherever it lies: parameters with their running averages and statistics, gradients
    /// that are accumulated, and the optimizer's state.
    pub fn state_bytes(&self) -> StateBytes {
        let mut bytes = StateBytes::default();
        for state in self.states() {
            match state.role {
                Role::Parameter | Role::Statistic | Role::Average => {
                    bytes.parameters += state.ty.bytes() as u64
                }
                Role::Moment | Role::Mask => bytes.optimizer += state.ty.bytes() as u64,
            }
        }
        let graphs = self.parts().filter_map(|part| part.plans.first()).map(|plan| &plan.graph);
        let sums = graphs.flat_map(|graph| graph.accumulators.iter().map(|sum| graph.ty(sum.input)));
        StateBytes { gradients: sums.map(|ty| ty.bytes() as u64).sum(), ..bytes }
    }

    /// Every state of the run, whichever device holds it.
    pub fn states(&self) -> impl Iterator<Item = &StatePlacement> {
        self.parts().flat_map(|part| &part.states)
    }

    /// The plans of the devices that hold different parts of the model ([`Trainer::place`]); else the first one's.
    pub fn parts(&self) -> impl Iterator<Item = &PlanSet> {
        let count = if self.trainer.is_placed() { self.others.len() + 1 } else { 1 };
        self.devices().take(count)
    }

    /// As [`TrainingPlan::state_bytes`], with all that only other processes hold; and the bytes of new versions of states that
    /// this one receives after each step.
    pub fn whole_state_bytes(&self) -> Result<(StateBytes, u64), TrainError> {
        let (own, owned) = (self.state_bytes(), self.trainer.owned_states()?);
        let rank = self.trainer.replication.as_ref().map_or(0, Replication::device);
        let gradients = match self.trainer.shard >= Shard::Gradients {
            true => self.trainer.whole_gradient_bytes()?,
            false => own.gradients,
        };
        let (mut whole, mut received) = (StateBytes { gradients, ..own }, 0);
        for state in owned.iter().filter(|state| state.owner != rank) {
            let bytes = state.ty.bytes() as u64;
            match state.role {
                _ if !state.alone => received += bytes,
                Role::Parameter | Role::Statistic | Role::Average => whole.parameters += bytes,
                Role::Moment | Role::Mask => whole.optimizer += bytes,
            }
        }
        Ok((whole, received))
    }

    /// The states whose new versions pass from one process to all others after each step: that process, and their bytes.
    pub fn shared_states(&self) -> Result<Vec<(usize, usize)>, TrainError> {
        let owned = self.trainer.owned_states()?;
        let shared = owned.iter().filter(|state| !state.alone);
        Ok(shared.map(|state| (state.owner, state.ty.bytes())).collect())
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
