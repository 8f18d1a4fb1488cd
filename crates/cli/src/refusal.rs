//! The answer to a line that is too low: the smallest feasible line, what holds the memory, and alternatives.

use super::args::{Device, DeviceMemory, MachineOptions, ModelOptions, RunOptions};
use super::plan::{extend, lower_bound};
use super::refusal_cache::Refusal;
use super::setup::{Setup, setup};
use super::update::{MomentsName, OptimizerName};
use super::zoo_model::{entry, model, widths};
use super::{Failure, answer, headroom, page, progress};
use plimsoll::Size;
use plimsoll::compress::Channels;
use plimsoll::nn::Precision;
use plimsoll::plan::{Infeasible, LoadSheet, PlanError, Space, in_words, time_in_words};
use plimsoll::train::{Forecast, TrainError, TrainingPlan, tally};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A change of flags, and the plan that it gives.
#[derive(Debug, Serialize)]
pub struct Alternative {
    /// The change as text.
    pub change: &'static str,
    /// The flags to give.
    pub flags: String,
    /// The planned peak; the lowest found if it is over the line.
    pub planned_peak_bytes: usize,
    /// Predicted time of a step.
    pub predicted_ms: f64,
    /// Whether it is under the line.
    pub fits: bool,
}

/// The share of weights that are zero among the alternatives.
const PRUNED_SHARE: f64 = 0.8;

/// The share of channels that are removed among the alternatives.
const REMOVED_SHARE: f64 = 0.5;

/// From this slowdown on, the load sheet mentions alternatives.
const NOTEWORTHY_SLOWDOWN: f64 = 0.1;

/// Notes in the load sheet that a step which the line makes much slower was predicted for a disk that nobody tried.
pub fn note_disk(plans: &mut TrainingPlan, options: &RunOptions) {
    let assumed = options.spill_speed.is_none() && options.elsewhere.is_none();
    if assumed && plans.tier_bytes.file > 0 && plans.sheet.slowdown() > NOTEWORTHY_SLOWDOWN {
        let note = "That is for a disk of 2.5 GiB a second. With --spill-speed measure, yours is tried, and the plan made for it.";
        plans.load_sheet_mut().notes.insert(0, note.into());
    }
}

/// Notes in the load sheet if a step that the line makes much slower would be faster with batch norm split.
pub fn note_split(plans: &mut TrainingPlan, options: &RunOptions) {
    let line_bytes = plans.sheet.line_bytes;
    if plans.sheet.slowdown() <= NOTEWORTHY_SLOWDOWN || options.devices.are_logical() {
        return;
    }
    let options = under(options, line_bytes);
    if let Some(split) =
        split_batch_norm(&options).filter(|s| s.fits && s.predicted_ms < plans.sheet.predicted_ms())
    {
        plans.load_sheet_mut().notes.push(format!(
            "Batch norm keeps the batch whole. With {}, which changes the results, a step would take {}.",
            split.flags,
            time_in_words((split.predicted_ms * 1e6) as u64)
        ));
    }
}

/// The options with this line of the computing space.
pub fn under(options: &RunOptions, line_bytes: usize) -> RunOptions {
    if let Some(elsewhere) = options.elsewhere.as_ref().filter(|machine| machine.device_line().is_some()) {
        let elsewhere = Some(elsewhere.clone().under(line_bytes));
        return RunOptions { elsewhere, json: false, ..options.clone() };
    }
    if options.machine.device != Device::Cpu {
        let device_memory = Some(DeviceMemory::One(Size::Bytes(line_bytes)));
        let machine = MachineOptions { device_memory, ..options.machine.clone() };
        return RunOptions { machine, json: false, ..options.clone() };
    }
    let machine = MachineOptions { memory: Size::Bytes(line_bytes).into(), ..options.machine.clone() };
    RunOptions { machine, json: false, ..options.clone() }
}

/// [`refuse`] for a run.
pub fn plan_or_refuse(
    error: TrainError,
    options: &RunOptions,
    setup: &Setup,
) -> Result<TrainingPlan, Failure> {
    refuse(error, options, setup, &mut setup.trainer.forecast(&setup.data), &Map::new(), true)
}

