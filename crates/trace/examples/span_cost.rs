//! What a traced run pays for each span and counter: the least of many rounds, in nanoseconds, and the bytes that they take in the file.
//!
//! `cargo run --release -p plimsoll-trace --example span_cost`

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use plimsoll_trace::{Trace, Value, counted_span_of, set_kernel, span};
use std::time::Instant;

const ROUNDS: usize = 200;
const EVENTS: u32 = 1000;

/// What the step loop writes for a kernel: the bytes in use, and a span with four arguments.
fn kernel(index: u64) {
    let started = Instant::now();
    set_kernel(Some("matmul"));
    set_kernel(None);
    let arguments = [
        ("layer", Value::Text("block3/attention/projection")),
        ("step", Value::Count(index)),
        ("micro_batch", Value::Count(0)),
        ("rematerialized", Value::Count(0)),
    ];
    let in_use = ("arena in use", 1 << 20 | index);
    counted_span_of(started, started.elapsed(), "kernel", "matmul", &arguments, in_use);
}

/// What a worker of the input pipeline writes for a record.
fn record(index: u64) {
    span(Instant::now(), "input", "record", &[("record", Value::Count(index))]);
}

fn main() -> std::io::Result<()> {
    let path = std::env::temp_dir().join(format!("plimsoll-span-cost-{}", std::process::id()));
    let trace = Trace::create(&path)?;
    trace.record(true);
    for (name, event) in [("kernel, with its counter", kernel as fn(u64)), ("record of the input", record)] {
        let before = std::fs::metadata(&path)?.len();
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            (0..u64::from(EVENTS)).for_each(event);
            least = least.min(start.elapsed().as_nanos() as f64 / f64::from(EVENTS));
        }
        trace.flush()?;
        let bytes = (std::fs::metadata(&path)?.len() - before) as f64 / (ROUNDS as f64 * f64::from(EVENTS));
        println!("{name:<26} {least:>6.0} ns {bytes:>6.0} bytes");
    }
    drop(trace);
    std::fs::remove_file(&path)
}
