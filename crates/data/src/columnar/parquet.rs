//! Parquet files, a page at a time.

use super::{Batches, ROWS, Reader};
use crate::cache::read_at;
use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use prost::encoding::decode_varint;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The longest page, and what the file says of itself.
const MOST_PAGE_BYTES: usize = 64 << 20;
/// Bytes of a page's header that are read at a time, and of which its sizes stand in the first.
const HEADER_BYTES: usize = 512;
/// What decoding a column takes besides its pages: levels, buffers, the rows at hand.
const COLUMN_BYTES: usize = 64 << 10;

/// A Parquet file with its metadata.
pub struct ParquetFile {
    file: Checked,
    metadata: ArrowReaderMetadata,
}

/// A file that refuses what is larger than it may be before anybody reserves room for it.
#[derive(Clone)]
struct Checked {
    file: Arc<File>,
    length: u64,
    /// Whether what is read starts with the header of a page.
    pages: bool,
    /// The largest page so far, packed and unpacked.
    largest: Arc<[AtomicUsize; 2]>,
}

/// Bytes from a place on.
struct From {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for From {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.end.saturating_sub(self.at).min(bytes.len() as u64) as usize;
        read_at(&self.file, &mut bytes[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn wrong(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

impl Length for Checked {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Checked {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        if self.pages {
            let mut header = [0; 32];
            let count = self.length.saturating_sub(start).min(32) as usize;
            read_at(&self.file, &mut header[..count], start).map_err(|e| wrong(e.to_string()))?;
            let sizes = sizes(&header[..count]).ok_or_else(|| wrong("a page's header is damaged"))?;
            for (largest, size) in self.largest.iter().zip(sizes) {
                if size > MOST_PAGE_BYTES {
                    return Err(wrong(format!("a page of {size} bytes; at most {MOST_PAGE_BYTES} may be")));
                }
                largest.fetch_max(size, Relaxed);
            }
        }
        let from = From { file: self.file.clone(), at: start, end: self.length };
        Ok(BufReader::with_capacity(HEADER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let past = start.checked_add(length as u64).is_none_or(|end| end > self.length);
        if past || length > MOST_PAGE_BYTES {
            return Err(wrong(format!("{length} bytes at byte {start} are not in the file, or too many")));
        }
        let mut bytes = vec![0; length];
        read_at(&self.file, &mut bytes, start).map_err(|e| wrong(e.to_string()))?;
        Ok(bytes.into())
    }
}

/// Sizes of a page, packed and unpacked: the third and the second field of its header, which come after its kind. They are
/// looked at before the library believes them.
fn sizes(mut header: &[u8]) -> Option<[usize; 2]> {
    // A field that follows the one before it, of 32 bits.
    const NEXT: u8 = 0x15;
    let mut field = || {
        let (&NEXT, rest) = header.split_first()? else { return None };
        header = rest;
        let zigzag = decode_varint(&mut header).ok()?;
        (zigzag % 2 == 0).then_some((zigzag / 2) as usize)
    };
    let (_, unpacked, packed) = (field()?, field()?, field()?);
    Some([packed, unpacked])
}

impl ParquetFile {
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let file = Checked { file: Arc::new(file), length, pages: false, largest: Arc::default() };
        let metadata =
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| e.to_string())?;
        Ok(Self { file: Checked { pages: true, ..file }, metadata })
    }
}

impl Reader for ParquetFile {
    fn names(&self) -> Vec<String> {
        self.metadata.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn start(&self, columns: &[usize]) -> Result<Box<dyn Batches>, String> {
        let builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.clone(), self.metadata.clone());
        let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
        let reader = builder.with_projection(mask).with_batch_size(ROWS).build();
        Ok(Box::new(Pages(reader.map_err(|e| e.to_string())?)))
    }

    fn bytes(&self, columns: usize) -> usize {
        let [packed, unpacked] = [0, 1].map(|i| self.file.largest[i].load(Relaxed));
        // A dictionary and a page of values, each unpacked, and what is being unpacked.
        let column = packed.saturating_add(3 * unpacked).saturating_add(COLUMN_BYTES);
        self.metadata.metadata().memory_size().saturating_add(columns.saturating_mul(column))
    }
}

struct Pages(ParquetRecordBatchReader);

impl Batches for Pages {
    fn next(&mut self) -> Option<Result<RecordBatch, String>> {
        self.0.next().map(|batch| batch.map_err(|e| e.to_string()))
    }
}
