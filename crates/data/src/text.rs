//! A file's bytes as tokens.

use crate::{
    DataError, Dataset, Source,
    budget::Budget,
    source::{check_read, write_words},
};
use plimsoll_tensor::{DType, TensorType};
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
/// assert_eq!((text.train.len(), text.test.len()), (9, 1));
/// assert_eq!(text.train.classes(), Some(256));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    windows: usize,
    context: usize,
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
            // What was allocated is addressable, so the windows can be counted.
            Ok(Self { bytes, windows: windows as usize, context })
        };
        let (mut train, mut test) = (part(windows - test)?, part(test)?);

        // Each part holds its own bytes, so that each can state them. The byte between them is in both: it is the last
        // label of the one and the first input of the other.
        let mut reader = File::open(path).map_err(failed)?;
        reader.read_exact(&mut train.bytes).map_err(failed)?;
        let (first, rest) = test.bytes.split_at_mut(1);
        first.copy_from_slice(&train.bytes[train.bytes.len() - 1..]);
        reader.read_exact(rest).map_err(failed)?;
        Ok(Dataset { name: format!("text:{file}"), train: Box::new(train), test: Box::new(test) })
    }
}

impl Source for Text {
    fn len(&self) -> usize {
        self.windows
    }

    fn input_types(&self) -> Vec<TensorType> {
        vec![self.label_type()]
    }

    fn label_type(&self) -> TensorType {
        TensorType::new(DType::I32, [self.context])
    }

    fn classes(&self) -> Option<usize> {
        Some(256)
    }

    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        let bytes = self.context.saturating_mul(4);
        check_read((index, self.windows), (inputs, &[bytes]), (label, bytes))?;
        let window = &self.bytes[index * self.context..][..self.context + 1];
        write_words(inputs[0], window.iter().map(token));
        write_words(label, window[1..].iter().map(token));
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

fn token(byte: &u8) -> [u8; 4] {
    i32::from(*byte).to_ne_bytes()
}
