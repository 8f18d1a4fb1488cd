//! Plans graphs into one arena under a memory line.
//!
//! [`plan`] is a pure function of graphs, [`Target`] and [`Budget`]. It allocates nothing of what it plans. The modules are the
//! stages, in order:
//!
//! - `lower`: a graph becomes tasks and tensors; states, accumulators and updates are aliased in place; large offloaded
//!   states are updated in chunks;
//! - `schedule`: the order of the tasks, the liveness of every tensor under it, and the buffers with their lifetimes;
//! - [`remat`]: which tasks run twice so that the peak stays under a limit (rematerialization);
//! - `offload`: which values wait in host memory or in the spill file, when transfers run, and which hazards they wait for;
//! - `placement`: an offset for every buffer (dynamic storage allocation);
//! - `choice`: which of micro-batches, rematerialization, offload and chunked updates a run uses, by one comparator;
//! - `predict`: the time of a plan; `sheet`: the account of every byte; `cache`: what was found before.
//!
//! [`verify`] checks a plan without sharing code with what made it.

mod budget;
mod cache;
mod choice;
mod error;
mod executor;
mod lower;
mod null;
mod offload;
mod passes;
mod placed_time;
mod placement;
mod plan;
mod predict;
pub mod remat;
mod schedule;
pub mod sheet;
mod size;
mod target;
mod tier;
mod transport;
mod verify;
mod whole;
pub mod workload;

pub use budget::{Budget, HostBudget};
pub use cache::{Fingerprint, PLANNER, PlanKey, PlanRecord, RecordError, SearchCache};
pub use choice::{
    Batches, Candidates, Chooser, LeastMemory, PlanningProgress, least_memory, plan, plan_lowest,
};
pub use error::{Infeasible, PlanError};
pub use executor::{ExecuteError, Executor, Extra, Prepared};
pub use lower::ChunkTypes;
pub use null::{NullExecutor, NullTarget};
pub use offload::Waits;
pub use passes::{Exchanged, Network, STATES, check_passes, communication, exchanges};
pub use placed_time::{PlacedDevice, predict_placed};
pub use plan::{
    Action, Buffer, BufferId, BufferKind, ExecutionPlan, Offloaded, OffloadedValue, PlanSet, SharedGraph,
    StateHome, StatePlacement, Step,
};
pub use predict::StepTime;
pub use remat::least_rematerialization;
pub use sheet::{
    DeviceRow, Entry, Holder, HostSheet, Lifetime, LoadSheet, Peak, PlanRow, Space, in_words, time_in_words,
};
pub use size::{GiB, MiB, Size, SizeError};
pub use target::{Kernel, KernelQuery, Target, Unsupported};
pub use tier::{Direction, Link, PerTier, Queue, TIER_ALIGNMENT, Tier, TierSpec, Tiers};
pub use transport::{
    BatchPart, Connection, Message, Passing, Ranks, STATE_PIECE, Transport, exchange, exchange_order,
    largest_pass,
};
pub use verify::{At, VerifyError, verify, verify_hazards};
pub use whole::{Whole, WholeOutput, WholePlan};

#[cfg(test)]
mod tests;
