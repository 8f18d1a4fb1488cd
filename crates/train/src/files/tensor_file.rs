//! Safetensors files of states. Writes go chunk by chunk and are atomic; reads check every length before they allocate.

use super::STATE_BUFFER_BYTES;
use super::joined::Joined;
use super::layout::{Layout, SavedTensor, Slices, state_row};
use super::sparse::each_kept;
use crate::TrainError;
use plimsoll_export::PartialFile;
use plimsoll_plan::{Prepared, StatePlacement};
use plimsoll_tensor::{DType, Finite, Shape, TensorType, all_finite};
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The beginning of a header with notes, up to the digits of the checksum.
const BEFORE_CHECKSUM: &[u8] = b"{\"__metadata__\":{\"checksum\":\"";
/// Digits of a checksum.
const DIGITS: usize = 16;

/// Where states are saved from: a session's memory, or another file.
pub(crate) trait States {
    /// A state's name.
    fn name(&self, state: usize) -> &str;
    /// A state's type.
    fn ty(&self, state: usize) -> &TensorType;
    /// Copies bytes of a state, from `offset` on.
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), TrainError>;
}

/// The states of a session.
pub(crate) struct Live<'s> {
    pub prepared: &'s dyn Prepared,
    pub states: &'s [StatePlacement],
}

impl States for Live<'_> {
    fn name(&self, state: usize) -> &str {
        &self.states[state].name
    }

    fn ty(&self, state: usize) -> &TensorType {
        &self.states[state].ty
    }

    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), TrainError> {
        Ok(self.prepared.read_state(state, offset, into)?)
    }
}

/// Saves states through a buffer whose length is a multiple of eight. The write is atomic: the file is written under a
/// partial name, synced, and renamed. With notes, the header holds them and a checksum of the whole file. States that are not
/// finite are not saved. Returns the digits of the checksum.
pub(crate) fn save(
    states: &dyn States,
    tensors: &[SavedTensor<'_>],
    notes: Option<&BTreeMap<String, String>>,
    buffer: &mut [u8],
    path: &Path,
) -> Result<String, TrainError> {
    let failed = |source| TrainError::save(path, source);
    let header = header(states, tensors, notes);
    let mut out = Writer::new(PartialFile::create(path).map_err(failed)?, buffer);
    out.write(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write(&header)).map_err(failed)?;
    for &SavedTensor { state, layout, .. } in tensors {
        match layout {
            Layout::Same => {}
            Layout::OutputFirst => {
                write_output_first(states, state, &mut out, path)?;
                continue;
            }
            Layout::Kept { mask, .. } => {
                write_kept(states, (state, mask), &mut out, path)?;
                continue;
            }
        }
        let bytes = states.ty(state).bytes();
        let (mut first, mut finite) = (0, Finite::new(states.ty(state).dtype));
        while first < bytes {
            let free = out.free().map_err(failed)?;
            let count = free.len().min(bytes - first);
            states.read(state, first, &mut free[..count])?;
            if !finite.add(&free[..count]) {
                return Err(TrainError::NotFinite { state: states.name(state).to_string() });
            }
            out.used += count;
            first += count;
        }
    }
    out.finish(notes.is_some()).map_err(failed)
}

/// Writes the elements of a state that a mask keeps.
fn write_kept(
    states: &dyn States,
    (state, mask): (usize, usize),
    out: &mut Writer<'_>,
    path: &Path,
) -> Result<(), TrainError> {
    let (name, ty) = (states.name(state), states.ty(state));
    each_kept(states, state, mask, |kept| {
        if !all_finite(ty.dtype, kept) {
            return Err(TrainError::NotFinite { state: name.to_string() });
        }
        out.write(kept).map_err(|source| TrainError::save(path, source))
    })
}

/// Writes a state with its last axis first, a group of the file's outermost slices at a time.
fn write_output_first(
    states: &dyn States,
    state: usize,
    out: &mut Writer<'_>,
    path: &Path,
) -> Result<(), TrainError> {
    let (name, ty) = (states.name(state), states.ty(state));
    let (slices, size) = (Slices::new(&ty.shape, ty.dtype.bytes()), ty.dtype.bytes());
    let mut group = vec![0; slices.per_group * slices.elements * size];
    let mut run = vec![0; slices.per_group * size];
    for (first, count) in slices.groups() {
        let run = &mut run[..count * size];
        for element in 0..slices.elements {
            let row = state_row(&ty.shape, element);
            states.read(state, (row * slices.count + first) * size, run)?;
            for (slice, bytes) in run.chunks_exact(size).enumerate() {
                group[(slice * slices.elements + element) * size..][..size].copy_from_slice(bytes);
            }
        }
        let group = &group[..count * slices.elements * size];
        if !all_finite(ty.dtype, group) {
            return Err(TrainError::NotFinite { state: name.to_string() });
        }
        out.write(group).map_err(|source| TrainError::save(path, source))?;
    }
    Ok(())
}

/// Writes a small file atomically: under a partial name, synced, and renamed. A link of this name is replaced, not followed.
///
/// ```no_run
/// plimsoll_train::write_atomically("run/notes.txt".as_ref(), b"learning rate halved")?;
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let write = || {
        let mut file = PartialFile::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().map_err(|source| TrainError::save(path, source))
}

/// Writes a file through a buffer that callers may fill in place.
struct Writer<'b> {
    file: PartialFile,
    buffer: &'b mut [u8],
    used: usize,
    checksum: Checksum,
}

