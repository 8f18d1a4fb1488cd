//! Bucketing: sequences of varying length in batches of a few fixed lengths.

pub(crate) mod grouped;

use super::{Head, Pipeline};
use crate::{DataError, Kind, Record, Schema};
use grouped::Grouped;
use plimsoll_tensor::{DType, Field, Tensor, TensorType};
use std::sync::Arc;

/// The name of the input that [`Buckets::with_length`] adds.
const LENGTH: &str = "length";

/// The lengths that sequences are padded to, and the columns that are sequences: see [`crate::Pipeline::bucket`].
#[derive(Clone, Debug)]
pub struct Buckets {
    lengths: Vec<usize>,
    columns: Vec<(String, Field, f64)>,
    with_length: bool,
}

impl Buckets {
    /// Buckets for sequences of up to these numbers of items, the shortest first.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        Self { lengths: lengths.into_iter().collect(), columns: Vec::new(), with_length: false }
    }

    /// Declares a column of bytes a sequence of `item`s, and its padding: for inputs a token or number that the model knows,
    /// for classes in the label column a negative number, which means "no label".
    pub fn column(mut self, name: impl Into<String>, item: Field, padding: impl Into<f64>) -> Self {
        self.columns.push((name.into(), item, padding.into()));
        self
    }

    /// Adds an input after the others, an i32 named `length`: the number of items of an example's first sequence, without
    /// padding.
    pub fn with_length(self) -> Self {
        Self { with_length: true, ..self }
    }
}

impl Pipeline {
    /// Groups sequences of similar length into batches: each batch is of one bucket, the smallest that fits its records, and
    /// its sequences are padded to the bucket's length. Bucketing comes after all other verbs, wherever this one stands; a
    /// batch is given as soon as its bucket is full. At the end of an epoch leftover records move up to the next larger
    /// bucket, so that an epoch has as many batches as without buckets, and only the last, of the largest bucket, may have
    /// fewer records.
    ///
    /// A sequence too long for every bucket is a bad record; [`Pipeline::skip_bad`] replaces it by one item of padding
    /// without a label. From here on records are a stream, as after a filter. A resumed run reads the epoch's records up to
    /// its cursor again.
    ///
    /// ```
    /// use plimsoll_data::{Buckets, Cursor, Field, Pipeline, Schema};
    /// let words = ["a", "few", "words", "of", "no", "great", "length"];
    /// let schema = Schema::new().bytes("word", 8 * 4).tensor("label", Field::below(7, []));
    /// let words = Pipeline::generator(schema, 0, move |_| {
    ///     let mut words = words.into_iter().enumerate();
    ///     move |record| {
    ///         let Some((i, word)) = words.next() else { return Ok(false) };
    ///         let letters: Vec<u8> = word.bytes().flat_map(|letter| i32::from(letter).to_ne_bytes()).collect();
    ///         record.put(0, &letters)?;
    ///         record.put_i32(1, i as i32)?;
    ///         Ok(true)
    ///     }
    /// });
    /// let buckets = Buckets::new([3, 6]).column("word", Field::below(128, []), 0).with_length();
    /// let mut batches = words.bucket(buckets)?.batch(2).start(Cursor::default())?;
    /// let mut types = Vec::new();
    /// while let Some(batch) = batches.next()? {
    ///     types.push(format!("{batch:?}"));
    /// }
    /// assert_eq!(types[0], "Batch(i32[2,3], i32[2] -> i32[2])"); // a, few
    /// assert_eq!(types[1], "Batch(i32[2,3], i32[2] -> i32[2])"); // of, no
    /// assert_eq!(types[2], "Batch(i32[2,6], i32[2] -> i32[2])"); // words, great
    /// assert_eq!(types[3], "Batch(i32[1,6], i32[1] -> i32[1])"); // length
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn bucket(mut self, buckets: Buckets) -> Result<Self, DataError> {
        self.buckets = Some(Arc::new(Bucketing::new(buckets, self.schema())?));
        Ok(self)
    }

    /// The columns of one example of each type of batch: one, or one for each bucket, the smallest first.
    pub fn batch_schemas(&self) -> &[Schema] {
        match &self.buckets {
            Some(buckets) => &buckets.batches,
            None => std::slice::from_ref(self.schema()),
        }
    }

    /// Where records come from while it runs; an error where a verb after [`Pipeline::bucket`] changed the columns.
    pub(crate) fn running(&self) -> Result<Head, DataError> {
        let Some(buckets) = &self.buckets else { return Ok(self.head.clone()) };
        if self.schema() != &buckets.records {
            let (expected, found) = (buckets.records.in_words(), self.schema().in_words());
            return invalid(format!(
                "they were made for {expected}, records have {found}; change columns before"
            ));
        }
        let source = if let Head::Indexed(source) = &self.head { Some(source.clone()) } else { None };
        let (of, buckets, size) = (self.streamed(), buckets.clone(), self.rows());
        Ok(Head::Streamed(Arc::new(Grouped { of, source, buckets, size }), Vec::new()))
    }
}

/// Buckets resolved for the records of one schema.
pub(crate) struct Bucketing {
    lengths: Vec<usize>,
    /// For each column that is a sequence, one item of padding.
    padding: Vec<Option<Vec<u8>>>,
    /// The sequence whose length is an input.
    counted: Option<usize>,
    /// The columns of the records.
    pub records: Schema,
    /// The columns of the records that each bucket buffers, without padding.
    pub buffered: Vec<Schema>,
    /// The columns of each bucket's batches.
    pub batches: Vec<Schema>,
}

fn invalid<T>(reason: String) -> Result<T, DataError> {
    Err(DataError::Option { option: "buckets", reason })
}

