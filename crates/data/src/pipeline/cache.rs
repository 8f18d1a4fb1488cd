//! Records cached after their first reading.

use crate::core::file_io::{read_at, write_at};
use crate::core::shared_buffer::SharedBuffer;
use crate::{Counted, DataError, Kind, Record, Schema, Source};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};

/// Where [`crate::Pipeline::cache`] stores records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In memory; a cache over the limit is refused.
    Memory {
        /// The limit in bytes.
        most_bytes: usize,
    },
    /// In a temporary file, which is unlinked at once.
    File {
        /// A folder on a disk with enough space.
        folder: PathBuf,
    },
}

/// Where the bytes are.
enum Store {
    Memory(SharedBuffer),
    File(File, String),
}

const MISSING: u8 = 0;
const BUSY: u8 = 1;
const THERE: u8 = 2;

/// A source whose records are read once.
pub(crate) struct Cached {
    source: Arc<dyn Source>,
    store: Store,
    /// The state of each record: [`MISSING`], [`BUSY`] or [`THERE`].
    states: Vec<AtomicU8>,
    record_bytes: usize,
}

impl Cached {
    pub fn new(source: Arc<dyn Source>, cache: &Cache) -> Result<Self, DataError> {
        if let Some(column) = source.schema().columns().iter().find(|c| matches!(c.kind, Kind::Bytes { .. }))
        {
            return Err(DataError::NotATensor { column: column.name.clone() });
        }
        let (record_bytes, len) = (source.schema().capacity(), source.len());
        let total = record_bytes.saturating_add(1).saturating_mul(len);
        let store = match cache {
            Cache::Memory { most_bytes } if total > *most_bytes => {
                let (what, limit) = ("the cache".into(), *most_bytes as u64);
                return Err(DataError::TooLarge { what, bytes: total as u64, limit });
            }
            Cache::Memory { .. } => {
                Store::Memory(SharedBuffer::new("the cache", (record_bytes * len) as u64)?)
            }
            Cache::File { folder } => {
                let path = folder.join(format!("plimsoll-cache-{}", std::process::id()));
                let name = path.display().to_string();
                let failed = |source| DataError::Cache { file: name.clone(), source };
                let file =
                    File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
                std::fs::remove_file(&path).map_err(failed)?;
                file.set_len((record_bytes * len) as u64).map_err(failed)?;
                Store::File(file, name)
            }
        };
        let states = (0..len).map(|_| AtomicU8::new(MISSING)).collect();
        Ok(Self { source, store, states, record_bytes })
    }

    /// Heap bytes of the cache itself.
    pub fn own_bytes(&self) -> usize {
        self.states.len()
            + if let Store::Memory(_) = self.store { self.states.len() * self.record_bytes } else { 0 }
    }

    /// Copies a record to the store, or from it.
    fn copy_columns(&self, record: &mut Record<'_>, mut at: usize, save: bool) -> Result<(), DataError> {
        for column in 0..record.columns() {
            let len = record.buffer_mut(column).len();
            match &self.store {
                Store::Memory(buffer) if save => {
                    // SAFETY: while a record is BUSY, one thread has exclusive access to its bytes.
                    let stored = unsafe { buffer.write(at, len) };
                    stored.copy_from_slice(record.bytes(column));
                }
                Store::Memory(buffer) => {
                    // SAFETY: once a record is THERE, no thread writes its bytes.
                    let stored = unsafe { buffer.read(at, len) };
                    record.buffer_mut(column).copy_from_slice(stored);
                }
                Store::File(file, name) => {
                    let copied = match save {
                        true => write_at(file, record.bytes(column), at as u64),
                        false => read_at(file, record.buffer_mut(column), at as u64),
                    };
                    copied.map_err(|source| DataError::Cache { file: name.clone(), source })?;
                }
            }
            at += len;
        }
        Ok(())
    }
}

impl Source for Cached {
    fn schema(&self) -> &Schema {
        self.source.schema()
    }
    fn len(&self) -> usize {
        self.states.len()
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        let Some(state) = self.states.get(index) else {
            return Err(DataError::Index { index, len: self.len() });
        };
        if state.load(Acquire) == THERE {
            return self.copy_columns(record, index * self.record_bytes, false);
        }
        self.source.read(index, record, scratch)?;
        // Of threads that read the same record concurrently, the first stores it.
        if state.compare_exchange(MISSING, BUSY, Relaxed, Relaxed).is_ok() {
            let saved = self.copy_columns(record, index * self.record_bytes, true);
            state.store(if saved.is_ok() { THERE } else { MISSING }, Release);
            saved?;
        }
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        self.source.resident_bytes() + self.own_bytes()
    }
    fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        counted.shared(&self.source) + self.own_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        self.source.scratch_bytes()
    }
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.source.decoder_bytes(readers)
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        self.source.origin(index, epoch)
    }
}
