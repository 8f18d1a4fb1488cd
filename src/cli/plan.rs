//! `plimsoll plan`: the load sheet without running.

use super::args::PlanOptions;
use super::{Failure, answer, say, setup::setup, workload};
use plimsoll::plan::PlanSet;
use serde_json::{Value, json};

/// Plans and prints.
pub fn run(options: &PlanOptions) -> Result<(), Failure> {
    if let Some(path) = &options.workload {
        return workload::run(&options.run, path);
    }
    let options = &options.run;
    let files = [("--out", options.out.is_some()), ("--save-every", options.save_every.is_some())];
    if let Some((flag, _)) = files.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{flag} is for train: a plan writes nothing")));
    }
    if options.resume.is_some() {
        return Err(Failure::usage("--resume is for train: a plan starts anew"));
    }
    let setup = setup(options)?;
    let plans = setup.trainer.plan(&setup.data).map_err(|e| answer(e, options.json))?;
    say(&plans.sheet.to_string());
    if options.json {
        say(&planned(&plans).to_string());
    }
    Ok(())
}

/// What is known before running, as JSON.
pub fn planned(plans: &PlanSet) -> Value {
    json!({
        "planned_peak_bytes": plans.sheet.total_bytes,
        "arena_bytes": plans.arena_bytes,
        "line_bytes": plans.sheet.line_bytes,
        "micro_batches": plans.plans.first().map_or(1, |p| p.graph.micro_batches),
        "load_sheet": plans.sheet,
    })
}
