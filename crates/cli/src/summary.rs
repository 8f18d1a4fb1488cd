//! What a run will be, on a few lines, before it begins. The whole account is the load sheet's.

use super::args::RunOptions;
use super::setup::{Setup, spill_folder};
use super::text::{count, escaped};
use plimsoll::Size;
use plimsoll::data::{Dataset, Pipeline};
use plimsoll::graph::Role;
use plimsoll::nn::Field;
use plimsoll::plan::{LoadSheet, in_words, time_in_words};
use plimsoll::train::TrainingPlan;

/// Checkpoints that are kept where no flag says how many.
const KEPT: usize = 2;

/// Model, data, batch, memory, time and disk of a run.
pub fn summary(options: &RunOptions, setup: &Setup, plans: &TrainingPlan) -> String {
    let rows = [
        ("model", model(options, plans)),
        ("data", data(setup)),
        ("batch", batch(setup, &plans.sheet)),
        ("memory", memory(options, &plans.sheet)),
        ("time", time(setup, &plans.sheet)),
        ("disk", disk(options, plans)),
    ];
    let mut text: Vec<String> = rows.into_iter().map(|(name, what)| format!("{name:<8} {what}")).collect();
    text.extend(plans.sheet.price());
    text.extend(plans.sheet.notes.iter().cloned());
    text.push("--sheet shows the account of every byte.".into());
    text.join("\n") + "\n"
}

fn elements(plans: &TrainingPlan, role: Role) -> usize {
    plans.states().filter(|s| s.role == role).map(|s| s.ty.shape.elements()).sum()
}

fn model(options: &RunOptions, plans: &TrainingPlan) -> String {
    let parameters = count(elements(plans, Role::Parameter));
    let (precision, optimizer) = (options.precision.precision, options.update.optimizer_name());
    format!("{}, {parameters} parameters, {precision}, {optimizer}", options.model.model)
}

fn data(setup: &Setup) -> String {
    let Dataset { name, train, validation, test } = &setup.data;
    let of = |len: Option<usize>| len.map_or("unknown".to_string(), count);
    let types: Vec<String> = setup.inputs.iter().map(shape).collect();
    let types = types.join(" and ");
    let validation =
        validation.as_ref().map_or(String::new(), |part| format!(", {} validation", of(part.len())));
    let (name, train, test) = (escaped(name), of(train.len()), of(test.len()));
    format!("{name}, {train} training{validation} and {test} test examples of {types}")
}

/// The shape of an example as text: `28×28×1`.
fn shape(field: &Field) -> String {
    match field.ty.shape.iter().map(ToString::to_string).collect::<Vec<_>>() {
        sides if sides.is_empty() => "one number".into(),
        sides => sides.join("×"),
    }
}

fn batch(setup: &Setup, sheet: &LoadSheet) -> String {
    let (examples, steps) = (setup.trainer.step_examples(), setup.trainer.total_steps(&setup.data));
    let parts = sheet.plans.first().map_or(1, |plan| plan.micro_batches);
    let parts = match parts {
        1 => String::new(),
        parts => format!(" in {parts} micro-batches of {}", examples / parts),
    };
    let plural = if steps == 1 { "" } else { "s" };
    format!("{} examples a step{parts}, {} step{plural}", count(examples), count(steps as usize))
}

fn memory(options: &RunOptions, sheet: &LoadSheet) -> String {
    let (peak, line) = (in_words(sheet.total_bytes), in_words(sheet.line_bytes));
    let left = in_words(sheet.line_bytes.saturating_sub(sheet.total_bytes));
    let share = match options.machine.memory.own() {
        Size::Bytes(_) => String::new(),
        Size::Percent(share) => format!(", {share} % of what is available"),
    };
    format!("planned peak {peak}; the line is {line}{share}; {left} are left")
}

fn time(setup: &Setup, sheet: &LoadSheet) -> String {
    let step = sheet.plans.first().map_or(0, |plan| plan.predicted_us).saturating_mul(1_000);
    let steps = setup.trainer.total_steps(&setup.data);
    let evaluation = evaluation_ns(setup.data.evaluation_part(), sheet);
    // The test part is measured once, unless validations use it.
    let test = setup.data.validation.as_ref().map_or(0, |_| evaluation_ns(&setup.data.test, sheet));
    let validations = setup.trainer.validations(&setup.data);
    let whole = step.saturating_mul(steps).saturating_add(evaluation.saturating_mul(validations));
    let whole = whole.saturating_add(test);
    let (step, evaluation) = (time_in_words(step), time_in_words(evaluation));
    let plural = if validations == 1 { "" } else { "s" };
    format!(
        "about {} in all on an idle machine: {step} a step, {} validation{plural} of {evaluation}{}",
        time_in_words(whole),
        count(validations as usize),
        busy(setup.threads).unwrap_or_default()
    )
}

/// How much longer it takes where other programs keep the processor busy, by the system's load; `None` where it is idle or does not
/// tell.
fn busy(threads: usize) -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split_whitespace().next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().ok()?.get() as f64;
    let times = (load + threads as f64) / cores;
    (load >= 0.5 && times >= 1.25).then(|| {
        format!(
            "; others keep {:.1} of {cores} cores busy now, so up to {times:.1} times that",
            load.min(cores)
        )
    })
}

/// Predicted time of one evaluation of a part of the data.
fn evaluation_ns(part: &Pipeline, sheet: &LoadSheet) -> u64 {
    let mut left = part.len().unwrap_or(0) as u64;
    let mut nanoseconds = 0_u64;
    let evaluations = sheet.plans.iter().filter(|plan| plan.name.starts_with("evaluate"));
    for plan in evaluations.filter(|plan| plan.examples > 0) {
        let batches = left / plan.examples as u64;
        nanoseconds =
            nanoseconds.saturating_add(batches.saturating_mul(plan.predicted_us).saturating_mul(1_000));
        left -= batches * plan.examples as u64;
    }
    nanoseconds
}

fn disk(options: &RunOptions, plans: &TrainingPlan) -> String {
    let mut parts = Vec::new();
    if let Some(folder) = &options.out {
        let all: usize = plans.states().map(|s| s.ty.bytes()).sum();
        let kept = options.running.keep.unwrap_or(KEPT) + 1;
        let weights = elements(plans, Role::Parameter).saturating_mul(4);
        parts.push(format!(
            "up to {kept} checkpoints of {} and weights of {} in {}",
            in_words(all),
            in_words(weights),
            escaped(folder.display())
        ));
    }
    if plans.sheet.offloaded_bytes > 0 {
        let folder = spill_folder(options).ok().flatten().unwrap_or_else(|| ".".into());
        parts.push(format!(
            "a spill file of {} in {}, {} written to it in a step",
            in_words(plans.sheet.offloaded_bytes),
            escaped(folder.display()),
            in_words(plans.sheet.stored_bytes as usize)
        ));
    }
    if parts.is_empty() { "nothing is written; --out DIR keeps the result".into() } else { parts.join("; ") }
}
