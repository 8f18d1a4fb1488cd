//! The folder of a model that was made from a run's: by `prune` or `quantize`.

use super::run_folder::{REPORT, WEIGHTS, found_in};
use super::text::escaped;
use super::weights::{of_weights, refused};
use super::{Failure, signals};
use plimsoll::train::{DataFile, Session, write_atomically};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// What a report says that a later run or prediction needs.
const KEPT: [&str; 10] = [
    "model",
    "data",
    "tokenizer",
    "label",
    "columns",
    "batch",
    "accumulate",
    "seed",
    "precision",
    "keep_f32",
];

/// A run that has ended, and the folder of what is made from it.
pub struct MadeFolder {
    run: PathBuf,
    out: PathBuf,
    report: Value,
}

impl MadeFolder {
    /// Refuses a run that has not ended, and a folder that holds another.
    pub fn new(run: &Path, out: &Path) -> Result<Self, Failure> {
        if let Some(what) = found_in(out) {
            let name = escaped(out.display());
            return Err(Failure::usage(format!("--out {name}: {what}; name another folder")));
        }
        let path = run.join(REPORT);
        let name = escaped(path.display());
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Failure::usage(format!("{name}: {e}; give the folder of a run that has ended")))?;
        let report = serde_json::from_str(&text).map_err(|e| Failure::usage(format!("{name}: {e}")))?;
        Ok(Self { run: run.to_path_buf(), out: out.to_path_buf(), report })
    }

    /// Writes the weights of a session, what the data decided, and a report, with the model's options changed. Returns the bytes of
    /// the weights files before and after.
    pub fn write(&self, session: &Session, change: impl FnOnce(&mut Value)) -> Result<(u64, u64), Failure> {
        let failed =
            |e: std::io::Error| Failure::usage(format!("--out {}: {e}", escaped(self.out.display())));
        signals::whole_or_absent(&self.out, || {
            let made = Made::in_folder(&self.out);
            std::fs::create_dir_all(&self.out).map_err(failed)?;
            let written = self.fill(session, change);
            if written.is_err() {
                made.remove();
            }
            written
        })
    }

    fn fill(&self, session: &Session, change: impl FnOnce(&mut Value)) -> Result<(u64, u64), Failure> {
        session.save(self.out.join(WEIGHTS)).map_err(of_weights)?;
        let own = self.report.get("model_options").filter(|options| options.is_object());
        let mut model_options = own.cloned().unwrap_or_else(|| json!({}));
        // What was made has been trained; what it was trained for is done.
        if let Some(options) = model_options.as_object_mut() {
            options.remove("quantize_aware");
        }
        change(&mut model_options);
        let mut file = DataFile::read(&self.run).map_err(refused)?.unwrap_or_default();
        file.model_options = model_options.clone();
        file.write(&self.out)?;
        let kept = KEPT.iter().filter_map(|&key| Some((key.to_string(), self.report.get(key)?.clone())));
        let mut written: Map<String, Value> = kept.collect();
        written.insert("model_options".into(), model_options);
        let text = format!("{:#}\n", Value::Object(written));
        write_atomically(&self.out.join(REPORT), text.as_bytes())?;
        let bytes = |folder: &Path| std::fs::metadata(folder.join(WEIGHTS)).map_or(0, |file| file.len());
        Ok((bytes(&self.run), bytes(&self.out)))
    }
}

/// What is made in a folder.
struct Made {
    folder: PathBuf,
    /// What was in it before.
    before: Vec<PathBuf>,
    /// Folders that were not there before, the innermost first.
    missing: Vec<PathBuf>,
}

impl Made {
    /// A folder and those that it is in, as far as they are not there.
    fn in_folder(folder: &Path) -> Self {
        let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let missing = missing.map(Path::to_path_buf).collect();
        Self { folder: folder.to_path_buf(), before: files(folder), missing }
    }

    /// Removes what was made: new files, and then new folders if nothing else is there by now.
    fn remove(&self) {
        // What cannot be removed stays: the failure before is what the user is told.
        for file in files(&self.folder).iter().filter(|file| !self.before.contains(file)) {
            let _ = std::fs::remove_file(file);
        }
        for folder in &self.missing {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// What is in a folder; nothing if there is none.
fn files(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten();
    found.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
