//! `plimsoll train`: the load sheet, progress, and the planned beside the measured peak.

use super::args::{ModelOptions, RunOptions};
use super::config::{RESOLVED, resolved};
use super::plan::planned;
use super::running::LoopOptions;
use super::setup::{check_available, setup};
use super::weights::start_from;
use super::{Failure, data_file, hint, refusal::plan_or_refuse, resume, say, signals};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll::data::{DATA_SET, DECODERS, Dataset, INPUT_WORKERS, SHUFFLE_BUFFER};
use plimsoll::memory::{self, Tag, heap_peak, measured_peak};
use plimsoll::plan::{LoadSheet, in_words};
use plimsoll::train::{
    BATCH_BUFFERS, BATCHES_AHEAD, Control, Ending, Evaluation, HEAP_CAP, METRICS, OUTPUTS, Report,
    STATE_BUFFER, Saved, Session, TrainError, TrainEvent, WEIGHTS_FILE, metrics,
};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a finished run writes: its report, and its parameters.
pub const REPORT: &str = "report.json";
const WEIGHTS: &str = WEIGHTS_FILE;

/// Plans, trains and reports; `matches` tells which flags were given.
pub fn run(options: &RunOptions, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    match (&options.resume, matches) {
        (Some(folder), Some(matches)) => train(&resume::options(options, matches, folder)?),
        _ => train(options),
    }
}

