//! `parquet:FILE`: tables in Parquet and Arrow files.

mod arrow;
mod pages;

use super::shared::files::{failed, length};
use super::shared::normalised;
use super::shared::table_encoder::{Cell, TableEncoder};
use crate::core::file_io::read_at;
use crate::core::guard::guarded;
use crate::{DataError, Dataset, OpenOptions, Pipeline, Record, Schema, Stream, Streamed, TableOptions};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows decoded at a time.
const ROWS: usize = 256;

pub(super) fn open(spec: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    normalised(spec, columnar(file, &options.table)?, None, options)
}

/// The rows of a Parquet or Arrow file: one input of all features, and the label, as for [`crate::Csv`].
///
/// The rows are a stream: one page of each column in use is in memory at a time, of an Arrow file one batch. A first pass
/// finds the words and the largest page, which determine the stated memory.
///
/// ```no_run
/// use plimsoll_data::{TableOptions, columnar};
/// let houses = columnar("houses.parquet", &TableOptions::default())?;
/// println!("{:?} rows of {}", houses.len(), houses.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn columnar(path: impl AsRef<Path>, options: &TableOptions) -> Result<Pipeline, DataError> {
    let path = path.as_ref();
    length(path)?;
    let (table, rows) = guarded(|| Table::open(path, options))?;
    let preparation = table.encoder.preparation();
    Ok(Pipeline::stream(table).counted(rows).prepared(preparation))
}

/// One pass over the rows of a file, in batches.
trait Batches: Send {
    /// The next rows; `None` at the end.
    fn next(&mut self) -> Option<Result<RecordBatch, String>>;
}

/// A file that can be read from its first row any number of times.
trait Reader: Send + Sync {
    /// Names of the columns.
    fn names(&self) -> Vec<String>;

    /// The rows of these columns.
    fn start(&self, columns: &[usize]) -> Result<Box<dyn Batches>, String>;

    /// The most heap bytes of the file and of reading these columns, whose rows take up to `rows` bytes of memory for each
    /// column; known after one pass.
    fn bytes(&self, columns: &[usize], rows: &[usize]) -> usize;
}

/// A table whose rows are read as a stream.
struct Table {
    path: PathBuf,
    reader: Arc<dyn Reader>,
    encoder: Arc<TableEncoder>,
    /// The columns in use, in the order of the file.
    columns: Vec<usize>,
    /// The most heap bytes of the file and of reading it.
    bytes: usize,
}

fn corrupt(path: &Path, row: u64, reason: String) -> DataError {
    let origin = format!("`{}`: row {row}", path.display());
    DataError::item(origin, DataError::Corrupt { reason })
}

impl Table {
    /// Reads all rows once.
    fn open(path: &Path, options: &TableOptions) -> Result<(Self, usize), DataError> {
        let shown = path.display().to_string();
        let wrong = |reason: String| DataError::Corrupt { reason: format!("`{shown}`: {reason}") };
        let mut magic = [0; 6];
        let file = std::fs::File::open(path).map_err(|e| failed(path, e))?;
        let _ = read_at(&file, &mut magic, 0);
        let reader: Arc<dyn Reader> = match &magic {
            b"ARROW1" => Arc::new(arrow::ArrowFile::open(path).map_err(wrong)?),
            [b'P', b'A', b'R', b'1', ..] => Arc::new(pages::ParquetFile::open(path).map_err(wrong)?),
            _ => return Err(wrong("neither a Parquet nor an Arrow file".into())),
        };
        let mut encoder = TableEncoder::new(reader.names(), options, &shown)?;
        let columns: Vec<usize> = (0..reader.names().len()).filter(|column| encoder.uses(*column)).collect();
        let mut batches = reader.start(&columns).map_err(wrong)?;
        let (mut rows, mut most) = (0, vec![0; columns.len()]);
        while let Some(batch) = batches.next() {
            let batch = batch.map_err(|reason| corrupt(path, rows as u64, reason))?;
            for (most, column) in most.iter_mut().zip(batch.columns()) {
                *most = column.get_array_memory_size().max(*most);
            }
            for row in 0..batch.num_rows() {
                for (i, &column) in columns.iter().enumerate() {
                    let observed = cell(batch.column(i), row).and_then(|cell| encoder.observe(column, cell));
                    observed.map_err(|reason| {
                        corrupt(
                            path,
                            (rows + row) as u64,
                            format!("column `{}`: {reason}", encoder.name(column)),
                        )
                    })?;
                }
            }
            rows += batch.num_rows();
        }
        if rows == 0 {
            return Err(DataError::Empty { what: format!("`{shown}`") });
        }
        encoder.finish(&shown)?;
        let bytes = reader.bytes(&columns, &most);
        Ok((Self { path: path.to_path_buf(), reader, encoder: Arc::new(encoder), columns, bytes }, rows))
    }
}

