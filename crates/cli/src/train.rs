//! `plimsoll train`: the load sheet, progress, and the planned beside the measured peak.

use super::args::{ModelOptions, RunOptions};
use super::config::resolved;
use super::device_flags::placement;
use super::ending::{Peak, accuracy, ending, figures, measured_price, price};
use super::plan::{planned, refused};
use super::refusal::{note_disk, plan_or_refuse};
use super::run_folder::{self, RunFolder, WEIGHTS};
use super::setup::{check_available, setup};
use super::step_progress::StepProgress;
use super::weights::start_from;
use super::{Failure, hint, progress, resume, say, signals, summary};
use clap::ArgMatches;
use plimsoll::data::{DATA_SET, DECODERS, INPUT_WORKERS, SHUFFLE_BUFFER};
use plimsoll::memory::{self, Tag, heap_peak, measured_peak};
use plimsoll::train::{
    BATCH_BUFFERS, BATCHES_AHEAD, DataFile, Ending, HEAP_CAP, METRICS, OUTPUTS, STATE_BUFFER, Saved, Session,
    TrainError, metrics,
};
use serde_json::json;
use std::time::Instant;

/// Plans, trains and reports; `matches` tells which flags were given.
pub fn run(options: &RunOptions, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    match (&options.resume, matches) {
        (Some(folder), Some(matches)) => train(&resume::options(options, matches, folder)?),
        _ => train(options),
    }
}

fn train(options: &RunOptions) -> Result<(), Failure> {
    let start = Instant::now();
    run_folder::check(options)?;
    let setup = setup(options).map_err(|failure| failure.in_json(options.json))?;
    setup.data.train.preparation().notes.iter().for_each(|note| hint(note));
    let folder = RunFolder::claim(options)?;
    if let Some(failure) = refused(options, &setup) {
        return Err(failure);
    }
    let planning = Instant::now();
    let shown = progress::activity("planning");
    let mut plans =
        (setup.trainer.plan(&setup.data)).or_else(|error| plan_or_refuse(error, options, &setup))?;
    drop(shown);
    note_disk(&mut plans, options);
    plans.load_sheet_mut().notes.extend(setup.pictures_note(options));
    let planning_ms = planning.elapsed().as_secs_f64() * 1e3;
    let planning_peak = measured_peak();
    if options.sheet {
        say(&plans.sheet.to_string());
    } else {
        say(&summary::summary(options, &setup, &plans));
    }
    if options.devices.log_placement {
        say(&placement(&plans));
    }
    let (host_bytes, _) = plans.sheet.host_total_and_line();
    check_available(host_bytes, setup.available_bytes)?;
    let (planned_json, price) = (planned(&plans), price(&plans.sheet));
    let device_bytes = plans.sheet.host.is_some().then_some(plans.sheet.total_bytes);
    let on_heap = [
        HEAP_CAP,
        DATA_SET,
        BATCH_BUFFERS,
        BATCHES_AHEAD,
        INPUT_WORKERS,
        DECODERS,
        SHUFFLE_BUFFER,
        OUTPUTS,
        STATE_BUFFER,
        METRICS,
    ];
    let heap_cap: usize =
        plans.sheet.outside.iter().filter(|e| on_heap.contains(&e.name.as_str())).map(|e| e.bytes).sum();
    memory::restart_heap_peaks();
    let shown = progress::activity("preparing");
    let mut session = plans.start()?;
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
        say(&format!("Resuming after step {done} of {all} from {}", resumed.path.display()));
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
    let done = session.steps_done();
    options.running.callbacks(&mut session, done)?;
    if options.out.is_some() {
        signals::listen().map_err(|e| Failure::run(format!("cannot listen for signals: {e}")))?;
    }
    drop(shown);
    let mut steps = StepProgress::new(start, &options.running, &setup);
    // Code that only prepared the run is dropped, too.
    memory::trim_code();
    let shown = progress::activity("training");
    let report = session.fit_with(&mut |event| steps.on(event));
    drop(shown);
    let report = report.map_err(interrupted)?;
    if let Some(folder) = &folder {
        session.save_as(folder.join(WEIGHTS), options.running.weight_names.names())?;
    }
    say_skipped(&session);
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
    let evaluation = accuracy(&report.evaluation, "test", setup.is_text());
    say(&figures(&report, &evaluation, &peaks, steps.first_step));
    if let Some(price) = price {
        say(&format!("{price}; {}", measured_price(&report)));
    }
    let mut object = planned_json;
    let heap_bytes: usize = [Tag::Program, Tag::Planning, Tag::Data].map(heap_peak).iter().sum();
    let figures = json!({
        "model": options.model.model, "model_options": model_options(&setup.sizes), "data": setup.data.name,
        "tokenizer": options.input.tokenizer, "label": options.input.label, "columns": options.input.columns, "batch": setup.batch,
        "accumulate": options.accumulate.unwrap_or(1), "seed": options.seed,
        "optimizer": options.update.optimizer_name(),
        "precision": options.precision.precision.name(),
        "keep_f32": options.precision.keep_f32,
        "loss_scale": report.scale.map(|scale| scale.scale),
        "skipped_steps": report.scale.map(|scale| scale.skipped),
        "measured_peak_bytes": measured,
        "planned_host_peak_bytes": host_figures.map(|(planned, _)| planned),
        "measured_host_peak_bytes": host_figures.and_then(|(_, measured)| measured),
        "heap_peak_bytes": heap_bytes,
        "heap_limit_bytes": heap_cap,
        "planning_peak_bytes": planning_peak,
        "threads": setup.threads,
        "planning_ms": planning_ms,
        "cached": setup.trainer.searches() == 0,
        "measured_overhead": report.slowdown,
        "waiting_ms": report.extra.waiting.as_secs_f64() * 1e3,
        "again_ms": report.extra.again.as_secs_f64() * 1e3,
        "data_ms": report.data.as_secs_f64() * 1e3,
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
    if let (Some(object), Some(figures)) = (object.as_object_mut(), figures.as_object()) {
        object.extend(figures.clone());
    }
    if let Some(folder) = &folder {
        folder.write_report(&object)?;
    }
    if options.json {
        say(&object.to_string());
    }
    Ok(())
}

/// Prints how many records were skipped, if any.
pub fn say_skipped(session: &Session) {
    if let (count @ 1.., Some(first)) = session.skipped() {
        hint(&format!("{count} bad records were skipped; the first: {first}"));
    }
}

/// The failure of a run that a signal stopped: how to resume it, and the exit status of the signal.
fn interrupted(error: TrainError) -> Failure {
    let resume = match &error {
        TrainError::Interrupted { saved: Saved::In(folder), .. } => {
            format!("; continue with --resume {}", folder.display())
        }
        TrainError::Interrupted { .. } => String::new(),
        _ => return error.into(),
    };
    let status = signals::received().unwrap_or(130);
    Failure { status, ..Failure::run(format!("{error}{resume}")) }
}

/// What `evaluate` and `predict` need to build the model again.
fn model_options(options: &ModelOptions) -> serde_json::Value {
    json!({
        "classes": options.classes, "image_size": options.image_size, "channels": options.channels,
        "context": options.context, "layers": options.layers, "width": options.width, "heads": options.heads,
        "dropout": options.dropout, "class_weights": options.class_weights, "features": options.features,
    })
}
