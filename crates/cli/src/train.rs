//! `plimsoll train`: the load sheet, progress, and the planned beside the measured peak.

use super::args::{ModelOptions, RunOptions};
use super::config::resolved;
use super::device_flags::placement;
use super::ending::{Peak, accuracy, ending, figures, measured_price, price};
use super::page::{LIVE_PAGE, RunPage};
use super::plan::{planned, refused, sheets};
use super::profile::{Profile, Profiler};
use super::refusal::{note_disk, plan_or_refuse};
use super::resume::{self, Resumed};
use super::run_folder::{self, RunFolder, WEIGHTS};
use super::setup::{Setup, check_available, say_line_above, setup};
use super::step_progress::StepProgress;
use super::text::escaped;
use super::tui::{self, SpaceView, View};
use super::watching::{PROFILE, PROFILED_STEPS, TENSORBOARD};
use super::weights::{self, start_from};
use super::{Failure, hint, progress, prune, ranks, say, signals, summary, zoo_model};
use clap::ArgMatches;
use plimsoll::data::{DATA_SET, DECODERS, INPUT_WORKERS, SHUFFLE_BUFFER};
use plimsoll::memory::{self, Tag, heap_peak, measured_peak};
use plimsoll::plan::in_words;
use plimsoll::train::{
    BATCH_BUFFERS, BATCHES_AHEAD, DataFile, EVENTS_FILE, Ending, HEAP_CAP, METRICS, MODEL_FILE, OUTPUTS,
    RunLog, STATE_BUFFER, Saved, Session, TRACE, TrainError, TrainEvent, metrics,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the memory of a device is measured for the terminal.
const DEVICE_EVERY: Duration = Duration::from_millis(500);

/// Plans, trains and reports; `matches` tells which flags were given.
pub fn run(options: &RunOptions, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    match (&options.resume, matches) {
        (Some(folder), Some(matches)) => match resume::options(options, matches, folder)? {
            Resumed::GoesOn(options) => train(&options),
            Resumed::IsOver { steps } => is_over(folder, steps, options.json),
        },
        _ => train(options),
    }
}

/// Says that a run has nothing left to do, and what can be done with it; with `json`, its report as well.
fn is_over(folder: &Path, steps: u64, json: bool) -> Result<(), Failure> {
    let name = escaped(folder.display());
    say(&format!(
        "The run in {name} is over: its {steps} steps are done, and it was measured. `--resume {name} --steps N` with more than \
         {steps} trains on; `plimsoll evaluate {name}` and `plimsoll predict {name}` use it."
    ));
    if json {
        let report = run_folder::report(folder)?;
        say(&report.to_string());
    }
    Ok(())
}

fn train(options: &RunOptions) -> Result<(), Failure> {
    let start = Instant::now();
    let _shown = progress::activity("preparing");
    // Of several processes, the first one writes.
    let writes = ranks::rank() == 0;
    if writes {
        run_folder::check(options)?;
    }
    weights::check(options)?;
    let imported = zoo_model::onnx_file(&options.model.model).is_some();
    if imported && !options.model.widths.is_empty() && options.weights.is_none() && options.resume.is_none() {
        return Err(Failure::usage(
            "--widths: the weights in an ONNX file are those of all its channels: remove some with `plimsoll prune`, and add --weights \
             with the folder that it wrote",
        ));
    }
    options.page.file(options.out.as_deref())?;
    let port = options.page.port()?;
    options.watching.check_terminal()?;
    let setup = setup(options).map_err(|failure| failure.in_json(options.json))?;
    say_line_above(&options.machine, setup.available_bytes);
    setup.data.train.preparation().notes.iter().for_each(|note| hint(note));
    weights::check_shapes(&setup.trainer, options)?;
    options.watching.make_folder()?;
    let folder = if writes { RunFolder::claim(options)? } else { None };
    if let Some(failure) = refused(options, &setup) {
        return Err(failure);
    }
    // The code of each phase is dropped when it is over: together they would be more than the sheet's `program`.
    memory::trim_code();
    let planning = Instant::now();
    let shown = progress::preparation("planning");
    let mut plans =
        (setup.trainer.plan(&setup.data)).or_else(|error| plan_or_refuse(error, options, &setup))?;
    drop(shown);
    let shown = progress::activity("preparing");
    memory::trim_code();
    note_disk(&mut plans, options);
    plans.load_sheet_mut().notes.extend(setup.pictures_note(options));
    let planning_ms = planning.elapsed().as_secs_f64() * 1e3;
    let planning_peak = measured_peak();
    if options.sheet {
        say(&sheets(&plans));
    } else {
        say(&summary::summary(options, &setup, &plans));
    }
    if options.devices.log_placement {
        say(&placement(&plans));
    }
    let (host_bytes, _) = plans.sheet.host_total_and_line();
    check_available(host_bytes, setup.available_bytes)?;
    say_swap(host_bytes, setup.available_bytes);
    let (planned_json, price) = (planned(&plans), price(&plans.sheet));
    let device_bytes = plans.sheet.host.is_some().then_some(plans.sheet.total_bytes);
    let on_heap = [
        HEAP_CAP,
        MODEL_FILE,
        DATA_SET,
        BATCH_BUFFERS,
        BATCHES_AHEAD,
        INPUT_WORKERS,
        DECODERS,
        SHUFFLE_BUFFER,
        OUTPUTS,
        STATE_BUFFER,
        METRICS,
        LIVE_PAGE,
        TRACE,
        TENSORBOARD,
        PROFILE,
        tui::TUI,
    ];
    let heap_cap: usize =
        plans.sheet.outside.iter().filter(|e| on_heap.contains(&e.name.as_str())).map(|e| e.bytes).sum();
    let mut page = RunPage::begin(options, &setup, &plans, folder.as_ref(), port)?;
    memory::restart_heap_peaks();
    memory::trim_code();
    let mut session = plans.start()?;
    memory::trim_code();
    if let Some(folder) = &options.resume {
        let resumed = session.resume(folder).map_err(|error| match error {
            // The folder, the flags or the data must change.
            TrainError::Weights { .. } => Failure::usage(error),
            error => error.into(),
        })?;
        resumed.refused.iter().for_each(|reason| hint(&format!("refused {reason}")));
        if let Some(differs) = &resumed.differs {
            hint(differs);
        }
        let (done, all) = (resumed.state.steps_done, session.total_steps());
        say(&format!("Resuming after step {done} of {all} from {}", escaped(resumed.path.display())));
    }
    if let Some(path) = &options.weights {
        start_from(&mut session, path, options.new_head)?;
    }
    if let Some(folder) = &folder {
        folder.begin(options.overwrite, &resolved(options, &setup.chosen))?;
        let preparation = setup.data.train.preparation().clone();
        DataFile { preparation, model_options: model_options(&setup.sizes) }.write(folder.path())?;
    }
    for metric in session.metrics().iter().map(AsRef::as_ref) {
        let figures = metrics::count(metric);
        if figures > metrics::MAX_REPORTED {
            let name = metric.name();
            hint(&format!(
                "{name} has {figures} figures, too many for validations: use `plimsoll evaluate` for them"
            ));
        }
    }
    options.running.callbacks(&mut session, folder.as_ref())?;
    if let Some(feed) = page.callback() {
        session.add(feed);
    }
    options.watching.callbacks(&mut session, &resolved(options, &setup.chosen))?;
    // After the load sheet, which is then above the terminal's own lines.
    let on_screen = match options.watching.tui {
        true => {
            let view = View::new(title(options, &setup), start, spaces(&session));
            let failed = |e| Failure::run(format!("--tui: the terminal cannot be used: {e}"));
            Some(tui::start(view).map_err(failed)?)
        }
        false => None,
    };
    // A signal ends the step first where something would be lost: what logs have not written yet, too.
    let keeps = options.out.is_some() || options.running.log.is_some() || options.watching.writes();
    if keeps || on_screen.is_some() {
        signals::listen().map_err(|e| Failure::run(format!("cannot listen for signals: {e}")))?;
    }
    drop(shown);
    let mut steps = StepProgress::new(start, &options.running, &setup, on_screen.is_some());
    memory::trim_code();
    let shown = progress::activity("training");
    let mut device_measured_at = start;
    let profiled = options.watching.profile_steps.unwrap_or(PROFILED_STEPS);
    let mut profiler = setup.times.clone().map(|times| Profiler::new(times, profiled));
    let report = session.fit_with(&mut |event| {
        if let (TrainEvent::Step { .. }, Some(profiler)) = (event, &mut profiler) {
            profiler.step();
        }
        if on_screen.is_some() && device_measured_at.elapsed() >= DEVICE_EVERY {
            device_measured_at = Instant::now();
            let bytes = setup.trainer.device_bytes();
            tui::update(|view| view.spaces.iter_mut().skip(1).for_each(|space| space.measured = bytes));
        }
        steps.on(event)
    });
    drop(shown);
    drop(on_screen);
    let _shown = progress::activity("writing the results");
    let profile = profiler.and_then(|found| found.profile(&session.plans().plans, setup.trainer.target()));
    let report = report.map_err(interrupted)?;
    memory::trim_code();
    // Processes that hold different parameters save them together.
    if let Some(out) = options.out.as_ref().filter(|_| writes || session.saves_together()) {
        session.save_as(out.join(WEIGHTS), options.running.weight_names.names())?;
    }
    let (kept, all) = prune::kept(&session)?;
    prune::say_kept((kept, all));
    say_skipped(&session);
    let swapped = steps.most_swapped.max(memory::swap().map_or(0, |swap| swap.own_bytes));
    if swapped > 0 {
        hint(&format!("up to {} of this run were in swap: its line was not proven", in_words(swapped)));
    }
    if let Some(reason) = &report.refused {
        hint(&format!("the best validation is lost, these are the last parameters: refused {reason}"));
    }
    if let Some(scale) = report.scale {
        let steps = if scale.skipped == 1 { "step was" } else { "steps were" };
        say(&format!("loss scale {}; {} {steps} skipped", scale.scale, scale.skipped));
    }
    if let Some(ending) = ending(&report, options.out.as_deref()) {
        say(&ending);
    }
    let (host_measured, device_measured) = (measured_peak(), setup.trainer.device_bytes());
    let device = device_bytes.map(|planned| Peak { space: "device ", planned, measured: device_measured });
    let host_name = if device.is_some() { "host " } else { "" };
    let host = Peak { space: host_name, planned: host_bytes, measured: host_measured };
    let measured = if device.is_some() { device_measured } else { host_measured };
    let host_figures = device.is_some().then_some((host_bytes, host_measured));
    let peaks: Vec<Peak> = device.into_iter().chain([host]).collect();
    let by_rank = ranks::peaks(host_bytes, host_measured)?;
    let evaluation = accuracy(&report.evaluation, "test", setup.is_text());
    say(&figures(&report, &evaluation, &peaks, steps.first_step));
    if let Some((table, _)) = &by_rank {
        say(table);
    }
    if let Some(price) = price {
        say(&format!("{price}; {}", measured_price(&report)));
    }
    if let Some(profile) = &profile {
        say(&profile.in_words());
    }
    let mut object = planned_json;
    let heap_bytes: usize = [Tag::Program, Tag::Planning, Tag::Data].map(heap_peak).iter().sum();
    let of_the_run = json!({
        "model": options.model.model, "model_options": model_options(&setup.sizes), "data": setup.data.name,
        "tokenizer": options.input.tokenizer, "label": options.input.label, "columns": options.input.columns, "batch": setup.batch,
        "accumulate": options.accumulate.unwrap_or(1), "seed": options.seed,
        "optimizer": options.update.optimizer_name(),
        "precision": options.precision.precision.name(),
        "keep_f32": options.precision.keep_f32,
        "kept_weights": (all > 0).then_some(kept),
        "prunable_weights": (all > 0).then_some(all),
        "threads": setup.threads,
        "profile": profile.as_ref().map(Profile::to_json),
        "ranks": by_rank.map(|(_, objects)| objects),
    });
    let figures = json!({
        "loss_scale": report.scale.map(|scale| scale.scale),
        "skipped_steps": report.scale.map(|scale| scale.skipped),
        "measured_peak_bytes": measured,
        "planned_host_peak_bytes": host_figures.map(|(planned, _)| planned),
        "measured_host_peak_bytes": host_figures.and_then(|(_, measured)| measured),
        "swapped_peak_bytes": swapped,
        "heap_peak_bytes": heap_bytes,
        "heap_limit_bytes": heap_cap,
        "planning_peak_bytes": planning_peak,
        "planning_ms": planning_ms,
        "cached": setup.trainer.searches() == 0,
        "measured_overhead": report.slowdown,
        "waiting_ms": report.extra.waiting.as_secs_f64() * 1e3,
        "again_ms": report.extra.again.as_secs_f64() * 1e3,
        "data_ms": report.data.as_secs_f64() * 1e3,
        "computing_ms_median": report.computing_median.as_secs_f64() * 1e3,
        "step_ms_median": report.step_median.as_secs_f64() * 1e3,
        "samples_per_second": report.samples_per_second,
        "time_to_first_step_s": steps.first_step.map(|t| t.as_secs_f64()),
        "final_loss": report.final_loss,
        "validation_loss": report.validation.map(|validation| validation.loss),
        "validation_accuracy": report.validation.and_then(|validation| validation.accuracy),
        "test_loss": report.evaluation.loss,
        "test_accuracy": report.evaluation.accuracy,
        "steps": report.steps,
        "skipped": session.skipped().0,
        "micro_batches": report.micro_batches,
        "ending": match report.ending {
            Ending::Done => "done",
            Ending::Stopped | Ending::Restored(_) => "early stop",
            Ending::TimeLimit => "time limit",
        },
    });
    for part in [of_the_run, figures] {
        if let (Some(object), Value::Object(part)) = (object.as_object_mut(), part) {
            object.extend(part);
        }
    }
    if let Some(folder) = &folder {
        if let Some(times) = &setup.times {
            let mut events = RunLog::append(folder.join(EVENTS_FILE))?;
            for (plan, of) in session.plans().plans.iter().enumerate() {
                events.step_times(session.steps_done(), &of.name, &times.of(plan))?;
            }
        }
        folder.write_report(&object)?;
    }
    drop(session);
    page.end(folder.as_ref())?;
    if options.json {
        say(&object.to_string());
    }
    Ok(())
}

/// What is trained on what.
fn title(options: &RunOptions, setup: &Setup) -> String {
    format!("{} on {}, batch {}", options.model.model, setup.data.name, setup.batch)
}

/// The memory spaces of a session, host memory first.
fn spaces(session: &Session) -> Vec<SpaceView> {
    let sheet = &session.plans().sheet;
    let (planned, line) = sheet.host_total_and_line();
    let host = SpaceView { name: "host", line, planned, measured: None };
    let device = sheet.host.is_some().then_some(SpaceView {
        name: "device",
        line: sheet.line_bytes,
        planned: sheet.total_bytes,
        measured: None,
    });
    std::iter::once(host).chain(device).collect()
}

/// Says that the line of a run is not proven, where the system is likely to swap its pages: memory is nearly full with it, or some of
/// this process is in swap already.
fn say_swap(planned: usize, available: Option<usize>) {
    let Some(swap) = memory::swap().filter(|swap| swap.possible_bytes() > 0) else { return };
    let tight = available.is_some_and(|available| planned > available - available / 5);
    if tight || swap.own_bytes > 0 {
        let possible = in_words(swap.possible_bytes());
        hint(&format!(
            "the system may move pages of this run to swap ({possible} of it): its line is then not proven; switch swap off, or \
             draw a lower line (`plimsoll doctor` says more)"
        ));
    }
}

/// Prints how many records were skipped, if any.
pub fn say_skipped(session: &Session) {
    if let (count @ 1.., Some(first)) = session.skipped() {
        hint(&format!("{count} bad records were skipped; the first: {first}"));
    }
}

/// The failure of a run that a signal stopped, with the exit status of the signal, or that lost its device: how to resume it.
fn interrupted(error: TrainError) -> Failure {
    let resume = match &error {
        TrainError::Interrupted { saved: Saved::In(folder), .. } => {
            format!("; continue with --resume {}", escaped(folder.display()))
        }
        TrainError::Interrupted { .. } => String::new(),
        TrainError::DeviceLost { last_checkpoint: Some(path), .. } => {
            let folder = path.parent().unwrap_or(path);
            let resume = format!("; continue with --resume {}", escaped(folder.display()));
            return Failure::run(format!("{}{resume}", escaped(&error)));
        }
        _ => return error.into(),
    };
    let status = signals::received().unwrap_or(130);
    Failure { status, ..Failure::run(format!("{}{resume}", escaped(&error))) }
}

/// What `evaluate` and `predict` need to build the model again.
fn model_options(options: &ModelOptions) -> Value {
    json!({
        "classes": options.classes, "image_size": options.image_size, "channels": options.channels,
        "context": options.context, "layers": options.layers, "width": options.width,
        "width_multiplier": options.width_multiplier, "heads": options.heads, "kv_heads": options.kv_heads, "window": options.window,
        "dropout": options.dropout, "class_weights": options.class_weights, "features": options.features,
        "widths": (!options.widths.is_empty()).then(|| zoo_model::widths(&options.widths).ok()),
        "quantize_aware": options.quantize_aware.then_some(true),
    })
}
