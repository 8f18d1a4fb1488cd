//! One record: borrowed buffers, one for each column.

use crate::{DataError, Schema};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The most columns of a record. A record is a fixed array of this length, so that creating one allocates nothing.
pub const MAX_COLUMNS: usize = 9;

/// Which record this is: the counter of its random numbers, and what errors name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The epoch.
    pub epoch: u64,
    /// Its position in the order of the epoch.
    pub number: u64,
    /// Where it comes from: an index of the source, or a position that a stream chose.
    pub origin: u64,
}

/// One record: a borrowed buffer for each column of a schema. The last source or stage of a pipeline writes straight into
/// the batch.
///
/// ```
/// use plimsoll_data::{Field, Record, Schema};
/// let schema = Schema::new().bytes("line", 8).tensor("label", Field::below(10, []));
/// let mut bytes = vec![0; schema.capacity()];
/// let mut record = Record::over(&schema, &mut bytes);
/// record.buffer_mut(0)[..5].copy_from_slice(b"plain");
/// record.set_length(0, 5)?;
/// record.put_i32(1, 7)?;
/// assert_eq!((record.bytes(0), record.i32(1)), (&b"plain"[..], Some(7)));
/// let schema = Schema::new().tensor("input", Field::floats([2]));
/// let mut bytes = vec![0; schema.capacity()];
/// let mut numbers = Record::over(&schema, &mut bytes);
/// numbers.put_f32(0, &[0.5, 2.0])?;
/// assert_eq!(numbers.f32(0).collect::<Vec<f32>>(), [0.5, 2.0]);
/// assert!(record.set_length(0, 9).is_err());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Record<'a> {
    slots: [(&'a mut [u8], usize); MAX_COLUMNS],
    columns: usize,
    /// Which record it is.
    pub place: Place,
    /// Set when the pipeline stops.
    pub(crate) stop: Option<&'a AtomicBool>,
    /// The record's bucket, where a pipeline has buckets.
    pub(crate) bucket: usize,
}

impl<'a> Record<'a> {
    /// A record over buffers, each as long as its column's capacity.
    pub fn new(buffers: impl IntoIterator<Item = &'a mut [u8]>) -> Self {
        let mut slots: [(&'a mut [u8], usize); MAX_COLUMNS] = Default::default();
        let mut columns = 0;
        for (slot, buffer) in slots.iter_mut().zip(buffers) {
            *slot = (buffer, 0);
            slot.1 = slot.0.len();
            columns += 1;
        }
        Self { slots, columns, place: Place::default(), stop: None, bucket: 0 }
    }

    /// A record of this schema at the start of a buffer that is at least [`Schema::capacity`] long.
    ///
    /// # Panics
    /// If the buffer is shorter than [`Schema::capacity`].
    pub fn over(schema: &Schema, mut bytes: &'a mut [u8]) -> Self {
        let cut = schema.columns().iter().map(|column| {
            let (slot, rest) = std::mem::take(&mut bytes).split_at_mut(column.kind.capacity());
            bytes = rest;
            slot
        });
        Self::new(cut)
    }

    /// Whether the pipeline is stopping. Code that searches long for the next record polls it.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Relaxed))
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The bytes written to a column.
    pub fn bytes(&self, column: usize) -> &[u8] {
        let (buffer, length) = &self.slots[column];
        &buffer[..*length]
    }

    /// The whole buffer of a column, for writing.
    pub fn buffer_mut(&mut self, column: usize) -> &mut [u8] {
        self.slots[column].0
    }

    /// Sets how many bytes of a column's buffer were written.
    pub fn set_length(&mut self, column: usize, length: usize) -> Result<(), DataError> {
        let cap = self.slots[column].0.len();
        if length > cap {
            return Err(DataError::OverCap { what: "a record", found: length as u64, cap: cap as u64 });
        }
        self.slots[column].1 = length;
        Ok(())
    }

    /// Copies bytes into a column.
    pub fn put(&mut self, column: usize, bytes: &[u8]) -> Result<(), DataError> {
        self.set_length(column, bytes.len())?;
        self.slots[column].0[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Writes an integer: a class, a token.
    pub fn put_i32(&mut self, column: usize, value: i32) -> Result<(), DataError> {
        self.put(column, &value.to_ne_bytes())
    }

    /// Writes floats.
    pub fn put_f32(&mut self, column: usize, values: &[f32]) -> Result<(), DataError> {
        self.set_length(column, values.len() * 4)?;
        write_words(self.slots[column].0, values.iter().map(|value| value.to_ne_bytes()));
        Ok(())
    }

    /// The floats in a column.
    pub fn f32(&self, column: usize) -> impl ExactSizeIterator<Item = f32> + '_ {
        let words = self.bytes(column).chunks_exact(size_of::<f32>());
        words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
    }

    /// The integer in a column that holds one.
    pub fn i32(&self, column: usize) -> Option<i32> {
        Some(i32::from_ne_bytes(self.bytes(column).try_into().ok()?))
    }

    /// Splits the columns into two records: those before `column`, and those from it on.
    pub fn split_at(&mut self, column: usize) -> (Record<'_>, Record<'_>) {
        fn over<'s>(slots: &'s mut [(&mut [u8], usize)], count: usize) -> Record<'s> {
            Record::new(slots.iter_mut().take(count).map(|slot| &mut *slot.0))
        }
        let (place, stop, columns) = (self.place, self.stop, self.columns);
        let (front, back) = self.slots.split_at_mut(column);
        let (front, back) = (over(front, column), over(back, columns - column));
        (Record { place, stop, ..front }, Record { place, stop, ..back })
    }

    /// Bytes written to each column.
    pub(crate) fn lengths(&self) -> [usize; MAX_COLUMNS] {
        std::array::from_fn(|column| self.slots[column].1)
    }

    /// Sets the lengths to those of the two records of [`Record::split_at`].
    pub(crate) fn set_lengths(&mut self, column: usize, [front, back]: [[usize; MAX_COLUMNS]; 2]) {
        let lengths = front.into_iter().take(column).chain(back);
        self.slots.iter_mut().take(self.columns).zip(lengths).for_each(|(slot, length)| slot.1 = length);
    }

    /// Copies the columns of another record of the same schema, but not its place.
    pub fn copy_from(&mut self, other: &Record<'_>) -> Result<(), DataError> {
        (0..self.columns).try_for_each(|column| self.put(column, other.bytes(column)))
    }

    /// As [`Record::copy_from`], without one column.
    pub(crate) fn copy_all_but(&mut self, index: usize, other: &Record<'_>) -> Result<(), DataError> {
        let others = (0..self.columns).filter(|&column| column != index);
        others.into_iter().try_for_each(|column| self.put(column, other.bytes(column)))
    }

    /// Checks that number and lengths of the buffers are those of this schema's tensors. Every source of tensors calls it
    /// first.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), DataError> {
        if self.columns != schema.columns().len() {
            return Err(DataError::BufferCount { expected: schema.columns().len(), found: self.columns });
        }
        for (column, (buffer, _)) in schema.columns().iter().zip(&self.slots) {
            let (expected, found) = (column.kind.capacity(), buffer.len());
            if found != expected {
                return Err(DataError::Buffer { what: column.name.clone(), expected, found });
            }
        }
        Ok(())
    }
}

/// Writes 4-byte elements into bytes, as many as both have.
pub(crate) fn write_words(bytes: &mut [u8], words: impl Iterator<Item = [u8; 4]>) {
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word);
    }
}
