//! `--restart`: starts the processes of a run anew, from its last checkpoint, after one of them died or hung.

use super::args::RunOptions;
use super::text::escaped;
use super::{Failure, hint, run_folder, signals};
use clap::ValueEnum;
use plimsoll::train::{TrainState, checkpoints};
use plimsoll_collective::{launched, start};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

/// How often the launcher looks whether its processes have ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long processes that were ended may hold the folder of the run.
const LEAVING: Duration = Duration::from_secs(30);
/// Exit statuses after which another attempt would end alike: wrong flags, a line that is too low, a loss that is not finite, an output
/// that nobody reads, and signals that ask a run to stop.
const FINAL: [i32; 7] = [2, 3, 4, 129, 130, 141, 143];

/// How the processes of an attempt begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attempt {
    /// As the flags say.
    New,
    /// From the checkpoints that an attempt before left in the folder of the run.
    Resumed,
}

impl Attempt {
    const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Resumed => "resumed",
        }
    }
}

/// The folder to which a run writes.
fn folder(options: &RunOptions) -> Option<&Path> {
    options.out.as_deref().or(options.resume.as_deref())
}

/// Refuses what cannot be started again.
pub fn check(options: &RunOptions) -> Result<(), Failure> {
    let ranks = &options.ranks;
    if ranks.restart.is_none() || ranks.attempt.is_some() {
        return Ok(());
    }
    if launched() {
        return Err(Failure::usage(
            "--restart is for processes that --ranks starts: after a failure start your launcher again, with --resume DIR in place \
             of --out DIR once there is a checkpoint (most batch systems can do that by themselves), and leave --restart out",
        ));
    }
    if ranks.ranks.is_none_or(|ranks| ranks < 2) {
        return Err(Failure::usage("--restart starts the processes of --ranks again: add --ranks 2 or more"));
    }
    if folder(options).is_none() {
        return Err(Failure::usage(
            "--restart goes on from checkpoints: add --out DIR, and --save-every STEPS to lose fewer steps",
        ));
    }
    Ok(())
}

/// The options of a process of an attempt.
pub fn options(given: &RunOptions) -> RunOptions {
    let mut options = given.clone();
    if given.ranks.attempt == Some(Attempt::Resumed) {
        options.resume = folder(given).map(Path::to_path_buf);
        // They were for the beginning.
        (options.overwrite, options.weights, options.new_head) = (false, None, false);
    }
    options
}

/// Starts the processes, and starts them again as often as allowed.
pub fn run(options: &RunOptions, ranks: usize, restarts: u32) -> Result<(), Failure> {
    let folder = folder(options).unwrap_or(Path::new("."));
    let before = saved(folder);
    let signals = signals::collect().map_err(|e| Failure::run(format!("cannot listen for signals: {e}")))?;
    let mut attempt = Attempt::New;
    let mut left = restarts;
    loop {
        let own = ["--attempt", attempt.name()].map(OsString::from);
        let launcher = start(ranks, std::env::args_os().skip(1).chain(own)).map_err(Failure::usage)?;
        let status = match wait(launcher, &signals)? {
            Ended::With(0) => return Ok(()),
            Ended::With(status) => status,
            Ended::Stopped(signal) => 128 + signal,
        };
        // What is to be said was said by the processes.
        let silent = |status: i32| Failure { status: exit_status(status), ..Failure::run("") };
        if FINAL.contains(&status) {
            return Err(silent(status));
        }
        let name = escaped(folder.display());
        if left == 0 {
            let times = if restarts == 1 { "time" } else { "times" };
            hint(&format!(
                "the processes ended with status {status}, and were started again {restarts} {times} already; continue with --resume {name}"
            ));
            return Err(silent(status));
        }
        left -= 1;
        let since = Instant::now();
        while !run_folder::is_free(folder) && since.elapsed() < LEAVING {
            std::thread::sleep(LOOK);
        }
        // Those that were there at first may be of a run that this one was to overwrite, and did not yet.
        let now = saved(folder);
        let newest =
            now.last().filter(|_| now != before).and_then(|(path, _)| TrainState::read_file(path).ok());
        attempt = if newest.is_some() { Attempt::Resumed } else { Attempt::New };
        let from = newest.map_or("as before".into(), |state| format!("after step {}", state.steps_done));
        hint(&format!(
            "the processes ended with status {status}: starting them again, {from} ({} of {restarts})",
            restarts - left
        ));
    }
}

/// The exit status of a program; those that it cannot have are 1.
fn exit_status(status: i32) -> u8 {
    u8::try_from(status).unwrap_or(1).max(1)
}

/// The checkpoints of a folder, oldest first, and when they were written.
fn saved(folder: &Path) -> Vec<(PathBuf, Option<SystemTime>)> {
    let written = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let found = checkpoints(folder).unwrap_or_default();
    found.into_iter().map(|path| (path.clone(), written(&path))).collect()
}

/// How a launcher ended.
enum Ended {
    /// With a status: 128 and its number for a signal.
    With(i32),
    /// Because this process was asked to stop, by this signal.
    Stopped(i32),
}

/// Waits for a launcher, and gives signals on to it.
fn wait(mut launcher: Child, signals: &[(i32, Arc<AtomicBool>)]) -> Result<Ended, Failure> {
    let pid = Pid::from_child(&launcher);
    let mut stopped = None;
    loop {
        for (signal, _) in signals.iter().filter(|(_, arrived)| arrived.swap(false, Relaxed)) {
            stopped = Some(*signal);
            // It may have ended just now.
            let _ = Signal::from_named_raw(*signal).map(|signal| kill_process(pid, signal));
        }
        let ended = launcher.try_wait().map_err(|e| Failure::run(format!("cannot wait for mpirun: {e}")))?;
        if let Some(ended) = ended {
            let status = ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
            return Ok(stopped.filter(|_| status != 0).map_or(Ended::With(status), Ended::Stopped));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_no_program_has_is_one() {
        assert_eq!([0, 1, 137, 255, 256, -1].map(exit_status), [1, 1, 137, 255, 1, 1]);
    }
}
