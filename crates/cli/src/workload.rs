//! `plimsoll plan --workload`: a step recorded elsewhere, planned under a line.

use super::answers::Say;
use super::args::RunOptions;
use super::text::{count, escaped};
use super::{Failure, say};
use plimsoll::Size;
use plimsoll::plan::remat::{Frontier, LineTooLow, check, lower_bound};
use plimsoll::plan::{in_words, workload::Workload};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 30;

/// Plans and prints.
pub fn run(options: &RunOptions, path: &Path) -> Result<(), Failure> {
    let workload = read(path)?;
    let problem = &workload.problem;
    let line = line(options, &workload)?;
    let start = Instant::now();
    let mut frontier = Frontier::new(problem).map_err(Failure::usage)?;
    let solved = frontier.solve(line);
    let planning_ms = start.elapsed().as_secs_f64() * 1e3;
    let of_baseline = |nanoseconds: u64| nanoseconds as f64 / workload.baseline_ns as f64;
    let bound = lower_bound(problem, line).map_err(Failure::usage)?;
    let once: u64 = problem.calls.iter().map(|c| c.nanoseconds).sum();
    let bound = of_baseline(once + bound) - 1.0;
    let schedule = match solved {
        Ok(schedule) => schedule,
        Err(short) => return Err(refuse(options, &workload, short, bound, planning_ms)),
    };
    let figures = check(problem, &schedule).map_err(Failure::run)?;
    let overhead = of_baseline(figures.nanoseconds) - 1.0;
    let smallest = frontier.lowest().peak_bytes.min(figures.peak_bytes);
    let mut runs_of = vec![0_usize; problem.calls.len()];
    schedule.runs.iter().for_each(|run| runs_of[run.call] += 1);
    let kept = runs_of.iter().filter(|&&runs| runs == 1).count();
    let show: Say = if options.json { |_| {} } else { say };
    show(&format!(
        "{}, {} calls\n  {:<16} {:>11}\n  {:<16} {:>11}\n  {:<16} {:>11}\n  {:<16} {:>10.2}%\n  {:<16} {:>10.2}%\n  {:<16} {:>11}",
        workload.name,
        count(problem.calls.len()),
        "line",
        in_words(line as usize),
        "planned peak",
        in_words(figures.peak_bytes as usize),
        "smallest line",
        in_words(smallest as usize),
        "overhead",
        overhead * 100.0,
        "at least",
        bound * 100.0,
        "recomputed",
        count(figures.rematerialized_runs),
    ));
    if options.json {
        let object = json!({
            "feasible": true,
            "line_bytes": line,
            "planned_peak_bytes": figures.peak_bytes,
            "floor_bytes": smallest,
            "overhead": overhead,
            "lower_bound_overhead": bound,
            "recomputed": figures.rematerialized_runs,
            "kept": kept,
            "spilled": 0,
            "micro_batches": 1,
            // Bytes are summed, not placed.
            "fragmentation": 0.0,
            "planning_ms": planning_ms,
        });
        say(&object.to_string());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Workload, Failure> {
    let name = escaped(path.display());
    let failed = |e: std::io::Error| Failure::usage(format!("cannot read `{name}`: {e}"));
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MOST_BYTES {
        return Err(Failure::usage(format!("`{name}` has {length} bytes, more than {MOST_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Workload::parse(&text).map_err(|e| Failure::usage(format!("`{name}`: {e}")))
}

/// The line in bytes: a share is of the recorded peak.
fn line(options: &RunOptions, workload: &Workload) -> Result<u64, Failure> {
    let peak = usize::try_from(workload.recorded_peak_bytes).map_err(Failure::usage)?;
    match options.machine.memory.own() {
        Size::Bytes(bytes) => Ok(bytes as u64),
        share => Ok(share.bytes(peak) as u64),
    }
}

/// The answer to a line that is too low.
fn refuse(
    options: &RunOptions,
    workload: &Workload,
    short: LineTooLow,
    bound: f64,
    planning_ms: f64,
) -> Failure {
    if options.json {
        let object = json!({
            "feasible": false,
            "line_bytes": short.line_bytes,
            "planned_peak_bytes": Value::Null,
            "floor_bytes": short.smallest_line_bytes,
            "smallest_line_bytes": short.smallest_line_bytes,
            "least_peak_bytes": short.least_peak_bytes,
            "largest_call_bytes": short.largest_call_bytes,
            "overhead": Value::Null,
            "lower_bound_overhead": bound,
            "recomputed": Value::Null,
            "kept": Value::Null,
            "spilled": Value::Null,
            "micro_batches": 1,
            "fragmentation": Value::Null,
            "planning_ms": planning_ms,
            // A recorded step has no flags to change.
            "alternatives": [],
        });
        say(&object.to_string());
    }
    let share = short.smallest_line_bytes as f64 / workload.recorded_peak_bytes as f64;
    Failure::memory(format!(
        "no schedule of `{}` under {} was found. Raise the line to {} bytes ({:.1}% of the recorded peak); every schedule \
         needs {} or more, the largest call alone {}",
        workload.name,
        in_words(short.line_bytes as usize),
        short.smallest_line_bytes,
        (share * 1e3).ceil() / 10.0,
        in_words(short.least_peak_bytes as usize),
        in_words(short.largest_call_bytes as usize),
    ))
}
