//! Arrays of NumPy files: offsets, shapes and element types.

use crate::DataError;
use crate::formats::shared::files::{Files, failed, length};
use npyz::{DType, Endianness, NpyHeader, Order, TypeChar};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest header of an array.
const MAX_HEADER_BYTES: usize = 4096;
/// The most brackets in a header, and their deepest nesting: the library's parsing time doubles with each level.
const MAX_BRACKETS: usize = 64;
const MAX_NESTED: usize = 4;
/// The most arrays in a file.
const MAX_ARRAYS: usize = 1024;

/// An array in a file.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub name: String,
    pub file: usize,
    /// Offset of its first row.
    pub offset: u64,
    pub element: Element,
    pub shape: Vec<usize>,
}

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub kind: TypeChar,
    pub bytes: usize,
    pub big: bool,
}

impl Element {
    pub fn is_float(self) -> bool {
        self.kind == TypeChar::Float
    }

    /// The number in these bytes as f32, and as an integer, if it is of an integer type.
    pub fn number(self, bytes: &[u8]) -> (f32, i64) {
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

/// The arrays of a path: those of an .npz, or an .npy and another with the labels.
pub(super) fn arrays(path: &Path, label: Option<&str>) -> Result<(Arc<Files>, Vec<Array>), DataError> {
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
    if archive.len() > MAX_ARRAYS {
        return Err(corrupt(format!("{} members, more than {MAX_ARRAYS}", archive.len())));
    }
    let mut found = Vec::new();
    for member in 0..archive.len() {
        let member = archive.by_index_raw(member).map_err(|e| corrupt(e.to_string()))?;
        let name = member.name().map_err(|e| corrupt(e.to_string()))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_string) else { continue };
        if member.compression() != zip::CompressionMethod::Stored || member.encrypted() {
            let reason = format!(
                "`{name}` is compressed, so its rows cannot be read by offset; write it with numpy.savez"
            );
            return Err(corrupt(reason));
        }
        let start = member.data_start().ok_or_else(|| corrupt(format!("`{name}` has no offset")))?;
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
    /// Reads the header of an array between two offsets of a file.
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
        let mut bytes = Vec::with_capacity(MAX_HEADER_BYTES);
        let most = (stop - start).min(MAX_HEADER_BYTES as u64);
        open.take(most).read_to_end(&mut bytes).map_err(|e| failed(path, e))?;
        // The header's length is checked before the library parses it.
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
        // The size of a row must not overflow, as elements or as f32.
        let row = shape[1..].iter().try_fold(8usize, |bytes, n| bytes.checked_mul(*n));
        if row.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(corrupt("rows that no memory holds".into()));
        }
        Ok(Self { name: name.into(), file, offset, element, shape })
    }

    pub fn row_bytes(&self) -> usize {
        self.shape[1..].iter().product::<usize>() * self.element.bytes
    }
}

/// Whether a header's brackets are within the limits.
fn is_flat(header: &[u8]) -> bool {
    let (mut brackets, mut open) = (0, 0usize);
    for byte in header {
        match byte {
            b'(' | b'[' | b'{' => (brackets, open) = (brackets + 1, open + 1),
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if brackets > MAX_BRACKETS || open > MAX_NESTED {
            return false;
        }
    }
    true
}
