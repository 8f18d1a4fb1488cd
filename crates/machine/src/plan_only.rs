//! An executor for planning alone.

use crate::Machine;
use plimsoll_plan::{ExecuteError, Executor, PlanSet, Prepared, Target, Tiers};
use std::sync::Arc;

/// An executor of a machine that is not here: it plans, and runs nothing.
pub struct PlanOnly {
    target: Box<dyn Target>,
    tiers: Tiers,
}

impl PlanOnly {
    /// For a machine.
    pub fn new(machine: &Machine) -> Self {
        Self { target: machine.target(), tiers: machine.tiers() }
    }

    /// Without the machine's file: nothing is offloaded to it.
    pub fn without_file(mut self) -> Self {
        self.tiers.file = None;
        self
    }
}

impl Executor for PlanOnly {
    fn target(&self) -> &dyn Target {
        self.target.as_ref()
    }

    fn tiers(&self) -> Tiers {
        self.tiers
    }

    fn prepare(&self, _: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        let message =
            "a machine file describes a machine that is not here: it can be planned for, not run on";
        Err(ExecuteError::Input(message.into()))
    }
}
