//! The `plimsoll` program: arguments in, text out.

mod answers;
mod applies;
mod args;
mod config;
mod data;
mod data_file;
mod doctor;
mod evaluate;
mod graph;
mod input;
mod machine;
mod plan;
mod precision;
mod predict;
mod refusal;
mod resume;
mod running;
mod setup;
mod signals;
mod text;
mod train;
mod trained;
mod update;
mod weights;
mod workload;
mod zoo;

use plimsoll::data::DataError;
use plimsoll::plan::PlanError;
use plimsoll::train::TrainError;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Counts live heap bytes by tag.
#[global_allocator]
static HEAP: plimsoll::memory::Heap = plimsoll::memory::Heap;

fn main() -> ExitCode {
    plimsoll::memory::configure_heap();
    silence_caught_panics();
    run()
}

/// Silences panics in libraries that read data: they are caught and reported as errors.
fn silence_caught_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !plimsoll::data::is_guarded() {
            report(info);
        }
    }));
}

/// An error message for the user, and the exit status of its kind.
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Wrong input: exit status 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2 }
    }

    /// Too little memory: exit status 3.
    pub fn memory(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 3 }
    }

    /// A failure while running: exit status 1.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 1 }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let status = match &error {
            TrainError::Plan(PlanError::Infeasible(_)) => 3,
            TrainError::Interrupted { .. } => 130,
            TrainError::Diverged(_) | TrainError::NotFinite { .. } => 4,
            TrainError::Execute(_)
            | TrainError::Verify(_)
            | TrainError::Overload(_)
            | TrainError::File { .. }
            | TrainError::Save { .. }
            | TrainError::Weights { .. } => 1,
            _ => 2,
        };
        Self { message: error.to_string(), status }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match &error {
            // Data is read with the line as its limit.
            DataError::TooLarge { what, bytes, limit } => Self::memory(format!(
                "{what} needs {bytes} bytes, the line is {limit}: raise it, or take less data"
            )),
            _ => Self::usage(error),
        }
    }
}

/// Parses the arguments, runs the command, and turns failures into a message and an exit status: 2 for wrong input, 3 for a
/// line that is too low, 4 for a loss that is not finite, 130 or 143 for a run that a signal stopped, 1 for the rest.
fn run() -> ExitCode {
    let words = std::env::args_os().collect();
    let result = config::arguments(words).and_then(|(arguments, matches)| match &arguments.command {
        args::Command::Train(options) => train::run(options, matches.subcommand_matches("train")),
        args::Command::Plan(options) => plan::run(options, matches.subcommand_matches("plan")),
        args::Command::Evaluate(options) => evaluate::run(options),
        args::Command::Predict(options) => predict::run(options),
        args::Command::Graph(options) => graph::run(options),
        args::Command::Data(options) => data::run(options),
        args::Command::Zoo(options) => zoo::run(options),
        args::Command::Doctor(options) => doctor::run(options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Messages quote names of files, classes and tensors.
            hint(&text::printable_lines(&failure.message));
            ExitCode::from(failure.status)
        }
    }
}

/// Prints to standard output. A closed pipe ends the program quietly, as for any filter.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
        Err(e) => {
            hint(&format!("cannot write the output: {e}"));
            std::process::exit(1);
        }
    }
}

/// Prints to standard error.
pub fn hint(text: &str) {
    // A closed pipe must not turn a hint into a panic.
    let _ = writeln!(std::io::stderr(), "plimsoll: {text}");
}

/// The failure of a command; for a line that is too low it also prints JSON if `json` is set.
pub fn answer(error: TrainError, json: bool) -> Failure {
    if let (true, TrainError::Plan(PlanError::Infeasible(short))) = (json, &error) {
        let object = serde_json::json!({
            "error": "the line is too low",
            "line_bytes": short.line_bytes,
            "needed_bytes": short.needed_bytes,
            "missing_bytes": short.missing_bytes,
            "load_sheet": short.sheet,
        });
        say(&object.to_string());
    }
    error.into()
}
