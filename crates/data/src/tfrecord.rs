//! TFRecord files, plain and gzip.

mod reader;

use crate::example::Layout;
use crate::files::{Files, failed, length};
use crate::marks::Marks;
use crate::{DataError, Pipeline, Record, Schema, Source, Stream, Streamed, budget::zeroed};
use reader::{BUFFER, FOOTER, HEADER, Reader, announced, check_sum, origin};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a record is: its file, and its place there.
const FILE_SHIFT: u32 = 40;
const MOST_FILES: usize = 1 << 14;
/// Compressed files that are read in turns.
const IN_TURNS: usize = 4;
/// What the decompressor of one file takes: its window and tables.
const INFLATE: usize = 48 << 10;

/// The records of TFRecord files as tf.train.Examples: the bytes of a picture, or all features of numbers as one input, and
/// the label (`label` names it; `image/class/label`, `label`, `labels`, `y` or `target` are known). The sums of lengths and
/// of records are checked.
///
/// Plain files give their records in any order: a first pass finds where they start and keeps at most half a MiB of places.
/// Compressed ones are a stream, four files in turns. Without `classes` the first pass looks at every label.
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
    if paths.len() > MOST_FILES {
        let reason = format!("{} files; at most {MOST_FILES}", paths.len());
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
    let (mut marks, mut longest, mut most) = (Marks::new(), 0, -1);
    let mut layout: Option<Layout> = None;
    let (mut record, mut bad) = (Vec::new(), None);
    for (file, length) in lengths.iter().enumerate() {
        let mut reader = Reader::open(&files, file, *length)?;
        while let Some((place, size)) = reader.header(&files)? {
            // Only labels are looked for, so that the bytes are skipped where classes are known.
            let look = layout.as_ref().is_none_or(|layout| classes.is_none() && !layout.values);
            if look {
                if record.len() < size {
                    drop(std::mem::take(&mut record));
                    record = zeroed("a record", size.next_power_of_two() as u64)?;
                }
                match reader.body(&files, place, &mut record[..size]) {
                    Err(error @ (DataError::Read { .. } | DataError::Truncated { .. })) => return Err(error),
                    // A bad record shows when it is used.
                    Err(error) => bad = bad.or(Some(error)),
                    Ok(()) => {
                        if layout.is_none() {
                            let found = Layout::of(&record[..size], label);
                            layout = Some(found.map_err(|e| e.of(|| origin(&files, file, place)))?);
                        }
                        most = most.max(layout.as_ref().map_or(-1, |layout| layout.class(&record[..size])));
                    }
                }
            } else {
                reader.skip(&files, size)?;
            }
            longest = longest.max(size);
            marks.push((file as u64) << FILE_SHIFT | place);
        }
    }
    let Some(layout) = layout else {
        let empty = || DataError::Empty { what: format!("`{}`", files.path(0).display()) };
        return Err(bad.unwrap_or_else(empty));
    };
    let classes = classes.unwrap_or((most + 1).max(1) as usize);
    let schema = layout.schema(longest, classes);
    let count = marks.len();
    let found = Found { files, lengths, layout, schema, longest, classes };
    if zipped {
        return Ok(Pipeline::stream(Zipped { found: Arc::new(found) }).counted(count));
    }
    Ok(Pipeline::new(Plain { found, marks: marks.finish() }))
}

fn is_gzip(path: &std::path::Path) -> Result<bool, DataError> {
    let mut start = [0; 2];
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    let read = file.read(&mut start).map_err(|e| failed(path, e))?;
    Ok(read == 2 && start == [0x1f, 0x8b])
}

/// What the first pass found.
struct Found {
    files: Files,
    lengths: Vec<u64>,
    layout: Layout,
    schema: Schema,
    longest: usize,
    classes: usize,
}

impl Found {
    fn bytes(&self) -> usize {
        self.files.bytes() + self.lengths.capacity() * 8
    }
}

/// Records of plain files, by their index.
struct Plain {
    found: Found,
    marks: Marks,
}

