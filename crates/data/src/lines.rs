//! Rows of a file of comma-separated values, in any order.

use crate::DataError;
use crate::files::{Files, length};
use crate::marks::Marks;
use csv_core::{ReadRecordResult, Reader};
use std::path::Path;

/// The longest row.
const MOST_ROW_BYTES: usize = 1 << 20;
/// The most columns.
const MOST_FIELDS: usize = 1 << 16;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 16;

/// A file of which every row is found by its number.
#[derive(Debug)]
pub(crate) struct Lines {
    files: Files,
    marks: Marks,
    /// Bytes of the longest row, with its line end, and fields of each.
    longest: usize,
    fields: usize,
    separator: u8,
    end: u64,
}

/// One row at a time, from a place of the file on, in buffers that are lent.
struct Rows<'a> {
    files: &'a Files,
    core: Reader,
    input: &'a mut [u8],
    /// What of the input is there and not used.
    from: usize,
    to: usize,
    /// Where in the file the input goes on.
    at: u64,
    end: u64,
}

/// A row: its text, and where its fields end in it.
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

impl<'a> Rows<'a> {
    fn new(files: &'a Files, separator: u8, at: u64, end: u64, input: &'a mut [u8]) -> Self {
        let core = csv_core::ReaderBuilder::new().delimiter(separator).build();
        Self { files, core, input, from: 0, to: 0, at, end }
    }

    /// Where the next row starts, or empty lines before it.
    fn place(&self) -> u64 {
        self.at - (self.to - self.from) as u64
    }

    /// Reads on, if all input is used.
    fn fill(&mut self) -> Result<(), DataError> {
        if self.from == self.to && self.at < self.end {
            let bytes = (self.end - self.at).min(self.input.len() as u64) as usize;
            self.files.read_at(0, &mut self.input[..bytes], self.at)?;
            (self.from, self.to, self.at) = (0, bytes, self.at + bytes as u64);
        }
        Ok(())
    }

    /// The line of the next row: empty ones before it count, and what is left of the end of the last.
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
        let start = self.place();
        loop {
            self.fill()?;
            let input = &self.input[self.from..self.to];
            let (result, read, wrote, ends_now) =
                self.core.read_record(input, &mut output[written..], &mut ends[ended..]);
            self.from += read;
            // Its ends count from the start of the row.
            (written, ended) = (written + wrote, ended + ends_now);
            let over = match result {
                ReadRecordResult::InputEmpty if self.place() - start > MOST_ROW_BYTES as u64 => {
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
            let found = if over.starts_with('b') { self.place() - start } else { cap + 1 };
            return Err(DataError::OverCap { what: over, found, cap }
                .of(|| format!("`{}` at byte {start}", self.files.path(0).display())));
        }
    }
}

impl Lines {
    /// Goes over a file once, with tabs between fields if it is called `.tsv`: the names of the columns go to one closure,
    /// every row with its line to another, which may find it wrong.
    pub fn open<T>(
        path: &Path,
        header: impl FnOnce(Vec<String>) -> Result<T, DataError>,
        mut each: impl FnMut(&mut T, &Row<'_>) -> Result<(), String>,
    ) -> Result<(Self, T), DataError> {
        let end = length(path)?;
        let separator = if path.extension().is_some_and(|e| e == "tsv") { b'\t' } else { b',' };
        let shown = path.display().to_string();
        let files = Files::new(vec![path.to_path_buf()]);
        let (mut input, mut output) = (vec![0; PIECE], vec![0; MOST_ROW_BYTES]);
        let mut ends = vec![0; MOST_FIELDS];
        let mut rows = Rows::new(&files, separator, 0, end, &mut input);
        let Some(first) = rows.next(&mut output, &mut ends)? else {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        };
        let fields = first.ends.len();
        let names =
            (0..fields).map(|i| std::str::from_utf8(first.field(i)).map(|name| name.trim().to_string()));
        let names = names.collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|_| corrupt(&shown, 1, "the header is not UTF-8".into()))?;
        let mut seen = header(names)?;
        let (mut marks, mut longest) = (Marks::new(), 0);
        loop {
            let (place, line) = (rows.place(), rows.line()?);
            let Some(row) = rows.next(&mut output, &mut ends)? else { break };
            if row.ends.len() != fields {
                let reason =
                    format!("{} fields, the header has {fields}; complete or remove it", row.ends.len());
                return Err(corrupt(&shown, line, reason));
            }
            each(&mut seen, &row).map_err(|reason| corrupt(&shown, line, reason))?;
            longest = longest.max((rows.place() - place) as usize);
            marks.push(place);
        }
        if marks.len() == 0 {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        }
        Ok((Self { files, marks: marks.finish(), longest, fields, separator, end }, seen))
    }

    pub fn len(&self) -> usize {
        self.marks.len()
    }

    pub fn path(&self) -> &Path {
        self.files.path(0)
    }

    /// Reads a row, and gives it to a closure. What is wrong now was not when the file was opened.
    pub fn row<T>(
        &self,
        index: usize,
        scratch: &mut [u8],
        read: impl FnOnce(&Row<'_>) -> Result<T, String>,
    ) -> Result<T, DataError> {
        let (place, skip) = self.marks.find(index);
        let (input, rest) = scratch.split_at_mut(self.piece());
        let (output, rest) = rest.split_at_mut(self.longest + 1);
        let ends = words(rest, self.fields + 1)?;
        // No more is read than rows up to this one may take.
        let bytes = self.longest.saturating_mul(skip + 1).clamp(1, input.len());
        let mut rows = Rows::new(&self.files, self.separator, place, self.end, &mut input[..bytes]);
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

    /// Bytes that are read at a time: about what lies between two places that are known.
    fn piece(&self) -> usize {
        self.longest.saturating_mul(self.marks.every()).clamp(1, PIECE)
    }

    pub fn bytes(&self) -> usize {
        self.files.bytes() + self.marks.bytes()
    }

    pub fn scratch_bytes(&self) -> usize {
        self.piece() + self.longest + 1 + (self.fields + 2) * size_of::<usize>()
    }
}

fn corrupt(shown: &str, line: u64, reason: String) -> DataError {
    let origin = format!("`{shown}`, line {line}");
    DataError::item(origin, DataError::Corrupt { reason })
}

/// Room for so many words in bytes that may start anywhere.
fn words(bytes: &mut [u8], count: usize) -> Result<&mut [usize], DataError> {
    let skip = bytes.as_ptr().align_offset(align_of::<usize>());
    let bytes = bytes.get_mut(skip..skip.saturating_add(count * size_of::<usize>()));
    let words = bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok());
    words.ok_or_else(|| DataError::Buffer { what: "the scratch".into(), expected: count, found: 0 })
}
