//! NumPy arrays: .npy files, and those in an .npz.

use crate::files::{Files, failed, length};
use crate::{
    DataError, Field, MOST_COLUMNS, Record, Schema, Source, record::write_words, source::check_read,
};
use npyz::{DType, Endianness, NpyHeader, Order, TypeChar};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest header of an array that is read: a type and a shape.
const MOST_HEADER_BYTES: usize = 4096;
/// The most brackets in a header, and those in one another: the time to read it doubles with each of these.
const MOST_BRACKETS: usize = 64;
const MOST_NESTED: usize = 4;
/// The most arrays in a file.
const MOST_ARRAYS: usize = 1024;
/// Bytes that are read at a time where all are looked at.
const PIECE: usize = 1 << 16;
/// What labels are called, unless told.
const LABELS: [&str; 5] = ["label", "labels", "y", "target", "targets"];
/// Classes are below it.
const MOST_CLASSES: i64 = 1 << 24;

/// Rows of NumPy arrays: every array of an .npz is an input but for the label; example `i` is row `i` of each. Rows are read
/// from their place in the file, so that nothing is held; numbers become f32, whole labels i32.
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
    /// The inputs, and then the labels.
    arrays: Vec<Array>,
    len: usize,
    schema: Schema,
}

/// An array in a file.
#[derive(Clone, Debug)]
struct Array {
    name: String,
    file: usize,
    /// Where its first row is.
    offset: u64,
    element: Element,
    shape: Vec<usize>,
}

/// A number as NumPy writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    kind: TypeChar,
    bytes: usize,
    big: bool,
}

impl Element {
    fn is_float(self) -> bool {
        self.kind == TypeChar::Float
    }

    /// The number in these bytes, and the integer, if it is one.
    fn number(self, bytes: &[u8]) -> (f32, i64) {
        let mut word = [0; 8];
        let word = &mut word[..self.bytes];
        word.copy_from_slice(bytes);
        if self.big {
            word.reverse();
        }
        let mut wide = [0; 8];
        wide[..self.bytes].copy_from_slice(word);
        let unsigned = u64::from_le_bytes(wide);
        let shift = 64 - 8 * self.bytes as u32;
        match (self.kind, self.bytes) {
            (TypeChar::Float, 4) => (f32::from_bits(unsigned as u32), 0),
            (TypeChar::Float, _) => (f64::from_bits(unsigned) as f32, 0),
            (TypeChar::Int, _) => {
                let signed = (unsigned << shift) as i64 >> shift;
                (signed as f32, signed)
            }
            (TypeChar::Bool, _) => (f32::from(u8::from(unsigned != 0)), i64::from(unsigned != 0)),
            _ => (unsigned as f32, i64::try_from(unsigned).unwrap_or(i64::MAX)),
        }
    }
}

impl Numpy {
    /// The arrays of an .npz, or the one of an .npy with its labels in a second .npy. `label` names the array, or that
    /// file; without it an array called `label`, `labels`, `y`, `target` or `targets` is taken.
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