impl<'b> Writer<'b> {
    fn new(file: PartialFile, buffer: &'b mut [u8]) -> Self {
        Self { file, buffer, used: 0, checksum: Checksum::default() }
    }

    /// The free part of the buffer, at least a byte.
    fn free(&mut self) -> io::Result<&mut [u8]> {
        if self.used == self.buffer.len() {
            self.flush()?;
        }
        Ok(&mut self.buffer[self.used..])
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let free = self.free()?;
            let count = free.len().min(bytes.len());
            free[..count].copy_from_slice(&bytes[..count]);
            self.used += count;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let filled = &self.buffer[..self.used];
        self.checksum.add(filled);
        self.file.write_all(filled)?;
        self.used = 0;
        Ok(())
    }

    /// Flushes, fills in the checksum, which is returned, waits for the disk, and gives the file its name.
    fn finish(mut self, checksum: bool) -> io::Result<String> {
        self.flush()?;
        let digits = self.checksum.digits();
        if checksum {
            self.file.file().seek(SeekFrom::Start(8 + BEFORE_CHECKSUM.len() as u64))?;
            self.file.file().write_all(digits.as_bytes())?;
        }
        self.file.commit().map(|()| digits)
    }
}

/// A checksum over 8-byte words. Detects every change within one word; not cryptographic.
#[derive(Clone, Copy)]
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0x706c_696d_736f_6c6c)
    }
}

impl Checksum {
    /// Adds bytes. Only the last call may add a length that is no multiple of eight.
    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mixed = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 = mixed ^ (mixed >> 32);
        }
    }

    fn digits(self) -> String {
        format!("{:0DIGITS$x}", self.0)
    }
}

/// A file whose header has been read, its position at the first element; with its parts, if it has some, behind it.
pub(crate) struct Opened {
    /// The file, and its parts.
    pub file: Joined,
    /// The header's tensors, and those of the parts. Their offsets are relative to `start`, contiguous and without gaps.
    pub tensors: Metadata,
    /// Where the elements start.
    pub start: u64,
    /// Bytes of the whole file, and of the elements of its parts.
    pub length: u64,
    /// The headers, and bytes of the elements behind each.
    headers: Vec<(Vec<u8>, u64)>,
}

/// The note of a file that has parts: a list of their checksums, or nothing for a part that is not there.
pub(crate) const PARTS: &str = "parts";
/// Parts of a file at most.
const MOST_PARTS: usize = 1 << 16;

