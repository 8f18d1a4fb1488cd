//! Safetensors files of states: written piece by piece, whole or not at all, and read with every length checked first.

use super::STATE_BUFFER_BYTES;
use super::layout::{Kept, Layout, Slices, own_row};
use crate::TrainError;
use plimsoll_plan::{PlanSet, Prepared};
use plimsoll_tensor::{DType, Finite, Shape, all_finite};
use safetensors::tensor::Metadata;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How the header of a file with notes begins: the digits of its checksum follow.
const BEFORE_CHECKSUM: &[u8] = b"{\"__metadata__\":{\"checksum\":\"";
/// Digits of a checksum.
const DIGITS: usize = 16;
/// Bytes that are written before they are synced, so that a file on its way to the disk takes little memory.
const SYNC_BYTES: usize = 32 << 20;

/// Writes states under names through a buffer whose length is a multiple of eight. The file appears whole or not at all: it is
/// written beside its place, synced, and renamed. With notes, the header holds them and a checksum of the whole file.
/// States that are not finite are not saved.
pub(crate) fn save(
    prepared: &dyn Prepared,
    plans: &PlanSet,
    kept: &[Kept<'_>],
    notes: Option<&BTreeMap<String, String>>,
    buffer: &mut [u8],
    path: &Path,
) -> Result<(), TrainError> {
    let failed = |source| TrainError::Save { path: path.display().to_string(), source };
    let beside = beside(path);
    let header = header(plans, kept, notes);
    let mut write = || -> Result<(), TrainError> {
        let mut out = Writer::new(File::create(&beside).map_err(failed)?, buffer);
        out.write(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write(&header)).map_err(failed)?;
        for &Kept { state, ref layout, .. } in kept {
            if *layout == Layout::LastFirst {
                write_last_first(prepared, plans, state, &mut out, path)?;
                continue;
            }
            let bytes = plans.states[state].ty.bytes();
            let (mut first, mut finite) = (0, Finite::new(plans.states[state].ty.dtype));
            while first < bytes {
                let room = out.room().map_err(failed)?;
                let count = room.len().min(bytes - first);
                prepared.read_state(state, first, &mut room[..count])?;
                if !finite.add(&room[..count]) {
                    return Err(TrainError::NotFinite { state: plans.states[state].name.clone() });
                }
                out.used += count;
                first += count;
            }
        }
        out.finish(notes.is_some()).map_err(failed)
    };
    place(&beside, path, write())
}

/// Writes a state with its last axis first, several of the file's outermost slices at a time: they are neighbours in the
/// state.
fn write_last_first(
    prepared: &dyn Prepared,
    plans: &PlanSet,
    state: usize,
    out: &mut Writer<'_>,
    path: &Path,
) -> Result<(), TrainError> {
    let failed = |source| TrainError::Save { path: path.display().to_string(), source };
    let (name, ty) = (&plans.states[state].name, &plans.states[state].ty);
    let (slices, size) = (Slices::new(&ty.shape, ty.dtype.bytes()), ty.dtype.bytes());
    let mut tile = vec![0; slices.together * slices.rest * size];
    let mut run = vec![0; slices.together * size];
    for (first, count) in slices.groups() {
        let run = &mut run[..count * size];
        for place in 0..slices.rest {
            let row = own_row(&ty.shape, place);
            prepared.read_state(state, (row * slices.last + first) * size, run)?;
            for (slice, element) in run.chunks_exact(size).enumerate() {
                tile[(slice * slices.rest + place) * size..][..size].copy_from_slice(element);
            }
        }
        let tile = &tile[..count * slices.rest * size];
        if !all_finite(ty.dtype, tile) {
            return Err(TrainError::NotFinite { state: name.clone() });
        }
        out.write(tile).map_err(failed)?;
    }
    Ok(())
}

/// After the name of a file that is not whole yet.
pub(crate) const PARTIAL: &str = ".partial";

/// Where a file is written before it takes its place.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(PARTIAL);
    beside.into()
}

/// Writes a small file, whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let failed = |source| TrainError::Save { path: path.display().to_string(), source };
    let beside = beside(path);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    place(&beside, path, write().map_err(failed))
}

/// Gives a file that was written beside its place its name, or removes it where that went wrong.
fn place(beside: &Path, path: &Path, written: Result<(), TrainError>) -> Result<(), TrainError> {
    let failed = |source| TrainError::Save { path: path.display().to_string(), source };
    let placed = written.and_then(|()| fs::rename(beside, path).map_err(failed));
    if placed.is_err() {
        let _ = fs::remove_file(beside);
    }
    placed?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed)
}

/// A file written through a buffer that is handed out to be filled.
struct Writer<'b> {
    file: File,
    buffer: &'b mut [u8],
    used: usize,
    unsynced: usize,
    checksum: Checksum,
}

impl<'b> Writer<'b> {
    fn new(file: File, buffer: &'b mut [u8]) -> Self {
        Self { file, buffer, used: 0, unsynced: 0, checksum: Checksum::default() }
    }

