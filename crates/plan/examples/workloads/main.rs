//! Rematerialization of recorded and generated steps: overhead beside its lower bound and beside an online method, and
//! planning time.
//!
//!     cargo run --release -p plimsoll-plan --example workloads -- FILE...
//!     cargo run --release -p plimsoll-plan --example workloads -- densenet 1000 lstm 4000
//!
//! Takes workload files, and kinds of steps (see `steps.rs`), each followed by approximate numbers of calls.
#![allow(clippy::print_stdout)]

mod online;
mod steps;

use plimsoll_plan::remat::{
    Problem, SearchError, check, largest_call, least_peak, lower_bound, recorded_peak, smallest_line, solve,
};
use plimsoll_plan::workload::Workload;
use std::error::Error;
use std::time::SystemTime;

/// Overheads, in percent, of Dynamic Tensor Rematerialization (DTR) in its authors' simulator.
const DTR: [(&str, [f64; 5]); 2] =
    [("resnet32", [4.6, 10.7, 14.0, 17.9, 33.2]), ("transformer", [3.1, 5.8, 9.1, 12.4, 54.5])];
const FRACTIONS: [f64; 5] = [0.7, 0.5, 0.4, 0.3, 0.2];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_none() {
        return Err("name workload files, or kinds and numbers of calls".into());
    }
    while let Some(name) = arguments.next() {
        if !steps::KINDS.contains(&name.as_str()) {
            let workload = Workload::parse(&std::fs::read_to_string(name)?)?;
            table(&workload.name, &workload.problem, Some(workload.recorded_peak_bytes))?;
            continue;
        }
        while let Some(calls) = arguments.next_if(|a| a.parse::<usize>().is_ok()) {
            let problem = steps::step(&name, calls.parse()?).ok_or("no such kind")?;
            table(&name, &problem, None)?;
        }
    }
    Ok(())
}

fn table(name: &str, problem: &Problem, peak: Option<u64>) -> Result<(), Box<dyn Error>> {
    let is_file = peak.is_some();
    let peak = peak.map_or_else(|| recorded_peak(problem), Ok)? as f64;
    let once: u64 = problem.calls.iter().map(|c| c.nanoseconds).sum();
    let percent = |nanoseconds: u64| nanoseconds as f64 / once as f64 * 100.0;
    let smallest = smallest_line(problem)? as f64;
    let largest_call = largest_call(problem)? as f64;
    let least = least_peak(problem)? as f64;
    println!(
        "{name}: {} calls, largest call {:.4}, smallest line {:.4} ({:.2} × largest call), at least {:.4} ({:.2} ×)",
        problem.calls.len(),
        largest_call / peak,
        smallest / peak,
        smallest / largest_call,
        least / peak,
        least / largest_call
    );
    println!("  fraction  overhead  at least    online    remat   seconds");
    for (at, fraction) in FRACTIONS.into_iter().enumerate() {
        let line = (peak * fraction) as u64;
        let start = seconds();
        let solved = solve(problem, line);
        let seconds = seconds() - start;
        let bound = percent(lower_bound(problem, line)?);
        let recorded = DTR.iter().find(|o| is_file && o.0 == name).map(|o| o.1[at]);
        let online = recorded.or_else(|| Some(percent(online::online(problem, line)? - once)));
        let online = online.map_or("-".to_string(), |o| format!("{o:.1}"));
        match solved {
            Ok(schedule) => {
                let figures = check(problem, &schedule)?;
                let overhead = percent(figures.nanoseconds - once);
                println!(
                    "  {fraction:>8}  {overhead:>8.2}  {bound:>8.2}  {online:>8}  {:>7}  {seconds:>8.2}",
                    figures.rematerialized_runs
                );
            }
            Err(SearchError::LineTooLow(_)) => {
                println!("  {fraction:>8}         -  {bound:>8.2}  {online:>8}        -  {seconds:>8.2}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// CPU seconds of this thread, or wall-clock seconds where the system does not tell.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).map_or_else(clock, |n| n / 1e9)
}
