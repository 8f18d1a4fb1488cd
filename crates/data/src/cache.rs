//! Records kept after their first reading.

use crate::{DataError, Kind, Record, Schema, Source, block::Block};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};

/// Where [`crate::Pipeline::cache`] keeps records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In memory, at most so many bytes; what needs more is refused.
    Memory {
        /// The most bytes it may take.
        most_bytes: usize,
    },
    /// In a file that is made for this, and has no name afterwards.
    File {
        /// A folder on a disk with room for it.
        folder: PathBuf,
    },
}

/// Where the bytes are.
enum Kept {
    Memory(Block),
    File(File, String),
}

const MISSING: u8 = 0;
const BUSY: u8 = 1;
const THERE: u8 = 2;

/// A source whose records are read once.
pub(crate) struct Cached {
    source: Arc<dyn Source>,
    kept: Kept,
    /// One state for each record.
    states: Vec<AtomicU8>,
    room: usize,
}

impl Cached {
    pub fn new(source: Arc<dyn Source>, cache: &Cache) -> Result<Self, DataError> {
        if let Some(column) = source.schema().columns().iter().find(|c| matches!(c.kind, Kind::Bytes { .. }))
        {
            return Err(DataError::NotATensor { column: column.name.clone() });
        }
        let (room, len) = (source.schema().room(), source.len());
        let total = room.saturating_add(1).saturating_mul(len);
        let kept = match cache {
            Cache::Memory { most_bytes } if total > *most_bytes => {
                let (what, limit) = ("the cache".into(), *most_bytes as u64);
                return Err(DataError::TooLarge { what, bytes: total as u64, limit });
            }
            Cache::Memory { .. } => Kept::Memory(Block::new("the cache", (room * len) as u64)?),
            Cache::File { folder } => {
                let path = folder.join(format!("plimsoll-cache-{}", std::process::id()));
                let name = path.display().to_string();
                let failed = |source| DataError::Cache { file: name.clone(), source };
                let file =
                    File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
                std::fs::remove_file(&path).map_err(failed)?;
                file.set_len((room * len) as u64).map_err(failed)?;
                Kept::File(file, name)
            }
        };
        let states = (0..len).map(|_| AtomicU8::new(MISSING)).collect();
        Ok(Self { source, kept, states, room })
    }

    /// Heap bytes of the cache itself.
    pub fn own_bytes(&self) -> usize {
        self.states.len() + if let Kept::Memory(_) = self.kept { self.states.len() * self.room } else { 0 }
    }

    fn move_columns(&self, record: &mut Record<'_>, mut at: usize, save: bool) -> Result<(), DataError> {
        for column in 0..record.columns() {
            let len = record.room(column).len();
            match &self.kept {
                Kept::Memory(block) if save => {
                    // SAFETY: while a record is busy one thread alone has its bytes.
                    let kept = unsafe { block.row(at, len) };
                    kept.copy_from_slice(record.bytes(column));
                }
                Kept::Memory(block) => {
                    // SAFETY: once a record is there nobody writes its bytes.
                    let kept = unsafe { block.at(at, len) };
                    record.room(column).copy_from_slice(kept);
                }
                Kept::File(file, name) => {
                    let moved = match save {
                        true => write_at(file, record.bytes(column), at as u64),
                        false => read_at(file, record.room(column), at as u64),
                    };
                    moved.map_err(|source| DataError::Cache { file: name.clone(), source })?;
                }
            }
            at += len;
        }
        Ok(())
    }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => (bytes, at) = (&mut bytes[n..], at + n as u64),
        }
    }
    Ok(())
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
            return self.move_columns(record, index * self.room, false);
        }
        self.source.read(index, record, scratch)?;
        // Whoever else reads the same record at this moment leaves it to the first.
        if state.compare_exchange(MISSING, BUSY, Relaxed, Relaxed).is_ok() {
            let saved = self.move_columns(record, index * self.room, true);
            state.store(if saved.is_ok() { THERE } else { MISSING }, Release);
            saved?;
        }
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        self.source.resident_bytes() + self.own_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        self.source.scratch_bytes()
    }
    fn decoder_bytes(&self) -> usize {
        self.source.decoder_bytes()
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        self.source.origin(index, epoch)
    }
}
