//! Parquet files, a page at a time.

use super::{Batches, ROWS, Reader};
use crate::core::file_io::read_at;
use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, Type};
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
/// Memory of decoding a column in addition to its pages and rows: levels, buffers, indices of a dictionary.
const COLUMN_BYTES: usize = 8 << 10;
/// Memory of decompressing a page in addition to its bytes: by zstd, and else.
const ZSTD_BYTES: usize = 512 << 10;
const DECOMPRESSOR_BYTES: usize = 64 << 10;

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
    /// The first byte of each column chunk, in order, with its column.
    chunks: Arc<[(u64, usize)]>,
    /// The largest pages of each column so far.
    largest: Arc<[Largest]>,
}

/// The largest pages of a column, in bytes.
#[derive(Default)]
struct Largest {
    /// As they are in the file.
    stored: AtomicUsize,
    /// Values, uncompressed.
    values: AtomicUsize,
    /// A dictionary, decoded.
    dictionary: AtomicUsize,
    /// The most memory of a value of a dictionary, in addition to its bytes in the file.
    value_bytes: usize,
}

impl Largest {
    fn of(kind: Type) -> Self {
        let value_bytes = match kind {
            Type::BYTE_ARRAY => 8,
            Type::FIXED_LEN_BYTE_ARRAY | Type::INT96 => 32,
            Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE => 0,
        };
        Self { value_bytes, ..Self::default() }
    }
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
            if let Some(size) = sizes.into_iter().find(|size| *size > MAX_PAGE_BYTES) {
                return Err(wrong(format!("a page of {size} bytes; at most {MAX_PAGE_BYTES} may be")));
            }
            let chunk = self.chunks.partition_point(|(first, _)| *first <= start).checked_sub(1);
            let Some(largest) = chunk.and_then(|chunk| self.largest.get(self.chunks[chunk].1)) else {
                return Err(wrong(format!("a page at byte {start} is of no column")));
            };
            largest.stored.fetch_max(sizes[0], Relaxed);
            match values {
                0 => largest.values.fetch_max(sizes[1], Relaxed),
                _ => largest.dictionary.fetch_max(sizes[1] + values * largest.value_bytes, Relaxed),
            };
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
        let (chunks, largest) = (Arc::default(), Arc::default());
        let file = Checked { file: Arc::new(file), length, pages: false, chunks, largest };
        let metadata =
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| e.to_string())?;
        let schema = metadata.metadata().file_metadata().schema_descr();
        let mut chunks = Vec::new();
        for group in metadata.metadata().row_groups() {
            let firsts = group.columns().iter().enumerate();
            let firsts = firsts.filter(|(leaf, _)| *leaf < schema.num_columns());
            chunks.extend(firsts.map(|(leaf, c)| (c.byte_range().0, schema.get_column_root_idx(leaf))));
        }
        chunks.sort_unstable();
        // A column of several is refused when its first cell is read.
        let mut kinds = vec![Type::FIXED_LEN_BYTE_ARRAY; metadata.schema().fields().len()];
        for (leaf, column) in schema.columns().iter().enumerate() {
            if let Some(kind) = kinds.get_mut(schema.get_column_root_idx(leaf)) {
                *kind = column.physical_type();
            }
        }
        let largest = kinds.into_iter().map(Largest::of).collect();
        Ok(Self { file: Checked { pages: true, chunks: chunks.into(), largest, ..file }, metadata })
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

    fn bytes(&self, columns: &[usize], rows: &[usize]) -> usize {
        // Every column holds a dictionary, a page of values and the current rows.
        let (mut held, mut most) = (0usize, 0);
        for (&column, &rows) in columns.iter().zip(rows) {
            let Some(largest) = self.file.largest.get(column) else { continue };
            let [stored, values, dictionary] =
                [&largest.stored, &largest.values, &largest.dictionary].map(|bytes| bytes.load(Relaxed));
            let own = values + dictionary + rows;
            held = held.saturating_add(own + COLUMN_BYTES);
            // The next page is read, decompressed and decoded beside what the column holds.
            most = most.max(stored + 2 * own);
        }
        let metadata = self.metadata.metadata().memory_size() + size_of_val(&*self.file.chunks);
        let groups = self.metadata.metadata().row_groups();
        let codecs = groups.iter().flat_map(|group| group.columns()).map(|column| column.compression());
        let zstd = codecs.into_iter().any(|codec| matches!(codec, Compression::ZSTD(_)));
        let decompressor = if zstd { ZSTD_BYTES + most } else { DECOMPRESSOR_BYTES };
        metadata.saturating_add(held).saturating_add(most + decompressor)
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
