//! Reads an ONNX file field by field. Structure (nodes, names, shapes) is decoded into memory, up to a limit; weights stay in the
//! file, and what is kept of them is where they are. Every length is checked against what is left before memory is allocated.

use super::proto::{
    AttributeProto, EXTERNAL, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    ValueInfoProto, element,
};
use crate::ExportError;
use plimsoll_tensor::Shape;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The most bytes of a file's structure: all that is not weights.
const STRUCTURE_BYTES: u64 = 64 << 20;
/// What each field of a model and of its graph counts of that besides its bytes, also one that is not read: a file of nothing but small
/// fields ends soon, however long it is.
const FIELD_BYTES: u64 = 64;
/// The largest number of a field.
const LAST_FIELD: u64 = (1 << 29) - 1;
/// Fields of this many bytes or more stay in the file, if they hold elements.
const STAYS_BYTES: u64 = 1 << 10;
/// The most files of external data.
const MOST_FILES: usize = 256;
/// The most elements that a tensor of whole numbers may have to be folded into shapes.
pub(crate) const FOLDED_ELEMENTS: usize = 1 << 16;

/// The oldest version of ops whose meaning is that of today.
const OLDEST_OPSET: i64 = 13;

/// An ONNX file whose weights are still in it.
pub(crate) struct OnnxFile {
    pub path: PathBuf,
    pub nodes: Vec<NodeProto>,
    pub tensors: BTreeMap<String, StoredTensor>,
    pub inputs: Vec<ValueInfoProto>,
    pub outputs: Vec<ValueInfoProto>,
    pub notes: BTreeMap<String, String>,
    /// The file itself, and those of external data.
    files: Mutex<Vec<(String, File)>>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub element: i32,
    pub dims: Vec<usize>,
    elements: Stored,
}

#[derive(Clone, Debug)]
enum Stored {
    /// In a file, from an offset on.
    File { file: usize, offset: u64 },
    /// Read already.
    Bytes(Vec<u8>),
}

impl StoredTensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        Shape::from(self.dims.clone()).elements()
    }

    /// The elements, if they were read already.
    pub fn bytes_in_memory(&self) -> Option<&Vec<u8>> {
        match &self.elements {
            Stored::Bytes(bytes) => Some(bytes),
            Stored::File { .. } => None,
        }
    }

    /// Whether the elements are f32.
    pub fn is_float(&self) -> bool {
        self.element == element::FLOAT
    }
}

/// Bytes of an element of a type that can be read.
fn element_bytes(element: i32) -> Option<usize> {
    match element {
        element::FLOAT | element::INT32 => Some(4),
        element::INT64 | element::DOUBLE => Some(8),
        element::BOOL | element::UINT8 | element::INT8 => Some(1),
        element::FLOAT16 | element::BFLOAT16 => Some(2),
        _ => None,
    }
}

/// A field in a file: its number, and its bytes or its number.
enum Field {
    Bytes { start: u64, end: u64 },
    Number(u64),
    Fixed(Vec<u8>),
}

struct Scanner<'p> {
    file: BufReader<File>,
    path: &'p Path,
    at: u64,
    structure_left: u64,
}

