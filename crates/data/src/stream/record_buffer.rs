//! A buffer of records.

use crate::core::budget::zeroed;
use crate::{DataError, MAX_COLUMNS, Record, Schema};

/// Bytes written to each column, and the record's origin.
type Entry = ([usize; MAX_COLUMNS], u64);

/// A bounded number of records of one schema, in one allocation.
pub(crate) struct RecordBuffer {
    schema: Schema,
    record_bytes: usize,
    /// The records one after another.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl RecordBuffer {
    /// Space for `most` records.
    pub fn new(what: &str, schema: Schema, most: usize) -> Result<Self, DataError> {
        let record_bytes = schema.capacity();
        let bytes = zeroed(what, record_bytes.saturating_mul(most) as u64)?;
        Ok(Self { schema, record_bytes, bytes, entries: Vec::with_capacity(most) })
    }

    /// Heap bytes for `most` records.
    pub fn heap_bytes(schema: &Schema, most: usize) -> usize {
        schema.capacity().saturating_add(size_of::<Entry>()).saturating_mul(most)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps a copy of a record.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), DataError> {
        let mut free = self.free();
        free.copy_from(record)?;
        let lengths = free.lengths();
        self.keep(lengths, record.place.origin);
        Ok(())
    }

    /// The first free slot, to write to before [`RecordBuffer::keep`].
    pub fn free(&mut self) -> Record<'_> {
        let start = self.entries.len() * self.record_bytes;
        Record::over(&self.schema, &mut self.bytes[start..][..self.record_bytes])
    }

    /// Keeps what was written to the first free slot.
    pub fn keep(&mut self, lengths: [usize; MAX_COLUMNS], origin: u64) {
        self.entries.push((lengths, origin));
    }

    /// Copies a record out.
    pub fn copy_to(&mut self, slot: usize, record: &mut Record<'_>) -> Result<(), DataError> {
        let (lengths, origin) = self.entries[slot];
        let mut stored =
            Record::over(&self.schema, &mut self.bytes[slot * self.record_bytes..][..self.record_bytes]);
        stored.set_lengths(MAX_COLUMNS, [lengths, lengths]);
        record.copy_from(&stored)?;
        record.place.origin = origin;
        Ok(())
    }

    /// Removes a record; the last one moves into its slot.
    pub fn remove(&mut self, slot: usize) {
        let last = self.entries.len() - 1;
        if slot != last {
            self.bytes.copy_within(
                last * self.record_bytes..(last + 1) * self.record_bytes,
                slot * self.record_bytes,
            );
        }
        self.entries.swap_remove(slot);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
