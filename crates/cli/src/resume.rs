//! `train --resume`: the flags of a run from its checkpoint, and which of them may change.

use super::args::{Arguments, Command, InputOptions, ModelOptions, RunOptions};
use super::machine_flags::Device;
use super::ranks::RankOptions;
use super::run_folder::{REPORT, WEIGHTS};
use super::text::escaped;
use super::{Failure, config};
use clap::{ArgMatches, Parser, parser::ValueSource};
use plimsoll::train::TrainState;
use std::collections::BTreeMap;
use std::path::Path;

/// Prefix of a flag's name in a checkpoint's notes.
const FLAG: &str = "flag.";

/// Flags that a checkpoint stores but that may change on resuming.
const MAY_CHANGE: [&str; 8] =
    ["data", "tokenizer", "save-every", "skip-bad", "max-pixels", "early-stop", "keep", "place"];

/// Flags without a value.
pub(super) const SWITCHES: [&str; 5] =
    ["allow-split-batchnorm", "augment", "new-head", "quantize-aware", "train-batch-norm"];

/// The flags that define a run, as a checkpoint's notes: with the values chosen for flags that were not given.
pub fn notes(options: &RunOptions, chosen: &[(&'static str, String)]) -> BTreeMap<String, String> {
    // Chosen values come last, so they win.
    let flags = flags(options).into_iter().chain(chosen.iter().cloned());
    flags.map(|(flag, value)| (format!("{FLAG}{flag}"), value)).collect()
}

/// The flags that have a value.
pub fn flags(options: &RunOptions) -> Vec<(&'static str, String)> {
    let ModelOptions {
        model,
        classes,
        image_size,
        channels,
        context,
        layers,
        width,
        width_multiplier,
        heads,
        kv_heads,
        window,
        dropout,
        class_weights,
        features,
        train_batch_norm,
        widths,
        quantize_aware,
    } = &options.model;
    let weights: Vec<String> = class_weights.iter().map(ToString::to_string).collect();
    let columns = &options.input.columns;
    let number = |n: &Option<usize>| n.map(|n| n.to_string());
    let flags = [
        ("model", Some(model.clone())),
        ("classes", number(classes)),
        ("image-size", number(image_size)),
        ("channels", number(channels)),
        ("context", number(context)),
        ("layers", number(layers)),
        ("width", number(width)),
        ("width-multiplier", width_multiplier.map(|x| x.to_string())),
        ("heads", number(heads)),
        ("kv-heads", number(kv_heads)),
        ("window", number(window)),
        ("dropout", dropout.map(|rate| rate.to_string())),
        ("class-weights", (!weights.is_empty()).then(|| weights.join(","))),
        ("features", number(features)),
        ("train-batch-norm", train_batch_norm.then(|| "true".to_string())),
        ("widths", (!widths.is_empty()).then(|| widths.join(","))),
        ("quantize-aware", quantize_aware.then(|| "true".to_string())),
        ("data", options.data.clone()),
        ("label", options.input.label.clone()),
        ("columns", (!columns.is_empty()).then(|| columns.join(","))),
        ("tokenizer", options.input.tokenizer.as_ref().map(|path| path.display().to_string())),
        ("shuffle", number(&options.input.shuffle)),
        ("augment", options.augment.then(|| "true".to_string())),
        ("skip-bad", options.input.skip_bad.map(|records| records.to_string())),
        ("max-pixels", number(&options.input.max_pixels)),
        ("batch", number(&options.batch)),
        ("accumulate", number(&options.accumulate)),
        ("seed", Some(options.seed.to_string())),
        ("allow-split-batchnorm", options.allow_split_batchnorm.then(|| "true".to_string())),
        ("save-every", options.save_every.map(|steps| steps.to_string())),
        ("reduce", options.ranks.reduce.map(|reduction| reduction.to_string())),
        ("place", (!options.devices.place.is_empty()).then(|| options.devices.place.join(","))),
    ];
    let all = flags.into_iter().chain(options.update.flags()).chain(options.precision.flags());
    let all = all.chain(options.prune.flags()).chain(options.running.flags());
    all.filter_map(|(flag, value)| Some((flag, value?))).collect()
}

/// What is left of a run that is resumed.
pub enum Resumed {
    /// Steps, with these options.
    GoesOn(Box<RunOptions>),
    /// Nothing: all of its steps are done and its results are written.
    IsOver { steps: u64 },
}

/// The options of a resumed run: the checkpoint's, with those of the command line that may change. `matches` tells which
/// flags were given.
pub fn options(given: &RunOptions, matches: &ArgMatches, folder: &Path) -> Result<Resumed, Failure> {
    let run = config::flags_in(folder)?;
    let (state, _) = TrainState::read_where(folder, |state| same_run(state, &run)).map_err(|e| {
        let reason = escaped(&e);
        Failure::usage(format!("{reason}; give --resume a folder in which `train --out` left a checkpoint"))
    })?;
    let mut kept =
        recorded(&state).map_err(|e| Failure::usage(format!("{}: {e}", escaped(folder.display()))))?;
    let (now, then) = (flags(given), flags(&kept));
    let value = |flags: &[(&str, String)], name: &str| {
        flags.iter().find(|(flag, _)| *flag == name).map(|(_, value)| value.clone())
    };
    let is_given = |flag: &str| {
        let id = flag.replace('-', "_");
        matches.value_source(&id) == Some(ValueSource::CommandLine)
    };
    for (flag, given) in now.iter().filter(|(flag, _)| is_given(flag) && !MAY_CHANGE.contains(flag)) {
        let has = value(&then, flag);
        if has.as_ref() != Some(given) {
            let has = has.map_or("was not given".to_string(), |has| format!("is {has} there"));
            return Err(Failure::usage(format!(
                "--{flag} {given} contradicts the checkpoint, --{flag} {has}: leave it out, or start anew without --resume"
            )));
        }
    }
    kept.data = given.data.clone().or(kept.data);
    kept.save_every = given.save_every.or(kept.save_every);
    kept.epochs = given.epochs;
    kept.steps = given.steps.or(given.epochs.is_none().then_some(state.total_steps));
    // Statistics are per micro-batch, so their number defines the run.
    let parts = kept.allow_split_batchnorm.then_some(state.micro_batches as usize);
    kept.micro_batches = given.micro_batches.or(parts);
    kept.running = kept.running.resumed(&given.running);
    kept.page = given.page.clone();
    kept.watching = given.watching.clone();
    kept.machine = given.machine.clone();
    // Layers stay where they were, unless other devices are named.
    let place = std::mem::take(&mut kept.devices.place);
    kept.devices = given.devices.clone();
    if !given.devices.are_logical() && given.ranks.ranks.is_none() && given.machine.device == Device::Cpu {
        kept.devices.place = place;
    }
    kept.ranks = RankOptions { reduce: kept.ranks.reduce, ..given.ranks.clone() };
    kept.input = InputOptions {
        skip_bad: given.input.skip_bad.or(kept.input.skip_bad),
        max_pixels: given.input.max_pixels.or(kept.input.max_pixels),
        tokenizer: given.input.tokenizer.clone().or(kept.input.tokenizer),
        workers: given.input.workers,
        prefetch: given.input.prefetch,
        ..kept.input
    };
    kept.your_code = given.your_code;
    kept.spill_speed = given.spill_speed;
    kept.spill = given.spill.clone();
    kept.plan_cache = given.plan_cache.clone();
    kept.out = given.out.clone().or(Some(folder.to_path_buf()));
    (kept.overwrite, kept.sheet) = (given.overwrite, given.sheet);
    kept.without = given.without.clone();
    (kept.json, kept.check_memory) = (given.json, given.check_memory);
    kept.resume = Some(folder.to_path_buf());
    let written = [REPORT, WEIGHTS].iter().all(|name| folder.join(name).exists());
    let own = kept.out.as_deref() == Some(folder);
    if own && written && kept.steps.is_some_and(|steps| steps <= state.steps_done) {
        return Ok(Resumed::IsOver { steps: state.steps_done });
    }
    Ok(Resumed::GoesOn(Box::new(kept)))
}

/// Refuses a checkpoint whose flags differ from those of the folder's run.
fn same_run(state: &TrainState, run: &BTreeMap<String, String>) -> Result<(), String> {
    let flags = state.notes.iter().filter_map(|(key, value)| Some((key.strip_prefix(FLAG)?, value)));
    for (flag, saved) in flags.filter(|(flag, _)| !MAY_CHANGE.contains(flag)) {
        if let Some(wanted) = run.get(flag).filter(|wanted| *wanted != saved) {
            return Err(format!("it is another run's: --{flag} is {saved}, the folder's run has {wanted}"));
        }
    }
    Ok(())
}

/// The options in a checkpoint's notes, parsed as a command line.
pub fn recorded(state: &TrainState) -> Result<RunOptions, String> {
    let flags = state.notes.iter().filter_map(|(key, value)| Some((key.strip_prefix(FLAG)?, value)));
    let words = ["plimsoll", "train"].map(str::to_string).into_iter();
    let words = words.chain(flags.map(|(flag, value)| match SWITCHES.contains(&flag) {
        true => format!("--{flag}"),
        false => format!("--{flag}={value}"),
    }));
    let arguments = Arguments::try_parse_from(words)
        .map_err(|e| format!("its flags are invalid: {}", e.to_string().trim()))?;
    match arguments.command {
        Command::Train(options) => Ok(options),
        _ => Err("its flags are not those of a training run".into()),
    }
}
