//! Tables of comma-separated values.

use crate::lines::Lines;
use crate::table::{Cell, Plan, TableOptions};
use crate::{DataError, Record, Schema, Source, source::check_read};
use std::path::Path;

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
    lines: Lines,
    plan: Plan,
}

impl Csv {
    /// Goes over a file once; with tabs between fields if it is called `.tsv`.
    pub fn open(path: impl AsRef<Path>, options: &TableOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let header = |names: Vec<String>| {
            let columns = 0..names.len();
            Ok((Plan::new(names, options, &shown)?, columns))
        };
        let (lines, (mut plan, _)) = Lines::open(path, header, |(plan, columns), row| {
            columns.clone().try_for_each(|column| {
                let seen = plan.see(column, Cell::Raw(row.field(column)));
                seen.map_err(|reason| format!("column `{}`: {reason}", plan.name(column)))
            })
        })?;
        plan.finish(&shown)?;
        Ok(Self { lines, plan })
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

impl Source for Csv {
    fn schema(&self) -> &Schema {
        self.plan.schema()
    }

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        self.lines.row(index, scratch, |row| {
            (0..row.fields()).try_for_each(|column| {
                let written = self.plan.write(column, Cell::Raw(row.field(column)), record);
                written.map_err(|reason| format!("column `{}`: {reason}", self.plan.name(column)))
            })
        })
    }

    fn resident_bytes(&self) -> usize {
        self.lines.bytes() + self.plan.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.lines.scratch_bytes()
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`: row {}", self.lines.path().display(), index + 1)
    }
}
