//! The steps of a plan as spans of a trace, with the bytes of the arena in use.

use super::step_name;
use plimsoll_plan::{ExecuteError, ExecutionPlan, PlanSet};
use plimsoll_trace::Value;
use std::time::{Duration, Instant};

/// Waits for transfers that are shorter are not shown: most take no time at all.
const SHORTEST_WAIT: Duration = Duration::from_micros(2);

/// Bytes of the arena in use at each step of each plan; nothing where the process writes no trace.
pub fn live_bytes(plans: &PlanSet) -> Vec<Vec<u64>> {
    if !plimsoll_trace::is_created() {
        return Vec::new();
    }
    plans.plans.iter().map(|plan| live_bytes_of(plan, plans.alignment)).collect()
}

fn live_bytes_of(plan: &ExecutionPlan, alignment: usize) -> Vec<u64> {
    let mut live = vec![0_u64; plan.steps.len()];
    // Differences first; wrapping, because a sum may go below zero on its way.
    for buffer in &plan.buffers {
        let bytes = buffer.bytes.next_multiple_of(alignment) as u64;
        if let Some(first) = live.get_mut(buffer.first) {
            *first = first.wrapping_add(bytes);
        }
        if let Some(after) = live.get_mut(buffer.last + 1) {
            *after = after.wrapping_sub(bytes);
        }
    }
    let mut sum = 0_u64;
    for bytes in &mut live {
        sum = sum.wrapping_add(*bytes);
        *bytes = sum;
    }
    live
}

/// Begins the span of a step, if a trace is recorded.
pub fn begin(plan: &ExecutionPlan, index: usize) -> Option<Instant> {
    let started = plimsoll_trace::now()?;
    plimsoll_trace::set_kernel(Some(step_name(plan, index).1));
    Some(started)
}

/// Ends it. `live` has the bytes of the arena in use at each step.
pub fn end(
    plan: &ExecutionPlan,
    (index, micro_batch): (usize, usize),
    started: Instant,
    again: bool,
    live: Option<&Vec<u64>>,
) {
    let time = started.elapsed();
    plimsoll_trace::set_kernel(None);
    let (layer, op) = step_name(plan, index);
    let arguments = [
        ("layer", Value::Text(layer)),
        ("step", Value::Count(index as u64)),
        ("micro_batch", Value::Count(micro_batch as u64)),
        ("rematerialized", Value::Count(u64::from(again))),
    ];
    let category = if layer.is_empty() && op != "copy" { "transfer" } else { "kernel" };
    match live.and_then(|live| live.get(index)) {
        Some(bytes) => {
            let in_use = ("arena in use", *bytes);
            plimsoll_trace::counted_span_of(started, time, category, op, &arguments, in_use);
        }
        None => plimsoll_trace::span_of(started, time, category, op, &arguments),
    }
}

/// Waits, and shows it if it took time.
pub fn wait(wait: impl FnOnce() -> Result<(), ExecuteError>) -> Result<(), ExecuteError> {
    let started = plimsoll_trace::now();
    let result = wait();
    if let Some((started, time)) = started.map(|started| (started, started.elapsed()))
        && time >= SHORTEST_WAIT
    {
        plimsoll_trace::span_of(started, time, "transfer", "wait for transfers", &[]);
    }
    result
}
