//! `npz:FILE`: NumPy arrays, in .npy files or in an .npz.

mod array;

use super::shared::files::Files;
use super::shared::normalised;
use crate::core::record::write_words;
use crate::source::check_read;
use crate::{DataError, Dataset, Field, Kind, MAX_COLUMNS, OpenOptions, Pipeline, Record, Schema, Source};
use array::{Array, arrays};
use npyz::TypeChar;
use std::path::Path;
use std::sync::Arc;

/// Bytes read at a time in a pass over all labels.
const CHUNK: usize = 1 << 16;
/// Names of the label, unless one is given.
const LABELS: [&str; 5] = ["label", "labels", "y", "target", "targets"];
/// The bound of classes.
const MAX_CLASSES: i64 = 1 << 24;

pub(super) fn open(spec: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let (train, test) = Numpy::open_parts(Path::new(file), options.table.label.as_deref())?;
    normalised(spec, Pipeline::new(train), test.map(Pipeline::new), options)
}

/// Rows of NumPy arrays: one array of an .npz is the label, every other an input; example `i` is row `i` of each. Rows are
/// read by their offset in the file, so that nothing is held; numbers become f32, integer labels i32.
///
/// ```no_run
/// use plimsoll_data::{Numpy, Source};
/// let points = Numpy::open("points.npz", None)?;
/// println!("{} rows of {}", points.len(), points.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Numpy {
    files: Arc<Files>,
    /// The inputs, then the label.
    arrays: Vec<Array>,
    len: usize,
    schema: Schema,
}

impl Numpy {
    /// The arrays of an .npz, or the array of an .npy with its labels in a second .npy. `label` names the array, or that
    /// file; without it an array named `label`, `labels`, `y`, `target` or `targets` is the label.
    pub fn open(path: impl AsRef<Path>, label: Option<&str>) -> Result<Self, DataError> {
        let (files, arrays) = arrays(path.as_ref(), label)?;
        let shown = path.as_ref().display().to_string();
        let label = match label {
            Some(label) => label.to_string(),
            None => {
                let known = |array: &&Array| LABELS.contains(&&*array.name);
                arrays
                    .iter()
                    .find(known)
                    .map(|array| array.name.clone())
                    .ok_or_else(|| missing(&shown, &arrays))?
            }
        };
        Self::of(files, arrays, &label, &shown)
    }

    /// As [`Numpy::open`]; arrays named `x_train`, `y_train`, `x_test` and `y_test` are the two parts.
    pub(crate) fn open_parts(path: &Path, label: Option<&str>) -> Result<(Self, Option<Self>), DataError> {
        let (files, arrays) = arrays(path, label)?;
        let of = |end: &str| -> Vec<Array> {
            arrays.iter().filter(|array| array.name.ends_with(end)).cloned().collect()
        };
        let (train, test) = (of("_train"), of("_test"));
        if label.is_none() && train.len() >= 2 && !test.is_empty() {
            let shown = path.display().to_string();
            let part = |arrays: Vec<Array>, end: &str| {
                let known = LABELS.iter().map(|name| format!("{name}{end}"));
                let mut known = known.filter(|name| arrays.iter().any(|array| array.name == *name));
                let label = known.next().ok_or_else(|| missing(&shown, &arrays))?;
                Self::of(files.clone(), arrays, &label, &shown)
            };
            let (mut train, mut test) = (part(train, "_train")?, part(test, "_test")?);
            if train.schema.classes().is_some() != test.schema.classes().is_some() {
                let reason =
                    format!("`{shown}`: one part's labels are floats, the other's are not; convert one");
                return Err(DataError::Corrupt { reason });
            }
            let most = train.schema.classes().max(test.schema.classes());
            train.set_classes(most);
            test.set_classes(most);
            return Ok((train, Some(test)));
        }
        Ok((Self::open(path, label)?, None))
    }

