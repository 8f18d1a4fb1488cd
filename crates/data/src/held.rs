//! Records that wait in a buffer.

use crate::{DataError, MOST_COLUMNS, Record, Schema, budget::zeroed};

/// How much of each column was written, and where the record is from.
type Kept = ([usize; MOST_COLUMNS], u64);

/// Records of one schema in one buffer, at most so many.
pub(crate) struct Held {
    schema: Schema,
    room: usize,
    /// The records one after another.
    bytes: Vec<u8>,
    kept: Vec<Kept>,
}

impl Held {
    /// Room for so many records.
    pub fn new(what: &str, schema: Schema, most: usize) -> Result<Self, DataError> {
        let room = schema.room();
        let bytes = zeroed(what, room.saturating_mul(most) as u64)?;
        Ok(Self { schema, room, bytes, kept: Vec::with_capacity(most) })
    }

    /// Heap bytes of so many records.
    pub fn heap_bytes(schema: &Schema, most: usize) -> usize {
        schema.room().saturating_add(size_of::<Kept>()).saturating_mul(most)
    }

    /// Records held.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps a copy of a record.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), DataError> {
        let mut free = self.free();
        free.copy_from(record)?;
        let lengths = free.lengths();
        self.keep(lengths, record.place.origin);
        Ok(())
    }

    /// The first free place, to write to before [`Held::keep`].
    pub fn free(&mut self) -> Record<'_> {
        let place = self.kept.len() * self.room;
        Record::over(&self.schema, &mut self.bytes[place..][..self.room])
    }

    /// Keeps what was written to the first free place: its lengths, and where it is from.
    pub fn keep(&mut self, lengths: [usize; MOST_COLUMNS], origin: u64) {
        self.kept.push((lengths, origin));
    }

    /// Copies a record out.
    pub fn copy_to(&mut self, place: usize, record: &mut Record<'_>) -> Result<(), DataError> {
        let (lengths, origin) = self.kept[place];
        let mut held = Record::over(&self.schema, &mut self.bytes[place * self.room..][..self.room]);
        held.set_lengths(MOST_COLUMNS, [lengths, lengths]);
        record.copy_from(&held)?;
        record.place.origin = origin;
        Ok(())
    }

    /// Removes a record; the last one takes its place.
    pub fn remove(&mut self, place: usize) {
        let last = self.kept.len() - 1;
        if place != last {
            self.bytes.copy_within(last * self.room..(last + 1) * self.room, place * self.room);
        }
        self.kept.swap_remove(place);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}
