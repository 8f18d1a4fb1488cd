//! `tfrecord:GLOB`: TFRecord files, plain and gzip.

mod example;
mod reader;

use super::shared::decoding::images;
use super::shared::files::{Files, failed, is_test_file, length, matching};
use super::shared::sparse_index::SparseIndex;
use super::shared::{normalised, split};
use crate::core::budget::zeroed;
use crate::{
    DataError, Dataset, ImageOptions, Kind, OpenOptions, Pipeline, Record, Schema, Source, Stream, Streamed,
};
use example::Layout;
pub use reader::tfrecord_checksum;
use reader::{BUFFER, FOOTER, HEADER, Reader, announced, check_sum, origin};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// A record's position is its file's index above this bit, and its offset there below it.
const FILE_SHIFT: u32 = 40;
const MAX_FILES: usize = 1 << 14;
/// Compressed files read round-robin.
const INTERLEAVED: usize = 4;
/// Heap of a file's decompressor: its window and tables.
const INFLATE: usize = 48 << 10;

/// Opens TFRecord files of pictures or of numbers. Files named `test` or `val` are the test part.
pub(super) fn open(spec: &str, pattern: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let label = options.table.label.as_deref();
    let open = |paths: Vec<PathBuf>, classes| tf_records(paths, label, classes);
    let (test, train): (Vec<_>, Vec<_>) =
        matching("tfrecord", pattern)?.into_iter().partition(|path| is_test_file(path));
    let (train, test) = if train.is_empty() || test.is_empty() {
        (open(train.into_iter().chain(test).collect(), options.classes)?, None)
    } else {
        let parts = (open(train.clone(), options.classes)?, open(test.clone(), options.classes)?);
        match (parts.0.schema().classes(), parts.1.schema().classes()) {
            // Both parts get the classes of either; with known classes no second pass over the labels is needed.
            (Some(a), Some(b)) if a != b => (open(train, Some(a.max(b)))?, Some(open(test, Some(a.max(b)))?)),
            _ => (parts.0, Some(parts.1)),
        }
    };
    let is_image = matches!(train.schema().columns()[0].kind, Kind::Bytes { .. });
    if !is_image {
        let ImageOptions { augment, most_pixels, .. } = options.images;
        let given = [("augment", augment), ("max_pixels", most_pixels.is_some())];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            let reason = format!("`{spec}` holds numbers, not pictures; leave it out");
            return Err(DataError::Option { option, reason });
        }
        return normalised(spec, train, test, options);
    }
    let (train, test) = split(spec, train, test)?;
    images(spec, train, test, options)
}

