//! The `plimsoll` program: arguments in, text out.

mod answers;
mod applies;
mod args;
mod channels;
mod compare;
mod config;
mod core_rates;
mod curve;
mod data;
mod device_flags;
mod devices;
mod doctor;
mod ending;
mod evaluate;
mod export;
mod graph;
mod headroom;
mod input;
mod machine;
mod machine_flags;
mod made_folder;
mod manual;
mod out_file;
mod page;
mod plan;
mod plot;
mod precision;
mod predict;
mod profile;
mod progress;
mod prune;
mod quantize;
mod ranks;
mod refusal;
mod refusal_cache;
mod restart;
mod resume;
mod run_folder;
mod running;
mod runs;
mod setup;
mod signals;
mod step_progress;
mod summary;
mod text;
mod too_large;
mod train;
mod trained;
mod tui;
mod update;
mod watching;
mod weights;
mod workload;
mod zoo;
mod zoo_model;

use plimsoll::data::DataError;
use plimsoll::plan::{PlanError, in_words};
use plimsoll::train::TrainError;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Counts live heap bytes by tag.
#[global_allocator]
static HEAP: plimsoll::memory::Heap = plimsoll::memory::Heap;

fn main() -> ExitCode {
    plimsoll::memory::configure_heap();
    signals::end_at_once();
    silence_caught_panics();
    // The stack is the program's own, whatever limit it is started under.
    let worker = std::thread::Builder::new().name("plimsoll".into()).stack_size(STACK_BYTES).spawn(run);
    match worker {
        Ok(worker) => worker.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(e) => {
            hint(&format!("cannot start a thread: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// The stack of the thread that does the work. Only what is used of it takes memory.
const STACK_BYTES: usize = 8 << 20;
/// The exit status of a panic, which has said why.
const PANICKED: u8 = 101;

/// Silences panics in libraries that read data: they are caught and reported as errors.
fn silence_caught_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !plimsoll::data::is_guarded() {
            tui::end_for_panic();
            report(info);
        }
    }));
}

/// An error message for the user, and the exit status of its kind.
pub struct Failure {
    message: String,
    status: u8,
    /// Bytes that are needed, and the line, where the data alone is above it.
    needs: Option<(u64, u64)>,
}

impl Failure {
    /// Wrong input: exit status 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2, needs: None }
    }

    /// Too little memory: exit status 3.
    pub fn memory(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 3, needs: None }
    }

    /// A line below what is needed, of which `--json` has the figures: exit status 3.
    pub fn below(message: impl fmt::Display, needed: u64, line: u64) -> Self {
        Self { needs: Some((needed, line)), ..Self::memory(message) }
    }

    /// A failure while running: exit status 1.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 1, needs: None }
    }

    /// With JSON printed if it is asked for and the line is too low.
    pub fn in_json(self, json: bool) -> Self {
        if let (true, Some((needed, line))) = (json, self.needs) {
            let object = serde_json::json!({
                "feasible": false,
                "error": "the line is too low",
                "reason": self.message,
                "line_bytes": line,
                "needed_bytes": needed,
                "missing_bytes": needed.saturating_sub(line),
            });
            say(&object.to_string());
        }
        self
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let status = match &error {
            TrainError::Plan(PlanError::Infeasible(_)) => 3,
            TrainError::Interrupted { .. } => 130,
            TrainError::Diverged(_) | TrainError::NotFinite { .. } => 4,
            TrainError::Export(_)
            | TrainError::Execute(_)
            | TrainError::Verify(_)
            | TrainError::DeviceLost { .. }
            | TrainError::Overload(_)
            | TrainError::Ranks(_)
            | TrainError::File { .. }
            | TrainError::Save { .. }
            | TrainError::Weights { .. } => 1,
            _ => 2,
        };
        // Those are one line, whatever the names in them hold.
        let message = match &error {
            TrainError::Data(_)
            | TrainError::Weights { .. }
            | TrainError::WeightsDiffer { .. }
            | TrainError::Mismatch { .. }
            | TrainError::Save { .. }
            | TrainError::File { .. }
            | TrainError::Setting(_)
            | TrainError::DeviceLost { .. }
            | TrainError::Interrupted { .. } => text::escaped(&error),
            TrainError::Plan(PlanError::Unsupported { layer, source })
                if source.target.starts_with("cuda:") =>
            {
                let layer = text::escaped(layer);
                format!(
                    "{}: the CPU computes it with `--device cpu`, or this layer alone with `--place '{layer}=cpu' --place \
                     '*=cuda:0'`",
                    text::escaped(&error)
                )
            }
            _ => error.to_string(),
        };
        Self { message, status, needs: None }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match &error {
            // Data is read with the line as its limit.
            DataError::TooLarge { what, bytes, limit } => {
                let words = |bytes: u64| in_words(usize::try_from(bytes).unwrap_or(usize::MAX));
                let message = format!(
                    "{what} alone needs {}, the line is {}: raise it, or take less data",
                    words(*bytes),
                    words(*limit)
                );
                Self::below(message, *bytes, *limit)
            }
            DataError::UnknownDataset { spec, .. } => {
                let meant =
                    applies::meant(spec).map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                Self::usage(text::escaped(format!("{error}{meant}")))
            }
            _ => Self::usage(text::escaped(error)),
        }
    }
}

