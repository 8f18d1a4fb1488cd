//! Names the planner by its sources, so that what another one planned is not taken for its own.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let mut hasher = DefaultHasher::new();
    add(Path::new("src"), &mut hasher)?;
    let mut cargo = std::io::stdout();
    writeln!(cargo, "cargo::rerun-if-changed=src")?;
    writeln!(cargo, "cargo::rustc-env=PLIMSOLL_PLANNER={:016x}", hasher.finish())
}

/// Adds the files of a folder by name, in order.
fn add(folder: &Path, hasher: &mut DefaultHasher) -> std::io::Result<()> {
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add(&path, hasher)?;
        } else {
            (path.file_name(), std::fs::read(&path)?).hash(hasher);
        }
    }
    Ok(())
}
