//! Runs the real binary, alone or inside a kernel-enforced memory limit.

use plimsoll::prelude::{Dataset, Session, Trainer};
pub use plimsoll_testing::Scratch;
use serde_json::Value;
use std::process::{Command, Output};

/// Disables the plan cache: tests search for every plan, and leave the user's cache alone.
pub const NO_CACHE: (&str, &str) = ("XDG_CACHE_HOME", "/dev/null");

/// `plimsoll` with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).env(NO_CACHE.0, NO_CACHE.1);
    command
}

/// Runs `plimsoll` with these arguments.
pub fn plimsoll(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// Whether tests that take minutes are complete: with `PLIMSOLL_LONG=1`, as `.ci/long` has it. Says what is skipped otherwise.
#[allow(dead_code, reason = "not every test file asks")]
pub fn long_tests(skipped: &str) -> bool {
    let long = std::env::var_os("PLIMSOLL_LONG").is_some();
    if !long {
        eprintln!("skipped: {skipped}; PLIMSOLL_LONG=1 runs all");
    }
    long
}

/// The last line of a run's standard output as JSON.
pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "status {:?}\n{text}\n{errors}", output.status.code());
    let last = text.lines().last().unwrap_or_else(|| panic!("nothing was printed: {errors}"));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e} in `{last}`"))
}

/// A number of a report.
#[allow(dead_code, reason = "not every test file asks")]
pub fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("`{field}` is not a number in {value}"))
}

/// Plans and starts a run.
#[allow(dead_code, reason = "not every test file asks")]
pub fn prepare(trainer: &Trainer, data: &Dataset) -> Session {
    trainer.plan(data).unwrap().start().unwrap()
}

/// The bytes of every state of a run.
#[allow(dead_code, reason = "not every test file asks")]
pub fn states(session: &Session) -> Vec<Vec<u8>> {
    let names = session.plans().states.iter().map(|state| state.name.clone());
    names.map(|name| session.state(&name).unwrap().as_bytes().to_vec()).collect()
}

/// A memory control group that is removed when dropped.
#[allow(dead_code, reason = "not every test file asks")]
pub struct Group(plimsoll_testing::Group);

#[allow(dead_code, reason = "not every test file asks")]
impl Group {
    /// [`plimsoll_testing::Group::new`].
    pub fn new(name: &str, bytes: usize) -> Option<Self> {
        plimsoll_testing::Group::new(name, bytes).map(Self)
    }

    /// Runs `plimsoll` inside the group.
    pub fn plimsoll(&self, arguments: &[&str]) -> Output {
        self.run(&command(arguments))
    }

    /// Runs a command inside the group.
    pub fn run(&self, command: &Command) -> Output {
        self.enter(command).output().expect("a shell runs")
    }

    /// The command, started inside the group.
    pub fn enter(&self, command: &Command) -> Command {
        self.0.enter(command)
    }
}
