//! Runs that no plan can bring under the line, refused before any search.

use super::Failure;
use super::args::RunOptions;
use super::refusal::{Change, fewer_channels, optimizers, sizes, under};
use super::refusal_cache::Refusal;
use super::setup::{Setup, setup};
use super::{headroom, progress};
use plimsoll::plan::{LeastMemory, in_words};
use serde::Serialize;
use serde_json::{Value, json};

/// Graphs of fewer nodes are searched, because then the exact answer is quick, too.
const MANY_NODES: usize = 2_000;

/// A change of flags, and what a run with it needs at least.
#[derive(Serialize)]
struct Alternative {
    change: &'static str,
    flags: String,
    least_bytes: usize,
}

/// The answer to a large run that needs more than the line for a simple reason: its states do not fit, or what one kernel
/// reads. `None` for all others.
pub fn refuse(options: &RunOptions, setup: &Setup) -> Option<Failure> {
    if options.elsewhere.is_some() {
        return None;
    }
    let shown = progress::preparation("building the graphs");
    // What is wrong with a run is said where it is planned.
    let Ok(least) = setup.trainer.least_memory(&setup.data) else { return None };
    drop(shown);
    let (line_bytes, needed) = (setup.line_bytes, least.bytes());
    if needed <= line_bytes || least.nodes < MANY_NODES {
        return None;
    }
    let mut refusal = Refusal::begin(in_sentences(options, &least, line_bytes), true);
    let mut object = json!({
        "feasible": false,
        "error": "the line is too low",
        "line_bytes": line_bytes,
        "needed_bytes": needed,
        "missing_bytes": needed - line_bytes,
        "planned_peak_bytes": Value::Null,
        "floor_bytes": Value::Null,
        "least_bytes": needed,
        "state_bytes": least.state_bytes,
        "lower_bound_overhead": 0.0,
        "alternatives": [],
    });
    headroom::answered(if options.json { object.to_string() } else { String::new() });
    let mut alternatives = Vec::new();
    let _shown = progress::preparation("looking at alternatives (Ctrl-C to skip them)");
    for (change, flags, options) in changes(&under(options, line_bytes), setup) {
        let Some(bytes) = least_bytes(&options).filter(|bytes| *bytes < needed) else { continue };
        if alternatives.is_empty() {
            refusal.line(&format!("\n  {:<18} {:<33} {:>16}", "instead", "flags", "needs at least"));
        }
        let fits = if bytes <= line_bytes { "may fit: `plimsoll plan` with it tells" } else { "" };
        refusal.line(format!("  {change:<18} {flags:<33} {:>16}   {fits}", in_words(bytes)).trim_end());
        alternatives.push(Alternative { change, flags, least_bytes: bytes });
    }
    object["alternatives"] = json!(alternatives);
    Some(refusal.end(object, options, setup))
}

fn in_sentences(options: &RunOptions, least: &LeastMemory, line_bytes: usize) -> String {
    let needed = least.bytes();
    let mut text = format!(
        "the line is at least {} too low: it is {}, no plan of {} needs less than {}:",
        in_words(needed - line_bytes),
        in_words(line_bytes),
        options.model.model,
        in_words(needed)
    );
    if least.state_bytes > 0 {
        let states = in_words(least.state_bytes);
        text += &format!(" {states} for parameters and optimizer state, which may not go to a disk,");
    }
    let (kernel, outside) = (in_words(least.kernel_bytes), in_words(least.outside_bytes));
    text + &format!(
        " {kernel} that one kernel of `{}` reads, {outside} outside the arena (program, data, heap).\n  \
         This is a bound, found without a search: what is really needed is more.",
        least.layer
    )
}

fn changes(options: &RunOptions, setup: &Setup) -> Vec<Change> {
    let mut changes = Vec::new();
    if options.spill.as_ref().is_some_and(|folder| folder.as_os_str() == "none") {
        let offloading = RunOptions { spill: Some(".".into()), ..options.clone() };
        changes.push(("offloading", "--spill .".to_string(), offloading));
    }
    let smaller = sizes(options, setup).into_iter().chain(fewer_channels(options, setup));
    changes.extend(smaller.chain(optimizers(options)));
    changes
}

fn least_bytes(options: &RunOptions) -> Option<usize> {
    let setup = setup(options).ok()?;
    Some(setup.trainer.least_memory(&setup.data).ok()?.bytes())
}