    /// As [`Numpy::open`]; where the arrays are called `x_train`, `y_train`, `x_test` and `y_test`, the two parts.
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
        let Some(place) = arrays.iter().position(|array| array.name == label) else {
            return Err(missing(shown, &arrays));
        };
        let label = arrays.remove(place);
        arrays.push(label);
        if !(2..=MOST_COLUMNS).contains(&arrays.len()) {
            return Err(DataError::InputCount { found: arrays.len() - 1, most: MOST_COLUMNS - 1 });
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
            crate::Kind::Tensor(field) if i == last => {
                (name, crate::Kind::Tensor(Field { bound: classes, ..field }))
            }
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

/// The arrays that a path names: those of an .npz, or an .npy and another that is its label.
fn arrays(path: &Path, label: Option<&str>) -> Result<(Arc<Files>, Vec<Array>), DataError> {
    if path.extension().is_some_and(|end| end == "npy") {
        let Some(label) = label else {
            let reason = format!("`{}` is one array; name a second .npy with the labels", path.display());
            return Err(DataError::Option { option: "label", reason });
        };
        let paths = [path.to_path_buf(), PathBuf::from(label)];
        let names = [path.file_stem().map_or("input".into(), |name| name.to_string_lossy()), label.into()];
        let mut arrays = Vec::new();
        for (file, (path, name)) in paths.iter().zip(names).enumerate() {
            let end = length(path)?;
            let mut open = File::open(path).map_err(|e| failed(path, e))?;
            arrays.push(Array::find(&mut open, path, &name, file, 0, end)?);
        }
        return Ok((Arc::new(Files::new(paths.into())), arrays));
    }
    let end = length(path)?;
    let corrupt = |reason: String| DataError::Corrupt { reason: format!("`{}`: {reason}", path.display()) };
    let file = File::open(path).map_err(|e| failed(path, e))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|e| corrupt(e.to_string()))?;
    if archive.len() > MOST_ARRAYS {
        return Err(corrupt(format!("{} members, more than {MOST_ARRAYS}", archive.len())));
    }
    let mut found = Vec::new();
    for member in 0..archive.len() {
        let member = archive.by_index_raw(member).map_err(|e| corrupt(e.to_string()))?;
        let name = member.name().map_err(|e| corrupt(e.to_string()))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_string) else { continue };
        if member.compression() != zip::CompressionMethod::Stored || member.encrypted() {
            let reason =
                format!("`{name}` is compressed, so its rows have no place; write it with numpy.savez");
            return Err(corrupt(reason));
        }
        let start = member.data_start().ok_or_else(|| corrupt(format!("`{name}` has no place")))?;
        let stop = start.checked_add(member.size()).filter(|stop| *stop <= end);
        let stop = stop.ok_or_else(|| corrupt(format!("`{name}` goes past the end of the file")))?;
        found.push((name, start, stop));
    }
    let mut file = archive.into_inner().into_inner();
    let found =
        found.into_iter().map(|(name, start, stop)| Array::find(&mut file, path, &name, 0, start, stop));
    let arrays = found.collect::<Result<Vec<_>, _>>()?;
    Ok((Arc::new(Files::new(vec![path.to_path_buf()])), arrays))
}

