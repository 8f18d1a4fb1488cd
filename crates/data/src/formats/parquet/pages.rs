//! Parquet files, a page at a time.

use super::{Batches, ROWS, Reader};
use crate::core::file_io::read_at;
use arrow_array::RecordBatch;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
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
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest page, and the longest metadata.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// Bytes of a page's header read at a time.
const HEADER_BYTES: usize = 512;
/// Bytes of a page's header with all that is checked: a dozen numbers of at most five bytes.
const SIZES_BYTES: usize = 64;
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
    /// The column chunks in the order of their first bytes.
    chunks: Arc<[Chunk]>,
    /// The largest pages of each column so far.
    largest: Arc<[Largest]>,
    /// The last page whose header was read; its bytes come next. Each reader has its own.
    last: Arc<Mutex<PageSizes>>,
}

/// Where the pages of a column are.
struct Chunk {
    /// Its first byte.
    first: u64,
    column: usize,
    /// Whether pages are gzip streams, which do not say how long they are.
    gzip: bool,
}

/// What the header of a page says, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PageSizes {
    compressed: usize,
    uncompressed: usize,
    /// Values of a dictionary, and 0 for pages of another kind.
    values: usize,
    /// Levels before what is compressed, in pages of the second version.
    levels: usize,
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

impl Checked {
    /// The column chunk of a byte.
    fn chunk(&self, at: u64) -> Option<&Chunk> {
        let chunk = self.chunks.partition_point(|chunk| chunk.first <= at).checked_sub(1)?;
        self.chunks.get(chunk)
    }

    fn last(&self) -> MutexGuard<'_, PageSizes> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The library inflates a gzip stream to its end, however long it is: refuses one that passes the size that its page states.
fn check_gzip(page: &[u8], sizes: PageSizes) -> Result<(), ParquetError> {
    let Some((stream, most)) = page.get(sizes.levels..).zip(sizes.uncompressed.checked_sub(sizes.levels))
    else {
        return Err(wrong("a page's header is damaged"));
    };
    // What is no gzip stream is the library's to refuse.
    let inflated =
        std::io::copy(&mut MultiGzDecoder::new(stream).take(most as u64 + 1), &mut std::io::sink());
    if inflated.is_ok_and(|inflated| inflated > most as u64) {
        return Err(wrong(format!("a gzip page inflates to more than the {most} bytes that it states")));
    }
    Ok(())
}

impl ChunkReader for Checked {
    type T = BufReader<FromOffset>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        if self.pages {
            let mut header = [0; SIZES_BYTES];
            let count = self.length.saturating_sub(start).min(SIZES_BYTES as u64) as usize;
            read_at(&self.file, &mut header[..count], start).map_err(|e| wrong(e.to_string()))?;
            let sizes = sizes(&header[..count]).ok_or_else(|| wrong("a page's header is damaged"))?;
            let PageSizes { compressed, uncompressed, values, .. } = sizes;
            // The library allocates for this many values before it reads them.
            if values > uncompressed {
                return Err(wrong(format!("a dictionary of {values} values in {uncompressed} bytes")));
            }
            if let Some(size) = [compressed, uncompressed].into_iter().find(|size| *size > MAX_PAGE_BYTES) {
                return Err(wrong(format!("a page of {size} bytes; at most {MAX_PAGE_BYTES} may be")));
            }
            let Some(largest) = self.chunk(start).and_then(|chunk| self.largest.get(chunk.column)) else {
                return Err(wrong(format!("a page at byte {start} is of no column")));
            };
            largest.stored.fetch_max(compressed, Relaxed);
            match values {
                0 => largest.values.fetch_max(uncompressed, Relaxed),
                _ => largest.dictionary.fetch_max(uncompressed + values * largest.value_bytes, Relaxed),
            };
            *self.last() = sizes;
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
        if self.pages && self.chunk(start).is_some_and(|chunk| chunk.gzip) {
            check_gzip(&bytes, *self.last())?;
        }
        Ok(bytes.into())
    }
}

/// The sizes of a page, the second and third field of its header, after its kind; then what the header of its kind says of
/// a dictionary's values or of levels. They are checked before the library trusts them.
fn sizes(mut header: &[u8]) -> Option<PageSizes> {
    // The next field, of 32 bits.
    const NEXT: u8 = 0x15;
    // Kinds of pages, whose own headers are the fields 7 and 8, after field 3 or a checksum in field 4.
    const DICTIONARY: usize = 2;
    const SECOND_VERSION: usize = 3;
    // The start of field 7 after field 3; a field further is 0x10 more, and after the checksum it is 0x10 less.
    const AFTER_SIZES: u8 = 0x4c;
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
    let page = PageSizes { compressed, uncompressed, ..PageSizes::default() };
    if kind != DICTIONARY && kind != SECOND_VERSION {
        return Some(page);
    }
    let own = AFTER_SIZES + if kind == DICTIONARY { 0 } else { 0x10 };
    match next(NEXT) {
        Some(_) => next(own - 0x10)?,
        None => next(own)?,
    };
    if kind == DICTIONARY {
        return Some(PageSizes { values: number(next(NEXT)?)?, ..page });
    }
    // Values, nulls, rows and encoding; then the lengths of the two kinds of levels.
    for _ in 0..4 {
        next(NEXT)?;
    }
    let levels = number(next(NEXT)?)?.checked_add(number(next(NEXT)?)?)?;
    Some(PageSizes { levels, ..page })
}

impl ParquetFile {
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let (chunks, largest, last) = (Arc::from([]), Arc::from([]), Arc::default());
        let file = Checked { file: Arc::new(file), length, pages: false, chunks, largest, last };
        let metadata =
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| e.to_string())?;
        let schema = metadata.metadata().file_metadata().schema_descr();
        let mut chunks = Vec::new();
        for group in metadata.metadata().row_groups() {
            let firsts = group.columns().iter().enumerate();
            let firsts = firsts.filter(|(leaf, _)| *leaf < schema.num_columns());
            chunks.extend(firsts.map(|(leaf, chunk)| Chunk {
                first: chunk.byte_range().0,
                column: schema.get_column_root_idx(leaf),
                gzip: matches!(chunk.compression(), Compression::GZIP(_)),
            }));
        }
        chunks.sort_unstable_by_key(|chunk: &Chunk| (chunk.first, chunk.column));
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
        let file = Checked { last: Arc::default(), ..self.file.clone() };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
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
mod tests;