    fn of(files: Arc<Files>, mut arrays: Vec<Array>, label: &str, shown: &str) -> Result<Self, DataError> {
        let Some(index) = arrays.iter().position(|array| array.name == label) else {
            return Err(missing(shown, &arrays));
        };
        let label = arrays.remove(index);
        arrays.push(label);
        if !(2..=MAX_COLUMNS).contains(&arrays.len()) {
            return Err(DataError::InputCount { found: arrays.len() - 1, most: MAX_COLUMNS - 1 });
        }
        let len = arrays[0].shape[0];
        for array in &arrays {
            if array.shape[0] != len {
                let reason = format!(
                    "`{shown}`: `{}` has {} rows, `{}` {len}; give all arrays the same",
                    array.name, array.shape[0], arrays[0].name
                );
                return Err(DataError::Corrupt { reason });
            }
        }
        if len == 0 {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        }
        let label = &arrays[arrays.len() - 1];
        let classes = if label.element.is_float() { None } else { Some(classes(&files, label)?) };
        let field = |array: &Array| Field::floats(array.shape[1..].to_vec());
        let (inputs, label) = (&arrays[..arrays.len() - 1], &arrays[arrays.len() - 1]);
        let schema =
            inputs.iter().fold(Schema::new(), |schema, array| schema.tensor(&array.name, field(array)));
        let target = match classes {
            Some(classes) => Field::below(classes, label.shape[1..].to_vec()),
            None => field(label),
        };
        let schema = schema.tensor(&label.name, target);
        Ok(Self { files, arrays, len, schema })
    }

    fn set_classes(&mut self, classes: Option<usize>) {
        let columns = self.schema.columns().iter().map(|column| (column.name.clone(), column.kind.clone()));
        let last = self.schema.columns().len() - 1;
        let with = columns.enumerate().map(|(i, (name, kind))| match kind {
            Kind::Tensor(field) if i == last => (name, Kind::Tensor(Field { bound: classes, ..field })),
            kind => (name, kind),
        });
        self.schema = with.fold(Schema::new(), |schema, (name, kind)| schema.column(name, kind));
    }
}

fn missing(shown: &str, arrays: &[Array]) -> DataError {
    let known: Vec<&str> = arrays.iter().map(|array| &*array.name).collect();
    let reason = format!("`{shown}` holds {}; name the one that is the label", known.join(", "));
    DataError::Option { option: "label", reason }
}

/// One more than the largest label, from a pass over all labels.
fn classes(files: &Files, label: &Array) -> Result<usize, DataError> {
    let total = label.row_bytes() as u64 * label.shape[0] as u64;
    let mut chunk = vec![0; CHUNK];
    let (mut at, mut most) = (0, -1);
    while at < total {
        let bytes = (total - at).min(CHUNK as u64) as usize;
        files.read_at(label.file, &mut chunk[..bytes], label.offset + at)?;
        for (i, word) in chunk[..bytes].chunks_exact(label.element.bytes).enumerate() {
            let (_, class) = label.element.number(word);
            if class >= MAX_CLASSES || class < i64::from(i32::MIN) {
                let row = (at as usize + i * label.element.bytes) / label.row_bytes().max(1);
                let reason =
                    format!("`{}`: {class} in row {row} is no class; classes count from 0", label.name);
                return Err(DataError::Corrupt { reason });
            }
            most = most.max(class);
        }
        at += bytes as u64;
    }
    Ok((most + 1).max(1) as usize)
}

impl Source for Numpy {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        for (column, array) in self.arrays.iter().enumerate() {
            let row = &mut scratch[..array.row_bytes()];
            self.files.read_at(array.file, row, array.offset + index as u64 * row.len() as u64)?;
            let numbers = row.chunks_exact(array.element.bytes).map(|word| array.element.number(word));
            let classes = self.schema.classes().filter(|_| column + 1 == self.arrays.len());
            match classes {
                // Fast paths for the most common element types.
                None => match (array.element.kind, array.element.bytes, array.element.big) {
                    (TypeChar::Uint, 1, _) => {
                        write_words(
                            record.buffer_mut(column),
                            row.iter().map(|byte| f32::from(*byte).to_ne_bytes()),
                        );
                    }
                    (TypeChar::Float, 4, false) if cfg!(target_endian = "little") => {
                        record.buffer_mut(column).copy_from_slice(row);
                    }
                    _ => write_words(
                        record.buffer_mut(column),
                        numbers.map(|(number, _)| number.to_ne_bytes()),
                    ),
                },
                Some(classes) => {
                    // The file may have changed since it was opened.
                    if let Some((_, label)) = numbers.clone().find(|(_, label)| *label >= classes as i64) {
                        let file = self.files.path(array.file).display().to_string();
                        return Err(DataError::Label { file, index, label, classes });
                    }
                    write_words(
                        record.buffer_mut(column),
                        numbers.map(|(_, class)| (class as i32).to_ne_bytes()),
                    );
                }
            }
        }
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.files.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.arrays.iter().map(Array::row_bytes).max().unwrap_or(0)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        let path = self.arrays.first().map_or_else(|| Path::new(""), |array| self.files.path(array.file));
        format!("`{}`: row {index}", path.display())
    }
}
