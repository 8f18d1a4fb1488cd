//! Files that flags ask for.

use super::Failure;
use super::text::escaped;
use std::path::Path;

/// Refuses a file that cannot be made, before anything is read or planned. The folder `made` will be there.
pub fn check(flag: &str, file: &Path, made: Option<&Path>) -> Result<(), Failure> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let reason = match (file.is_dir(), folder.is_dir() || made == Some(folder)) {
        (true, _) => "this is a folder; name a file in it".to_string(),
        (false, false) => format!("there is no folder {}", escaped(folder.display())),
        (false, true) => return Ok(()),
    };
    Err(Failure::usage(format!("{flag} {}: {reason}", escaped(file.display()))))
}