/// The name of a part of a file, by its number and how many there are with the file itself.
pub(crate) fn part_path(path: &Path, number: usize, count: usize) -> PathBuf {
    path.with_extension(format!("{number}of{count}.safetensors"))
}

/// Opens a file and its parts, and reads their headers, whose lengths are checked before they are allocated.
pub(crate) fn open(path: &Path, max_header_bytes: u64) -> Result<Opened, TrainError> {
    let mut opened = open_alone(path, max_header_bytes)?;
    let Some(text) = opened.tensors.metadata().as_ref().and_then(|notes| notes.get(PARTS)) else {
        return Ok(opened);
    };
    let parts: Vec<String> =
        serde_json::from_str(text).map_err(|e| wrong(path, format!("the list of its parts: {e}")))?;
    if parts.len() >= MOST_PARTS {
        return Err(wrong(path, format!("{} parts are more than any run has", parts.len())));
    }
    let notes = opened.tensors.metadata().clone();
    let mut all: Vec<(String, TensorInfo)> = Vec::new();
    opened.list(path, 0, &mut all)?;
    let mut end = opened.length - opened.start;
    for (at, checksum) in parts.iter().enumerate().filter(|(_, checksum)| !checksum.is_empty()) {
        let path = part_path(path, at + 1, parts.len() + 1);
        let part = open_alone(&path, max_header_bytes)?;
        if part.stated() != Some(checksum.as_bytes()) {
            return Err(wrong(&path, "it is a part of another checkpoint"));
        }
        part.list(&path, end, &mut all)?;
        let Opened { file, start, length, headers, .. } = part;
        let bytes = length - start;
        opened.file.add(file.into_file(), start, bytes);
        opened.headers.extend(headers);
        (opened.length, end) = (opened.length.saturating_add(bytes), end.saturating_add(bytes));
    }
    let names: BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() < all.len() {
        return Err(wrong(path, "two of its parts hold the same state"));
    }
    opened.tensors = Metadata::new(notes, all).map_err(|e| wrong(path, format!("its parts: {e}")))?;
    Ok(opened)
}