impl Scanner<'_> {
    fn wrong(&self, reason: impl Into<String>) -> ExportError {
        ExportError::File { path: self.path.display().to_string(), reason: reason.into() }
    }

    fn failed(&self, source: io::Error) -> ExportError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.wrong("the file ends in the middle of a field: it is truncated")
            }
            _ => ExportError::Read { path: self.path.display().to_string(), source },
        }
    }

    fn seek(&mut self, to: u64) -> Result<(), ExportError> {
        let by = to as i64 - self.at as i64;
        self.file.seek_relative(by).map_err(|e| self.failed(e))?;
        self.at = to;
        Ok(())
    }

    fn varint(&mut self, end: u64) -> Result<u64, ExportError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            if self.at >= end {
                return Err(self.wrong(
                    "a field ends in the middle of a number: this is no ONNX file, or it is damaged",
                ));
            }
            let mut byte = [0];
            self.file.read_exact(&mut byte).map_err(|e| self.failed(e))?;
            self.at += 1;
            if shift < 64 {
                value |= u64::from(byte[0] & 0x7f) << shift;
            }
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(self.wrong("a number of more than ten bytes: this is no ONNX file, or it is damaged"))
    }

    /// The next field before `end`; the position is behind it.
    fn field(&mut self, end: u64) -> Result<Option<(u32, Field)>, ExportError> {
        if self.at >= end {
            return Ok(None);
        }
        let before = self.at;
        let key = self.varint(end)?;
        if !(1..=LAST_FIELD).contains(&(key >> 3)) {
            let reason =
                format!("a field has the number {}: this is no ONNX file, or it is damaged", key >> 3);
            return Err(self.wrong(reason));
        }
        let tag = (key >> 3) as u32;
        let mut behind = 0;
        let field = match key & 7 {
            0 => Field::Number(self.varint(end)?),
            wire @ (1 | 5) => {
                let mut bytes = vec![0; if wire == 1 { 8 } else { 4 }];
                if end - self.at < bytes.len() as u64 {
                    return Err(self.wrong("a field ends behind its message: the file is damaged"));
                }
                self.file.read_exact(&mut bytes).map_err(|e| self.failed(e))?;
                self.at += bytes.len() as u64;
                Field::Fixed(bytes)
            }
            2 => {
                let length = self.varint(end)?;
                if length > end - self.at {
                    return Err(self.wrong(format!(
                        "a field of {length} bytes in the {} that are left: the file is truncated, or no ONNX file",
                        end - self.at
                    )));
                }
                let start = self.at;
                self.seek(start + length)?;
                behind = length;
                Field::Bytes { start, end: start + length }
            }
            wire => {
                return Err(self.wrong(format!("a field of the unknown kind {wire}: this is no ONNX file")));
            }
        };
        self.count(self.at - before - behind)?;
        Ok(Some((tag, field)))
    }

    /// Counts bytes of structure, up to the limit.
    fn count(&mut self, bytes: u64) -> Result<(), ExportError> {
        self.structure_left = self.structure_left.checked_sub(bytes).ok_or_else(|| {
            self.wrong(format!("more than {STRUCTURE_BYTES} bytes of nodes and names: the file is too large"))
        })?;
        Ok(())
    }

    /// Reads a field's bytes as structure, within the limit.
    fn structure(&mut self, start: u64, end: u64) -> Result<Vec<u8>, ExportError> {
        let length = end - start;
        self.count(length)?;
        let behind = self.at;
        self.seek(start)?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes).map_err(|e| self.failed(e))?;
        self.at = end;
        self.seek(behind)?;
        Ok(bytes)
    }

    fn decode<M: Message + Default>(&mut self, start: u64, end: u64, what: &str) -> Result<M, ExportError> {
        let bytes = self.structure(start, end)?;
        M::decode(&bytes[..]).map_err(|e| self.wrong(format!("a damaged {what}: {e}")))
    }

    /// A tensor, whose elements stay in the file if they are many.
    fn tensor(&mut self, start: u64, end: u64) -> Result<(TensorProto, Option<[u64; 2]>), ExportError> {
        let behind = self.at;
        self.seek(start)?;
        let (mut rest, mut stays) = (Vec::new(), None);
        while let Some((tag, field)) = self.field(end)? {
            match field {
                // Floats and doubles, packed, are the bytes of raw data.
                Field::Bytes { start, end } if matches!(tag, 4 | 9 | 10) && end - start >= STAYS_BYTES => {
                    stays = Some([start, end]);
                }
                Field::Bytes { start, end } => {
                    let bytes = self.structure(start, end)?;
                    encode_key(tag, WireType::LengthDelimited, &mut rest);
                    encode_varint(bytes.len() as u64, &mut rest);
                    rest.extend(bytes);
                }
                Field::Number(number) => {
                    encode_key(tag, WireType::Varint, &mut rest);
                    encode_varint(number, &mut rest);
                }
                Field::Fixed(bytes) => {
                    let wire = if bytes.len() == 8 { WireType::SixtyFourBit } else { WireType::ThirtyTwoBit };
                    encode_key(tag, wire, &mut rest);
                    rest.extend(bytes);
                }
            }
        }
        self.seek(behind)?;
        let tensor =
            TensorProto::decode(&rest[..]).map_err(|e| self.wrong(format!("a damaged tensor: {e}")))?;
        Ok((tensor, stays))
    }
}

