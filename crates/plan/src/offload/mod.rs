//! Offload to host memory and to the spill file: what moves, when it moves, and which steps wait for it.

mod hazards;
mod select;
mod transfers;

pub use hazards::Waits;
pub(crate) use hazards::{body, transfer, waits};
pub(crate) use select::{
    IdleInterval, fewest_to_fit, idle_intervals, live_profile, most_expensive, with_offloaded,
};
pub(crate) use transfers::{avoid_store_stalls, extend_stores, hoist_loads};
