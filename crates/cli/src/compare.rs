//! `plimsoll compare`: runs side by side.

use super::runs::Run;
use super::text::{escaped, json_line};
use super::{Failure, put, say};
use clap::Args;
use plimsoll::plan::in_words;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct CompareOptions {
    /// Folders of `train --out`, also of runs that go on
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// The widest column of a run; longer values are cut off.
const WIDEST: usize = 32;
/// Flags in which runs always differ and that say nothing of them.
const PLACES: [&str; 4] = ["out", "log", "spill", "plan-cache"];

/// A row: its name, and a value for each run.
type Row = (String, Vec<Option<String>>);

/// Reads the runs and prints them.
pub fn run(options: &CompareOptions) -> Result<(), Failure> {
    let runs = options.runs.iter().map(|folder| Run::read(folder)).collect::<Result<Vec<_>, _>>()?;
    if options.json {
        put(&json_line(&json!({
            "runs": runs.iter().map(as_json).collect::<Vec<_>>(),
            "different_flags": different(&runs).collect::<Vec<_>>(),
        })));
        return Ok(());
    }
    let flags: Vec<Row> = different(&runs)
        .map(|flag| (format!("--{flag}"), runs.iter().map(|run| run.flags.get(flag).cloned()).collect()))
        .collect();
    let mut text = table("", &[], &runs);
    text += &match flags.is_empty() {
        true if runs.len() > 1 => "\nthe flags are the same\n".to_string(),
        true => String::new(),
        false => table("\nflags that differ", &flags, &runs),
    };
    text += &table("\nresults", &results(&runs), &runs);
    say(text.trim_end());
    Ok(())
}

/// The flags that not all runs have with one value.
fn different(runs: &[Run]) -> impl Iterator<Item = &str> {
    let all: BTreeSet<&str> = runs.iter().flat_map(|run| run.flags.keys().map(String::as_str)).collect();
    let differs = move |flag: &&str| {
        let first = runs.first().and_then(|run| run.flags.get(*flag));
        !PLACES.contains(flag) && runs.iter().any(|run| run.flags.get(*flag) != first)
    };
    all.into_iter().filter(differs)
}

fn results(runs: &[Run]) -> Vec<Row> {
    let row = |name: &str, of: &dyn Fn(&Run) -> Option<String>| -> Row {
        (name.to_string(), runs.iter().map(of).collect())
    };
    let figure = |field: &'static str| move |run: &Run| run.number(field).map(|value| format!("{value:.4}"));
    let bytes = |bytes: Option<f64>| bytes.map(|bytes| in_words(bytes as usize));
    let mut rows = vec![
        row("state", &|run| Some(state(run))),
        row("steps", &|run| {
            run.number("steps").map(|n| format!("{n:.0}")).or(Some(run.events.steps.to_string()))
        }),
        row("training loss", &|run| {
            let loss = run.number("final_loss").or(run.events.last_loss);
            loss.map(|loss| format!("{loss:.4}"))
        }),
        row("best validation loss", &|run| run.events.best_validation_loss.map(|loss| format!("{loss:.4}"))),
        row("test loss", &figure("test_loss")),
        row("test accuracy", &|run| run.number("test_accuracy").map(percent)),
    ];
    let names: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.events.figures.iter().map(|(name, _)| name.as_str())).collect();
    for name in names.into_iter().filter(|name| *name != "train_loss" && *name != "test_loss") {
        rows.push(row(&format!("validation {name}"), &|run| {
            let (_, value) = run.events.figures.iter().find(|(known, _)| known == name)?;
            Some(if name == "accuracy" { percent(*value) } else { format!("{value:.4}") })
        }));
    }
    rows.extend([
        row("line", &|run| bytes(run.number("line_bytes").or(run.events.line_bytes.map(|b| b as f64)))),
        row("planned peak", &|run| bytes(run.planned_bytes())),
        row("measured peak", &|run| bytes(run.measured_bytes())),
        row("measured / planned", &|run| {
            let (measured, planned) = run.measured_bytes().zip(run.planned_bytes())?;
            Some(percent(measured / planned.max(1.0)))
        }),
        row("in swap at most", &|run| {
            (run.events.swapped_bytes > 0).then(|| in_words(run.events.swapped_bytes as usize))
        }),
        row("samples/s", &|run| run.samples_per_second().map(|rate| format!("{rate:.1}"))),
        row("ms a step (median)", &|run| run.number("step_ms_median").map(|ms| format!("{ms:.2}"))),
        row("predicted ms a step", &|run| run.events.predicted_seconds.map(|s| format!("{:.2}", 1e3 * s))),
        row("waiting for data", &|run| {
            let share = run.events.data_seconds / run.events.seconds;
            share.is_finite().then(|| format!("{:.1} %", 100.0 * share))
        }),
    ]);
    // What no run has is no row.
    rows.retain(|(_, values)| values.iter().any(Option::is_some));
    rows
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// How far a run has come.
fn state(run: &Run) -> String {
    match (run.report.get("ending").and_then(Value::as_str), run.events.total_steps) {
        (Some(ending), _) => ending.to_string(),
        (None, Some(total)) if total > 0 => format!("{} of {total} steps", run.events.steps),
        (None, _) => "not ended".to_string(),
    }
}

/// Aligned columns under a heading: names to the left, values to the right. Without rows, the names of the runs.
fn table(heading: &str, rows: &[Row], runs: &[Run]) -> String {
    let cut = |text: &str| -> String {
        let text = escaped(text);
        if text.chars().count() <= WIDEST {
            text
        } else {
            text.chars().take(WIDEST - 1).chain(['…']).collect()
        }
    };
    let names: Vec<String> = runs.iter().map(|run| cut(&run.name())).collect();
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(_, values)| values.iter().map(|value| value.as_deref().map_or("-".into(), cut)).collect())
        .collect();
    let found = results(runs).into_iter().map(|(_, values)| values);
    let flags = different(runs).map(|flag| runs.iter().map(|run| run.flags.get(flag).cloned()).collect());
    let all: Vec<Vec<Option<String>>> = found.chain(flags).collect();
    let width = |column: usize| {
        let values =
            all.iter().filter_map(|row| row[column].as_deref().map(|text| cut(text).chars().count()));
        values.chain([names[column].chars().count(), 8]).max().unwrap_or(8)
    };
    let first = 24;
    let line = |name: &str, values: &[String]| {
        let values = values.iter().enumerate().map(|(column, value)| format!("  {value:>0$}", width(column)));
        format!("{name:<first$}{}\n", values.collect::<String>())
    };
    if rows.is_empty() {
        return line("", &names);
    }
    let mut text = format!("{heading}\n");
    rows.iter().zip(&cells).for_each(|((name, _), cells)| text += &line(&format!("  {}", cut(name)), cells));
    text
}

fn as_json(run: &Run) -> Value {
    let events = &run.events;
    let figures: Map<String, Value> =
        events.figures.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({
        "folder": run.folder.display().to_string(),
        "flags": run.flags,
        "state": state(run),
        "steps": run.number("steps").unwrap_or(events.steps as f64) as u64,
        "total_steps": events.total_steps,
        "final_loss": run.number("final_loss").or(events.last_loss),
        "best_validation_loss": events.best_validation_loss,
        "test_loss": run.number("test_loss"),
        "test_accuracy": run.number("test_accuracy"),
        "validation": figures,
        "line_bytes": run.number("line_bytes").map(|b| b as u64).or(events.line_bytes),
        "planned_peak_bytes": run.planned_bytes().map(|b| b as u64),
        "measured_peak_bytes": run.measured_bytes().map(|b| b as u64),
        "swapped_bytes": events.swapped_bytes,
        "samples_per_second": run.samples_per_second(),
        "step_ms_median": run.number("step_ms_median"),
        "predicted_step_ms": events.predicted_seconds.map(|s| 1e3 * s),
        "waiting_for_data": if events.seconds > 0.0 { json!(events.data_seconds / events.seconds) } else { Value::Null },
    })
}
