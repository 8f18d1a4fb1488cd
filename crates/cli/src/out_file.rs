//! Files that flags ask for.

use super::Failure;
use super::text::escaped;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Refuses a file that cannot be made, before anything is read or planned. The folder `made` will be there.
pub fn check(flag: &str, file: &Path, made: Option<&Path>) -> Result<(), Failure> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let reason = match (file.is_dir(), folder.is_dir()) {
        (true, _) => "this is a folder; name a file in it".to_string(),
        (false, false) if made == Some(folder) => return Ok(()),
        (false, false) => format!("there is no folder {}", escaped(folder.display())),
        (false, true) => match try_write(file) {
            Ok(()) => return Ok(()),
            Err(e) => format!("cannot write to this file: {e}; name another"),
        },
    };
    Err(Failure::usage(format!("{flag} {}: {reason}", escaped(file.display()))))
}

/// Whether a file can be written to. What is there stays as it is, and pipes and devices are not opened.
fn try_write(file: &Path) -> io::Result<()> {
    match file.metadata() {
        Ok(found) if found.is_file() => OpenOptions::new().append(true).open(file).map(drop),
        Ok(_) => Ok(()),
        Err(_) => try_new(file),
    }
}

/// Makes a file that is not there, and removes it again.
pub fn try_new(file: &Path) -> io::Result<()> {
    File::create_new(file)?;
    std::fs::remove_file(file)
}
