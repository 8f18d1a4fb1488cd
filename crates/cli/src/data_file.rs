//! `data.json` in a run's folder: what the run's data decided, which `evaluate` and `predict` need besides the weights. It is a
//! file of its own because it is there before the first step, so that an unfinished run can predict, too; a report is written
//! at the end. The header of a weights file is bounded by the number of tensors, the names of classes are not.

use super::Failure;
use super::text::escaped;
use plimsoll::data::Preparation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The file's name.
const DATA_FILE: &str = "data.json";
/// The longest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// What the data of a run decided.
#[derive(Debug, Deserialize, Serialize)]
pub struct DataFile {
    /// The names of the classes, and what records go through.
    #[serde(flatten)]
    pub preparation: Preparation,
    /// The sizes of the model, with those that it took from the data.
    pub model_options: Value,
}

/// Writes the file.
pub fn write(folder: &Path, preparation: &Preparation, model_options: &Value) -> Result<(), Failure> {
    let path = folder.join(DATA_FILE);
    let failed = |e: std::io::Error| Failure::run(format!("{}: {e}", path.display()));
    let file = DataFile { preparation: preparation.clone(), model_options: model_options.clone() };
    let text = serde_json::to_string_pretty(&file).map_err(|e| failed(e.into()))?;
    std::fs::write(&path, text + "\n").map_err(failed)
}

/// Reads the file, if the run has one.
pub fn read(folder: &Path) -> Result<Option<DataFile>, Failure> {
    let path = folder.join(DATA_FILE);
    let wrong = |reason: String| Failure::usage(escaped(format!("{}: {reason}", path.display())));
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(wrong(e.to_string())),
        Ok(file) if file.len() > MAX_BYTES => return Err(wrong(format!("more than {MAX_BYTES} bytes"))),
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    serde_json::from_str(&text).map(Some).map_err(|e| wrong(e.to_string()))
}
