//! `plimsoll plan`: the load sheet and other answers without training.

use super::answers::{LINES, Say, batches, curve, max_batch};
use super::args::{PlanOptions, RunOptions, StepName};
use super::device_flags::placement;
use super::machine::elsewhere;
use super::{
    Failure, page, progress, ranks,
    refusal::{each_alternative, note_disk, note_split, refuse},
    refusal_cache, say,
    setup::{Setup, check_spill_folder, setup},
    too_large, workload,
};
use clap::ArgMatches;
use plimsoll::graph::ValueId;
use plimsoll::plan::{Buffer, BufferKind, PlanSet};
use plimsoll::report::why;
use plimsoll::train::{BatchKind, Forecast, TrainError, TrainingPlan, tally};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Plans and prints.
pub fn run(options: &PlanOptions, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    if let Some(path) = &options.workload {
        return workload::run(&options.run, path);
    }
    let files = [
        ("--out", options.run.out.is_some()),
        ("--overwrite", options.run.overwrite),
        ("--save-every", options.run.save_every.is_some()),
        ("--keep", options.run.running.keep.is_some()),
        ("--log", options.run.running.log.is_some()),
        ("--live", options.run.page.live.is_some()),
    ];
    if let Some((flag, _)) = files.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{flag} is for train: a plan runs nothing")));
    }
    if options.run.resume.is_some() {
        return Err(Failure::usage("--resume is for train: a plan starts anew"));
    }
    let mut run = elsewhere(options, matches)?;
    run.inference = match options.step {
        StepName::Train => None,
        StepName::Evaluate => Some(BatchKind::Evaluate),
        StepName::Predict => Some(BatchKind::Predict),
    };
    run.on_bytes = options.on_bytes;
    let run = &run;
    let page = run.page.file(None)?;
    let trains = run.inference.is_none();
    if trains && run.on_bytes {
        return Err(Failure::usage(
            "--on-bytes is for a step that does not train: add --step predict or --step evaluate",
        ));
    }
    let asked = [
        ("--max-batch", options.max_batch),
        ("--batches", options.batches),
        ("--ranks", run.ranks.ranks.is_some()),
    ];
    if let Some((flag, _)) = asked.into_iter().find(|(_, asked)| *asked && !trains) {
        return Err(Failure::usage(format!("{flag} is for training: leave it or --step out")));
    }
    let setup = setup(run).map_err(|failure| failure.in_json(run.json))?;
    if let Some(object) = ranks::plans(run, &setup)? {
        if run.json {
            say(&object.to_string());
        }
        return Ok(());
    }
    let mut forecast = setup.trainer.forecast(&setup.data);
    let mut answers = Map::new();
    let shown = progress::preparation("planning");
    let show: Say = if run.json { |_| {} } else { say };
    if options.curve {
        answers.insert("curve".into(), curve(&mut forecast, show)?);
    }
    if options.max_batch {
        answers.insert("max_batch".into(), max_batch(run, &setup, show)?);
    }
    if options.batches {
        answers.insert("batches".into(), batches(run, &setup, show)?);
    }
    drop(shown);
    let answered = !answers.is_empty();
    if answered && !run.json && page.is_none() && options.why.is_none() {
        return Ok(());
    }
    if !answered && let Some(failure) = refused(run, &setup) {
        return Err(failure);
    }
    let start = Instant::now();
    let shown = progress::preparation("planning");
    let found = forecast.plan(setup.line_bytes);
    drop(shown);
    answers.insert("planning_ms".into(), json!(start.elapsed().as_secs_f64() * 1e3));
    answers.insert("cached".into(), json!(setup.trainer.searches() == 0));
    let mut plans = match found {
        Ok(plans) => plans,
        Err(error) => match refuse(error, run, &setup, &mut forecast, &answers, !answered) {
            Ok(plans) => plans,
            // The question was another one, and is answered already.
            Err(_) if answered => return Ok(()),
            Err(failure) => return Err(failure),
        },
    };
    check_spill_folder(run, &plans)?;
    note_disk(&mut plans, run);
    note_split(&mut plans, run);
    plans.load_sheet_mut().notes.extend(setup.pictures_note(run));
    if let Some(elsewhere) = &run.elsewhere {
        let note = elsewhere.file_note(plans.load_sheet());
        plans.load_sheet_mut().notes.extend(note);
    }
    let mut view = match page.is_some() || options.why.is_some() {
        true => Some(page::view(run, &setup, &plans)?),
        false => None,
    };
    if let (Some(name), Some(view)) = (&options.why, &view) {
        let text = why(&plans, view, &plans.tiers(), name).map_err(Failure::usage)?;
        show(&text);
        answers.insert("why".into(), json!(text));
    } else if !answered {
        show(&sheets(&plans));
        if run.devices.log_placement {
            show(&placement(&plans));
        }
        if options.layout {
            show(&layout(&plans));
        }
    }
    if let (Some(file), Some(view)) = (page, &mut view) {
        if options.curve {
            view.curve = page::curve_points(&forecast.curve(LINES)?);
            let _shown = progress::preparation("planning alternatives");
            each_alternative(run, &setup, setup.line_bytes, |found| {
                view.alternatives.push(page::shown(&found))
            });
        }
        page::write(view, &file)?;
    }
    if run.json {
        let _shown = progress::preparation("searching for the smallest line");
        let mut object = planned(&plans);
        match run.devices.are_logical() {
            true => extend(&mut object, &json!({ "feasible": true })),
            false => extend(&mut object, &figures(&mut forecast, &plans)?),
        }
        extend(&mut object, &Value::Object(answers));
        say(&object.to_string());
    }
    Ok(())
}

