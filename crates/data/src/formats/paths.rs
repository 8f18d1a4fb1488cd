//! `paths:FILE`: a list of image files and their labels.

use super::shared::csv_rows::CsvRows;
use super::shared::decoding::images;
use super::shared::files::failed;
use super::shared::image_files::{MAX_FILE_BYTES, read_file};
use super::shared::split;
use super::shared::table_encoder::{Cell, TableEncoder};
use crate::{DataError, Dataset, OpenOptions, Pipeline, Preparation, Record, Schema, Source, TableOptions};
use std::path::{Path, PathBuf};

pub(super) fn open(spec: &str, list: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let paths = Paths::open(list, &options.table)?;
    let preparation = Preparation::named(paths.classes());
    let (train, test) = split(spec, Pipeline::new(paths).prepared(preparation), None)?;
    images(spec, train, test, options)
}

/// Image files that a table lists: a column of paths, relative to the table's folder, and one of labels. The bytes of a file
/// and its label are a record. Rows are indexed as for [`crate::Csv`], so that memory does not grow with the list.
///
/// ```no_run
/// use plimsoll_data::{Paths, Source, TableOptions};
/// let flowers = Paths::open("flowers.csv", &TableOptions::default())?; // path,label
/// println!("{} files of {}", flowers.len(), flowers.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Paths {
    rows: CsvRows,
    folder: PathBuf,
    encoder: TableEncoder,
    /// The columns of paths and of labels.
    path: usize,
    label: usize,
    schema: Schema,
}

/// The longest path.
const MAX_PATH_BYTES: usize = 4096;

impl Paths {
    /// Reads a list with a header. The label is the column named in the options, or the last; paths are in the one feature
    /// column named, or the first.
    pub fn open(list: impl AsRef<Path>, options: &TableOptions) -> Result<Self, DataError> {
        let list = list.as_ref();
        let shown = list.display().to_string();
        let folder = list.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let header = |names: Vec<String>| {
            if let Some(columns) = options.columns.as_ref().filter(|columns| columns.len() > 1) {
                let reason =
                    format!("`{shown}`: paths are in one column, not in {}; name one", columns.join(", "));
                return Err(DataError::Option { option: "columns", reason });
            }
            let find = |name: &Option<String>, or: usize| {
                name.as_ref().and_then(|name| names.iter().position(|known| known == name)).unwrap_or(or)
            };
            let named = options.columns.as_ref().and_then(|columns| columns.first().cloned());
            let path = find(&named, 0);
            let label = find(&options.label, names.len() - 1);
            let columns = Some(vec![named.unwrap_or_else(|| names[path].clone())]);
            let table = TableOptions { label: options.label.clone(), columns, prepared: None };
            Ok((TableEncoder::new(names, &table, &shown)?, path, label, 0))
        };
        let (rows, (mut encoder, path, label, largest)) =
            CsvRows::open(list, header, |(encoder, path, label, largest), row| {
                let file = file(&folder, row.field(*path))?;
                // A missing file is an error when it is read.
                *largest = std::fs::metadata(file).map_or(0, |file| file.len()).max(*largest);
                let observed = encoder.observe(*label, Cell::Raw(row.field(*label)));
                observed.map_err(|reason| format!("column `{}`: {reason}", encoder.name(*label)))
            })?;
        encoder.finish(&shown)?;
        let schema = Schema::new().bytes("image", largest.min(MAX_FILE_BYTES) as usize);
        let schema = encoder.schema().columns()[1..]
            .iter()
            .fold(schema, |schema, column| schema.column(&column.name, column.kind.clone()));
        Ok(Self { rows, folder, encoder, path, label, schema })
    }

    /// Names of the classes, where labels are words.
    pub fn classes(&self) -> &[String] {
        self.encoder.classes()
    }
}

/// The file of a path in a list.
fn file(folder: &Path, path: &[u8]) -> Result<PathBuf, String> {
    match std::str::from_utf8(path).map(str::trim) {
        Ok(path) if !path.is_empty() && path.len() <= MAX_PATH_BYTES => Ok(folder.join(path)),
        _ => Err("no path of a file, in UTF-8 and shorter than 4096 bytes".into()),
    }
}

impl Source for Paths {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let file = self.rows.row(index, scratch, |row| {
            let written = self.encoder.write(self.label, Cell::Raw(row.field(self.label)), record);
            written.map_err(|reason| format!("column `{}`: {reason}", self.encoder.name(self.label)))?;
            file(&self.folder, row.field(self.path))
        })?;
        let length = std::fs::metadata(&file).map_err(|e| failed(&file, e))?;
        if !length.is_file() {
            let reason = format!("`{}` is not a regular file", file.display());
            return Err(DataError::Corrupt { reason });
        }
        read_file(&file, record, 0).map_err(|e| e.of(|| format!("`{}`", file.display())))
    }

    fn resident_bytes(&self) -> usize {
        self.rows.bytes() + self.encoder.bytes() + self.folder.capacity()
    }

    fn scratch_bytes(&self) -> usize {
        self.rows.scratch_bytes()
    }

    /// The path of the file that is open.
    fn decoder_bytes(&self, readers: usize) -> usize {
        readers.saturating_mul(8 << 10)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        let mut scratch = vec![0; self.scratch_bytes()];
        let found = self.rows.row(index, &mut scratch, |row| file(&self.folder, row.field(self.path)));
        match found {
            Ok(file) => format!("`{}`", file.display()),
            Err(_) => format!("`{}`: row {}", self.rows.path().display(), index + 1),
        }
    }
}
