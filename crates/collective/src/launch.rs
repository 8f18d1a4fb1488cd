//! Processes that a launcher started, and starting them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use thiserror::Error;

/// Variables in which launchers tell the number of processes.
const SIZES: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_NRANKS"];
/// Variables of launchers that tell a process its number only.
const MEMBERS: [&str; 2] = ["PMIX_RANK", "PMI_RANK"];
/// What Open MPI asks of whoever has more processes than cores; other launchers ignore it.
const MORE_THAN_CORES: [(&str, &str); 2] =
    [("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"), ("OMPI_MCA_rmaps_base_oversubscribe", "1")];

/// Whether a launcher started this process as one of several, like `mpirun` or `srun`.
pub fn launched() -> bool {
    let size = |name| std::env::var(name).ok().and_then(|value| value.trim().parse::<usize>().ok());
    match SIZES.into_iter().find_map(size) {
        Some(size) => size > 1,
        None => {
            let tasks = size("SLURM_NTASKS").unwrap_or(1);
            tasks > 1 && MEMBERS.into_iter().any(|name| std::env::var_os(name).is_some())
        }
    }
}

/// Why `mpirun` did not start.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// It is not there.
    #[error("there is no mpirun on the path: install Open MPI or MPICH, or use a launcher of your own")]
    NoLauncher,
    /// It could not be started.
    #[error("{launcher}: {error}", launcher = launcher.display())]
    Start {
        /// The launcher.
        launcher: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
}

/// Becomes the launcher of so many processes of this program on this machine, with these arguments: signals go to it, and its exit
/// status is this process's. Returns only where that fails.
pub fn launch(ranks: usize, arguments: impl IntoIterator<Item = OsString>) -> LaunchError {
    match command(ranks, arguments) {
        Ok((launcher, mut command)) => LaunchError::Start { launcher, error: command.exec() },
        Err(error) => error,
    }
}

/// Starts the launcher of so many processes of this program on this machine, with these arguments. It is in a process group of its own,
/// so that a terminal's signals reach this process alone, and reads no input.
pub fn start(ranks: usize, arguments: impl IntoIterator<Item = OsString>) -> Result<Child, LaunchError> {
    let (launcher, mut command) = command(ranks, arguments)?;
    let started = command.process_group(0).stdin(Stdio::null()).spawn();
    started.map_err(|error| LaunchError::Start { launcher, error })
}

/// The launcher of the path, and its command.
fn command(
    ranks: usize,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(PathBuf, Command), LaunchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("mpirun"));
    let launcher = places.find(|file| file.is_file()).ok_or(LaunchError::NoLauncher)?;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Err(LaunchError::Start { launcher, error }),
    };
    let mut command = Command::new(&launcher);
    command.envs(MORE_THAN_CORES.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    command.arg("-n").arg(ranks.to_string()).arg(program).args(arguments);
    Ok((launcher, command))
}