/// Parses the arguments, runs the command, and turns failures into a message and an exit status: 2 for wrong input, 3 for a
/// line that is too low, 4 for a loss that is not finite, 130 or 143 for a run that a signal stopped, 1 for the rest.
fn run() -> ExitCode {
    let words = std::env::args_os().collect();
    let result = config::arguments(words).and_then(|(arguments, matches)| match &arguments.command {
        args::Command::Train(options) => ranks::run(options, matches.subcommand_matches("train")),
        args::Command::Plan(options) => {
            let _shown = progress::preparation("planning");
            plan::run(options, matches.subcommand_matches("plan"))
        }
        args::Command::Evaluate(options) => {
            let _shown = progress::activity("evaluating");
            evaluate::run(options)
        }
        args::Command::Predict(options) => {
            // Rows on a terminal are progress enough.
            let rows_shown = options.out.is_none() && std::io::stdout().is_terminal();
            let _shown = (!rows_shown).then(|| progress::activity("predicting"));
            predict::run(options)
        }
        args::Command::Export(options) => {
            let _shown = progress::activity("exporting");
            export::run(options)
        }
        args::Command::Report(options) => {
            let _shown = progress::activity("writing the page");
            page::run(options)
        }
        args::Command::Compare(options) => {
            let _shown = progress::activity("reading the runs");
            compare::run(options)
        }
        args::Command::Plot(options) => {
            let _shown = progress::activity("drawing");
            plot::run(options)
        }
        args::Command::Prune(options) => {
            let _shown = progress::activity("removing channels");
            channels::run(options)
        }
        args::Command::Quantize(options) => {
            let _shown = progress::activity("measuring ranges");
            quantize::run(options)
        }
        args::Command::Graph(options) => {
            let _shown = progress::activity("building the graph");
            graph::run(options)
        }
        args::Command::Data(options) => {
            let _shown = progress::activity("reading the data");
            data::run(options)
        }
        args::Command::Zoo(options) => {
            let _shown = progress::preparation("planning every model");
            zoo::run(options)
        }
        args::Command::Devices(options) => {
            let _shown = progress::activity("looking for devices");
            devices::run(options)
        }
        args::Command::Doctor(options) => {
            let _shown = progress::activity("measuring this machine");
            doctor::run(options)
        }
        args::Command::Completions { shell } => manual::completions(*shell),
        args::Command::Man { command } => manual::man(command.as_deref()),
    });
    match result {
        // The work is done, but nobody could read all that was said of it.
        Ok(()) => signals::received().map_or(ExitCode::SUCCESS, ExitCode::from),
        Err(failure) => {
            // A refusal has said all already.
            if !failure.message.is_empty() {
                hint(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
}

/// Prints to standard output, with control characters in names escaped.
pub fn say(text: &str) {
    put(&text::escaped_lines(text));
}

/// Prints to standard output as it is. A closed pipe ends the program quietly, as for any filter; a run that can save does so first.
pub fn put(text: &str) {
    if progress::is_silent() || tui::keep(true, text) {
        return;
    }
    let printed = progress::suspend(|| {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush())
    });
    match printed {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => signals::output_lost(signals::CLOSED_PIPE),
        Err(e) => {
            if signals::received().is_none() {
                hint(&format!("cannot write the output: {e}"));
            }
            signals::output_lost(1);
        }
    }
}

/// Prints to standard error, with control characters in names escaped.
pub fn hint(text: &str) {
    if !progress::is_silent() {
        complain(text);
    }
}

/// As [`hint`], in every process of a run.
pub fn complain(text: &str) {
    let text = format!("plimsoll: {}", text::escaped_lines(text));
    if tui::keep(false, &text) {
        return;
    }
    // A closed pipe must not turn a hint into a panic.
    let _ = progress::suspend(|| writeln!(std::io::stderr(), "{text}"));
}

/// Prints a line to standard error that goes on from a hint.
pub fn aside(text: &str) {
    let _ = progress::suspend(|| writeln!(std::io::stderr(), "{}", text::escaped_lines(text)));
}

/// The failure of a command; for a line that is too low it also prints JSON if `json` is set.
pub fn answer(error: TrainError, json: bool) -> Failure {
    if let (true, TrainError::Plan(PlanError::Infeasible(short))) = (json, &error) {
        let object = serde_json::json!({
            "feasible": false,
            "error": "the line is too low",
            "reason": short.to_string(),
            "line_bytes": short.line_bytes,
            "needed_bytes": short.needed_bytes,
            "missing_bytes": short.missing_bytes,
            "load_sheet": short.sheet,
        });
        say(&object.to_string());
    }
    error.into()
}
