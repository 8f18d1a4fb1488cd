//! Sources, pipelines and formats. Tests that count allocations are binaries of their own.

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod buckets;
mod digits;
mod features;
mod formats;
mod images;
mod memory;
mod open;
mod own_rows;
mod pairs;
mod pipeline;

/// Options that leave the parts as the files have them.
fn unsplit() -> plimsoll_data::OpenOptions {
    plimsoll_data::OpenOptions {
        validation: plimsoll_data::ValidationSplit::None,
        ..plimsoll_data::OpenOptions::default()
    }
}