/// The answer to a run that is known to need more than the line, or is too large for it for a simple reason.
pub fn refused(options: &RunOptions, setup: &Setup) -> Option<Failure> {
    // Those are answers for one device.
    if options.devices.are_logical() {
        return None;
    }
    if options.inference.is_some() {
        // The bound of a run that is too large is one of training, and a page needs a plan.
        return if options.page.report.is_none() { refusal_cache::known(options, setup) } else { None };
    }
    if options.page.report.is_none() {
        return refusal_cache::known(options, setup).or_else(|| too_large::refuse(options, setup));
    }
    // The page needs a plan: without a line there is one at once.
    let refused = too_large::refuse(options, setup)?;
    let written = (setup.trainer.forecast(&setup.data).plan(usize::MAX).map_err(Failure::from))
        .and_then(|plans| page::write_refused(options, setup, plans, Vec::new()));
    Some(written.err().unwrap_or(refused))
}

/// The load sheet and, where devices have different parts of the model, that of each.
pub fn sheets(plans: &TrainingPlan) -> String {
    let parts = plans.device_sheets().filter(|_| plans.parts().count() > 1);
    let all = std::iter::once(plans.load_sheet()).chain(parts).map(ToString::to_string);
    all.collect::<Vec<_>>().join("\n")
}

/// Where the buffers of the first plan lie in the arena, as a table; those that share bytes do so at different times.
fn layout(plans: &PlanSet) -> String {
    let mut table = format!("{:>12} {:>12} {:>7} {:>7}  {}", "offset", "bytes", "from", "to", "what");
    let Some(plan) = plans.plans.first() else { return table };
    let mut buffers: Vec<&Buffer> = plan.buffers.iter().filter(|buffer| buffer.bytes > 0).collect();
    buffers.sort_by_key(|buffer| (buffer.offset, buffer.first));
    for buffer in buffers {
        let made = |value: ValueId| match plan.graph.producer(value).map(|node| plan.graph.node(node)) {
            Some(node) => format!("{} {} {}", node.layer, node.op.name(), plan.graph.ty(value)),
            None => format!("loaded {}", plan.graph.ty(value)),
        };
        let what = match (buffer.kind, buffer.value) {
            (BufferKind::State(i), _) => {
                plans.states.get(i).map_or(String::new(), |s| format!("{} {}", s.name, s.ty))
            }
            (BufferKind::Input(i), _) => format!("input {}", plan.graph.inputs[i].label()),
            (BufferKind::Accumulator(_), _) => "accumulator".to_string(),
            (BufferKind::Workspace, _) => "workspace".to_string(),
            (BufferKind::Value, value) => value.map(made).unwrap_or_default(),
        };
        let Buffer { offset, bytes, first, last, .. } = buffer;
        table += &format!("\n{offset:>12} {bytes:>12} {:>7} {:>7}  {what}", first + 1, last + 1);
    }
    table
}

/// The figures of a plan, as JSON.
pub fn planned(plans: &TrainingPlan) -> Value {
    let (mut all, unlimited_ns) = (tally(plans), plans.sheet.unlimited_ns.max(1));
    plans.parts().skip(1).for_each(|part| all.add(&tally(part)));
    let tally = all;
    // Devices with different parts of the model work one after another.
    let first = plans.parts().filter_map(|part| part.plans.first());
    let nanoseconds: u64 = first.map(|plan| plan.nanoseconds).sum();
    json!({
        "planned_peak_bytes": plans.sheet.total_bytes,
        "arena_bytes": plans.arena_bytes,
        "line_bytes": plans.sheet.line_bytes,
        "state_bytes": tally.state_bytes,
        "micro_batches": plans.plans.first().map_or(1, |p| p.graph.step_micro_batches()),
        "kept": tally.kept,
        "recomputed": tally.recomputed,
        "recomputed_bytes": tally.recomputed_bytes,
        "spilled": tally.offloaded.file,
        "spilled_bytes": tally.offloaded_bytes.file,
        "stored_bytes": tally.stored_bytes.file,
        "in_host_memory": tally.offloaded.host,
        "in_host_memory_bytes": tally.offloaded_bytes.host,
        "fragmentation": tally.fragmentation,
        "overhead": nanoseconds as f64 / unlimited_ns as f64 - 1.0,
        "predicted_ms": nanoseconds as f64 / 1e6,
        "load_sheet": plans.sheet,
    })
}

/// Figures that need other plans, as JSON.
fn figures(forecast: &mut Forecast, plans: &PlanSet) -> Result<Value, TrainError> {
    // The bound is for plans that offload nothing.
    let offloaded = tally(plans).offloaded;
    let bound = match offloaded.host + offloaded.file {
        0 => lower_bound(forecast, plans.sheet.line_bytes)?,
        _ => 0.0,
    };
    Ok(json!({
        "feasible": true,
        "floor_bytes": forecast.floor()?,
        "naive_activation_bytes": forecast.naive_activation_bytes()?,
        "lower_bound_overhead": bound,
    }))
}

/// The least time that rematerialization takes under a line, as a share of the unlimited step's time.
pub fn lower_bound(forecast: &mut Forecast, line_bytes: usize) -> Result<f64, TrainError> {
    let unlimited = forecast.plan(usize::MAX)?.sheet.unlimited_ns;
    Ok(forecast.least_rematerialization(line_bytes)? as f64 / unlimited.max(1) as f64)
}

/// Adds the fields of one object to another.
pub fn extend(object: &mut Value, more: &Value) {
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        object.extend(more.clone());
    }
}
