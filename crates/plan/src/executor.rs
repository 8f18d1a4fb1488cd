//! The contract between plans and what runs them.

use crate::{Connection, Entry, PlanSet, Target, Tiers};
use plimsoll_graph::NodeId;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Why a run could not go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecuteError {
    /// The arena could not be mapped.
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
    /// The device failed.
    #[error("{0}")]
    Device(String),
    /// The device was lost: this process can compute on it and read from it no more.
    #[error("{device} was lost: {reason}")]
    Lost {
        /// The device.
        device: String,
        /// The driver's words.
        reason: String,
    },
    /// A transfer to or from a tier failed.
    #[error("{0}")]
    Transfer(String),
    /// The caller's arguments do not fit the plan.
    #[error("{0}")]
    Input(String),
}

/// Time that a run took beside computing every node once for each micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Time spent waiting for transfers.
    pub waiting: Duration,
    /// Time of rematerialized runs.
    pub again: Duration,
}

/// Runs plans.
pub trait Executor {
    /// The target to plan for.
    fn target(&self) -> &dyn Target;
    /// The tiers that states and values may be offloaded to.
    fn tiers(&self) -> Tiers {
        Tiers::default()
    }
    /// Allocates all memory, after which running allocates nothing. States are zero.
    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError>;
    /// As [`Executor::prepare`], for a device that runs beside others.
    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        let _ = (plans, connection);
        Err(ExecuteError::Input(format!("{} cannot run beside other devices", self.target().name())))
    }
    /// What it will take of host memory beyond what it holds already: a driver's and libraries' part of it, where there is a
    /// device.
    fn host_entries(&self) -> Vec<Entry> {
        Vec::new()
    }
    /// Inputs of at least so many bytes are copied to its device while the step before computes, where the device's line has room
    /// for them beside the arena ([`Prepared::prefetch`]); none if all are copied before their step.
    fn prefetches_from(&self) -> Option<usize> {
        None
    }
    /// Bytes of its device's memory that it holds now, by the driver's account; none if it computes in host memory, or nobody
    /// tells.
    fn device_bytes(&self) -> Option<usize> {
        None
    }
}

/// Plans with their memory, ready to run. Dropping it releases everything.
///
/// Indices are those of [`PlanSet::plans`], its graphs' inputs and outputs, and [`PlanSet::states`].
pub trait Prepared: Send {
    /// Runs one step: copies the inputs in (all of the plan's, in the graph's order) and executes the plan.
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError>;
    /// Starts to copy inputs of the next run to where it computes, beside the run before, which may still go on. Those that are not
    /// to be copied yet are empty. All have been read when this returns. Returns whether any is on its way.
    fn prefetch(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<bool, ExecuteError> {
        let _ = (plan, inputs);
        Ok(false)
    }
    /// As [`Prepared::run`], where the inputs given to [`Prepared::prefetch`] since the last run are this one's: they are not
    /// copied again.
    fn run_prefetched(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run(plan, inputs)
    }
    /// Whether the last run still goes on, on a device that computes beside the host.
    fn is_running(&self) -> bool {
        false
    }
    /// As [`Prepared::run`], but checks everything that is written, and stops after the first node that writes a value which is
    /// not finite. Slow: for finding where a run went wrong. An executor that cannot check returns `None`.
    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        self.run(plan, inputs)?;
        Ok(None)
    }
    /// What the last run spent beside its computing; zero if the executor does not measure it.
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

    fn tiers(&self) -> Tiers {
        self.as_ref().tiers()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        self.as_ref().prepare(plans)
    }

    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        self.as_ref().prepare_connected(plans, connection)
    }

    fn host_entries(&self) -> Vec<Entry> {
        self.as_ref().host_entries()
    }

    fn prefetches_from(&self) -> Option<usize> {
        self.as_ref().prefetches_from()
    }

    fn device_bytes(&self) -> Option<usize> {
        self.as_ref().device_bytes()
    }
}