impl Bucketing {
    /// Checks the buckets against the columns of the records.
    pub fn new(buckets: Buckets, records: &Schema) -> Result<Self, DataError> {
        let lengths = buckets.lengths;
        if lengths.first().is_none_or(|&first| first == 0) || !lengths.is_sorted_by(|a, b| a < b) {
            return invalid(format!("lengths must rise from at least 1, not {lengths:?}"));
        }
        let label = records.columns().len().saturating_sub(1);
        let mut items: Vec<Option<(Field, Vec<u8>)>> = vec![None; records.columns().len()];
        let mut first = None;
        for (name, item, padding) in buckets.columns {
            let place = records.columns().iter().position(|column| column.name == name);
            let Some(place) = place.filter(|&i| matches!(records.columns()[i].kind, Kind::Bytes { .. }))
            else {
                let has = records.in_words();
                return invalid(format!(
                    "`{name}` must be a column of bytes of any length, not one of {has}"
                ));
            };
            let bytes = padding_bytes(&name, &item, padding, place == label)?;
            items[place] = Some((item, bytes));
            first = first.or(Some(place));
        }
        let counted = first.filter(|_| buckets.with_length);
        if first.is_none() {
            return invalid("no column is a sequence: name one with `Buckets::column`".into());
        }
        let (mut buffered, mut batches) = (Vec::new(), Vec::new());
        for &length in &lengths {
            let (mut short, mut padded) = (Schema::new(), Schema::new());
            for (i, column) in records.columns().iter().enumerate() {
                if i == label && counted.is_some() {
                    padded = padded.tensor(LENGTH, Field::below(length.saturating_add(1), []));
                }
                let name = &column.name;
                match &items[i] {
                    None => {
                        short = short.column(name, column.kind.clone());
                        padded = padded.column(name, column.kind.clone());
                    }
                    Some((item, _)) => {
                        short = short.bytes(name, item.ty.bytes().saturating_mul(length));
                        padded = padded.tensor(name, sequence(item, length));
                    }
                }
            }
            padded.check()?;
            buffered.push(short);
            batches.push(padded);
        }
        let padding = items.into_iter().map(|item| item.map(|(_, bytes)| bytes)).collect();
        Ok(Self { lengths, padding, counted, records: records.clone(), buffered, batches })
    }

    /// The smallest bucket that fits a record.
    pub fn of(&self, record: &Record<'_>) -> Result<usize, DataError> {
        let mut items = 0;
        for (column, padding) in self.padding.iter().enumerate() {
            let Some(padding) = padding else { continue };
            let (bytes, each) = (record.bytes(column).len(), padding.len());
            if !bytes.is_multiple_of(each) {
                let name = &self.records.columns()[column].name;
                let reason =
                    format!("{bytes} bytes of `{name}` are not a whole number of items of {each} bytes");
                return Err(DataError::Corrupt { reason });
            }
            items = items.max(bytes / each);
        }
        let most = self.lengths.last().copied().unwrap_or(0);
        self.lengths.iter().position(|&length| items <= length).ok_or(DataError::OverBuckets { items, most })
    }

    /// Writes an empty record: an item of padding in each sequence, no label.
    pub fn blank(&self, record: &mut Record<'_>) -> Result<(), DataError> {
        let last = record.columns() - 1;
        for (column, padding) in self.padding.iter().enumerate() {
            match padding {
                Some(padding) => record.put(column, padding)?,
                // -1 as i32: no label.
                None => record.buffer_mut(column).fill(if column == last { 0xff } else { 0 }),
            }
        }
        Ok(())
    }

    /// Writes a record into a row of its bucket's batch.
    pub fn pad(&self, record: &Record<'_>, row: &mut Record<'_>) -> Result<(), DataError> {
        let label = record.columns() - 1;
        for (column, padding) in self.padding.iter().enumerate() {
            let to = column + usize::from(column == label && self.counted.is_some());
            let bytes = record.bytes(column);
            row.put(to, bytes)?;
            if let Some(padding) = padding {
                let buffer = row.buffer_mut(to);
                buffer[bytes.len()..]
                    .chunks_exact_mut(padding.len())
                    .for_each(|item| item.copy_from_slice(padding));
                let whole = buffer.len();
                row.set_length(to, whole)?;
            }
            if self.counted == Some(column) {
                let items = bytes.len() / padding.as_ref().map_or(1, Vec::len);
                row.put_i32(label, items as i32)?;
            }
        }
        Ok(())
    }
}

/// A sequence of `length` items.
fn sequence(item: &Field, length: usize) -> Field {
    let extents: Vec<usize> = std::iter::once(length).chain(item.ty.shape.iter().copied()).collect();
    Field { ty: TensorType::new(item.ty.dtype, extents), bound: item.bound }
}

/// One item of padding.
fn padding_bytes(name: &str, item: &Field, value: f64, label: bool) -> Result<Vec<u8>, DataError> {
    let elements = item.ty.shape.elements();
    if elements == 0 || item.ty.dtype == DType::Bool {
        return invalid(format!("`{name}`: items must hold numbers, not {}", item.ty));
    }
    if let Some(bound) = item.bound {
        match label {
            true if value >= 0.0 => {
                return invalid(format!(
                    "`{name}`: labels are padded with a negative number, which is no label, not {value}"
                ));
            }
            false if !(0.0..bound as f64).contains(&value) => {
                return invalid(format!("`{name}`: padding must be in 0..{bound}, not {value}"));
            }
            _ => {}
        }
    }
    let one = Tensor::from_f64(item.ty.clone(), &vec![value; elements]);
    match one {
        Ok(one) if one.to_f64().iter().all(|&kept| kept == value) => Ok(one.as_bytes().to_vec()),
        _ => invalid(format!("`{name}`: {value} is not representable as {}", item.ty.dtype)),
    }
}
