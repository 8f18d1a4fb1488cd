//! Values in a file: which parts of it are taken.

use plimsoll_plan::TIER_ALIGNMENT;
use plimsoll_runtime::TransferQueue;
use plimsoll_runtime::spill::{SpillFile, TransferError};
use plimsoll_runtime::transfer::FileQueue;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file of a fixed size, created when the first value is offloaded.
pub(crate) struct Spill {
    folder: PathBuf,
    bytes: u64,
    queue: Option<FileQueue>,
    /// The parts that are free: their lengths by offset.
    free: BTreeMap<u64, u64>,
}

impl Spill {
    pub fn new(folder: PathBuf, bytes: u64) -> Self {
        let bytes = bytes / TIER_ALIGNMENT * TIER_ALIGNMENT;
        Self { folder, bytes, queue: None, free: BTreeMap::from([(0, bytes)]) }
    }

    /// Bytes of the file that are taken.
    pub fn used(&self) -> u64 {
        self.bytes - self.free.values().sum::<u64>()
    }

    /// Takes a part for so many bytes, and returns its offset; `None` if the file has no room for them.
    pub fn take(&mut self, bytes: usize) -> Result<Option<u64>, TransferError> {
        let length = taken(bytes);
        let Some((&offset, &free)) = self.free.iter().find(|(_, free)| **free >= length) else {
            return Ok(None);
        };
        if self.queue.is_none() {
            let file = SpillFile::create(&self.folder, self.bytes)?;
            self.queue = Some(FileQueue::new(file, 4)?);
        }
        self.free.remove(&offset);
        if free > length {
            self.free.insert(offset + length, free - length);
        }
        Ok(Some(offset))
    }

    /// Writes to a part that is taken.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        self.queue.as_ref().map_or(Ok(()), |queue| queue.write_now(offset, bytes))
    }

    /// Reads from a part that is taken.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        self.queue.as_ref().map_or(Ok(()), |queue| queue.read_now(offset, into))
    }

    /// Frees a part, and joins it with free ones beside it.
    pub fn release(&mut self, offset: u64, bytes: usize) {
        let (mut start, mut length) = (offset, taken(bytes));
        if let Some((&before, &free)) = self.free.range(..offset).next_back()
            && before + free == offset
        {
            (start, length) = (before, free + length);
        }
        if let Some(free) = self.free.remove(&(offset + taken(bytes))) {
            length += free;
        }
        self.free.insert(start, length);
    }
}

/// The bytes of the file that so many bytes take.
fn taken(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(TIER_ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_freed_join_again() {
        let block = TIER_ALIGNMENT;
        let mut spill = Spill::new("/".into(), 4 * block);
        spill.free = BTreeMap::new();
        assert_eq!(spill.used(), 4 * block);
        spill.release(0, 1);
        spill.release(2 * block, 2 * TIER_ALIGNMENT as usize);
        assert_eq!(spill.free, BTreeMap::from([(0, block), (2 * block, 2 * block)]));
        spill.release(block, TIER_ALIGNMENT as usize - 1);
        assert_eq!((spill.free.clone(), spill.used()), (BTreeMap::from([(0, 4 * block)]), 0));
    }
}
