//! The command line: arguments in, text out.

mod args;
mod plan;
mod setup;
mod text;
mod train;
mod zoo;

use clap::Parser;
use plimsoll::plan::PlanError;
use plimsoll::train::TrainError;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Something the user should change, and the exit status that says what kind of thing.
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Bad input: exit status 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), status: 2 }
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
            TrainError::Execute(_)
            | TrainError::Verify(_)
            | TrainError::Diverged { .. }
            | TrainError::File { .. } => 1,
            _ => 2,
        };
        Self { message: error.to_string(), status }
    }
}

impl From<plimsoll::data::DataError> for Failure {
    fn from(error: plimsoll::data::DataError) -> Self {
        Self::usage(error)
    }
}

/// Parses the arguments, runs the command, and turns failures into a message and an exit status: 2 for input that
/// must change, 3 for a line that is too low, 1 for the rest.
pub fn run() -> ExitCode {
    let arguments = args::Arguments::parse();
    let result = match &arguments.command {
        args::Command::Train(options) => train::run(options),
        args::Command::Plan(options) => plan::run(options),
        args::Command::Zoo(options) => zoo::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed pipe must not turn a failure into a panic.
            let _ = writeln!(std::io::stderr(), "plimsoll: {}", failure.message);
            ExitCode::from(failure.status)
        }
    }
}

/// Prints to standard output; a reader that went away ends the program quietly, like any filter.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).is_err()
    {
        std::process::exit(141);
    }
}
