//! `plimsoll plan`: the load sheet without running.

use super::args::RunOptions;
use super::{Failure, say, setup::setup};
use plimsoll::plan::PlanSet;
use serde_json::{Value, json};

/// Plans and prints.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    let setup = setup(options)?;
    let plans = setup.trainer.plan(&setup.data)?;
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
