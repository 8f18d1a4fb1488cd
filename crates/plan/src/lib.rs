//! Plans a graph into one arena: order, lifetimes, placement, load sheet, verify.
//!
//! [`plan`] is a pure function of graphs, target and line; it allocates nothing of what it plans. [`verify`] checks a
//! plan without sharing code with what made it.

mod account;
mod bound;
mod claims;
mod content;
mod error;
mod executor;
mod layout;
mod lifetimes;
mod null;
mod order;
mod park;
mod placement;
mod plan;
mod planner;
mod predict;
mod record;
mod remembered;
mod repeat;
mod rounds;
pub mod search;
mod searches;
mod sheet;
mod sheet_text;
mod stream;
mod target;
mod tide;
mod verify;
mod work;
pub mod workload;

pub use bound::least_repeats;
pub use content::{Content, PLANNER, PlanKey};
pub use error::{Infeasible, PlanError};
pub use executor::{ExecuteError, Executor, Extra, Prepared};
pub use null::{NullExecutor, NullTarget};
pub use plan::{
    Action, Buffer, BufferId, BufferKind, ExecutionPlan, PlanSet, SPILL_ALIGNMENT, Spilled, SpilledValue,
    StateHome, StatePlacement, Step,
};
pub use planner::{Budget, Disk, plan, plan_toward};
pub use record::{PlanRecord, RecordError};
pub use rounds::Waits;
pub use searches::Searches;
pub use sheet::{Entry, Holder, LoadSheet, Moment, PlanRow, in_words};
pub use stream::PieceTypes;
pub use target::{Kernel, KernelQuery, Target, Unsupported};
pub use verify::{At, VerifyError, verify};

#[cfg(test)]
mod tests;
