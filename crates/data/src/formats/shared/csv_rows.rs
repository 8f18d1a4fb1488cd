//! Random access to the rows of a file of comma-separated values.

use super::files::{Files, length};
use super::sparse_index::SparseIndex;
use crate::DataError;
use csv_core::{ReadRecordResult, Reader};
use std::path::Path;

/// The longest row.
const MAX_ROW_BYTES: usize = 1 << 20;
/// The most columns.
const MAX_FIELDS: usize = 1 << 16;
/// The most bytes read at a time.
const CHUNK: usize = 1 << 16;

/// A file whose rows are read by index.
#[derive(Debug)]
pub(crate) struct CsvRows {
    files: Files,
    offsets: SparseIndex,
    /// Bytes of the longest row, with its line end, and fields of each row.
    longest: usize,
    fields: usize,
    separator: u8,
    end: u64,
}

/// Reads one row at a time from an offset on, into borrowed buffers.
struct RowReader<'a> {
    files: &'a Files,
    core: Reader,
    input: &'a mut [u8],
    /// The unread part of the input.
    from: usize,
    to: usize,
    /// Offset in the file after the input.
    at: u64,
    end: u64,
}

/// A row: its text, and the ends of its fields.
pub(crate) struct Row<'a> {
    text: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Row<'a> {
    pub fn fields(&self) -> usize {
        self.ends.len()
    }

    pub fn field(&self, i: usize) -> &'a [u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.text[start..self.ends[i]]
    }
}

impl<'a> RowReader<'a> {
    fn new(files: &'a Files, separator: u8, at: u64, end: u64, input: &'a mut [u8]) -> Self {
        let core = csv_core::ReaderBuilder::new().delimiter(separator).build();
        Self { files, core, input, from: 0, to: 0, at, end }
    }

    /// Offset of the next row, or of empty lines before it.
    fn offset(&self) -> u64 {
        self.at - (self.to - self.from) as u64
    }

    /// Reads the next chunk, if the input is consumed.
    fn fill(&mut self) -> Result<(), DataError> {
        if self.from == self.to && self.at < self.end {
            let bytes = (self.end - self.at).min(self.input.len() as u64) as usize;
            self.files.read_at(0, &mut self.input[..bytes], self.at)?;
            (self.from, self.to, self.at) = (0, bytes, self.at + bytes as u64);
        }
        Ok(())
    }

    /// Line number of the next row, after empty lines and the rest of the last line end.
    fn line(&mut self) -> Result<u64, DataError> {
        self.fill()?;
        let input = &self.input[self.from..self.to];
        let before = input.iter().take_while(|byte| [b'\r', b'\n'].contains(byte));
        Ok(self.core.line() + before.filter(|byte| **byte == b'\n').count() as u64)
    }

    /// The next row into `output` and `ends`; `None` at the end.
    fn next<'o>(
        &mut self,
        output: &'o mut [u8],
        ends: &'o mut [usize],
    ) -> Result<Option<Row<'o>>, DataError> {
        let (mut written, mut ended) = (0, 0);
        let start = self.offset();
        loop {
            self.fill()?;
            let input = &self.input[self.from..self.to];
            let (result, read, wrote, ends_now) =
                self.core.read_record(input, &mut output[written..], &mut ends[ended..]);
            self.from += read;
            // csv-core counts ends from the start of the row.
            (written, ended) = (written + wrote, ended + ends_now);
            let over = match result {
                ReadRecordResult::InputEmpty if self.offset() - start > MAX_ROW_BYTES as u64 => {
                    "bytes: a row"
                }
                ReadRecordResult::InputEmpty => continue,
                ReadRecordResult::OutputFull => "bytes: a row",
                ReadRecordResult::OutputEndsFull => "fields: a row",
                ReadRecordResult::End => return Ok(None),
                ReadRecordResult::Record => {
                    return Ok(Some(Row { text: &output[..written], ends: &ends[..ended] }));
                }
            };
            let cap = if over.starts_with('b') { output.len() } else { ends.len() } as u64;
            let found = if over.starts_with('b') { self.offset() - start } else { cap + 1 };
            return Err(DataError::OverCap { what: over, found, cap }
                .of(|| format!("`{}` at byte {start}", self.files.path(0).display())));
        }
    }
}

