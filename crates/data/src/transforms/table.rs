//! Stages on rows of numbers: select columns, one-hot, normalise.

use crate::core::budget::zeroed;
use crate::{Column, Cursor, DataError, Field, Kind, Pipeline, Record, RowPreparation, Schema, Stage};
use plimsoll_tensor::DType;
use std::sync::OnceLock;

/// Keeps the named columns of a record; the last of them is the label.
///
/// ```
/// use plimsoll_data::{Field, Schema, Select, Stage};
/// let rows = Schema::new()
///     .tensor("age", Field::floats([1]))
///     .tensor("size", Field::floats([1]))
///     .tensor("kind", Field::below(3, []));
/// let stage = Select::new(["size", "kind"]);
/// assert_eq!(stage.schema(&rows)?.in_words(), "size f32[1], kind i32[]");
/// assert!(Select::new(["colour", "kind"]).schema(&rows).unwrap_err().to_string().contains("age, size, kind"));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Select {
    names: Vec<String>,
    /// The index of each among the record's columns.
    indices: OnceLock<Vec<usize>>,
}

impl Select {
    /// The columns to keep, in this order.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), indices: Default::default() }
    }
}

/// Sets what a stage found out about its records' columns; an error if it found something else before.
pub(crate) fn once<T: PartialEq>(cell: &OnceLock<T>, found: T) -> Result<(), DataError> {
    let Err(found) = cell.set(found) else { return Ok(()) };
    if cell.get() == Some(&found) {
        return Ok(());
    }
    let reason = "one stage cannot serve records of two schemas".to_string();
    Err(DataError::Option { option: "columns", reason })
}

/// The column of this name, with its index.
pub(crate) fn named<'s>(schema: &'s Schema, name: &str) -> Result<(usize, &'s Column), DataError> {
    let found = schema.columns().iter().enumerate().find(|(_, column)| column.name == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = schema.columns().iter().map(|column| &*column.name).collect();
        let reason = format!("there is no `{name}`; there are {}", known.join(", "));
        DataError::Option { option: "columns", reason }
    })
}

impl Stage for Select {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let mut schema = Schema::new();
        let mut indices = Vec::with_capacity(self.names.len());
        for name in &self.names {
            let (index, column) = named(input, name)?;
            schema = schema.column(name, column.kind.clone());
            indices.push(index);
        }
        once(&self.indices, indices)?;
        Ok(schema)
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let indices = self.indices.get().map_or(&[][..], |indices| indices);
        indices.iter().enumerate().try_for_each(|(to, &from)| output.put(to, input.bytes(from)))
    }
}

/// One-hot encodes a column of classes as floats. A negative class ("no class") becomes all zeros.
///
/// ```
/// use plimsoll_data::{Field, OneHot, Schema, Stage};
/// let rows = Schema::new().tensor("colour", Field::below(3, [])).tensor("label", Field::below(2, []));
/// assert_eq!(OneHot::new("colour").schema(&rows)?.in_words(), "colour f32[3], label i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OneHot {
    name: String,
    /// The column's index among the record's.
    index: OnceLock<usize>,
}

impl OneHot {
    /// Encodes the column of this name: `label`, unless the source has other names.
    pub fn new(column: impl Into<String>) -> Self {
        Self { name: column.into(), index: OnceLock::new() }
    }
}

impl Stage for OneHot {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let (index, column) = named(input, &self.name)?;
        let Kind::Tensor(Field { ty, bound: Some(classes) }) = &column.kind else {
            let reason = format!("`{}` holds no classes", column.name);
            return Err(DataError::Option { option: "one-hot", reason });
        };
        let extents: Vec<usize> = ty.shape.iter().copied().chain([*classes]).collect();
        once(&self.index, index)?;
        Ok(input.replaced(index, Kind::Tensor(Field::floats(extents))))
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let Some(&index) = self.index.get() else { return output.copy_from(input) };
        output.copy_all_but(index, input)?;
        let buffer = output.buffer_mut(index);
        buffer.fill(0);
        let classes = buffer.len() / input.bytes(index).len().max(1);
        for (row, class) in buffer.chunks_exact_mut(4 * classes.max(1)).zip(words(input.bytes(index))) {
            let class = i32::from_ne_bytes(class);
            let element = usize::try_from(class).ok().and_then(|class| row.get_mut(4 * class..4 * class + 4));
            match element {
                Some(element) => element.copy_from_slice(&1f32.to_ne_bytes()),
                None if class < 0 => {}
                None => {
                    return Err(DataError::Corrupt { reason: format!("class {class} of {classes}") });
                }
            }
        }
        Ok(())
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]])
}

/// The most records read to measure mean and deviation, and the most numbers in them, beyond a thousand records. With
/// random access fewer suffice: they are spread over the whole, and each may cost the reading of its neighbours.
const MAX_SAMPLES: usize = 1_000_000;
const MAX_SPREAD_SAMPLES: usize = 1 << 16;
const MAX_NUMBERS: usize = 1 << 28;
/// The most channels of an image: a longer last axis is not a channel axis.
const MAX_CHANNELS: usize = 4;

