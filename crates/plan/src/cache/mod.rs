//! Results of earlier planning: search results in memory, and whole plans as records, by fingerprint.

mod fingerprint;
mod memo;
mod record;
mod search_cache;

pub use fingerprint::{Fingerprint, PLANNER, PlanKey};
pub use record::{PlanRecord, RecordError};
pub use search_cache::SearchCache;
