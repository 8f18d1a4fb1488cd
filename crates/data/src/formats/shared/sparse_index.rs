//! Offsets of records in a file, in bounded memory.

/// The most offsets kept by default: half a MiB.
const MAX_OFFSETS: usize = 1 << 16;

/// The offset of every `stride`th record. The stride doubles as the file grows; a reader skips the records between an offset
/// and the one it looks for.
#[derive(Debug)]
pub(crate) struct SparseIndex {
    offsets: Vec<u64>,
    stride: usize,
    len: usize,
    max_offsets: usize,
}

impl SparseIndex {
    pub fn new() -> Self {
        Self::up_to(MAX_OFFSETS)
    }

    /// With at most this many offsets.
    pub fn up_to(max_offsets: usize) -> Self {
        Self { offsets: Vec::new(), stride: 1, len: 0, max_offsets }
    }

    /// Adds the offset of the next record.
    pub fn push(&mut self, offset: u64) {
        if self.len.is_multiple_of(self.stride) && self.offsets.len() == self.max_offsets {
            let mut number = 0;
            self.offsets.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride *= 2;
        }
        if self.len.is_multiple_of(self.stride) {
            self.offsets.push(offset);
        }
        self.len += 1;
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The last known offset at or before a record, and how many records to skip from there.
    pub fn find(&self, index: usize) -> (u64, usize) {
        (self.offsets[index / self.stride], index % self.stride)
    }

    /// Records from one known offset to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.offsets.capacity() * size_of::<u64>()
    }

    /// Frees unused capacity.
    pub fn finish(mut self) -> Self {
        self.offsets.shrink_to_fit();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_found_in_bounded_memory() {
        for count in [1, 100, MAX_OFFSETS, MAX_OFFSETS + 1, 3 * MAX_OFFSETS + 7, 9 * MAX_OFFSETS] {
            let mut offsets = SparseIndex::new();
            (0..count).for_each(|i| offsets.push(i as u64 * 10));
            assert_eq!(offsets.len(), count);
            assert!(offsets.bytes() <= MAX_OFFSETS * 8, "{}", offsets.bytes());
            for index in (0..count).step_by(997).chain([count - 1]) {
                let (offset, skip) = offsets.find(index);
                assert_eq!(offset / 10 + skip as u64, index as u64);
            }
        }
    }
}