/// Answers a plan that failed: with a plan, if the search for the floor finds one that fits; else with the smallest feasible
/// line and the alternatives, each as soon as it is found if `show` is set. Prints JSON if the options ask for it, with `more`
/// in it.
pub fn refuse(
    error: TrainError,
    options: &RunOptions,
    setup: &Setup,
    forecast: &mut Forecast,
    more: &Map<String, Value>,
    show: bool,
) -> Result<TrainingPlan, Failure> {
    let TrainError::Plan(PlanError::Infeasible(short)) = &error else { return Err(error.into()) };
    // Another line of the computing space does not help where host memory is short; and alternatives are for one device.
    if short.space == Space::Host || options.devices.are_logical() {
        return Err(answer(error, options.json));
    }
    let shown = progress::preparation("searching for the smallest line");
    let line_bytes = short.line_bytes;
    let floor_bytes = forecast.floor()?;
    let mut lowest = forecast.plan(floor_bytes)?;
    if floor_bytes <= line_bytes {
        lowest.load_sheet_mut().line_bytes = line_bytes;
        return Ok(lowest);
    }
    drop(shown);
    let refused = Infeasible {
        space: short.space,
        line_bytes,
        needed_bytes: floor_bytes,
        missing_bytes: floor_bytes - line_bytes,
        sheet: lowest.sheet.clone(),
    };
    let mut refusal = Refusal::begin(refused.to_string(), show);
    let mut object = json!({
        "feasible": false,
        "error": "the line is too low",
        "line_bytes": line_bytes,
        "needed_bytes": refused.needed_bytes,
        "missing_bytes": refused.missing_bytes,
        "planned_peak_bytes": Value::Null,
        "floor_bytes": floor_bytes,
        "naive_activation_bytes": forecast.naive_activation_bytes()?,
        "state_bytes": tally(&lowest).state_bytes,
        "overhead": Value::Null,
        "lower_bound_overhead": Value::Null,
        "micro_batches": lowest.plans.first().map_or(1, |p| p.graph.step_micro_batches()),
        "kept": Value::Null,
        "recomputed": Value::Null,
        "spilled": Value::Null,
        "fragmentation": Value::Null,
        "load_sheet": refused.sheet,
        "alternatives": [],
    });
    extend(&mut object, &Value::Object(more.clone()));
    headroom::answered(if options.json { object.to_string() } else { String::new() });
    let alternatives = alternatives(options, setup, line_bytes, floor_bytes, &mut refusal);
    let shown = alternatives.iter().map(page::shown).collect();
    page::write_refused(options, setup, lowest.clone(), shown)?;
    object["alternatives"] = json!(alternatives);
    if options.json {
        let _shown = progress::preparation("searching for a lower bound");
        extend(&mut object, &json!({ "lower_bound_overhead": lower_bound(forecast, line_bytes)? }));
    }
    Err(refusal.end(object, options, setup))
}

/// The alternatives as a table.
fn heading() -> String {
    format!("  {:<18} {:<33} {:>12} {:>12}   under the line", "instead", "flags", "planned peak", "step")
}

fn row(a: &Alternative) -> String {
    format!(
        "  {:<18} {:<33} {:>12} {:>12}   {}",
        a.change,
        a.flags,
        in_words(a.planned_peak_bytes),
        time_in_words((a.predicted_ms * 1e6) as u64),
        if a.fits { "yes" } else { "no" }
    )
}

/// Every change that applies, planned, and told as soon as it is found. One that needs as much as what it replaces is left out.
fn alternatives(
    options: &RunOptions,
    setup: &Setup,
    line_bytes: usize,
    floor_bytes: usize,
    refusal: &mut Refusal,
) -> Vec<Alternative> {
    let _shown = progress::preparation("planning alternatives (Ctrl-C to skip them)");
    let mut found = Vec::new();
    each_alternative(options, setup, line_bytes, |alternative| {
        if !alternative.fits && alternative.planned_peak_bytes >= floor_bytes {
            return;
        }
        if found.is_empty() {
            refusal.line(&format!("\n{}", heading()));
        }
        refusal.line(&row(&alternative));
        found.push(alternative);
    });
    found
}

