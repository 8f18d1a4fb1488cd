//! Reads the records of a TFRecord file: lengths, bytes, and the checksums of both.

use crate::DataError;
use crate::formats::shared::files::{Files, failed};
use crate::formats::shared::image_files::MAX_FILE_BYTES;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

/// Bytes around a record: its length with a checksum before it, its own checksum after it.
pub(super) const HEADER: usize = 12;
pub(super) const FOOTER: usize = 4;
/// Bytes of a file read at a time.
pub(super) const BUFFER: usize = 16 << 10;

pub(super) fn origin(files: &Files, file: usize, offset: u64) -> String {
    format!("`{}` at byte {offset}", files.path(file).display())
}

/// The checksum of TFRecord files, a masked CRC-32C: of a record's length, and of the record.
pub fn tfrecord_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The length that a header announces.
pub(super) fn announced(header: &[u8; HEADER]) -> Result<u64, DataError> {
    let (size, sum) = header.split_at(8);
    if tfrecord_checksum(size).to_le_bytes() != *sum {
        let reason =
            "the checksum of a record's length is wrong: the file is damaged, or not a TFRecord file";
        return Err(DataError::Corrupt { reason: reason.into() });
    }
    let size = u64::from_le_bytes([size[0], size[1], size[2], size[3], size[4], size[5], size[6], size[7]]);
    if size > MAX_FILE_BYTES {
        return Err(DataError::OverCap { what: "bytes: a record", found: size, cap: MAX_FILE_BYTES });
    }
    Ok(size)
}

pub(super) fn check_sum(record: &[u8], sum: [u8; FOOTER]) -> Result<(), DataError> {
    if tfrecord_checksum(record).to_le_bytes() != sum {
        return Err(DataError::Corrupt { reason: "the checksum of the record is wrong".into() });
    }
    Ok(())
}

/// One file from its start to its end.
pub(super) struct Reader {
    reader: Bytes,
    pub file: usize,
    /// Offset of the next byte in the decompressed file.
    at: u64,
    /// Length of a plain file.
    end: Option<u64>,
}

enum Bytes {
    Plain(BufReader<File>),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
}

impl Read for Bytes {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(bytes),
            Self::Gzip(reader) => reader.read(bytes),
        }
    }
}

impl Reader {
    pub fn open(files: &Files, file: usize, length: u64) -> Result<Self, DataError> {
        let path = files.path(file);
        let open = File::open(path).map_err(|e| failed(path, e))?;
        let mut reader = BufReader::with_capacity(BUFFER, open);
        let start = reader.fill_buf().map_err(|e| failed(path, e))?;
        if start.starts_with(&[0x1f, 0x8b]) {
            let reader = Bytes::Gzip(Box::new(MultiGzDecoder::new(reader)));
            return Ok(Self { reader, file, at: 0, end: None });
        }
        Ok(Self { reader: Bytes::Plain(reader), file, at: 0, end: Some(length) })
    }

    /// Fills a buffer; `false` if the file ends before its first byte.
    fn fill(&mut self, files: &Files, bytes: &mut [u8]) -> Result<bool, DataError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.reader.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    let (promised, found) = (bytes.len() as u64, filled as u64);
                    return Err(DataError::Truncated {
                        file: origin(files, self.file, self.at),
                        promised,
                        found,
                    });
                }
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(DataError::Read { file: origin(files, self.file, self.at), source: e }),
            }
        }
        self.at += filled as u64;
        Ok(true)
    }

    /// The next record's offset and length; `None` at the end.
    pub fn header(&mut self, files: &Files) -> Result<Option<(u64, usize)>, DataError> {
        let mut header = [0; HEADER];
        let offset = self.at;
        if !self.fill(files, &mut header)? {
            return Ok(None);
        }
        let size = announced(&header).map_err(|e| e.of(|| origin(files, self.file, offset)))?;
        if let Some(end) = self.end {
            let found = end.saturating_sub(self.at);
            if size + FOOTER as u64 > found {
                let (file, promised) = (origin(files, self.file, offset), size + FOOTER as u64);
                return Err(DataError::Truncated { file, promised, found });
            }
        }
        Ok(Some((offset, size as usize)))
    }

    /// Reads the record after its header.
    pub fn body(&mut self, files: &Files, offset: u64, record: &mut [u8]) -> Result<(), DataError> {
        let mut sum = [0; FOOTER];
        let size = record.len() as u64;
        if !(self.fill(files, record)? || record.is_empty()) || !self.fill(files, &mut sum)? {
            let file = origin(files, self.file, offset);
            return Err(DataError::Truncated { file, promised: size, found: 0 });
        }
        check_sum(record, sum).map_err(|e| e.of(|| origin(files, self.file, offset)))
    }

    /// Skips the record after its header.
    pub fn skip(&mut self, files: &Files, size: usize) -> Result<(), DataError> {
        if let Bytes::Plain(reader) = &mut self.reader {
            reader.seek_relative((size + FOOTER) as i64).map_err(|e| failed(files.path(self.file), e))?;
            self.at += (size + FOOTER) as u64;
            return Ok(());
        }
        let mut remaining = size + FOOTER;
        let mut chunk = [0; 4096];
        while remaining > 0 {
            let bytes = remaining.min(chunk.len());
            if !self.fill(files, &mut chunk[..bytes])? {
                let (file, promised) = (origin(files, self.file, self.at), remaining as u64);
                return Err(DataError::Truncated { file, promised, found: 0 });
            }
            remaining -= bytes;
        }
        Ok(())
    }
}
