//! What every executor runs its plans with.
//!
//! An executor has a [`Device`], its kernels, and opens the queues of the tiers that it offloads to; [`prepare`] does the rest:
//!
//! - [`arena`]: one mapping for all tensor memory of a run;
//! - `lower`: turns the steps of a plan into commands with kernels and addresses in the arena;
//! - `step_loop`: runs the commands, and waits where a step has a hazard with a transfer in flight;
//! - `inputs_ahead`: inputs of the next run, copied to a device while this one goes on;
//! - `chunked_update`: a step whose offloaded states are loaded, updated and stored chunk by chunk;
//! - `queues`: [`TransferQueue`], what moves bytes between the arena and a tier beside the kernels, and a run's set of them;
//! - [`transfer`]: the queue of the spill file, and the speed of a disk;
//! - [`spill`]: the file that offloaded bytes are in;
//! - `replicas`: several devices that run one step together, each on its part of the batch; `placed`: each on its part of the model;
//!   `worker`: a device on a thread; `shared_memory`: the transport between devices of one process;
//! - `checked`: the mode that finds kernels that touch memory outside their buffers; `non_finite`: the search for the first
//!   node that makes a number that is not finite; `step_times`: how long each step takes; `tracing`: spans and counters of
//!   steps in a trace.

pub mod arena;
mod checked;
mod chunked_update;
mod device;
mod exchange;
mod inputs_ahead;
mod joined;
mod lower;
mod non_finite;
mod placed;
mod queues;
mod recorded;
mod replicas;
mod shared_memory;
pub mod spill;
mod step_loop;
mod step_times;
mod tracing;
pub mod transfer;
mod worker;

pub use device::{
    Device, Input, InputLane, KernelDevice, KernelExecutor, KernelSession, Memory, Operands, Recording,
    SingleKernel,
};
pub use placed::prepare_placed;
pub use queues::{Queues, Ticket, TransferQueue};
pub use replicas::{ReplicaDevice, prepare_replicas};
pub use step_loop::{Options, prepare};
pub use step_times::StepTimes;
pub use tracing::traced_bytes;

use plimsoll_plan::{Action, ExecutionPlan};

/// The layer and op of a step, for errors and traces.
fn step_name(plan: &ExecutionPlan, step: usize) -> (&str, &'static str) {
    match &plan.steps[step].action {
        Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
            let node = plan.graph.node(*node);
            (&node.layer, node.op.name())
        }
        Action::Copy { .. } => ("", "copy"),
        Action::Load { .. } => ("", "load"),
        Action::Store { .. } => ("", "store"),
    }
}