impl OnnxFile {
    /// Opens a file and reads its structure.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let read = |source| ExportError::Read { path: path.display().to_string(), source };
        let file = File::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let own = file.try_clone().map_err(read)?;
        let mut scanner =
            Scanner { file: BufReader::new(file), path, at: 0, structure_left: STRUCTURE_BYTES };
        let mut found = Self {
            path: path.to_path_buf(),
            nodes: Vec::new(),
            tensors: BTreeMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            notes: BTreeMap::new(),
            files: Mutex::new(vec![(String::new(), own)]),
        };
        let (mut graph, mut opsets) = (None, Vec::new());
        while let Some((tag, field)) = scanner.field(length)? {
            scanner.count(FIELD_BYTES)?;
            match (tag, field) {
                (7, Field::Bytes { start, end }) if graph.is_none() => graph = Some([start, end]),
                (7, _) => return Err(scanner.wrong("two graphs in one model: the file is damaged")),
                (8, Field::Bytes { start, end }) => {
                    opsets.push(scanner.decode::<OperatorSetIdProto>(start, end, "version of ops")?);
                }
                (14, Field::Bytes { start, end }) => {
                    let note: StringStringEntryProto = scanner.decode(start, end, "note")?;
                    found.notes.insert(note.key, note.value);
                }
                _ => {}
            }
        }
        let Some([start, end]) = graph else {
            return Err(scanner.wrong("there is no graph in it: this is no ONNX file"));
        };
        let opset = opsets.iter().find(|opset| matches!(opset.domain.as_str(), "" | "ai.onnx"));
        let opset = opset.map_or(0, |opset| opset.version);
        if opset < OLDEST_OPSET {
            let wanted = format!("ops of version {opset}: {OLDEST_OPSET} or newer is read, export it anew");
            return Err(scanner.wrong(wanted));
        }
        scanner.seek(start)?;
        while let Some((tag, field)) = scanner.field(end)? {
            scanner.count(FIELD_BYTES)?;
            let Field::Bytes { start, end } = field else { continue };
            match tag {
                1 => found.nodes.push(scanner.decode(start, end, "node")?),
                5 => {
                    let (tensor, stays) = scanner.tensor(start, end)?;
                    let name = tensor.name.clone();
                    let tensor = found.stored(tensor, stays)?;
                    if found.tensors.insert(name.clone(), tensor).is_some() {
                        return Err(scanner.wrong(format!("two tensors are named `{name}`")));
                    }
                }
                11 => found.inputs.push(scanner.decode(start, end, "input")?),
                12 => found.outputs.push(scanner.decode(start, end, "output")?),
                15 => return Err(scanner.wrong("its weights are sparse tensors, which are not read")),
                _ => {}
            }
        }
        Ok(found)
    }

    fn wrong(&self, reason: String) -> ExportError {
        ExportError::File { path: self.path.display().to_string(), reason }
    }

    /// A tensor as it is kept, with its length checked.
    fn stored(&self, tensor: TensorProto, stays: Option<[u64; 2]>) -> Result<StoredTensor, ExportError> {
        let name = tensor.name.clone();
        let wrong = |reason: String| self.wrong(format!("tensor `{name}`: {reason}"));
        let dims: Option<Vec<usize>> = tensor.dims.iter().map(|&n| usize::try_from(n).ok()).collect();
        let dims = dims.ok_or_else(|| wrong("an extent is below zero".into()))?;
        let size = element_bytes(tensor.data_type)
            .ok_or_else(|| wrong(format!("elements of the type {} are not read", tensor.data_type)))?;
        let elements = dims.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let bytes =
            elements.and_then(|n| n.checked_mul(size)).ok_or_else(|| wrong("it is too large".into()))?;
        let (stored, found) = if tensor.data_location == EXTERNAL {
            self.external(&tensor, bytes as u64).map_err(|e| match e {
                ExportError::File { reason, .. } => wrong(reason),
                other => other,
            })?
        } else if let Some([start, end]) = stays {
            (Stored::File { file: 0, offset: start }, end - start)
        } else {
            let data = match tensor.data_type {
                _ if tensor.raw_data.is_some() => tensor.raw_data.unwrap_or_default(),
                element::FLOAT => tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
                element::DOUBLE => tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
                element::INT64 => tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
                element::INT32 => tensor.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
                element::FLOAT16 | element::BFLOAT16 => {
                    tensor.int32_data.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect()
                }
                _ => tensor.int32_data.iter().map(|v| *v as u8).collect::<Vec<u8>>(),
            };
            let found = data.len() as u64;
            (Stored::Bytes(data), found)
        };
        if found != bytes as u64 {
            return Err(wrong(format!("{dims:?} needs {bytes} bytes, it has {found}")));
        }
        Ok(StoredTensor { element: tensor.data_type, dims, elements: stored })
    }

    /// Elements in a file beside this one.
    fn external(&self, tensor: &TensorProto, bytes: u64) -> Result<(Stored, u64), ExportError> {
        let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let location = entry("location").unwrap_or("");
        // Only a file in the model's folder, or below it: a path out of it could name any file of the machine.
        let inside = !location.is_empty()
            && Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(self.wrong(format!("its file `{location}` is not in the model's folder")));
        }
        let number = |key: &str, default: u64| match entry(key) {
            Some(text) => text.parse::<u64>().map_err(|_| self.wrong(format!("its {key} is `{text}`"))),
            None => Ok(default),
        };
        let (offset, length) = (number("offset", 0)?, number("length", bytes)?);
        let path = self.path.parent().unwrap_or(Path::new("")).join(location);
        let read = |source| ExportError::Read { path: path.display().to_string(), source };
        let file = File::open(&path).map_err(read)?;
        let held = file.metadata().map_err(read)?.len();
        if offset.checked_add(length).is_none_or(|end| end > held) {
            return Err(self.wrong(format!("it ends behind its file `{location}` of {held} bytes")));
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.iter().position(|(name, _)| name == location);
        if known.is_none() && files.len() > MOST_FILES {
            return Err(self.wrong(format!("more than {MOST_FILES} files of weights")));
        }
        let file = known.unwrap_or_else(|| {
            files.push((location.to_string(), file));
            files.len() - 1
        });
        Ok((Stored::File { file, offset }, length))
    }

    /// Copies bytes of a tensor, from `offset` on. The range is inside the tensor.
    pub fn read(&self, tensor: &StoredTensor, at: u64, into: &mut [u8]) -> io::Result<()> {
        match &tensor.elements {
            Stored::Bytes(bytes) => {
                let range = at as usize..at as usize + into.len();
                into.copy_from_slice(bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Stored::File { file, offset } => {
                let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                let (_, mut file) =
                    files.get(*file).map(|(name, file)| (name, file)).ok_or(io::ErrorKind::NotFound)?;
                file.seek(SeekFrom::Start(offset + at))?;
                file.read_exact(into)
            }
        }
    }

    /// The whole numbers of a small tensor.
    pub fn ints(&self, tensor: &StoredTensor) -> Result<Vec<i64>, ExportError> {
        if tensor.elements() > FOLDED_ELEMENTS {
            return Err(self.wrong(format!("a shape of {} numbers", tensor.elements())));
        }
        let size = element_bytes(tensor.element).unwrap_or(1);
        let mut bytes = vec![0; tensor.elements() * size];
        self.read(tensor, 0, &mut bytes)
            .map_err(|source| ExportError::Read { path: self.path.display().to_string(), source })?;
        let number = |bytes: &[u8]| match (tensor.element, bytes) {
            (element::INT64, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            (element::INT32, &[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])),
            (element::INT8, &[a]) => i64::from(a as i8),
            (_, bytes) => bytes.first().map_or(0, |&b| i64::from(b)),
        };
        Ok(bytes.chunks(size).map(number).collect())
    }

    /// A tensor inside a node, as one of the file's.
    pub fn constant(&self, attribute: &AttributeProto) -> Result<Option<StoredTensor>, ExportError> {
        attribute.t.clone().map(|tensor| self.stored(tensor, None)).transpose()
    }
}