/// Plans every change that applies under a line.
pub fn each_alternative(
    options: &RunOptions,
    setup: &Setup,
    line_bytes: usize,
    mut add: impl FnMut(Alternative),
) {
    let options = &under(options, line_bytes);
    let mut found = |alternative: Option<Alternative>| alternative.into_iter().for_each(&mut add);
    found(smaller_batch(options, setup.batch));
    for change in [split, split_batch_norm, offloading, lower_precision, on_bytes, pruned] {
        found(change(options));
    }
    let optimizers = if options.inference.is_none() { optimizers(options) } else { Vec::new() };
    let changes = sizes(options, setup).into_iter().chain(fewer_channels(options, setup)).chain(optimizers);
    for (change, flags, options) in changes {
        found(plan_sheet(&options).map(|(fits, sheet)| alternative(change, flags, fits, &sheet)));
    }
}

/// The load sheet of a run, and whether it fits its line; `None` for a run with invalid options.
fn plan_sheet(options: &RunOptions) -> Option<(bool, LoadSheet)> {
    let setup = setup(options).ok()?;
    setup.trainer.fits(&setup.data).ok()
}

fn alternative(change: &'static str, flags: String, fits: bool, sheet: &LoadSheet) -> Alternative {
    let (planned_peak_bytes, predicted_ms) = (sheet.total_bytes, sheet.predicted_ms());
    Alternative { change, flags, planned_peak_bytes, predicted_ms, fits }
}

/// The first batch that fits of a half, a quarter and so on; one example if none does.
fn smaller_batch(options: &RunOptions, batch: usize) -> Option<Alternative> {
    let of = |batch: usize| {
        // The smaller batch may not be divisible by the fixed number of micro-batches.
        let micro_batches = options.micro_batches.filter(|k| batch.is_multiple_of(*k));
        let smaller = RunOptions { batch: Some(batch), micro_batches, ..options.clone() };
        let (fits, sheet) = plan_sheet(&smaller)?;
        Some(alternative("smaller batch", format!("--batch {batch}"), fits, &sheet))
    };
    if batch < 2 {
        return None;
    }
    let one = of(1)?;
    let mut halves = std::iter::successors(Some(batch / 2), |&n| Some(n / 2)).take_while(|&n| n > 1);
    let larger = if one.fits { halves.find_map(|n| of(n).filter(|a| a.fits)) } else { None };
    Some(larger.unwrap_or(one))
}

/// The planner's number of micro-batches, where a flag fixed it.
fn split(options: &RunOptions) -> Option<Alternative> {
    options.micro_batches?;
    let (fits, sheet) = plan_sheet(&RunOptions { micro_batches: None, ..options.clone() })?;
    let parts = sheet.plans.first().map_or(1, |p| p.micro_batches);
    let differs = Some(parts) != options.micro_batches;
    differs.then(|| alternative("other splits", format!("--micro-batches {parts}"), fits, &sheet))
}

/// Micro-batches in spite of batch norm, where batch norm prevents them.
fn split_batch_norm(options: &RunOptions) -> Option<Alternative> {
    let whole = options.inference.is_some() || options.allow_split_batchnorm;
    if whole || entry(&options.model.model).is_ok_and(|entry| entry.splits) {
        return None;
    }
    let split = RunOptions { allow_split_batchnorm: true, micro_batches: None, ..options.clone() };
    let (fits, sheet) = plan_sheet(&split)?;
    Some(alternative("split batch norm", "--allow-split-batchnorm".into(), fits, &sheet))
}

/// Offloading, where a flag forbids it.
fn offloading(options: &RunOptions) -> Option<Alternative> {
    options.spill.as_ref().filter(|folder| folder.as_os_str() == "none")?;
    let (fits, sheet) = plan_sheet(&RunOptions { spill: Some(".".into()), ..options.clone() })?;
    Some(alternative("offloading", "--spill .".into(), fits, &sheet))
}

/// Activations in bf16, where they take 32 bits.
fn lower_precision(options: &RunOptions) -> Option<Alternative> {
    if options.precision.precision.is_low() {
        return None;
    }
    let mut low = options.clone();
    low.precision.precision = Precision::BF16;
    let (fits, sheet) = plan_sheet(&low)?;
    Some(alternative("lower precision", "--precision bf16".into(), fits, &sheet))
}

/// Layers on bytes, where the step does not train.
fn on_bytes(options: &RunOptions) -> Option<Alternative> {
    options.inference.filter(|_| !options.on_bytes)?;
    let (fits, sheet) = plan_sheet(&RunOptions { on_bytes: true, ..options.clone() })?;
    Some(alternative("on bytes", "plimsoll quantize RUN".into(), fits, &sheet))
}

