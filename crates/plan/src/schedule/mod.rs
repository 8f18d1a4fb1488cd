//! The order of tasks, the liveness of tensors under it, and the lifetimes of buffers.

mod lifetimes;
mod liveness;
pub(crate) mod order;

pub(crate) use lifetimes::{UnplacedPlan, unplaced_plan};
pub(crate) use liveness::{Liveness, distinct_reads};
