//! The flags that show a run while it goes on, and what they take.

use super::Failure;
use super::text::escaped;
use super::{out_file, progress, tui};
use clap::Args;
use plimsoll::plan::Entry;
use plimsoll::train::{Session, TensorBoard, Trainer};
use std::path::{Path, PathBuf};

/// Steps of a trace and of a profile, where no flag says how many.
const TRACED_STEPS: u64 = 5;
pub const PROFILED_STEPS: u64 = 20;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Watching a run")]
pub struct WatchOptions {
    /// Write a trace of the first steps, for ui.perfetto.dev: kernels of every thread, transfers, input workers, memory
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Steps in the trace [default: 5]
    #[arg(long, value_name = "STEPS", requires = "trace", allow_negative_numbers = true)]
    pub trace_steps: Option<u64>,
    /// Write losses, metrics, learning rate, speed, memory and the configuration to a folder that TensorBoard shows
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// With --tensorboard: also histograms of the parameters, every this many steps
    #[arg(long, value_name = "STEPS", requires = "tensorboard", allow_negative_numbers = true)]
    pub histograms: Option<u64>,
    /// Print the time of a step by layer and by kernel, beside what the target predicts
    #[arg(long, conflicts_with_all = ["replicas", "place", "check_memory"])]
    pub profile: bool,
    /// Steps that the profile looks at, of which the shortest times count; on a GPU they are slower, because the host waits for
    /// every kernel [default: 20]
    #[arg(long, value_name = "STEPS", requires = "profile", allow_negative_numbers = true)]
    pub profile_steps: Option<u64>,
    /// Show the run on the whole terminal: losses, metrics, speed, the time left, and the memory of every space
    #[arg(long)]
    pub tui: bool,
}

impl WatchOptions {
    /// Refuses to draw where there is no terminal.
    pub fn check_terminal(&self) -> Result<(), Failure> {
        match self.tui && !progress::on_terminal() {
            true => Err(Failure::usage(
                "--tui needs a terminal, and standard error is none: leave it out; --log, --tensorboard and --out keep what \
                 happens",
            )),
            false => Ok(()),
        }
    }

    /// Refuses invalid values, of a run that makes this folder.
    pub fn check(&self, out: Option<&Path>) -> Result<(), Failure> {
        let counts = [
            ("--trace-steps", self.trace_steps),
            ("--histograms", self.histograms),
            ("--profile-steps", self.profile_steps),
        ];
        if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return Err(Failure::usage(format!("{flag} must be at least 1")));
        }
        if let Some(folder) = self.tensorboard.as_deref().filter(|folder| folder.exists() && !folder.is_dir())
        {
            let name = escaped(folder.display());
            return Err(Failure::usage(format!("--tensorboard {name}: this is a file; name a folder")));
        }
        self.trace.as_deref().map_or(Ok(()), |file| out_file::check("--trace", file, out))
    }

    /// Whether it writes files while the run goes on.
    pub fn writes(&self) -> bool {
        self.tensorboard.is_some() || self.trace.is_some()
    }

    /// Makes the folder of TensorBoard's files, and refuses one that cannot be written to, before anything is planned.
    pub fn make_folder(&self) -> Result<(), Failure> {
        let Some(folder) = &self.tensorboard else { return Ok(()) };
        let made = std::fs::create_dir_all(folder);
        let written =
            made.and_then(|()| out_file::try_new(&folder.join(format!(".plimsoll-{}", std::process::id()))));
        written.map_err(|e| {
            let name = escaped(folder.display());
            Failure::usage(format!("--tensorboard {name}: cannot write to this folder: {e}; name another"))
        })
    }

    /// A trainer that accounts for what is shown.
    pub fn trainer(&self, mut trainer: Trainer) -> Trainer {
        if let Some(path) = &self.trace {
            trainer = trainer.trace(path, self.trace_steps.unwrap_or(TRACED_STEPS));
        }
        if self.tensorboard.is_some() {
            let note = "event file and histograms for TensorBoard";
            trainer = trainer.outside(Entry::new(TENSORBOARD, TensorBoard::BYTES, note));
        }
        if self.tui {
            trainer = trainer.outside(tui::entry());
        }
        if self.profile {
            let note = "the shortest time of every step of the plans";
            trainer = trainer.outside_per_node(Entry::new(PROFILE, size_of::<u64>(), note));
        }
        trainer
    }

    /// Adds the callbacks to a session of a run with this configuration.
    pub fn callbacks(&self, session: &mut Session, resolved: &str) -> Result<(), Failure> {
        let Some(folder) = &self.tensorboard else { return Ok(()) };
        let done = session.steps_done();
        if done == 0 && has_event_files(folder) {
            super::hint(&format!(
                "--tensorboard {}: there are event files of another run in it, and TensorBoard shows both as one: name a folder \
                 for each run",
                escaped(folder.display())
            ));
        }
        let planned = session.plans().sheet.host_total_and_line().0;
        let mut board = TensorBoard::create(folder, done)?.planned_bytes(planned);
        if let Some(every) = self.histograms {
            board = board.histograms(every);
        }
        board.text("configuration", &markdown(resolved))?;
        session.add(board);
        Ok(())
    }
}

/// Entries of the load sheet.
pub const TENSORBOARD: &str = "tensorboard";
pub const PROFILE: &str = "profile";

/// Flags as a table in Markdown.
fn markdown(resolved: &str) -> String {
    let mut table = "| flag | value |\n|---|---|\n".to_string();
    for line in resolved.lines() {
        if let Some((flag, value)) = line.split_once('=') {
            // A bar would end the cell, and a mark of code protects all else.
            let value = value.trim().replace('`', "'").replace('|', "\\|");
            table += &format!("| {} | `{value}` |\n", flag.trim());
        }
    }
    table
}

fn has_event_files(folder: &Path) -> bool {
    let is_one = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("events.out.tfevents.");
    std::fs::read_dir(folder).is_ok_and(|files| files.flatten().any(|file| is_one(&file.file_name())))
}
