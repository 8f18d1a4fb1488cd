//! The contract between plans and what runs them.

use crate::{Disk, PlanSet, Target};
use plimsoll_graph::NodeId;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Why a run could not go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecuteError {
    /// The arena could not be had.
    #[error("the arena of {bytes} bytes could not be mapped: {reason}")]
    Arena {
        /// Bytes asked for.
        bytes: usize,
        /// The system's answer.
        reason: String,
    },
    /// A step failed.
    #[error("layer `{layer}`: {op}: {reason}")]
    Step {
        /// The layer.
        layer: String,
        /// The op.
        op: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// What a plan spills could not be written or read.
    #[error("{0}")]
    Spill(String),
    /// What was handed in does not fit the plan.
    #[error("{0}")]
    Input(String),
}

/// What a run does beside computing every node once for each micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Time in which it waited for the spill file.
    pub waiting: Duration,
    /// Time of nodes that ran again.
    pub again: Duration,
}

/// Something that can run plans.
pub trait Executor {
    /// The target to plan for.
    fn target(&self) -> &dyn Target;
    /// Where states that do not fit may lie; `None` if nothing may be spilled.
    fn disk(&self) -> Option<Disk> {
        None
    }
    /// Takes the memory and makes everything ready; afterwards running allocates nothing. States are zero.
    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError>;
}

/// Plans with their memory, ready to run. Dropping it gives everything back.
///
/// Indices are those of [`PlanSet::plans`], its graphs' inputs and outputs, and [`PlanSet::states`].
pub trait Prepared: Send {
    /// Runs one step: copies the inputs in (all of the plan's, in the graph's order) and executes the plan.
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError>;
    /// As [`Prepared::run`], but looks at all that is written, and ends after the first node that writes something that is
    /// not finite. Slow: for finding out where a run went wrong. An executor that cannot look finds nothing.
    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        self.run(plan, inputs)?;
        Ok(None)
    }
    /// What the last run did beside its computing; an executor that does not measure it says nothing.
    fn extra(&self) -> Extra {
        Extra::default()
    }
    /// Copies an output of the last run of a plan; valid until the next run.
    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError>;
    /// Copies bytes of a state out, from `offset` on: a file is written piece by piece, without a second copy.
    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError>;
    /// Copies bytes of a state in, from `offset` on.
    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError>;
}

impl Executor for Box<dyn Executor> {
    fn target(&self) -> &dyn Target {
        self.as_ref().target()
    }

    fn disk(&self) -> Option<Disk> {
        self.as_ref().disk()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        self.as_ref().prepare(plans)
    }
}
