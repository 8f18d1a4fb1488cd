//! A file's bytes as tokens.

use crate::{
    DataError, Dataset, Record, Schema, Source, budget::Budget, record::write_words, source::check_read,
};
use plimsoll_tensor::Field;
use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// Windows of a text whose tokens are its bytes: inputs and labels i32 `[context]`, the labels one byte ahead.
///
/// Window `i` starts at byte `i * context`; the last tenth of the windows is the test part. The text need not be UTF-8.
///
/// ```
/// use plimsoll_data::{DEFAULT_MAX_BYTES, Text};
/// let path = std::env::temp_dir().join(format!("plimsoll-text-{}", std::process::id()));
/// std::fs::write(&path, "the quick brown fox jumps over the lazy dog").unwrap();
/// let text = Text::open(&path, 4, DEFAULT_MAX_BYTES)?;
/// assert_eq!((text.train.len(), text.test.len()), (Some(9), Some(1)));
/// assert_eq!(text.train.schema().classes(), Some(256));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    windows: usize,
    context: usize,
    schema: Schema,
}

impl Text {
    /// Reads a file once into memory. Both parts together hold at most `max_bytes`.
    pub fn open(path: impl AsRef<Path>, context: usize, max_bytes: usize) -> Result<Dataset, DataError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let failed = |source| DataError::Read { file: file.clone(), source };
        if context == 0 {
            return Err(DataError::Option { option: "context", reason: "must be at least 1".into() });
        }
        // Asked before opening: opening a named pipe would wait for its writer.
        let metadata = fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        // One training and one test window, and the byte after the last.
        let (length, needed) = (metadata.len(), (context as u64).saturating_mul(2).saturating_add(1));
        if length < needed {
            return Err(DataError::TooShort { file, length, needed, context });
        }
        let windows = (length - 1) / context as u64;
        let test = (windows / 10).max(1);
        let budget = &mut Budget::new(max_bytes);
        let mut part = |windows: u64| {
            let bytes = budget.take(&format!("`{file}`"), windows * context as u64 + 1)?;
            let tokens = Field::below(256, [context]);
            let schema = Schema::examples([tokens.clone()], tokens);
            // What was allocated is addressable, so the windows can be counted.
            Ok(Self { bytes, windows: windows as usize, context, schema })
        };
        let (mut train, mut test) = (part(windows - test)?, part(test)?);

        // Each part holds its own bytes, so that each can state them. The byte between them is in both: it is the last
        // label of the one and the first input of the other.
        let mut reader = File::open(path).map_err(failed)?;
        reader.read_exact(&mut train.bytes).map_err(failed)?;
        let (first, rest) = test.bytes.split_at_mut(1);
        first.copy_from_slice(&train.bytes[train.bytes.len() - 1..]);
        reader.read_exact(rest).map_err(failed)?;
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

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let window = &self.bytes[index * self.context..][..self.context + 1];
        write_words(record.room(0), window.iter().map(token));
        write_words(record.room(1), window[1..].iter().map(token));
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

fn token(byte: &u8) -> [u8; 4] {
    i32::from(*byte).to_ne_bytes()
}