/// The cell of a column in a row.
fn cell(column: &dyn Array, row: usize) -> Result<Cell<'_>, String> {
    macro_rules! numbers {
        ($($ty:ident => $of:ident, $whole:expr;)*) => {
            match column.data_type() {
                $(DataType::$ty => Cell::Number(column.as_primitive::<$of>().value(row) as f64, $whole),)*
                DataType::Boolean => Cell::Number(f64::from(u8::from(column.as_boolean().value(row))), true),
                DataType::Utf8 => Cell::Word(column.as_string::<i32>().value(row)),
                DataType::LargeUtf8 => Cell::Word(column.as_string::<i64>().value(row)),
                DataType::Utf8View => Cell::Word(column.as_string_view().value(row)),
                other => return Err(format!("holds {other}, neither numbers nor words; leave it out")),
            }
        };
    }
    if row >= column.len() {
        return Err("the column is shorter than the others".into());
    }
    if column.is_null(row) {
        return Err("the cell is empty; fill it, or leave the column out".into());
    }
    Ok(numbers! {
        Int8 => Int8Type, true; Int16 => Int16Type, true; Int32 => Int32Type, true; Int64 => Int64Type, true;
        UInt8 => UInt8Type, true; UInt16 => UInt16Type, true; UInt32 => UInt32Type, true; UInt64 => UInt64Type, true;
        Float32 => Float32Type, false; Float64 => Float64Type, false;
    })
}

struct Rows {
    path: PathBuf,
    encoder: Arc<TableEncoder>,
    columns: Vec<usize>,
    batches: Box<dyn Batches>,
    batch: Option<RecordBatch>,
    row: usize,
    given: u64,
}

impl Streamed for Table {
    fn schema(&self) -> &Schema {
        self.encoder.schema()
    }

    fn start(&self, _: u64) -> Result<Box<dyn Stream>, DataError> {
        let batches = self.reader.start(&self.columns).map_err(|reason| corrupt(&self.path, 0, reason))?;
        let (path, encoder, columns) = (self.path.clone(), self.encoder.clone(), self.columns.clone());
        Ok(Box::new(Rows { path, encoder, columns, batches, batch: None, row: 0, given: 0 }))
    }

    fn resident_bytes(&self) -> usize {
        self.encoder.bytes() + self.bytes
    }

    fn origin(&self, row: u64) -> String {
        format!("`{}`: row {row}", self.path.display())
    }
}

impl Stream for Rows {
    fn next(&mut self, record: &mut Record<'_>, _: &mut [u8]) -> Result<bool, DataError> {
        while self.batch.as_ref().is_none_or(|batch| self.row >= batch.num_rows()) {
            // Frees the last batch before the next is decoded.
            (self.batch, self.row) = (None, 0);
            match self.batches.next() {
                None => return Ok(false),
                Some(batch) => self.batch = Some(batch.map_err(|r| corrupt(&self.path, self.given, r))?),
            }
        }
        let (row, Some(batch)) = (self.row, &self.batch) else { return Ok(false) };
        record.place.origin = self.given;
        (self.row, self.given) = (self.row + 1, self.given + 1);
        for (i, &column) in self.columns.iter().enumerate() {
            let cell =
                if i < batch.num_columns() { cell(batch.column(i), row) } else { Err("is gone".into()) };
            let written = cell.and_then(|cell| self.encoder.write(column, cell, record));
            written.map_err(|reason| {
                let reason =
                    format!("column `{}`: {reason}; the file has changed", self.encoder.name(column));
                corrupt(&self.path, self.given - 1, reason)
            })?;
        }
        Ok(true)
    }
}
