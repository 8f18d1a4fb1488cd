//! A list of image files and their labels.

use crate::files::failed;
use crate::folder::{MOST_FILE_BYTES, read_file};
use crate::lines::Lines;
use crate::table::{Cell, Plan, TableOptions};
use crate::{DataError, Record, Schema, Source};
use std::path::{Path, PathBuf};

/// Image files that a table lists: a column of paths, from the table's folder on, and one of labels. The bytes of a file and
/// its label are a record; of the list, places are kept as for [`crate::Csv`], so that a million files take no more memory
/// than a thousand.
///
/// ```no_run
/// use plimsoll_data::{Paths, Source, TableOptions};
/// let flowers = Paths::open("flowers.csv", &TableOptions::default())?; // path,label
/// println!("{} files of {}", flowers.len(), flowers.schema().in_words());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Paths {
    lines: Lines,
    folder: PathBuf,
    plan: Plan,
    /// The columns of paths and of labels.
    path: usize,
    label: usize,
    schema: Schema,
}

/// The longest path.
const MOST_PATH_BYTES: usize = 4096;

impl Paths {
    /// Reads a list with a header. The label is the column that the options name, or the last; paths are in the one column
    /// that they name, or the first.
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
            let wish = options.columns.as_ref().and_then(|columns| columns.first().cloned());
            let path = find(&wish, 0);
            let label = find(&options.label, names.len() - 1);
            let columns = Some(vec![wish.unwrap_or_else(|| names[path].clone())]);
            let plan = Plan::new(names, &TableOptions { label: options.label.clone(), columns }, &shown)?;
            Ok((plan, path, label, 0))
        };
        let (lines, (mut plan, path, label, largest)) =
            Lines::open(list, header, |(plan, path, label, largest), row| {
                let file = file(&folder, row.field(*path))?;
                // One that is not there shows when it is read.
                *largest = std::fs::metadata(file).map_or(0, |file| file.len()).max(*largest);
                let seen = plan.see(*label, Cell::Raw(row.field(*label)));
                seen.map_err(|reason| format!("column `{}`: {reason}", plan.name(*label)))
            })?;
        plan.finish(&shown)?;
        let schema = Schema::new().bytes("image", largest.min(MOST_FILE_BYTES) as usize);
        let schema = plan.schema().columns()[1..]
            .iter()
            .fold(schema, |schema, column| schema.column(&column.name, column.kind.clone()));
        Ok(Self { lines, folder, plan, path, label, schema })
    }

    /// Names of the classes, where labels are words.
    pub fn classes(&self) -> &[String] {
        self.plan.classes()
    }
}

/// The file of a path in a list.
fn file(folder: &Path, path: &[u8]) -> Result<PathBuf, String> {
    match std::str::from_utf8(path).map(str::trim) {
        Ok(path) if !path.is_empty() && path.len() <= MOST_PATH_BYTES => Ok(folder.join(path)),
        _ => Err("no path of a file, in UTF-8 and shorter than 4096 bytes".into()),
    }
}

impl Source for Paths {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let file = self.lines.row(index, scratch, |row| {
            let written = self.plan.write(self.label, Cell::Raw(row.field(self.label)), record);
            written.map_err(|reason| format!("column `{}`: {reason}", self.plan.name(self.label)))?;
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
        self.lines.bytes() + self.plan.bytes() + self.folder.capacity()
    }

    fn scratch_bytes(&self) -> usize {
        self.lines.scratch_bytes()
    }

    /// Paths are put together when a file is opened.
    fn decoder_bytes(&self) -> usize {
        8 << 10
    }

    fn origin(&self, index: usize, _: u64) -> String {
        let mut scratch = vec![0; self.scratch_bytes()];
        let found = self.lines.row(index, &mut scratch, |row| file(&self.folder, row.field(self.path)));
        match found {
            Ok(file) => format!("`{}`", file.display()),
            Err(_) => format!("`{}`: row {}", self.lines.path().display(), index + 1),
        }
    }
}