impl Plain {
    /// File, place and length of a record.
    fn find(&self, index: usize) -> Result<(usize, u64, usize), DataError> {
        let files = &self.found.files;
        let (place, mut skip) = self.marks.find(index);
        let (mut file, mut at) = ((place >> FILE_SHIFT) as usize, place & ((1 << FILE_SHIFT) - 1));
        loop {
            while at >= self.found.lengths[file] && file + 1 < self.found.lengths.len() {
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
        &self.found.schema
    }

    fn len(&self) -> usize {
        self.marks.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let Found { files, layout, longest, classes, .. } = &self.found;
        let (file, place, size) = self.find(index)?;
        if size > *longest {
            let (found, cap) = (size as u64, *longest as u64);
            let over = DataError::OverCap { what: "bytes: the file has changed and a record", found, cap };
            return Err(over.of(|| origin(files, file, place)));
        }
        let bytes = &mut scratch[..size + FOOTER];
        files.read_at(file, bytes, place + HEADER as u64)?;
        let (example, sum) = bytes.split_at(size);
        check_sum(example, [sum[0], sum[1], sum[2], sum[3]])
            .and_then(|()| layout.write(example, *classes, record))
            .map_err(|e| e.of(|| origin(files, file, place)))
    }

    fn resident_bytes(&self) -> usize {
        self.found.bytes() + self.marks.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.found.longest + FOOTER
    }

    fn origin(&self, index: usize, _: u64) -> String {
        match self.find(index) {
            Ok((file, place, _)) => origin(&self.found.files, file, place),
            Err(_) => format!("record {index}"),
        }
    }
}

/// Records of files of which some are compressed, one after another.
struct Zipped {
    found: Arc<Found>,
}

struct Unzipped {
    found: Arc<Found>,
    open: Vec<Reader>,
    turn: usize,
    next_file: usize,
}

impl Streamed for Zipped {
    fn schema(&self) -> &Schema {
        &self.found.schema
    }

    fn start(&self, _: u64) -> Result<Box<dyn Stream>, DataError> {
        let open = Vec::with_capacity(IN_TURNS);
        Ok(Box::new(Unzipped { found: self.found.clone(), open, turn: 0, next_file: 0 }))
    }

    fn resident_bytes(&self) -> usize {
        let open = IN_TURNS.min(self.found.files.count()) * (BUFFER + INFLATE + size_of::<Reader>());
        self.found.bytes() + open
    }

    fn scratch_bytes(&self) -> usize {
        self.found.longest
    }

    fn origin(&self, place: u64) -> String {
        origin(&self.found.files, (place >> FILE_SHIFT) as usize, place & ((1 << FILE_SHIFT) - 1))
    }
}

impl Stream for Unzipped {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        let Found { files, lengths, layout, longest, classes, .. } = &*self.found;
        loop {
            while self.open.len() < IN_TURNS && self.next_file < files.count() {
                self.next_file += 1;
                self.open.push(Reader::open(files, self.next_file - 1, lengths[self.next_file - 1])?);
            }
            if self.open.is_empty() {
                return Ok(false);
            }
            self.turn %= self.open.len();
            let reader = &mut self.open[self.turn];
            let header = reader.header(files);
            let Ok(Some((place, size))) = header else {
                // The end of the file, or nothing more can be read of it.
                self.open.remove(self.turn);
                header?;
                continue;
            };
            record.place.origin = (reader.file as u64) << FILE_SHIFT | place;
            let file = reader.file;
            if size > *longest {
                self.open.remove(self.turn);
                let (found, cap) = (size as u64, *longest as u64);
                let over =
                    DataError::OverCap { what: "bytes: the file has changed and a record", found, cap };
                return Err(over.of(|| origin(files, file, place)));
            }
            let whole = reader.body(files, place, &mut scratch[..size]);
            if let Err(DataError::Read { .. } | DataError::Truncated { .. }) = whole {
                self.open.remove(self.turn);
            } else {
                self.turn += 1;
            }
            whole?;
            layout
                .write(&scratch[..size], *classes, record)
                .map_err(|e| e.of(|| origin(files, file, place)))?;
            return Ok(true);
        }
    }
}