    /// The part of the buffer that is free, at least a byte.
    fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.used == self.buffer.len() {
            self.flush()?;
        }
        Ok(&mut self.buffer[self.used..])
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            self.used += count;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let full = &self.buffer[..self.used];
        self.checksum.add(full);
        self.file.write_all(full)?;
        self.unsynced += self.used;
        self.used = 0;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Writes what is left, puts the checksum in its place, and waits for the disk.
    fn finish(mut self, checksum: bool) -> io::Result<()> {
        self.flush()?;
        if checksum {
            self.file.seek(SeekFrom::Start(8 + BEFORE_CHECKSUM.len() as u64))?;
            self.file.write_all(self.checksum.digits().as_bytes())?;
        }
        self.file.sync_all()
    }
}

/// A checksum over words of eight bytes: a change within one word always shows. Not proof against forgery.
#[derive(Clone, Copy)]
pub(crate) struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0x706c_696d_736f_6c6c)
    }
}

impl Checksum {
    /// Adds bytes; only the last addition may be of a length that is no multiple of eight.
    fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            let mixed = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 = mixed ^ (mixed >> 32);
        }
    }

    fn digits(self) -> String {
        format!("{:0DIGITS$x}", self.0)
    }
}

/// A file whose header has been read, its position at the first element.
pub(crate) struct Opened {
    /// The file.
    pub file: File,
    /// What its header says; places are relative to `start`, one after another without gaps.
    pub tensors: Metadata,
    /// Where the elements start.
    pub start: u64,
    /// Bytes of the whole file.
    pub length: u64,
    header: Vec<u8>,
}

/// Opens a file and reads its header of at most so many bytes. Nothing is allocated before its length is checked.
pub(crate) fn open(path: &Path, most_header_bytes: u64) -> Result<Opened, TrainError> {
    let failed = |source| TrainError::File { path: path.display().to_string(), source };
    let mut file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(failed)?;
    let size = u64::from_le_bytes(size);
    if size > most_header_bytes || size > length.saturating_sub(8) {
        return Err(wrong(
            path,
            format!("a header of {size} bytes does not fit: this is no safetensors file"),
        ));
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(failed)?;
    let tensors = serde_json::from_slice(&header).map_err(|e| wrong(path, format!("the header: {e}")))?;
    Ok(Opened { file, tensors, start: 8 + size, length, header })
}

/// A file that does not hold what it should.
pub(crate) fn wrong(path: &Path, reason: impl Into<String>) -> TrainError {
    TrainError::Weights { path: path.display().to_string(), reason: reason.into() }
}

impl Opened {
    /// Reads states, each with its place after `start`, in the places' order; the checksum in the header must be that
    /// of the file. States are written before it is known.
    pub fn read_checked(
        self,
        prepared: &mut dyn Prepared,
        places: &[(usize, std::ops::Range<u64>)],
        buffer: &mut [u8],
        path: &Path,
    ) -> Result<(), TrainError> {
        let mut left = places;
        self.read_pieces(buffer, path, |at, bytes| {
            let end = at + bytes.len() as u64;
            while let Some((state, place)) = left.first().filter(|(_, place)| place.start < end) {
                let (from, to) = (place.start.max(at), place.end.min(end));
                let piece = &bytes[(from - at) as usize..(to - at) as usize];
                prepared.write_state(*state, (from - place.start) as usize, piece)?;
                if place.end > end {
                    break;
                }
                left = &left[1..];
            }
            Ok(())
        })?;
        if left.is_empty() { Ok(()) } else { Err(wrong(path, "the file ends before its states do")) }
    }

    /// Whether the checksum in the header is that of the file.
    pub fn check(self, path: &Path) -> Result<(), TrainError> {
        self.read_pieces(&mut vec![0; STATE_BUFFER_BYTES], path, |_, _| Ok(()))
    }

    /// Reads all elements through a buffer, each piece with its place; the checksum in the header must be that of the file.
    fn read_pieces(
        mut self,
        buffer: &mut [u8],
        path: &Path,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let digits = BEFORE_CHECKSUM.len()..BEFORE_CHECKSUM.len() + DIGITS;
        let begins = self.header.starts_with(BEFORE_CHECKSUM) && self.header.len().is_multiple_of(8);
        let Some(stated) = self.header.get_mut(digits).filter(|_| begins) else {
            return Err(wrong(path, "the header has no checksum: this is no checkpoint"));
        };
        let stated = stated.to_vec();
        self.header[BEFORE_CHECKSUM.len()..][..DIGITS].fill(b'0');
        let mut checksum = Checksum::default();
        checksum.add(&(self.header.len() as u64).to_le_bytes());
        checksum.add(&self.header);
        let mut at = 0;
        loop {
            let count = fill(&mut self.file, buffer)
                .map_err(|source| TrainError::File { path: path.display().to_string(), source })?;
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
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
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

/// The header: a JSON object of notes, names, types, shapes and places, padded with spaces to a multiple of eight.
pub(crate) fn header(
    plans: &PlanSet,
    kept: &[Kept<'_>],
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
    for Kept { state, name, layout } in kept {
        let state = &plans.states[*state];
        let end = offset + state.ty.bytes();
        let (before, name) = (if header.is_empty() { '{' } else { ',' }, text(name));
        let (dtype, shape) = (dtype_name(state.ty.dtype), Shape::from(layout.shape(&state.ty.shape)));
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

/// A type's name in such files.
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
