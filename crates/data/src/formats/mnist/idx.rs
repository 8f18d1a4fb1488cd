//! The IDX format of MNIST: a magic number, the extents, all big-endian words, then bytes.

use crate::DataError;
use crate::core::budget::Budget;
use flate2::bufread::MultiGzDecoder;
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// The longest side of an image.
const LONGEST_SIDE: u32 = 1024;

/// The highest compression ratio of deflate, which spends at least two bits on a copy of at most 258 bytes. It bounds what
/// the header of a gzip file may announce.
const DEFLATE_RATIO: u64 = 1032;

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;

/// Images as bytes, row by row.
#[derive(Debug)]
pub(crate) struct Images {
    pub count: usize,
    pub height: usize,
    pub width: usize,
    pub pixels: Vec<u8>,
}

/// Reads one or several consecutive IDX files, from a file or from memory.
pub(crate) struct IdxReader<'a> {
    /// The name in errors.
    pub file: String,
    reader: Box<dyn Read + 'a>,
    /// An upper bound of the bytes that follow.
    available: u64,
    examples: usize,
}

impl<'a> IdxReader<'a> {
    /// A file; gzip if its name ends in `.gz`.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = path.display().to_string();
        let failed = |source| DataError::Read { file: file.clone(), source };
        // Checked before opening: opening a named pipe would block.
        let metadata = fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let reader = BufReader::new(File::open(path).map_err(failed)?);
        if path.extension().is_some_and(|extension| extension == "gz") {
            Self::gzip(file, reader, metadata.len())
        } else {
            Ok(Self { file, reader: Box::new(reader), available: metadata.len(), examples: 0 })
        }
    }

    /// A gzip stream of `compressed` bytes.
    pub fn gzip(file: String, mut reader: impl BufRead + 'a, compressed: u64) -> Result<Self, DataError> {
        match reader.fill_buf() {
            Err(source) => return Err(DataError::Read { file, source }),
            Ok(start) if !start.starts_with(&[0x1f, 0x8b]) => return Err(DataError::NotGzip { file }),
            Ok(_) => {}
        }
        let reader = Box::new(MultiGzDecoder::new(reader));
        Ok(Self { file, reader, available: compressed.saturating_mul(DEFLATE_RATIO), examples: 0 })
    }

    /// Reads images, within the budget.
    pub fn images(&mut self, budget: &mut Budget) -> Result<Images, DataError> {
        let [count, height, width] = self.header("images", IMAGES_MAGIC)?;
        if !(1..=LONGEST_SIDE).contains(&height) || !(1..=LONGEST_SIDE).contains(&width) {
            return Err(DataError::ImageSize { file: self.file.clone(), height, width, limit: LONGEST_SIDE });
        }
        // 32 + 10 + 10 bits at most, so this does not overflow.
        let pixels = self.payload(count, u64::from(height) * u64::from(width), budget)?;
        Ok(Images { count: self.examples, height: height as usize, width: width as usize, pixels })
    }

    /// Reads labels in `0..classes`, within the budget.
    pub fn labels(&mut self, classes: usize, budget: &mut Budget) -> Result<Vec<u8>, DataError> {
        let [count] = self.header("labels", LABELS_MAGIC)?;
        let labels = self.payload(count, 1, budget)?;
        match labels.iter().position(|&label| usize::from(label) >= classes) {
            Some(index) => {
                let label = i64::from(labels[index]);
                Err(DataError::Label { file: self.file.clone(), index, label, classes })
            }
            None => Ok(labels),
        }
    }

    /// Checks that nothing follows; for gzip this also verifies the checksum.
    pub fn finish(mut self) -> Result<(), DataError> {
        match self.reader.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(DataError::Trailing { file: self.file, examples: self.examples }),
            Err(source) => Err(DataError::Read { file: self.file, source }),
        }
    }

    fn header<const N: usize>(
        &mut self,
        content: &'static str,
        expected: u32,
    ) -> Result<[u32; N], DataError> {
        let found = self.word()?;
        if found != expected {
            return Err(DataError::Magic { file: self.file.clone(), content, found, expected });
        }
        let mut extents = [0; N];
        for extent in &mut extents {
            *extent = self.word()?;
        }
        Ok(extents)
    }

    fn word(&mut self) -> Result<u32, DataError> {
        let mut word = [0; 4];
        self.fill(&mut word)?;
        Ok(u32::from_be_bytes(word))
    }

    fn payload(&mut self, count: u32, each: u64, budget: &mut Budget) -> Result<Vec<u8>, DataError> {
        if count == 0 {
            return Err(DataError::Empty { what: format!("`{}`", self.file) });
        }
        let bytes = u64::from(count) * each;
        if bytes > self.available {
            return Err(DataError::Truncated {
                file: self.file.clone(),
                promised: bytes,
                found: self.available,
            });
        }
        let mut buffer = budget.take(&format!("`{}`", self.file), bytes)?;
        self.fill(&mut buffer)?;
        self.examples = count as usize;
        Ok(buffer)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), DataError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let ended = match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => true,
                Ok(read) => {
                    filled += read;
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
                Err(source) => return Err(DataError::Read { file: self.file.clone(), source }),
            };
            if ended {
                let (promised, found) = (buffer.len() as u64, filled as u64);
                return Err(DataError::Truncated { file: self.file.clone(), promised, found });
            }
        }
        self.available = self.available.saturating_sub(filled as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
