//! Image files: which they are, and how one becomes a record.

use super::files::failed;
use crate::{DataError, Field, Record, Schema};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
#[cfg(not(unix))]
use std::path::PathBuf;

/// Names of folders that hold the test part, beside one named `train`.
pub(crate) const TEST_FOLDERS: [&str; 4] = ["test", "val", "valid", "validation"];
/// The longest image file. Every worker has a buffer for the longest file of the dataset.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;
/// Where a dataset names no test part, every tenth record is one.
pub(crate) const TEST_EVERY: usize = 10;

/// Whether a file name is that of an image.
pub(crate) fn is_image(name: &[u8]) -> bool {
    let end = name.iter().rposition(|&byte| byte == b'.').map_or(&[][..], |dot| &name[dot + 1..]);
    name.first() != Some(&b'.')
        && ["jpg", "jpeg", "png"].iter().any(|e| end.eq_ignore_ascii_case(e.as_bytes()))
}

#[cfg(unix)]
pub(crate) fn as_path(name: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
}

#[cfg(not(unix))]
pub(crate) fn as_path(name: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(name).into_owned())
}

/// A path of these parts, written into `buffer`, so that opening a file allocates nothing.
pub(crate) fn path_in<'b>(buffer: &'b mut [u8], parts: &[&[u8]]) -> impl AsRef<Path> + use<'b> {
    let mut length = 0;
    for (i, part) in parts.iter().enumerate() {
        let separator: &[u8] = if i > 0 { b"/" } else { b"" };
        for bytes in [separator, part] {
            // A buffer of `path_bytes` holds them all.
            let count = bytes.len().min(buffer.len() - length);
            buffer[length..length + count].copy_from_slice(&bytes[..count]);
            length += count;
        }
    }
    as_path(&buffer[..length])
}

/// Bytes of a path of parts of these lengths.
pub(crate) fn path_bytes(parts: &[usize]) -> usize {
    parts.iter().fold(0, |sum: usize, length| sum.saturating_add(*length).saturating_add(1))
}

/// The bytes of a file of at most this length, and its class; files over [`MAX_FILE_BYTES`] are bad.
pub(crate) fn image_schema(largest: u64, classes: usize) -> Schema {
    Schema::new()
        .bytes("image", largest.min(MAX_FILE_BYTES) as usize)
        .tensor("label", Field::below(classes, []))
}

/// Reads a file into a column, whose buffer is as long as the longest file was at the time of listing.
pub(crate) fn read_file(path: &Path, record: &mut Record<'_>, column: usize) -> Result<(), DataError> {
    let length = read_into(path, record.buffer_mut(column))?;
    record.set_length(column, length)
}

/// Reads a file into a buffer that is as long as the longest file was at the time of listing; returns the file's length.
pub(crate) fn read_into(path: &Path, buffer: &mut [u8]) -> Result<usize, DataError> {
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    let mut length = 0;
    loop {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(path, e)),
        }
    }
    if length == buffer.len() && file.read(&mut [0]).map_err(|e| failed(path, e))? > 0 {
        let (cap, found) = (length as u64, fs::metadata(path).map_or(length as u64 + 1, |m| m.len()));
        let grown = cap < MAX_FILE_BYTES;
        let what = if grown { "bytes: the file has grown and" } else { "bytes: a file" };
        return Err(DataError::OverCap { what, found, cap });
    }
    Ok(length)
}