/// Subtracts the mean from the first input and divides by the standard deviation, both measured in a first pass over the
/// data: per feature of a row, per channel of an image, or over all elements.
///
/// ```
/// use plimsoll_data::{Cursor, Memory, Normalise, Pipeline};
/// let points = Pipeline::new(Memory::classes([[0.0f32, 5.0], [4.0, 5.0]], [0, 1], 2)?);
/// let normal = points.clone().apply(Normalise::measure(&points)?)?;
/// let mut batches = normal.batch(2).start(Cursor::default())?;
/// let batch = batches.next()?.expect("a batch");
/// assert_eq!(batch.input_tensors()[0].as_f32(), Some(&[-1.0, 0.0, 1.0, 0.0][..])); // a constant feature becomes zero
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Normalise {
    mean: Vec<f32>,
    factor: Vec<f32>,
}

impl Normalise {
    /// Measures at most a million records of an epoch, fewer if they are large; with random access at most 65,536, spread over
    /// the whole. With random access, unreadable records are ignored here: they are errors when they are used.
    pub fn measure(pipeline: &Pipeline) -> Result<Self, DataError> {
        let (inputs, _) = pipeline.schema().fields()?;
        let groups = match &inputs[0].ty.shape[..] {
            [features] => *features,
            [_, .., channels] if *channels <= MAX_CHANNELS => *channels,
            _ => 1,
        };
        Self::measure_groups(pipeline, groups)
    }

    /// With a mean and a factor for each feature of a row, as a preparation has them.
    pub(crate) fn restored(row: &RowPreparation) -> Self {
        Self { mean: row.mean.clone(), factor: row.factor.clone() }
    }

    /// The means and the factors.
    pub(crate) fn constants(&self) -> (Vec<f32>, Vec<f32>) {
        (self.mean.clone(), self.factor.clone())
    }

    /// As [`Normalise::measure`], with one mean and deviation for each residue of an element's index modulo `groups`.
    pub(crate) fn measure_groups(pipeline: &Pipeline, groups: usize) -> Result<Self, DataError> {
        let (inputs, _) = pipeline.schema().fields()?;
        let shape = &inputs[0].ty.shape;
        if inputs[0].ty.dtype != DType::F32 {
            let reason = format!("needs floats, not {}", inputs[0].ty);
            return Err(DataError::Option { option: "normalise", reason });
        }
        let groups = groups.max(1);
        let most = (MAX_NUMBERS / shape.elements().max(1)).clamp(1000, MAX_SAMPLES);
        let mut statistics = vec![RunningStatistics::default(); groups];
        let mut add = |bytes: &[u8]| {
            for (i, word) in words(bytes).enumerate() {
                statistics[i % groups].add(f64::from(f32::from_ne_bytes(word)));
            }
        };
        match pipeline.source() {
            Some(source) => {
                let mut bytes = zeroed("a record", source.schema().capacity() as u64)?;
                let mut scratch = zeroed("a record", source.scratch_bytes() as u64)?;
                let count = source.len().min(most.min(MAX_SPREAD_SAMPLES));
                for i in 0..count {
                    let index = (i as u128 * source.len() as u128 / count as u128) as usize;
                    let mut record = Record::over(source.schema(), &mut bytes);
                    if source.read(index, &mut record, &mut scratch).is_ok() {
                        add(record.bytes(0));
                    }
                }
            }
            None => {
                let mut batches = pipeline.clone().workers(0).batch(1).start_epoch(Cursor::default())?;
                let (mut samples, classes) = (0, pipeline.schema().classes().is_some());
                while let Some(batch) = batches.next()? {
                    // Skipped records have no label.
                    if !(classes && batch.labels().iter().all(|byte| *byte == 0xff)) {
                        add(batch.input(0).unwrap_or(&[]));
                    }
                    samples += 1;
                    if samples == most {
                        break;
                    }
                }
            }
        }
        let factor =
            |s: &RunningStatistics| if s.deviation() > 0.0 { (1.0 / s.deviation()) as f32 } else { 1.0 };
        Ok(Self {
            mean: statistics.iter().map(|s| s.mean as f32).collect(),
            factor: statistics.iter().map(factor).collect(),
        })
    }
}

/// Mean and standard deviation of values added one by one (Welford).
#[derive(Clone, Copy, Debug, Default)]
struct RunningStatistics {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningStatistics {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.count += 1.0;
            let from = value - self.mean;
            self.mean += from / self.count;
            self.squares += from * (value - self.mean);
        }
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1.0)).sqrt()
    }
}

impl Stage for Normalise {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        match input.fields()? {
            (inputs, _)
                if inputs[0].ty.dtype == DType::F32
                    && inputs[0].ty.shape.elements().is_multiple_of(self.mean.len().max(1)) =>
            {
                Ok(input.clone())
            }
            _ => {
                let reason = format!("was measured on other records than {}", input.in_words());
                Err(DataError::Option { option: "normalise", reason })
            }
        }
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        (1..input.columns()).try_for_each(|column| output.put(column, input.bytes(column)))?;
        let groups = self.mean.len().max(1);
        for (row, places) in
            input.bytes(0).chunks(4 * groups).zip(output.buffer_mut(0).chunks_mut(4 * groups))
        {
            let constants = self.mean.iter().zip(&self.factor);
            for ((word, place), (mean, factor)) in words(row).zip(places.chunks_exact_mut(4)).zip(constants) {
                place.copy_from_slice(&((f32::from_ne_bytes(word) - mean) * factor).to_ne_bytes());
            }
        }
        Ok(())
    }
}
