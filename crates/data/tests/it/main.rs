//! Sources, pipelines and formats. Tests that count allocations are binaries of their own.

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod buckets;
mod digits;
mod formats;
mod images;
mod memory;
mod open;
mod pairs;
mod pipeline;