impl Array {
    /// Reads the header of an array that lies between two places of a file.
    fn find(
        open: &mut File,
        path: &Path,
        name: &str,
        file: usize,
        start: u64,
        stop: u64,
    ) -> Result<Self, DataError> {
        let corrupt = |reason: String| {
            let origin = format!("`{}`: `{name}` at byte {start}", path.display());
            DataError::item(origin, DataError::Corrupt { reason })
        };
        open.seek(SeekFrom::Start(start)).map_err(|e| failed(path, e))?;
        let mut bytes = Vec::with_capacity(MOST_HEADER_BYTES);
        let most = (stop - start).min(MOST_HEADER_BYTES as u64);
        open.take(most).read_to_end(&mut bytes).map_err(|e| failed(path, e))?;
        // The length in the header is looked at before the header is.
        let prefix =
            |n: usize| bytes.get(..n).ok_or_else(|| corrupt("the array's header is cut short".into()));
        let text = match prefix(12)? {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => {
                10 + usize::from(u16::from_le_bytes([*a, *b]))
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d] => {
                12usize.saturating_add(u32::from_le_bytes([*a, *b, *c, *d]) as usize)
            }
            _ => return Err(corrupt("not an array of NumPy".into())),
        };
        if text > bytes.len() {
            return Err(corrupt(format!("a header of {text} bytes; at most {} may be", bytes.len())));
        }
        if !is_flat(&bytes[..text]) {
            return Err(corrupt("a header of too many brackets".into()));
        }
        let header = NpyHeader::from_reader(&mut &bytes[..text]).map_err(|e| corrupt(e.to_string()))?;
        let element = match header.dtype() {
            DType::Plain(ty) => {
                let (kind, bytes) = (ty.type_char(), ty.size_field());
                let known = match kind {
                    TypeChar::Float => [4, 8].contains(&bytes),
                    TypeChar::Int | TypeChar::Uint => [1, 2, 4, 8].contains(&bytes),
                    TypeChar::Bool => bytes == 1,
                    _ => false,
                };
                known.then_some(Element {
                    kind,
                    bytes: bytes as usize,
                    big: ty.endianness() == Endianness::Big,
                })
            }
            _ => None,
        };
        let descr = header.dtype().descr();
        let element =
            element.ok_or_else(|| corrupt(format!("numbers of type {descr}; convert them to float32")))?;
        let shape: Option<Vec<usize>> = header.shape().iter().map(|n| usize::try_from(*n).ok()).collect();
        let shape = shape.filter(|shape| !shape.is_empty());
        let shape = shape.ok_or_else(|| corrupt("no axis for the examples; reshape it".into()))?;
        if header.order() == Order::Fortran && shape.len() > 1 {
            return Err(corrupt("columns lie one after another; write numpy.ascontiguousarray of it".into()));
        }
        let total = shape.iter().try_fold(element.bytes as u64, |bytes, n| bytes.checked_mul(*n as u64));
        let offset = start + text as u64;
        match total {
            Some(total) if total == stop - offset => {}
            Some(total) if total < stop - offset => {
                return Err(corrupt(format!("{} bytes follow the numbers", stop - offset - total)));
            }
            _ => {
                let (promised, found) = (total.unwrap_or(u64::MAX), stop - offset);
                return Err(DataError::Truncated {
                    file: format!("{}: {name}", path.display()),
                    promised,
                    found,
                });
            }
        }
        // A row must fit into the memory of a worker; its floats are counted with four bytes each.
        let row = shape[1..].iter().try_fold(8usize, |bytes, n| bytes.checked_mul(*n));
        if row.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(corrupt("rows that no memory holds".into()));
        }
        Ok(Self { name: name.into(), file, offset, element, shape })
    }

    fn row_bytes(&self) -> usize {
        self.shape[1..].iter().product::<usize>() * self.element.bytes
    }
}

/// Whether a header has few brackets.
fn is_flat(header: &[u8]) -> bool {
    let (mut brackets, mut open) = (0, 0usize);
    for byte in header {
        match byte {
            b'(' | b'[' | b'{' => (brackets, open) = (brackets + 1, open + 1),
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if brackets > MOST_BRACKETS || open > MOST_NESTED {
            return false;
        }
    }
    true
}

/// One more than the largest label: all are looked at, a piece at a time.
fn classes(files: &Files, label: &Array) -> Result<usize, DataError> {
    let total = label.row_bytes() as u64 * label.shape[0] as u64;
    let mut piece = vec![0; PIECE];
    let (mut at, mut most) = (0, -1);
    while at < total {
        let bytes = (total - at).min(PIECE as u64) as usize;
        files.read_at(label.file, &mut piece[..bytes], label.offset + at)?;
        for (i, word) in piece[..bytes].chunks_exact(label.element.bytes).enumerate() {
            let (_, class) = label.element.number(word);
            if class >= MOST_CLASSES || class < i64::from(i32::MIN) {
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
                // What most arrays are made of goes without asking for the type of each number.
                None => match (array.element.kind, array.element.bytes, array.element.big) {
                    (TypeChar::Uint, 1, _) => {
                        write_words(
                            record.room(column),
                            row.iter().map(|byte| f32::from(*byte).to_ne_bytes()),
                        );
                    }
                    (TypeChar::Float, 4, false) if cfg!(target_endian = "little") => {
                        record.room(column).copy_from_slice(row);
                    }
                    _ => write_words(record.room(column), numbers.map(|(number, _)| number.to_ne_bytes())),
                },
                Some(classes) => {
                    // The file may have changed since it was looked at.
                    if let Some((_, label)) = numbers.clone().find(|(_, label)| *label >= classes as i64) {
                        let file = self.files.path(array.file).display().to_string();
                        return Err(DataError::Label { file, index, label, classes });
                    }
                    write_words(record.room(column), numbers.map(|(_, class)| (class as i32).to_ne_bytes()));
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
