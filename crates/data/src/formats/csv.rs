//! `csv:FILE`: tables of comma-separated values.

use super::shared::csv_rows::CsvRows;
use super::shared::normalised;
use super::shared::table_encoder::{Cell, TableEncoder};
use crate::source::check_read;
use crate::{
    DataError, Dataset, Field, InputPreparation, Normalise, OpenOptions, Pipeline, Preparation, Record,
    Schema, Source, TableOptions,
};
use std::path::Path;

pub(super) fn open(spec: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let table = Csv::open(file, &options.table)?;
    let preparation = table.encoder.preparation();
    normalised(spec, Pipeline::new(table).prepared(preparation), None, options)
}

/// Rows of a CSV file with a header: one input of all features, and the label. Columns of numbers are features as they are,
/// columns of a few different words are one-hot; a label of words is a class, numbered in sorted order.
///
/// A first pass finds the types, the words and the offsets of rows, of which at most half a MiB is kept, so that rows are
/// read in any order and memory does not grow with the file. The first row decides whether a column holds numbers; a row
/// that differs is an error that names line and column.
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
    rows: CsvRows,
    encoder: TableEncoder,
    /// Whether labels are read.
    labelled: bool,
}

impl Csv {
    /// Reads a file once; with tabs between fields if its name ends in `.tsv`.
    pub fn open(path: impl AsRef<Path>, options: &TableOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let header = |names: Vec<String>| {
            let columns = 0..names.len();
            Ok((TableEncoder::new(names, options, &shown)?, columns))
        };
        let (rows, (mut encoder, _)) = CsvRows::open(path, header, |(encoder, columns), row| {
            columns.clone().try_for_each(|column| {
                let observed = encoder.observe(column, Cell::Raw(row.field(column)));
                observed.map_err(|reason| format!("column `{}`: {reason}", encoder.name(column)))
            })
        })?;
        encoder.finish(&shown)?;
        Ok(Self { rows, encoder, labelled: true })
    }

    /// All rows of a table as a model takes them that was trained on another: with the words and the normalisation of
    /// `preparation`. Columns may be in any order and among others; there need be no labels, and all are zeros of the type
    /// `label`.
    ///
    /// ```
    /// use plimsoll_data::{Csv, Cursor, Field, OpenOptions, open};
    /// let folder = std::env::temp_dir().join(format!("plimsoll-rows-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder).unwrap();
    /// let [known, new] = ["known.csv", "new.csv"].map(|name| folder.join(name));
    /// let rows: String = (0..20).map(|i| format!("{i},{},{}\n", ["red", "blue"][i % 2], ["cat", "dog"][i / 10])).collect();
    /// std::fs::write(&known, format!("size,colour,kind\n{rows}")).unwrap();
    /// std::fs::write(&new, "colour,name,size\nblue,Tom,3\n").unwrap();
    /// let trained = open(&format!("csv:{}", known.display()), &OpenOptions::default())?;
    /// let rows = Csv::prepared(&new, trained.train.preparation(), &Field::below(2, []))?;
    /// assert_eq!((rows.len(), rows.schema().in_words()), (Some(1), "features f32[3], label i32[]".into()));
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn prepared(
        path: impl AsRef<Path>,
        preparation: &Preparation,
        label: &Field,
    ) -> Result<Pipeline, DataError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let header = |names: Vec<String>| {
            let columns = 0..names.len();
            Ok((TableEncoder::restored(names, preparation, label, &shown)?, columns))
        };
        let (rows, (encoder, _)) = CsvRows::open(path, header, |(encoder, columns), row| {
            columns.clone().try_for_each(|column| {
                let checked = encoder.check(column, Cell::Raw(row.field(column)));
                checked.map_err(|reason| format!("column `{}`: {reason}", encoder.name(column)))
            })
        })?;
        let normalise = match &preparation.input {
            InputPreparation::Row(row) => Normalise::restored(row),
            _ => return Err(DataError::Empty { what: shown }),
        };
        let rows = Self { rows, encoder, labelled: false };
        Ok(Pipeline::new(rows).apply(normalise)?.prepared(preparation.clone()))
    }

    /// Names of the classes, where the label holds words.
    pub fn classes(&self) -> &[String] {
        self.encoder.classes()
    }

    /// Names of the features.
    pub fn features(&self) -> Vec<String> {
        self.encoder.features()
    }
}

impl Source for Csv {
    fn schema(&self) -> &Schema {
        self.encoder.schema()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        if !self.labelled {
            record.buffer_mut(1).fill(0);
        }
        self.rows.row(index, scratch, |row| {
            (0..row.fields()).try_for_each(|column| {
                let written = self.encoder.write(column, Cell::Raw(row.field(column)), record);
                written.map_err(|reason| format!("column `{}`: {reason}", self.encoder.name(column)))
            })
        })
    }

    fn resident_bytes(&self) -> usize {
        self.rows.bytes() + self.encoder.bytes()
    }

    fn scratch_bytes(&self) -> usize {
        self.rows.scratch_bytes()
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`: row {}", self.rows.path().display(), index + 1)
    }
}
