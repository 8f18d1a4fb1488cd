//! Plans a graph into one arena: order, lifetimes, placement, load sheet, verify.
//!
//! [`plan`] is a pure function of graphs, target and line; it allocates nothing of what it plans. [`verify`] checks a
//! plan without sharing code with what made it.

mod executor;
mod plan;
mod sheet;
mod target;

pub use executor::{ExecuteError, Executor, Prepared};
pub use plan::{Action, Buffer, BufferId, BufferKind, ExecutionPlan, PlanSet, StatePlacement, Step};
pub use sheet::{Entry, Holder, LoadSheet, Moment, PlanRow};
pub use target::{Kernel, KernelQuery, Target, Unsupported};
