//! Sequences of many lengths in batches of a few.

use crate::gather::Gathered;
use crate::pipeline::Head;
use crate::{DataError, Kind, Pipeline, Record, Schema};
use plimsoll_tensor::{DType, Field, HostTensor, TensorType};
use std::sync::Arc;

/// The name of the input that [`Buckets::with_length`] adds.
const LENGTH: &str = "length";

/// Lengths that sequences are padded to, and the columns that are sequences: see [`crate::Pipeline::bucket`].
#[derive(Clone, Debug)]
pub struct Buckets {
    lengths: Vec<usize>,
    columns: Vec<(String, Field, f64)>,
    with_length: bool,
}

impl Buckets {
    /// Buckets for sequences of at most so many items each, the shortest first.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        Self { lengths: lengths.into_iter().collect(), columns: Vec::new(), with_length: false }
    }

    /// Says that a column of bytes is a sequence of such items, and what it is padded with: for inputs a token or a number
    /// that the model knows, for classes in the label column a number below zero, which is no label.
    pub fn column(mut self, name: impl Into<String>, item: Field, padding: impl Into<f64>) -> Self {
        self.columns.push((name.into(), item, padding.into()));
        self
    }

    /// Gives the model one more input after the others, an i32 named `length`: the items of an example's first sequence,
    /// to tell them from padding.
    pub fn with_length(self) -> Self {
        Self { with_length: true, ..self }
    }
}

impl Pipeline {
    /// Gathers sequences of like length into batches: each batch is of one bucket, the smallest that holds its records, and
    /// all its sequences are padded to the bucket's length. Records are gathered after all other verbs, wherever this one
    /// stands, and come as soon as a bucket has a batch. What is left in the buckets at the end of an epoch goes up to the
    /// next larger ones, so that an epoch has as many batches as without buckets, and only the last may have fewer records:
    /// it is the largest bucket's.
    ///
    /// A sequence that is too long for all of them is a bad record; [`Pipeline::skip_bad`] puts an example of one item of
    /// padding, without a label, in its place. From here on records come one after another, as after a filter. A run that
    /// goes on reads the epoch's records again up to its cursor.
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

    /// The columns of one example of each type of batch that may come: one, or one for each bucket, the smallest first.
    pub fn batch_schemas(&self) -> &[Schema] {
        match &self.buckets {
            Some(buckets) => &buckets.batches,
            None => std::slice::from_ref(self.schema()),
        }
    }

    /// Where its records come from as it runs; an error where a verb changed the columns after they were put in buckets.
    pub(crate) fn running(&self) -> Result<Head, DataError> {
        let Some(buckets) = &self.buckets else { return Ok(self.head.clone()) };
        if self.schema() != &buckets.records {
            let (one, other) = (buckets.records.in_words(), self.schema().in_words());
            return invalid(format!("they were made for {one}, records have {other}; change columns before"));
        }
        let source = if let Head::Indexed(source) = &self.head { Some(source.clone()) } else { None };
        let (of, buckets, size) = (self.streamed(), buckets.clone(), self.rows());
        Ok(Head::Streamed(Arc::new(Gathered { of, source, buckets, size }), Vec::new()))
    }
}

/// Buckets for records of one schema.
pub(crate) struct Bucketing {
    lengths: Vec<usize>,
    /// One item of padding of each column that is a sequence.
    padding: Vec<Option<Vec<u8>>>,
    /// The sequence whose items are counted in an input of its own.
    counted: Option<usize>,
    /// The columns of the records.
    pub records: Schema,
    /// The same as short as each bucket's records are.
    pub held: Vec<Schema>,
    /// The columns of each bucket's batches.
    pub batches: Vec<Schema>,
}

fn invalid<T>(reason: String) -> Result<T, DataError> {
    Err(DataError::Option { option: "buckets", reason })
}

impl Bucketing {
    /// Refuses buckets that do not go with the records.
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
        let (mut held, mut batches) = (Vec::new(), Vec::new());
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
                        padded = padded.tensor(name, several(item, length));
                    }
                }
            }
            padded.check()?;
            held.push(short);
            batches.push(padded);
        }
        let padding = items.into_iter().map(|item| item.map(|(_, bytes)| bytes)).collect();
        Ok(Self { lengths, padding, counted, records: records.clone(), held, batches })
    }

    /// The smallest bucket that holds a record.
    pub fn of(&self, record: &Record<'_>) -> Result<usize, DataError> {
        let mut items = 0;
        for (column, padding) in self.padding.iter().enumerate() {
            let Some(padding) = padding else { continue };
            let (bytes, each) = (record.bytes(column).len(), padding.len());
            if !bytes.is_multiple_of(each) {
                let name = &self.records.columns()[column].name;
                let reason = format!("{bytes} bytes of `{name}` are no whole items of {each} bytes");
                return Err(DataError::Corrupt { reason });
            }
            items = items.max(bytes / each);
        }
        let most = self.lengths.last().copied().unwrap_or(0);
        self.lengths.iter().position(|&length| items <= length).ok_or(DataError::OverBuckets { items, most })
    }

    /// Writes a record that counts nothing: an item of padding in each sequence, no label.
    pub fn blank(&self, record: &mut Record<'_>) -> Result<(), DataError> {
        let last = record.columns() - 1;
        for (column, padding) in self.padding.iter().enumerate() {
            match padding {
                Some(padding) => record.put(column, padding)?,
                // -1 as i32: no label.
                None => record.room(column).fill(if column == last { 0xff } else { 0 }),
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
                let room = row.room(to);
                room[bytes.len()..]
                    .chunks_exact_mut(padding.len())
                    .for_each(|item| item.copy_from_slice(padding));
                let whole = room.len();
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

/// So many items one after another.
fn several(item: &Field, length: usize) -> Field {
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
                    "`{name}`: labels are padded with what is no label, -1, not {value}"
                ));
            }
            false if !(0.0..bound as f64).contains(&value) => {
                return invalid(format!("`{name}`: padding must be in 0..{bound}, not {value}"));
            }
            _ => {}
        }
    }
    let one = HostTensor::from_f64(item.ty.clone(), &vec![value; elements]);
    match one {
        Ok(one) if one.to_f64().iter().all(|&kept| kept == value) => Ok(one.as_bytes().to_vec()),
        _ => invalid(format!("`{name}`: {value} is no {}", item.ty.dtype)),
    }
}
