//! The folder of a run: what is in it already, the lock of the run that writes there, and the files of its beginning and end.

use super::Failure;
use super::args::RunOptions;
use super::config::RESOLVED;
use super::text::escaped;
use plimsoll::train::{MANIFEST, TrainState, WEIGHTS_FILE, checkpoints, write_atomically};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// What a finished run writes: its report, and its parameters.
pub const REPORT: &str = "report.json";
pub const WEIGHTS: &str = WEIGHTS_FILE;
/// The file whose lock the run holds.
const LOCK: &str = ".lock";

/// The folder of a run that writes there, locked until it is dropped.
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

/// Refuses a folder that holds a run, unless this one continues it or may overwrite it.
pub fn check(options: &RunOptions) -> Result<(), Failure> {
    let Some(folder) = &options.out else {
        return match options.overwrite {
            true => Err(Failure::usage("--overwrite is for the folder of a run: add --out DIR")),
            false => Ok(()),
        };
    };
    let resumes = options.resume.as_ref() == Some(folder);
    if resumes && options.overwrite {
        return Err(Failure::usage("--overwrite starts anew, --resume goes on: leave one of them out"));
    }
    if resumes || options.overwrite {
        return Ok(());
    }
    match found_in(folder) {
        Some(what) => {
            let name = escaped(folder.display());
            Err(Failure::usage(format!(
                "--out {name}: {what}; continue it with --resume {name}, delete it and start anew with --overwrite, or name \
                 another folder"
            )))
        }
        None => Ok(()),
    }
}

/// Whether no process writes to a folder.
pub fn is_free(folder: &Path) -> bool {
    let lock = open_lock(&folder.join(LOCK));
    !lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// What an earlier run left in a folder, in words.
pub fn found_in(folder: &Path) -> Option<String> {
    if let Some(newest) = checkpoints(folder).unwrap_or_default().pop() {
        let state = TrainState::read_file(&newest);
        let newest = escaped(newest.file_name().unwrap_or_default().display());
        return Some(match state {
            Ok(state) => format!(
                "there is a run of {} in it, after step {} of {} ({newest})",
                escaped(&state.model),
                state.steps_done,
                state.total_steps
            ),
            Err(_) => format!("there is a run in it ({newest})"),
        });
    }
    let left = [REPORT, WEIGHTS].into_iter().find(|name| folder.join(name).exists())?;
    Some(format!("there is a run's {left} in it"))
}

impl RunFolder {
    /// Makes the folder of `--out`, if there is one, and locks it: of two runs that write to one folder, one is refused.
    pub fn claim(options: &RunOptions) -> Result<Option<Self>, Failure> {
        let Some(folder) = &options.out else { return Ok(None) };
        let name = escaped(folder.display());
        let failed = |what: &str, e: io::Error| Failure::usage(format!("--out {name}: cannot {what}: {e}"));
        std::fs::create_dir_all(folder).map_err(|e| failed("make this folder", e))?;
        let lock = open_lock(&folder.join(LOCK)).map_err(|e| failed(&format!("open {LOCK} in it"), e))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::usage(format!(
                    "--out {name}: another run is writing to this folder; wait for it, or name another"
                )));
            }
            // Not every file system has locks.
            Err(TryLockError::Error(e)) if e.kind() != io::ErrorKind::Unsupported => {
                return Err(failed("lock it", e));
            }
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // A run may have ended there since the flags were checked.
        check(options)?;
        Ok(Some(Self { path: folder.clone(), _lock: lock }))
    }

    /// Removes the results of an earlier run, and its checkpoints if the new one starts anew; writes the resolved flags.
    pub fn begin(&self, overwrite: bool, resolved: &str) -> Result<(), Failure> {
        let mut old: Vec<PathBuf> = [REPORT, WEIGHTS].map(|name| self.path.join(name)).into();
        if overwrite {
            old.extend(checkpoints(&self.path)?);
            old.push(self.path.join(MANIFEST));
        }
        for path in old {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::run(format!("{}: {e}", escaped(path.display()))));
                }
                _ => {}
            }
        }
        Ok(write_atomically(&self.path.join(RESOLVED), resolved.as_bytes())?)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes the report.
    pub fn write_report(&self, report: &serde_json::Value) -> Result<(), Failure> {
        write_atomically(&self.path.join(REPORT), format!("{report:#}\n").as_bytes())?;
        let folder = escaped(self.path.display());
        super::say(&format!("Wrote {WEIGHTS}, {REPORT} and checkpoints to {folder}"));
        Ok(())
    }
}

/// The report of the run in a folder.
pub fn report(folder: &Path) -> Result<serde_json::Value, Failure> {
    let path = folder.join(REPORT);
    let wrong = |reason: String| Failure::usage(escaped(format!("{}: {reason}", path.display())));
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
}

/// Opens the lock file, which holds nothing. A link of its name is not followed.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path)
}