/// The records of TFRecord files as tf.train.Examples: the bytes of a picture, or all features of numbers as one input, and
/// the label (`label` names it; without it `image/class/label`, `label`, `labels`, `y` or `target`). The checksums of
/// lengths and of records are verified.
///
/// Records of plain files are read in any order: a first pass finds their offsets and keeps at most half a MiB of them.
/// Compressed files are a stream, four files interleaved. Without `classes` the first pass reads every label.
///
/// ```no_run
/// use plimsoll_data::tf_records;
/// let flowers = tf_records(vec!["flowers-00.tfrecord".into()], None, None)?;
/// println!("{:?} records of {}", flowers.len(), flowers.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn tf_records(
    paths: Vec<PathBuf>,
    label: Option<&str>,
    classes: Option<usize>,
) -> Result<Pipeline, DataError> {
    if paths.len() > MAX_FILES {
        let reason = format!("{} files; at most {MAX_FILES}", paths.len());
        return Err(DataError::Option { option: "tfrecord", reason });
    }
    let lengths = paths.iter().map(|path| length(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some((found, path)) = lengths.iter().zip(&paths).find(|(bytes, _)| **bytes >= 1 << FILE_SHIFT) {
        let over = DataError::OverCap { what: "bytes: a file", found: *found, cap: (1 << FILE_SHIFT) - 1 };
        return Err(over.of(|| format!("`{}`", path.display())));
    }
    let mut zipped = false;
    for path in &paths {
        zipped |= is_gzip(path)?;
    }
    let files = Files::new(paths);
    let (mut offsets, mut longest, mut most) = (SparseIndex::new(), 0, -1);
    let mut layout: Option<Layout> = None;
    let (mut record, mut bad) = (Vec::new(), None);
    for (file, length) in lengths.iter().enumerate() {
        let mut reader = Reader::open(&files, file, *length)?;
        while let Some((offset, size)) = reader.header(&files)? {
            // Only labels matter here, so records are skipped where the classes are known.
            let parse = layout.as_ref().is_none_or(|layout| classes.is_none() && !layout.values);
            if parse {
                if record.len() < size {
                    drop(std::mem::take(&mut record));
                    record = zeroed("a record", size.next_power_of_two() as u64)?;
                }
                match reader.body(&files, offset, &mut record[..size]) {
                    Err(error @ (DataError::Read { .. } | DataError::Truncated { .. })) => return Err(error),
                    // A bad record is an error when it is used.
                    Err(error) => bad = bad.or(Some(error)),
                    Ok(()) => {
                        if layout.is_none() {
                            let found = Layout::of(&record[..size], label);
                            layout = Some(found.map_err(|e| e.of(|| origin(&files, file, offset)))?);
                        }
                        most = most.max(layout.as_ref().map_or(-1, |layout| layout.class(&record[..size])));
                    }
                }
            } else {
                reader.skip(&files, size)?;
            }
            longest = longest.max(size);
            offsets.push((file as u64) << FILE_SHIFT | offset);
        }
    }
    let Some(layout) = layout else {
        let empty = || DataError::Empty { what: format!("`{}`", files.path(0).display()) };
        return Err(bad.unwrap_or_else(empty));
    };
    let classes = classes.unwrap_or((most + 1).max(1) as usize);
    let schema = layout.schema(longest, classes);
    let count = offsets.len();
    let records = Records { files, lengths, layout, schema, longest, classes };
    if zipped {
        return Ok(Pipeline::stream(Zipped { records: Arc::new(records) }).counted(count));
    }
    Ok(Pipeline::new(Plain { records, offsets: offsets.finish() }))
}

fn is_gzip(path: &std::path::Path) -> Result<bool, DataError> {
    let mut start = [0; 2];
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    let read = file.read(&mut start).map_err(|e| failed(path, e))?;
    Ok(read == 2 && start == [0x1f, 0x8b])
}

/// What the first pass learned about the records.
struct Records {
    files: Files,
    lengths: Vec<u64>,
    layout: Layout,
    schema: Schema,
    longest: usize,
    classes: usize,
}

impl Records {
    fn bytes(&self) -> usize {
        self.files.bytes() + self.lengths.capacity() * 8
    }
}

/// Records of plain files, by index.
struct Plain {
    records: Records,
    offsets: SparseIndex,
}

impl Plain {
    /// File, offset and length of a record.
    fn find(&self, index: usize) -> Result<(usize, u64, usize), DataError> {
        let files = &self.records.files;
        let (position, mut skip) = self.offsets.find(index);
        let (mut file, mut at) = ((position >> FILE_SHIFT) as usize, position & ((1 << FILE_SHIFT) - 1));
        loop {
            while at >= self.records.lengths[file] && file + 1 < self.records.lengths.len() {
                (file, at) = (file + 1, 0);
            }
            let mut header = [0; HEADER];
            files.read_at(file, &mut header, at)?;
            let size = announced(&header).map_err(|e| e.of(|| origin(files, file, at)))?;
            if skip == 0 {
                return Ok((file, at, size as usize));
            }
            (skip, at) = (skip - 1, at + size + (HEADER + FOOTER) as u64);
        }
    }
}

impl Source for Plain {
    fn schema(&self) -> &Schema {
        &self.records.schema
    }

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let Records { files, layout, longest, classes, .. } = &self.records;
        let (file, offset, size) = self.find(index)?;
        if size > *longest {
            let (found, cap) = (size as u64, *longest as u64);
            let over = DataError::OverCap { what: "bytes: the file has changed and a record", found, cap };
            return Err(over.of(|| origin(files, file, offset)));
        }
        let bytes = &mut scratch[..size + FOOTER];
        files.read_at(file, bytes, offset + HEADER as u64)?;
        let (example, checksum) = bytes.split_at(size);
        check_sum(example, [checksum[0], checksum[1], checksum[2], checksum[3]])
            .and_then(|()| layout.write(example, *classes, record))
            .map_err(|e| e.of(|| origin(files, file, offset)))
    }

    fn resident_bytes(&self) -> usize {
        self.records.bytes() + self.offsets.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.records.longest + FOOTER
    }

    fn origin(&self, index: usize, _: u64) -> String {
        match self.find(index) {
            Ok((file, offset, _)) => origin(&self.records.files, file, offset),
            Err(_) => format!("record {index}"),
        }
    }
}

/// Records of files of which some are compressed, as a stream.
struct Zipped {
    records: Arc<Records>,
}

struct ZippedStream {
    records: Arc<Records>,
    open: Vec<Reader>,
    /// Index of the reader to use next.
    next_reader: usize,
    next_file: usize,
}

impl Streamed for Zipped {
    fn schema(&self) -> &Schema {
        &self.records.schema
    }

    fn start(&self, _: u64) -> Result<Box<dyn Stream>, DataError> {
        let open = Vec::with_capacity(INTERLEAVED);
        Ok(Box::new(ZippedStream { records: self.records.clone(), open, next_reader: 0, next_file: 0 }))
    }

    fn resident_bytes(&self) -> usize {
        let open = INTERLEAVED.min(self.records.files.count()) * (BUFFER + INFLATE + size_of::<Reader>());
        self.records.bytes() + open
    }

    fn scratch_bytes(&self) -> usize {
        self.records.longest
    }

    fn origin(&self, position: u64) -> String {
        origin(&self.records.files, (position >> FILE_SHIFT) as usize, position & ((1 << FILE_SHIFT) - 1))
    }
}

impl Stream for ZippedStream {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        let Records { files, lengths, layout, longest, classes, .. } = &*self.records;
        loop {
            while self.open.len() < INTERLEAVED && self.next_file < files.count() {
                self.next_file += 1;
                self.open.push(Reader::open(files, self.next_file - 1, lengths[self.next_file - 1])?);
            }
            if self.open.is_empty() {
                return Ok(false);
            }
            self.next_reader %= self.open.len();
            let reader = &mut self.open[self.next_reader];
            let header = reader.header(files);
            let Ok(Some((offset, size))) = header else {
                // The end of the file, or an error after which its next record cannot be found.
                self.open.remove(self.next_reader);
                header?;
                continue;
            };
            record.place.origin = (reader.file as u64) << FILE_SHIFT | offset;
            let file = reader.file;
            if size > *longest {
                self.open.remove(self.next_reader);
                let (found, cap) = (size as u64, *longest as u64);
                let over =
                    DataError::OverCap { what: "bytes: the file has changed and a record", found, cap };
                return Err(over.of(|| origin(files, file, offset)));
            }
            let whole = reader.body(files, offset, &mut scratch[..size]);
            if let Err(DataError::Read { .. } | DataError::Truncated { .. }) = whole {
                self.open.remove(self.next_reader);
            } else {
                self.next_reader += 1;
            }
            whole?;
            layout
                .write(&scratch[..size], *classes, record)
                .map_err(|e| e.of(|| origin(files, file, offset)))?;
            return Ok(true);
        }
    }
}