fn open_alone(path: &Path, max_header_bytes: u64) -> Result<Opened, TrainError> {
    let failed = |source| TrainError::file(path, source);
    let mut file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(failed)?;
    let size = u64::from_le_bytes(size);
    if size > max_header_bytes || size > length.saturating_sub(8) {
        return Err(wrong(
            path,
            format!("a header of {size} bytes does not fit: this is no safetensors file"),
        ));
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(failed)?;
    let tensors = serde_json::from_slice(&header).map_err(|e| wrong(path, format!("the header: {e}")))?;
    let start = 8 + size;
    let file = Joined::new(file, length, start);
    Ok(Opened { file, tensors, start, length, headers: vec![(header, length - start)] })
}

/// The error of a file that does not hold what it should.
pub(crate) fn wrong(path: &Path, reason: impl Into<String>) -> TrainError {
    TrainError::Weights { path: path.display().to_string(), reason: reason.into() }
}

impl Opened {
    /// The checksum that the header states.
    fn stated(&self) -> Option<&[u8]> {
        let (header, _) = self.headers.first()?;
        header.strip_prefix(BEFORE_CHECKSUM)?.get(..DIGITS)
    }

    /// Adds the tensors of a file that has parts, or is one, with their elements behind so many bytes. They have to fill it.
    fn list(&self, path: &Path, before: u64, all: &mut Vec<(String, TensorInfo)>) -> Result<(), TrainError> {
        let mut own: Vec<(String, TensorInfo)> =
            self.tensors.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        own.sort_by_key(|(_, info)| info.data_offsets);
        let end = own.last().map_or(0, |(_, info)| info.data_offsets.1 as u64);
        if end != self.length - self.start {
            let (end, length) = (self.start.saturating_add(end), self.length);
            return Err(wrong(path, format!("the states end at byte {end}, the file has {length}")));
        }
        for (name, mut info) in own {
            let (from, to) = info.data_offsets;
            let behind = |at: usize| at.checked_add(usize::try_from(before).ok()?);
            info.data_offsets = behind(from)
                .zip(behind(to))
                .ok_or_else(|| wrong(path, "its states are more than there can be"))?;
            all.push((name, info));
        }
        Ok(())
    }

    /// Reads states from their places after `start`, which must be sorted, and checks the checksum. States are written before
    /// it is known to be right.
    pub fn read_checked(
        self,
        prepared: &mut dyn Prepared,
        places: &[(usize, std::ops::Range<u64>)],
        buffer: &mut [u8],
        path: &Path,
    ) -> Result<(), TrainError> {
        let mut left = places;
        self.read_chunks(buffer, path, |at, bytes| {
            let end = at + bytes.len() as u64;
            while let Some((state, place)) = left.first().filter(|(_, place)| place.start < end) {
                let (from, to) = (place.start.max(at), place.end.min(end));
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                prepared.write_state(*state, (from - place.start) as usize, part)?;
                if place.end > end {
                    break;
                }
                left = &left[1..];
            }
            Ok(())
        })?;
        if left.is_empty() { Ok(()) } else { Err(wrong(path, "the file ends before its states do")) }
    }

    /// Checks the checksum.
    pub fn check(self, path: &Path) -> Result<(), TrainError> {
        self.read_chunks(&mut vec![0; STATE_BUFFER_BYTES], path, |_, _| Ok(()))
    }

    /// Reads all elements through a buffer, gives each chunk with its offset to `take`, and checks the checksum.
    fn read_chunks(
        mut self,
        buffer: &mut [u8],
        path: &Path,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let digits = BEFORE_CHECKSUM.len()..BEFORE_CHECKSUM.len() + DIGITS;
        let mut at = 0;
        for (mut header, bytes) in std::mem::take(&mut self.headers) {
            let begins = header.starts_with(BEFORE_CHECKSUM) && header.len().is_multiple_of(8);
            let Some(stated) = header.get_mut(digits.clone()).filter(|_| begins) else {
                return Err(wrong(path, "the header has no checksum: this is no checkpoint"));
            };
            let stated = stated.to_vec();
            header[digits.clone()].fill(b'0');
            let mut checksum = Checksum::default();
            checksum.add(&(header.len() as u64).to_le_bytes());
            checksum.add(&header);
            let mut elements = (&self.file).take(bytes);
            loop {
                let count = fill(&mut elements, buffer).map_err(|source| TrainError::file(path, source))?;
                if count == 0 {
                    break;
                }
                checksum.add(&buffer[..count]);
                take(at, &buffer[..count])?;
                at += count as u64;
            }
            if checksum.digits().as_bytes() != stated {
                return Err(wrong(path, "the checksum is not that of the file: it is damaged"));
            }
        }
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(count)
}

/// The header: a JSON object of notes, names, types, shapes and offsets, padded with spaces to a multiple of eight.
pub(crate) fn header(
    states: &dyn States,
    tensors: &[SavedTensor<'_>],
    notes: Option<&BTreeMap<String, String>>,
) -> Vec<u8> {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut header = Vec::new();
    if let Some(notes) = notes {
        header.extend_from_slice(BEFORE_CHECKSUM);
        header.extend([b'0'; DIGITS]);
        header.push(b'"');
        for (key, value) in notes {
            header.extend(format!(",{}:{}", text(key), text(value)).into_bytes());
        }
        header.push(b'}');
    }
    let mut offset = 0;
    for SavedTensor { state, name, layout } in tensors {
        let (before, name) = (if header.is_empty() { '{' } else { ',' }, text(name));
        let (ty, shape) = (states.ty(*state), Shape::from(layout.shape(&states.ty(*state).shape)));
        let end = offset + shape.elements() * ty.dtype.bytes();
        let dtype = dtype_name(ty.dtype);
        let entry = format!(
            "{before}{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{offset},{end}]}}"
        );
        header.extend(entry.into_bytes());
        offset = end;
    }
    if header.is_empty() {
        header.push(b'{');
    }
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// The type's name in safetensors files.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}