/// Weights of which four in five are zero, stored sparse, where the step does not train.
fn pruned(options: &RunOptions) -> Option<Alternative> {
    let whole = options.prune.prune.is_none() && options.prune.prune_schedule.is_none();
    options.inference.filter(|_| whole)?;
    let mut sparse = options.clone();
    sparse.prune.prune = Some(PRUNED_SHARE);
    let (fits, sheet) = plan_sheet(&sparse)?;
    Some(alternative("pruned weights", format!("--prune {PRUNED_SHARE}"), fits, &sheet))
}

/// A change, its flags, and the options with it.
pub type Change = (&'static str, String, RunOptions);

/// Smaller images or contexts, and smaller models of the same family.
pub fn sizes(options: &RunOptions, setup: &Setup) -> Vec<Change> {
    let Ok(entry) = entry(&options.model.model) else { return Vec::new() };
    let (layers, width) = entry.default_layers_and_width();
    let first = setup.inputs.first().and_then(|field| field.ty.shape.first().copied());
    let heads = options.model.heads.or(entry.default_heads());
    let sizes: [(&str, &str, &str, Option<usize>); 5] = [
        ("image", "smaller images", "--image-size", first),
        ("context", "shorter context", "--context", first),
        ("layers", "fewer layers", "--layers", options.model.layers.or(layers)),
        ("width", "narrower", "--width", options.model.width.or(width)),
        ("key_heads", "fewer key heads", "--kv-heads", options.model.kv_heads.or(heads)),
    ];
    let mut changes = Vec::new();
    for (name, change, flag, size) in sizes {
        let Some(half) = size.map(|n| n / 2).filter(|&n| n > 0 && entry.options.contains(&name)) else {
            continue;
        };
        let mut options = options.clone();
        match name {
            "image" => options.model.image_size = Some(half),
            "context" => options.model.context = Some(half),
            "layers" => options.model.layers = Some(half),
            "key_heads" => options.model.kv_heads = Some(half),
            _ => options.model.width = Some(half),
        }
        changes.push((change, format!("{flag} {half}"), options));
    }
    changes
}

/// The model without half of the channels of its convolutions, where there are some that nothing else fixes.
pub fn fewer_channels(options: &RunOptions, setup: &Setup) -> Option<Change> {
    // What is there for training alone does not change them.
    let sizes = ModelOptions { quantize_aware: false, ..setup.sizes.clone() };
    let whole = model(&sizes, options.data.as_deref()).ok()?;
    let mut left = widths(&sizes.widths).ok()?;
    left.extend(Channels::widths_after(&whole, REMOVED_SHARE).ok()?);
    let mut options = options.clone();
    options.model.widths = left.iter().map(|(layer, n)| format!("{layer}={n}")).collect();
    Some(("fewer channels", format!("plimsoll prune RUN --channels {REMOVED_SHARE}"), options))
}

/// Optimizers with fewer or smaller moments.
pub fn optimizers(options: &RunOptions) -> Vec<Change> {
    use OptimizerName as Name;
    let update = &options.update;
    let leaner: &[(Name, &str)] = match update.optimizer {
        Name::Adam | Name::Adamw | Name::Rmsprop => &[(Name::Momentum, "momentum"), (Name::Sgd, "sgd")],
        Name::Momentum | Name::Nesterov | Name::Lion => &[(Name::Sgd, "sgd")],
        Name::Sgd | Name::Adafactor => &[],
    };
    let mut changes: Vec<Change> = Vec::new();
    if matches!(update.optimizer, Name::Adam | Name::Adamw) && update.moments != MomentsName::Bytes {
        let mut options = options.clone();
        options.update.moments = MomentsName::Bytes;
        changes.push(("smaller moments", "--moments 8bit".into(), options));
    }
    // No flag takes back a momentum that was given.
    for &(optimizer, name) in leaner.iter().filter(|_| update.momentum.is_none()) {
        let mut options = options.clone();
        options.update.optimizer = optimizer;
        options.update.moments = MomentsName::Whole;
        options.update.momentum = None;
        let whole = if update.moments == MomentsName::Whole { "" } else { " --moments whole" };
        changes.push(("leaner optimizer", format!("--optimizer {name}{whole}"), options));
    }
    changes
}
