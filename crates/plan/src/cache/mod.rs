//! What earlier plans found, in memory and by content.

mod fingerprint;
mod memo;
mod record;
mod search_cache;

pub use fingerprint::{Fingerprint, PLANNER, PlanKey};
pub use record::{PlanRecord, RecordError};
pub use search_cache::SearchCache;