fn train(options: &RunOptions) -> Result<(), Failure> {
    let start = Instant::now();
    let setup = setup(options)?;
    setup.data.train.preparation().notes.iter().for_each(|note| hint(note));
    if let Some(folder) = &options.out {
        let failed = |e| Failure::usage(format!("--out {}: cannot make this folder: {e}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let planning = Instant::now();
    let plans = (setup.trainer.plan(&setup.data)).or_else(|error| plan_or_refuse(error, options, &setup))?;
    let planning_ms = planning.elapsed().as_secs_f64() * 1e3;
    let planning_peak = measured_peak();
    say(&plans.sheet.to_string());
    check_available(plans.sheet.total_bytes, setup.available_bytes)?;
    let (planned_json, total_bytes, price) = (planned(&plans), plans.sheet.total_bytes, price(&plans.sheet));
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
    let mut session = plans.start()?;
    if let Some(folder) = &options.resume {
        let resumed = session.resume(folder)?;
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
    if let Some(folder) = &options.out {
        if options.resume.as_ref() != Some(folder) {
            session.check_folder(folder)?;
        }
        begin(folder, &resolved(options, &setup.chosen))?;
        data_file::write(folder, setup.data.train.preparation(), &model_options(&setup.sizes))?;
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
    let mut progress = Progress::new(start, &options.running, &setup.data);
    // Code that only prepared the run is dropped, too.
    memory::trim_code();
    let report = session.fit_with(&mut |event| progress.on(event));
    progress.bar.finish_and_clear();
    let report = report.map_err(interrupted)?;
    if let Some(folder) = &options.out {
        session.save_as(&folder.join(WEIGHTS), options.running.weight_names.names())?;
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
    let measured = measured_peak();
    let evaluation = accuracy(&report.evaluation, "test");
    say(&summary(&report, &evaluation, total_bytes, measured, progress.first_step));
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
        "heap_peak_bytes": heap_bytes,
        "heap_limit_bytes": heap_cap,
        "planning_peak_bytes": planning_peak,
        "threads": setup.threads,
        "planning_ms": planning_ms,
        "cached": setup.trainer.searches() == 0,
        "measured_overhead": report.slowdown,
        "waiting_ms": report.extra.waiting.as_secs_f64() * 1e3,
        "again_ms": report.extra.again.as_secs_f64() * 1e3,
        "step_ms_median": report.step_median.as_secs_f64() * 1e3,
        "samples_per_second": report.samples_per_second,
        "time_to_first_step_s": progress.first_step.map(|t| t.as_secs_f64()),
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
    if let Some(folder) = &options.out {
        write_report(folder, &object)?;
    }
    if options.json {
        say(&object.to_string());
    }
    Ok(())
}

/// Writes the resolved flags of a run, and removes the results of an earlier one.
fn begin(folder: &Path, resolved: &str) -> Result<(), Failure> {
    let failed = |path: &Path, e| Failure::run(format!("{}: {e}", path.display()));
    for path in [REPORT, WEIGHTS].map(|name| folder.join(name)) {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path, e)),
            _ => {}
        }
    }
    let path = folder.join(RESOLVED);
    std::fs::write(&path, resolved).map_err(|e| failed(&path, e))
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
    let status = signals::received().and_then(|signal| u8::try_from(128 + signal).ok()).unwrap_or(130);
    Failure { message: format!("{error}{resume}"), status }
}

/// What `evaluate` and `predict` need to build the model again.
fn model_options(options: &ModelOptions) -> serde_json::Value {
    json!({
        "classes": options.classes, "image_size": options.image_size, "channels": options.channels,
        "context": options.context, "layers": options.layers, "width": options.width, "heads": options.heads,
        "dropout": options.dropout, "class_weights": options.class_weights, "features": options.features,
    })
}

fn write_report(folder: &Path, report: &serde_json::Value) -> Result<(), Failure> {
    let path = folder.join(REPORT);
    std::fs::write(&path, format!("{report:#}\n"))
        .map_err(|e| Failure::run(format!("{}: {e}", path.display())))?;
    say(&format!("Wrote weights.safetensors, report.json and checkpoints to {}", folder.display()));
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Loss and accuracy on a part of the data, as text.
fn accuracy(evaluation: &Evaluation, part: &str) -> String {
    let loss = evaluation.loss;
    match evaluation.accuracy {
        Some(share) => format!("{part} accuracy {}, loss {loss:.4}", percent(share)),
        None if evaluation.classes => format!("{part} loss {loss:.4}, perplexity {:.1}", loss.exp()),
        None => format!("{part} loss {loss:.4}"),
    }
}

/// Why a run ended before its last step, as text.
fn ending(report: &Report, folder: Option<&Path>) -> Option<String> {
    let step = report.steps;
    let resume =
        folder.map_or(String::new(), |folder| format!("; continue with --resume {}", folder.display()));
    match report.ending {
        Ending::Done => None,
        Ending::TimeLimit => Some(format!("\nThe time limit was reached after step {step}{resume}")),
        Ending::Stopped => Some(format!("\nStopped after step {step}: validations got no better")),
        Ending::Restored(best) => Some(format!(
            "\nStopped after step {step}: validations got no better; restored the best, after step {best}"
        )),
    }
}

fn summary(
    report: &Report,
    evaluation: &str,
    planned: usize,
    measured: Option<usize>,
    first: Option<Duration>,
) -> String {
    let mut text = format!(
        "\n{} step{}, {:.1} samples/s, {:.2} ms per step (median), first step after {:.2} s\n{}\n",
        report.steps,
        if report.steps == 1 { "" } else { "s" },
        report.samples_per_second,
        report.step_median.as_secs_f64() * 1e3,
        first.unwrap_or_default().as_secs_f64(),
        evaluation,
    );
    text += &format!("planned peak   {:>12}  ({planned} bytes)\n", in_words(planned));
    match measured {
        Some(measured) => {
            let share = measured as f64 / planned.max(1) as f64;
            text += &format!(
                "measured peak  {:>12}  ({measured} bytes, {} of planned)",
                in_words(measured),
                percent(share)
            );
        }
        None => text += "measured peak  not known on this system",
    }
    text
}

/// The predicted cost of the line, if there is any.
fn price(sheet: &LoadSheet) -> Option<String> {
    let slowdown = sheet.slowdown();
    (slowdown > 0.0).then(|| {
        let step = sheet.predicted_ms();
        format!("under the line  {:+.1} % time predicted, {step:.2} ms a step", slowdown * 100.0)
    })
}

/// The measured cost of the line. No step runs without the line, so the cost of micro-batches cannot be measured.
fn measured_price(report: &Report) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = format!("measured {:.2} ms a step", ms(report.step_median));
    let parts = [("waiting for the disk", report.extra.waiting), ("recomputing", report.extra.again)];
    for (what, time) in parts.into_iter().filter(|(_, time)| !time.is_zero()) {
        text += &format!(", {:.2} ms {what}", ms(time));
    }
    let beside = if report.micro_batches > 1 { ", besides the cost of micro-batches" } else { "" };
    text + &format!(": {:+.1} %{beside}", report.slowdown * 100.0)
}

/// The most metrics of a validation that are printed; a confusion matrix has hundreds.
const MOST_FIGURES: usize = 8;

/// A bar on a terminal, a line per epoch elsewhere.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    start: Instant,
    first_step: Option<Duration>,
    shown: Instant,
    /// Examples and time since the bar was last updated.
    recent: (usize, Duration),
    /// The part of the data that validations use.
    part: &'static str,
    /// Whether validations are every so many steps, not after epochs.
    by_steps: bool,
}

impl Progress {
    fn new(start: Instant, running: &LoopOptions, data: &Dataset) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let part = if data.validation.is_some() { "validation" } else { "test" };
        let by_steps = running.validate_every.is_some();
        let bar = if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}  {eta} left") {
            bar.set_style(style);
        }
        Self {
            bar,
            terminal,
            start,
            first_step: None,
            shown: start,
            recent: (0, Duration::ZERO),
            part,
            by_steps,
        }
    }

    fn on(&mut self, event: &TrainEvent<'_>) -> Control {
        match *event {
            TrainEvent::Step { step, steps, loss, examples, time, .. } => {
                self.first_step.get_or_insert_with(|| self.start.elapsed());
                self.recent.0 += examples;
                self.recent.1 += time;
                if self.terminal && (self.shown.elapsed() > Duration::from_millis(100) || step == steps) {
                    self.show(step, steps, loss);
                }
            }
            TrainEvent::Validation { step, epoch, train_loss, evaluation, figures, .. } => {
                let when =
                    if self.by_steps { format!("step {step}") } else { format!("epoch {}", epoch + 1) };
                let trained = match train_loss.is_nan() {
                    true => String::new(),
                    false => format!("training loss {train_loss:.4}, "),
                };
                let mut line = format!("{when}: {trained}{}", accuracy(&evaluation, self.part));
                for (name, value) in figures.iter().filter(|(name, _)| name != "accuracy").take(MOST_FIGURES)
                {
                    line += &format!(", {name} {value:.4}");
                }
                self.bar.suspend(|| say(&line));
            }
            TrainEvent::Diverged { step, loss, replayed: 0 } => {
                let what = match loss.is_finite() {
                    true => format!("a parameter is not finite after step {step}"),
                    false => format!("the loss became {loss} in step {}", step + 1),
                };
                self.bar.suspend(|| hint(&format!("{what}; searching for the layer that caused it")));
            }
            TrainEvent::Diverged { .. } => {}
            TrainEvent::AbovePlan { step, planned_bytes, held } => {
                let (held, planned) = (in_words(held.total_bytes()), in_words(planned_bytes));
                let text =
                    format!("after step {step} the process holds {held}, more than the planned {planned}");
                self.bar.suspend(|| hint(&text));
            }
        }
        if signals::received().is_some() { Control::Leave } else { Control::Continue }
    }

    fn show(&mut self, step: u64, steps: u64, loss: f64) {
        let rate = self.recent.0 as f64 / self.recent.1.as_secs_f64().max(1e-9);
        let memory = measured_peak().map_or(String::new(), in_words);
        self.bar.set_length(steps);
        self.bar.set_position(step);
        self.bar.set_message(format!("loss {loss:.4}  {rate:.0} samples/s  {memory}"));
        self.recent = (0, Duration::ZERO);
        self.shown = Instant::now();
    }
}
