//! `text:FILE`: a file's bytes as tokens; with a tokenizer, [`tokens`].

#[cfg(feature = "tokenizers")]
mod tokenizer_bounds;
#[cfg(feature = "tokenizers")]
pub(crate) mod tokens;

use super::shared::files::{Files, length};
use crate::core::record::write_words;
use crate::source::check_read;
use crate::{DataError, Dataset, OpenOptions, Record, Schema, Source};
use plimsoll_tensor::Field;
use std::path::Path;
use std::sync::Arc;

pub(super) fn open(_: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    Text::open(file, options.context)
}

/// Windows of a text whose tokens are its bytes: inputs and labels i32 `[context]`, the labels one byte ahead.
///
/// Window `i` starts at byte `i * context`; the last tenth of the windows is the test part. The text need not be UTF-8. Each
/// window is read by its offset, so that memory does not depend on the file's length.
///
/// ```
/// use plimsoll_data::Text;
/// let path = std::env::temp_dir().join(format!("plimsoll-text-{}", std::process::id()));
/// std::fs::write(&path, "the quick brown fox jumps over the lazy dog").unwrap();
/// let text = Text::open(&path, 4)?;
/// assert_eq!((text.train.len(), text.test.len()), (Some(9), Some(1)));
/// assert_eq!(text.train.schema().classes(), Some(256));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Text {
    files: Arc<Files>,
    /// The first window of this part.
    first: u64,
    windows: usize,
    context: usize,
    schema: Schema,
}

impl Text {
    /// Checks the file's length.
    pub fn open(path: impl AsRef<Path>, context: usize) -> Result<Dataset, DataError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        if context == 0 {
            return Err(DataError::Option { option: "context", reason: "must be at least 1".into() });
        }
        // One training and one test window, and the byte after the last.
        let (length, needed) = (length(path)?, (context as u64).saturating_mul(2).saturating_add(1));
        if length < needed {
            return Err(DataError::TooShort { file, length, needed, context });
        }
        let windows = (length - 1) / context as u64;
        let test = (windows / 10).max(1);
        let files = Arc::new(Files::new(vec![path.to_path_buf()]));
        let part = |first: u64, windows: u64| {
            let tokens = Field::below(256, [context]);
            let schema = Schema::examples([tokens.clone()], tokens);
            Self { files: files.clone(), first, windows: windows as usize, context, schema }
        };
        let (train, test) = (part(0, windows - test), part(windows - test, test));
        Ok(Dataset::new(format!("text:{file}"), train, test))
    }
}

impl Source for Text {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.windows
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let window = &mut scratch[..self.context + 1];
        self.files.read_at(0, window, (self.first + index as u64) * self.context as u64)?;
        write_words(record.buffer_mut(0), window.iter().map(token));
        write_words(record.buffer_mut(1), window[1..].iter().map(token));
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        // Counted with the training part, which starts at the first byte.
        if self.first == 0 { self.files.bytes() } else { 0 }
    }

    fn scratch_bytes(&self) -> usize {
        self.context + 1
    }
}

fn token(byte: &u8) -> [u8; 4] {
    i32::from(*byte).to_ne_bytes()
}