impl CsvRows {
    /// Reads a file once, with tabs between fields if its name ends in `.tsv`. `header` gets the names of the columns, `each`
    /// every row; `each` may refuse a row, and the error names its line.
    pub fn open<T>(
        path: &Path,
        header: impl FnOnce(Vec<String>) -> Result<T, DataError>,
        mut each: impl FnMut(&mut T, &Row<'_>) -> Result<(), String>,
    ) -> Result<(Self, T), DataError> {
        let end = length(path)?;
        let separator = if path.extension().is_some_and(|e| e == "tsv") { b'\t' } else { b',' };
        let shown = path.display().to_string();
        let files = Files::new(vec![path.to_path_buf()]);
        let (mut input, mut output) = (vec![0; CHUNK], vec![0; MAX_ROW_BYTES]);
        let mut ends = vec![0; MAX_FIELDS];
        let mut rows = RowReader::new(&files, separator, 0, end, &mut input);
        let Some(first) = rows.next(&mut output, &mut ends)? else {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        };
        let fields = first.ends.len();
        let names =
            (0..fields).map(|i| std::str::from_utf8(first.field(i)).map(|name| name.trim().to_string()));
        let names = names.collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|_| corrupt(&shown, 1, "the header is not UTF-8".into()))?;
        let mut seen = header(names)?;
        let (mut offsets, mut longest) = (SparseIndex::new(), 0);
        loop {
            let (offset, line) = (rows.offset(), rows.line()?);
            let Some(row) = rows.next(&mut output, &mut ends)? else { break };
            if row.ends.len() != fields {
                let reason =
                    format!("{} fields, the header has {fields}; complete or remove it", row.ends.len());
                return Err(corrupt(&shown, line, reason));
            }
            each(&mut seen, &row).map_err(|reason| corrupt(&shown, line, reason))?;
            longest = longest.max((rows.offset() - offset) as usize);
            offsets.push(offset);
        }
        if offsets.len() == 0 {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        }
        Ok((Self { files, offsets: offsets.finish(), longest, fields, separator, end }, seen))
    }

    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    pub fn path(&self) -> &Path {
        self.files.path(0)
    }

    /// Reads a row and passes it to a closure. The first pass accepted all rows, so an error here means that the file changed.
    pub fn row<T>(
        &self,
        index: usize,
        scratch: &mut [u8],
        read: impl FnOnce(&Row<'_>) -> Result<T, String>,
    ) -> Result<T, DataError> {
        let (offset, skip) = self.offsets.find(index);
        let (input, rest) = scratch.split_at_mut(self.chunk());
        let (output, rest) = rest.split_at_mut(self.longest + 1);
        let ends = words(rest, self.fields + 1)?;
        // Reads no more than the rows up to this one may take.
        let bytes = self.longest.saturating_mul(skip + 1).clamp(1, input.len());
        let mut rows = RowReader::new(&self.files, self.separator, offset, self.end, &mut input[..bytes]);
        for _ in 0..skip {
            rows.next(output, ends)?;
        }
        let changed =
            |reason: String| DataError::Corrupt { reason: format!("{reason}; the file has changed") };
        let row = rows.next(output, ends)?.ok_or_else(|| changed("there is no such row".into()))?;
        if row.ends.len() != self.fields {
            return Err(changed(format!("{} fields instead of {}", row.ends.len(), self.fields)));
        }
        read(&row).map_err(changed)
    }

    /// Bytes read at a time: about what lies between two known offsets.
    fn chunk(&self) -> usize {
        self.longest.saturating_mul(self.offsets.stride()).clamp(1, CHUNK)
    }

    pub fn bytes(&self) -> usize {
        self.files.bytes() + self.offsets.bytes()
    }

    pub fn scratch_bytes(&self) -> usize {
        self.chunk() + self.longest + 1 + (self.fields + 2) * size_of::<usize>()
    }
}

fn corrupt(shown: &str, line: u64, reason: String) -> DataError {
    let origin = format!("`{shown}`, line {line}");
    DataError::item(origin, DataError::Corrupt { reason })
}

/// `count` words in a buffer of any alignment.
fn words(bytes: &mut [u8], count: usize) -> Result<&mut [usize], DataError> {
    let skip = bytes.as_ptr().align_offset(align_of::<usize>());
    let bytes = bytes.get_mut(skip..skip.saturating_add(count * size_of::<usize>()));
    let words = bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok());
    words.ok_or_else(|| DataError::Buffer { what: "the scratch".into(), expected: count, found: 0 })
}
