//! Tables of comma-separated values.

use crate::files::{Files, length};
use crate::marks::Marks;
use crate::table::{Cell, Plan, TableOptions};
use crate::{DataError, Record, Schema, Source, source::check_read};
use csv_core::{ReadRecordResult, Reader};
use std::path::Path;

/// The longest row.
const MOST_ROW_BYTES: usize = 1 << 20;
/// The most columns.
const MOST_FIELDS: usize = 1 << 16;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 16;

/// Rows of a CSV file with a header: one input of all features, and the label. Columns of numbers are features as they are,
/// columns of words with few values are one-hot; a label of words is a class, numbered in the order of the words.
///
/// A first pass finds the types, the words and where rows start; of these places at most half a MiB is kept, so that rows
/// are read in any order and memory does not grow with the file. What stands in the first row says whether a column holds
/// numbers; a row that differs is an error that names line and column.
///
/// ```
/// use plimsoll_data::{Csv, Source, TableOptions};
/// let path = std::env::temp_dir().join(format!("plimsoll-csv-{}.csv", std::process::id()));
/// std::fs::write(&path, "size,colour,kind\n1.5,red,cat\n2,blue,dog\n").unwrap();
/// let pets = Csv::open(&path, &TableOptions::default())?; // the last column is the label
/// assert_eq!(pets.schema().in_words(), "features f32[3], kind i32[]");
/// assert_eq!(pets.classes(), ["cat", "dog"]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Csv {
    files: Files,
    marks: Marks,
    plan: Plan,
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
struct Row<'a> {
    text: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Row<'a> {
    fn field(&self, i: usize) -> &'a [u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.text[start..self.ends[i]]
    }
}

impl<'a> Rows<'a> {
    fn new(files: &'a Files, separator: u8, at: u64, end: u64, line: u64, input: &'a mut [u8]) -> Self {
        let mut core = csv_core::ReaderBuilder::new().delimiter(separator).build();
        core.set_line(line);
        Self { files, core, input, from: 0, to: 0, at, end }
    }

    /// Where the next row starts, or empty lines before it.
    fn place(&self) -> u64 {
        self.at - (self.to - self.from) as u64
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
            if self.from == self.to && self.at < self.end {
                let bytes = (self.end - self.at).min(self.input.len() as u64) as usize;
                self.files.read_at(0, &mut self.input[..bytes], self.at)?;
                (self.from, self.to, self.at) = (0, bytes, self.at + bytes as u64);
            }
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

impl Csv {
    /// Goes over a file once; with tabs between fields if it is called `.tsv`.
    pub fn open(path: impl AsRef<Path>, options: &TableOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let end = length(path)?;
        let separator = if path.extension().is_some_and(|e| e == "tsv") { b'\t' } else { b',' };
        let shown = path.display().to_string();
        let files = Files::new(vec![path.to_path_buf()]);
        let (mut input, mut output) = (vec![0; PIECE], vec![0; MOST_ROW_BYTES]);
        let mut ends = vec![0; MOST_FIELDS];
        let mut rows = Rows::new(&files, separator, 0, end, 1, &mut input);
        let Some(header) = rows.next(&mut output, &mut ends)? else {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        };
        let fields = header.ends.len();
        let names = (0..fields).map(|i| text(header.field(i)).map(|name| name.trim().to_string()));
        let names = names.collect::<Option<Vec<_>>>();
        let names = names.ok_or_else(|| corrupt(&shown, 1, "the header is not UTF-8".into()))?;
        // A byte order mark is no part of a name.
        let names = names.iter().map(|name| name.trim_start_matches('\u{feff}').to_string()).collect();
        let mut plan = Plan::new(names, options, &shown)?;
        let (mut marks, mut longest) = (Marks::new(), 0);
        loop {
            let (place, line) = (rows.place(), rows.core.line());
            let Some(row) = rows.next(&mut output, &mut ends)? else { break };
            if row.ends.len() != fields {
                let reason =
                    format!("{} fields, the header has {fields}; complete or remove it", row.ends.len());
                return Err(corrupt(&shown, line, reason));
            }
            for column in 0..fields {
                let seen = plan.see(column, Cell::Raw(row.field(column)));
                seen.map_err(|reason| {
                    corrupt(&shown, line, format!("column `{}`: {reason}", plan.name(column)))
                })?;
            }
            longest = longest.max((rows.place() - place) as usize);
            marks.push(place);
        }
        if marks.len() == 0 {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        }
        plan.finish(&shown)?;
        Ok(Self { files, marks: marks.finish(), plan, longest, fields, separator, end })
    }

    /// Bytes that are read at a time: about what lies between two places that are known.
    fn piece(&self) -> usize {
        self.longest.saturating_mul(self.marks.every()).clamp(1, PIECE)
    }

    /// Names of the classes, where the label is one.
    pub fn classes(&self) -> &[String] {
        self.plan.classes()
    }

    /// Names of the features.
    pub fn features(&self) -> Vec<String> {
        self.plan.features()
    }
}

/// Room for so many words in bytes that may start anywhere.
fn words(bytes: &mut [u8], count: usize) -> Result<&mut [usize], DataError> {
    let skip = bytes.as_ptr().align_offset(align_of::<usize>());
    let bytes = bytes.get_mut(skip..skip.saturating_add(count * size_of::<usize>()));
    let words = bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok());
    words.ok_or_else(|| DataError::Buffer { what: "the scratch".into(), expected: count, found: 0 })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn corrupt(shown: &str, line: u64, reason: String) -> DataError {
    let origin = format!("`{shown}`, line {line}");
    DataError::Item { origin, reason: Box::new(DataError::Corrupt { reason }) }
}

impl Source for Csv {
    fn schema(&self) -> &Schema {
        self.plan.schema()
    }

    fn len(&self) -> usize {
        self.marks.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let (place, skip) = self.marks.find(index);
        let (input, rest) = scratch.split_at_mut(self.piece());
        let (output, rest) = rest.split_at_mut(self.longest + 1);
        let ends = words(rest, self.fields + 1)?;
        let mut rows = Rows::new(&self.files, self.separator, place, self.end, 1, input);
        for _ in 0..skip {
            rows.next(output, ends)?;
        }
        let changed =
            |reason: String| DataError::Corrupt { reason: format!("{reason}; the file has changed") };
        let row = rows.next(output, ends)?.ok_or_else(|| changed("there is no such row".into()))?;
        if row.ends.len() != self.fields {
            return Err(changed(format!("{} fields instead of {}", row.ends.len(), self.fields)));
        }
        (0..self.fields).try_for_each(|column| {
            let written = self.plan.write(column, Cell::Raw(row.field(column)), record);
            written.map_err(|reason| changed(format!("column `{}`: {reason}", self.plan.name(column))))
        })
    }

    fn resident_bytes(&self) -> usize {
        self.files.bytes() + self.marks.bytes() + self.plan.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.piece() + self.longest + 1 + (self.fields + 2) * size_of::<usize>()
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`: row {}", self.files.path(0).display(), index + 1)
    }
}
