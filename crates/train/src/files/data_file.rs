//! `data.json` in a run's folder: what the run's data decided, which predictions need besides the weights. It is a file of its own
//! because it is there before the first step, so that an unfinished run can predict, too. The header of a weights file is bounded
//! by the number of tensors, the names of classes are not.

use crate::TrainError;
use plimsoll_data::Preparation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The file's name.
const DATA_FILE: &str = "data.json";
/// The longest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// What the data of a run decided.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct DataFile {
    /// The names of the classes, and what records go through.
    #[serde(flatten)]
    pub preparation: Preparation,
    /// The sizes of a model of the zoo, with those that it took from the data.
    #[serde(default)]
    pub model_options: Value,
}

impl DataFile {
    /// Writes the file into a folder.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), TrainError> {
        let path = folder.as_ref().join(DATA_FILE);
        let text = serde_json::to_string_pretty(self).map_err(|e| TrainError::save(&path, e.into()))?;
        super::write_atomically(&path, (text + "\n").as_bytes())
    }

    /// Reads the file of a folder, if there is one.
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<Self>, TrainError> {
        let path = folder.as_ref().join(DATA_FILE);
        let wrong = |reason: String| TrainError::Weights { path: path.display().to_string(), reason };
        match std::fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(TrainError::file(&path, e)),
            Ok(file) if file.len() > MAX_BYTES => return Err(wrong(format!("more than {MAX_BYTES} bytes"))),
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(&path).map_err(|e| TrainError::file(&path, e))?;
        serde_json::from_str(&text).map(Some).map_err(|e| wrong(e.to_string()))
    }
}
