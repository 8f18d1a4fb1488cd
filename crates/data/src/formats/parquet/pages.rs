//! Parquet files, a page at a time.

use super::{Batches, ROWS, Reader};
use crate::core::file_io::read_at;
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

/// The longest page, and the longest metadata.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// Bytes of a page's header read at a time; its sizes are in the first of them.
const HEADER_BYTES: usize = 512;
/// The most memory of a dictionary value, in addition to its bytes.
const VALUE_BYTES: usize = 8;
/// Memory of decoding a column in addition to its pages: levels, buffers, the current rows.
const COLUMN_BYTES: usize = 64 << 10;

/// A Parquet file with its metadata.
pub struct ParquetFile {
    file: Checked,
    metadata: ArrowReaderMetadata,
}

/// A file that refuses oversized pages before the library allocates memory for them.
#[derive(Clone)]
struct Checked {
    file: Arc<File>,
    length: u64,
    /// Whether reads start with the header of a page.
    pages: bool,
    /// The largest page so far, compressed and uncompressed.
    largest: Arc<[AtomicUsize; 2]>,
}

/// Reads bytes from an offset on.
struct FromOffset {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for FromOffset {
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
    type T = BufReader<FromOffset>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        if self.pages {
            let mut header = [0; 32];
            let count = self.length.saturating_sub(start).min(32) as usize;
            read_at(&self.file, &mut header[..count], start).map_err(|e| wrong(e.to_string()))?;
            let (sizes, values) =
                sizes(&header[..count]).ok_or_else(|| wrong("a page's header is damaged"))?;
            // The library allocates for this many values before it reads them.
            if values > sizes[1] {
                return Err(wrong(format!("a dictionary of {values} values in {} bytes", sizes[1])));
            }
            for (largest, size) in self.largest.iter().zip(sizes) {
                if size > MAX_PAGE_BYTES {
                    return Err(wrong(format!("a page of {size} bytes; at most {MAX_PAGE_BYTES} may be")));
                }
                largest.fetch_max(size, Relaxed);
            }
            self.largest[1].fetch_max(values * VALUE_BYTES, Relaxed);
        }
        let from = FromOffset { file: self.file.clone(), at: start, end: self.length };
        Ok(BufReader::with_capacity(HEADER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let past = start.checked_add(length as u64).is_none_or(|end| end > self.length);
        if past || length > MAX_PAGE_BYTES {
            return Err(wrong(format!("{length} bytes at byte {start} are not in the file, or too many")));
        }
        let mut bytes = vec![0; length];
        read_at(&self.file, &mut bytes, start).map_err(|e| wrong(e.to_string()))?;
        Ok(bytes.into())
    }
}

/// Compressed and uncompressed size of a page, the third and second field of its header, after its kind; and the number of
/// values of a dictionary. They are checked before the library trusts them.
fn sizes(mut header: &[u8]) -> Option<([usize; 2], usize)> {
    // The next field, of 32 bits.
    const NEXT: u8 = 0x15;
    // The kind of a dictionary page, and the start of its own header: field 7, after field 3 or a checksum in field 4.
    const DICTIONARY: usize = 2;
    const AFTER_SIZES: u8 = 0x4c;
    const AFTER_CHECKSUM: u8 = 0x3c;
    let mut next = |start: u8| {
        let (first, rest) = header.split_first()?;
        if *first != start {
            return None;
        }
        header = rest;
        if start == NEXT { decode_varint(&mut header).ok() } else { Some(0) }
    };
    let number = |zigzag: u64| zigzag.is_multiple_of(2).then_some((zigzag / 2) as usize);
    let [kind, uncompressed, compressed] = [number(next(NEXT)?)?, number(next(NEXT)?)?, number(next(NEXT)?)?];
    if kind != DICTIONARY {
        return Some(([compressed, uncompressed], 0));
    }
    match next(NEXT) {
        Some(_) => next(AFTER_CHECKSUM)?,
        None => next(AFTER_SIZES)?,
    };
    Some(([compressed, uncompressed], number(next(NEXT)?)?))
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
        let [compressed, uncompressed] = [0, 1].map(|i| self.file.largest[i].load(Relaxed));
        // A dictionary, a page of values and the page being decompressed.
        let column = compressed.saturating_add(3 * uncompressed).saturating_add(COLUMN_BYTES);
        self.metadata.metadata().memory_size().saturating_add(columns.saturating_mul(column))
    }
}

struct Pages(ParquetRecordBatchReader);

impl Batches for Pages {
    fn next(&mut self) -> Option<Result<RecordBatch, String>> {
        self.0.next().map(|batch| batch.map_err(|e| e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_dictionary_gives_its_number_of_values() {
        let sizes_then = |more: &[u8]| sizes(&[&[0x15, 4, 0x15, 40, 0x15, 42][..], more].concat());
        assert_eq!(sizes_then(&[0x4c, 0x15, 6, 0x15, 0]), Some(([21, 20], 3)));
        // With a checksum, which may be negative.
        assert_eq!(sizes_then(&[0x15, 7, 0x3c, 0x15, 6, 0x15, 0]), Some(([21, 20], 3)));
        let many = [0x4c, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(sizes_then(&many), Some(([21, 20], i32::MAX as usize)));
        // Fields out of order, and a negative number of values.
        assert_eq!(sizes_then(&[0x0c, 14, 0x15, 6]), None);
        assert_eq!(sizes_then(&[0x4c, 0x15, 7]), None);
        assert_eq!(sizes(&[0x15, 0, 0x15, 40, 0x15, 42, 0x2c]), Some(([21, 20], 0)));
    }

    #[test]
    fn a_dictionary_with_more_values_than_bytes_is_refused() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table.parquet");
        let mut bytes = std::fs::read(fixture).unwrap();
        let header =
            |at: &usize| sizes(&bytes[*at..]).is_some_and(|(sizes, values)| values > 0 && sizes[1] < 60);
        let at = (0..bytes.len() - 32).find(header).expect("a small dictionary");
        let place = at + bytes[at..].iter().position(|byte| *byte == 0x4c).unwrap() + 2;
        bytes[place] = 63 * 2;
        let path = std::env::temp_dir().join(format!("plimsoll-dictionary-{}.parquet", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let file = ParquetFile::open(&path).unwrap();
        let columns: Vec<usize> = (0..file.names().len()).collect();
        let mut pages = file.start(&columns).unwrap();
        let error = pages.next().unwrap().unwrap_err();
        assert!(error.contains("a dictionary of 63 values in"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
