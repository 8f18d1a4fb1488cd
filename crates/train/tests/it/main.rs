//! Metrics, forecasts, the plan cache and messages. Tests that count allocations are binaries of their own.

#[path = "../support/mod.rs"]
mod support;

mod export;
mod forecast;
mod lines;
mod metrics_match_frozen_numbers;
mod metrics_stream;
mod mistakes;
mod numerics;
mod own_rows;
mod placement;
mod plan_cache;
mod pruning;
mod quantize_aware;
mod ranks;
mod replicas;
