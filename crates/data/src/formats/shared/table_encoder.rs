//! How the columns of a table become features and a label: numbers as they are, words one-hot or as classes.

mod restored;

use crate::{
    ColumnPreparation, DataError, Field, InputPreparation, Preparation, Record, RowPreparation, Schema,
    TableOptions,
};
use std::collections::BTreeSet;

/// The most different words of a feature column; each becomes a feature.
const MAX_WORDS: usize = 64;
/// The most different words of a label; each becomes a class.
const MAX_CLASSES: usize = 1 << 16;
/// The longest word of a class or feature.
const MAX_WORD_BYTES: usize = 256;
/// The most features of a row.
const MAX_FEATURES: usize = 1 << 20;

/// The value of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    /// Text that may be a number.
    Raw(&'a [u8]),
    /// A number, and whether it is of an integer type.
    #[cfg_attr(
        not(feature = "parquet"),
        allow(dead_code, reason = "only Parquet and Arrow cells have types")
    )]
    Number(f64, bool),
    /// Text.
    #[cfg_attr(
        not(feature = "parquet"),
        allow(dead_code, reason = "only Parquet and Arrow cells have types")
    )]
    Word(&'a str),
}

#[derive(Debug, PartialEq)]
enum Role {
    Feature,
    Label,
    Ignored,
}

/// The content of a column, decided by its first row.
#[derive(Debug)]
enum Content {
    Unknown,
    Numbers,
    /// Sorted, after [`TableEncoder::finish`].
    Words(Vec<String>),
}

#[derive(Debug)]
struct ColumnEncoding {
    name: String,
    role: Role,
    content: Content,
    seen: BTreeSet<String>,
    /// Index of its first feature.
    start: usize,
}

/// Encodes rows of a table. A first pass observes every cell; then rows can be written.
#[derive(Debug)]
pub(crate) struct TableEncoder {
    columns: Vec<ColumnEncoding>,
    /// The feature columns in the requested order.
    order: Vec<usize>,
    label: usize,
    /// Whether all labels are integers, and the smallest and largest.
    whole: bool,
    range: [f64; 2],
    schema: Schema,
    /// What the rows of another table went through, which these are to go through.
    prepared: Option<Preparation>,
}

impl TableEncoder {
    /// For columns with these names.
    pub fn new(names: Vec<String>, options: &TableOptions, shown: &str) -> Result<Self, DataError> {
        let invalid = |option, reason| Err(DataError::Option { option, reason });
        let find = |option, name: &String| match names.iter().position(|known| known == name) {
            Some(index) => Ok(index),
            None => {
                let reason = format!("`{shown}` has no column `{name}`; it has {}", names.join(", "));
                Err(DataError::Option { option, reason })
            }
        };
        let mut known = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !known.insert(name.as_str())) {
            return invalid("columns", format!("`{shown}` has two columns `{name}`; rename one"));
        }
        let label = match &options.label {
            Some(name) => find("label", name)?,
            None => names.len().saturating_sub(1),
        };
        let order: Vec<usize> = match &options.columns {
            Some(columns) => columns.iter().map(|name| find("columns", name)).collect::<Result<_, _>>()?,
            None => (0..names.len()).filter(|column| *column != label).collect(),
        };
        if order.is_empty() || order.contains(&label) {
            let label = names.get(label).map_or("", |name| name);
            let reason = format!("`{shown}`: features besides the label `{label}` are needed");
            return invalid("columns", reason);
        }
        let mut roles: Vec<Role> = names.iter().map(|_| Role::Ignored).collect();
        roles[label] = Role::Label;
        for &column in &order {
            if std::mem::replace(&mut roles[column], Role::Feature) == Role::Feature {
                return invalid("columns", format!("`{shown}`: `{}` is named twice", names[column]));
            }
        }
        let encoding = |(name, role)| ColumnEncoding {
            name,
            role,
            content: Content::Unknown,
            seen: BTreeSet::new(),
            start: 0,
        };
        let columns = names.into_iter().zip(roles).map(encoding).collect();
        let range = [f64::INFINITY, f64::NEG_INFINITY];
        let (schema, prepared) = (Schema::new(), options.prepared.clone());
        Ok(Self { columns, order, label, whole: true, range, schema, prepared })
    }

    pub fn name(&self, column: usize) -> &str {
        &self.columns[column].name
    }

    /// Whether a column is a feature or the label.
    #[cfg(feature = "parquet")]
    pub fn uses(&self, column: usize) -> bool {
        self.columns[column].role != Role::Ignored
    }

    /// First pass: takes a cell into account.
    pub fn observe(&mut self, column: usize, cell: Cell<'_>) -> Result<(), String> {
        let encoding = &mut self.columns[column];
        if encoding.role == Role::Ignored {
            return Ok(());
        }
        if let Content::Unknown = encoding.content {
            let number =
                matches!(cell, Cell::Number(..)) || matches!(cell, Cell::Raw(text) if parsed(text).is_some());
            encoding.content = if number { Content::Numbers } else { Content::Words(Vec::new()) };
        }
        if let Content::Numbers = encoding.content {
            let (value, whole) = as_number(cell)?;
            if encoding.role == Role::Label {
                self.whole &= whole;
                self.range = [self.range[0].min(value), self.range[1].max(value)];
            }
            return Ok(());
        }
        let word = as_word(cell)?;
        if !encoding.seen.contains(word) {
            let most = if encoding.role == Role::Label { MAX_CLASSES } else { MAX_WORDS };
            if encoding.seen.len() == most {
                return Err(format!("more than {most} different words; leave the column out"));
            }
            encoding.seen.insert(word.to_string());
        }
        Ok(())
    }

    /// Ends the first pass: numbers features and classes.
    pub fn finish(&mut self, shown: &str) -> Result<(), DataError> {
        for encoding in &mut self.columns {
            let seen = std::mem::take(&mut encoding.seen);
            if let Content::Words(words) = &mut encoding.content {
                *words = seen.into_iter().collect();
                words.shrink_to_fit();
            }
        }
        if let Some(prepared) = self.prepared.take() {
            self.impose(&prepared, shown)?;
        }
        let mut features = 0usize;
        for &column in &self.order {
            self.columns[column].start = features;
            features += self.columns[column].width();
        }
        if features > MAX_FEATURES {
            let reason = format!("`{shown}`: {features} features; at most {MAX_FEATURES}");
            return Err(DataError::Option { option: "columns", reason });
        }
        let label = &self.columns[self.label];
        let field = match (&label.content, self.range) {
            (Content::Words(words), _) => Field::below(words.len().max(1), []),
            (_, [least, most]) if self.whole && least >= 0.0 && most < MAX_CLASSES as f64 => {
                Field::below(most as usize + 1, [])
            }
            _ => Field::floats([1]),
        };
        self.schema = Schema::new().tensor("features", Field::floats([features])).tensor(&label.name, field);
        Ok(())
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// What rows go through here, so that those of another table can go through the same.
    pub fn preparation(&self) -> Preparation {
        let column = |&column: &usize| {
            let ColumnEncoding { name, content, .. } = &self.columns[column];
            let words = if let Content::Words(words) = content { Some(words.clone()) } else { None };
            ColumnPreparation { name: name.clone(), words }
        };
        let (label, columns) = (self.name(self.label).to_string(), self.order.iter().map(column).collect());
        let input = InputPreparation::Row(RowPreparation { label, columns, ..RowPreparation::default() });
        Preparation { input, ..Preparation::named(self.classes()) }
    }

    /// The words of the label, in the order of the classes.
    pub fn classes(&self) -> &[String] {
        match &self.columns[self.label].content {
            Content::Words(words) => words,
            _ => &[],
        }
    }

    /// Names of the features; `column=word` for those of words.
    pub fn features(&self) -> Vec<String> {
        let names = self.order.iter().flat_map(|&column| {
            let encoding = &self.columns[column];
            match &encoding.content {
                Content::Words(words) => {
                    words.iter().map(|word| format!("{}={word}", encoding.name)).collect()
                }
                _ => vec![encoding.name.clone()],
            }
        });
        names.collect()
    }

    /// Writes a cell of a row into a record.
    pub fn write(&self, column: usize, cell: Cell<'_>, record: &mut Record<'_>) -> Result<(), String> {
        let encoding = &self.columns[column];
        let (start, width) = (encoding.start, encoding.width());
        let index = |words: &[String]| {
            let word = as_word(cell)?;
            let found = words.binary_search_by(|known| known.as_str().cmp(word));
            found.map_err(|_| format!("`{word}` did not occur in the first pass"))
        };
        match (&encoding.role, &encoding.content) {
            (Role::Ignored, _) | (_, Content::Unknown) => Ok(()),
            (Role::Feature, Content::Numbers) => {
                let value = as_number(cell)?.0 as f32;
                record.buffer_mut(0)[4 * start..4 * start + 4].copy_from_slice(&value.to_ne_bytes());
                Ok(())
            }
            (Role::Feature, Content::Words(words)) => {
                let index = index(words)?;
                let buffer = &mut record.buffer_mut(0)[4 * start..4 * (start + width)];
                buffer.fill(0);
                buffer[4 * index..4 * index + 4].copy_from_slice(&1f32.to_ne_bytes());
                Ok(())
            }
            (Role::Label, Content::Words(words)) => {
                let class = index(words)? as i32;
                record.put_i32(1, class).map_err(|e| e.to_string())
            }
            (Role::Label, Content::Numbers) => {
                let (value, _) = as_number(cell)?;
                let put = match self.schema.classes() {
                    Some(classes) if value < 0.0 || value >= classes as f64 || value.fract() != 0.0 => {
                        return Err(format!("label {value} is none of the {classes} classes"));
                    }
                    Some(_) => record.put_i32(1, value as i32),
                    None => record.put_f32(1, &[value as f32]),
                };
                put.map_err(|e| e.to_string())
            }
        }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        let words = |encoding: &ColumnEncoding| match &encoding.content {
            Content::Words(words) => words.iter().map(|word| word.capacity() + size_of::<String>()).sum(),
            _ => 0,
        };
        let columns: usize =
            self.columns.iter().map(|m| m.name.capacity() + size_of::<ColumnEncoding>() + words(m)).sum();
        columns + self.order.capacity() * size_of::<usize>()
    }
}

impl ColumnEncoding {
    /// Number of its features.
    fn width(&self) -> usize {
        if let Content::Words(words) = &self.content { words.len() } else { 1 }
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned()
}

/// The number that a text spells, finite or not.
fn parsed(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// A finite number, and whether it is written as an integer.
fn number(text: &[u8]) -> Result<(f64, bool), String> {
    let text = text.trim_ascii();
    match parsed(text) {
        Some(value) if (value as f32).is_finite() => {
            let whole = text.iter().all(|byte| byte.is_ascii_digit() || [b'-', b'+'].contains(byte));
            Ok((value, whole))
        }
        None if text.is_empty() => Err("the cell is empty, not a number".into()),
        _ => Err(format!("`{}` is not a finite number, as the column has", shown(text))),
    }
}

fn as_number(cell: Cell<'_>) -> Result<(f64, bool), String> {
    match cell {
        Cell::Raw(text) => number(text),
        Cell::Number(value, whole) if (value as f32).is_finite() => Ok((value, whole)),
        Cell::Number(value, _) => Err(format!("{value} is not a finite number")),
        Cell::Word(word) => Err(format!("`{}` is not a number", shown(word.as_bytes()))),
    }
}

fn as_word(cell: Cell<'_>) -> Result<&str, String> {
    let word = match cell {
        Cell::Raw(text) if text.trim_ascii().is_empty() => {
            return Err("the cell is empty; fill it, or leave the column out".into());
        }
        Cell::Raw(text) => {
            std::str::from_utf8(text).map_err(|_| format!("`{}` is not UTF-8", shown(text)))?
        }
        Cell::Word(word) => word,
        Cell::Number(value, _) => return Err(format!("{value} is a number, not a word")),
    };
    let word = word.trim();
    if word.len() > MAX_WORD_BYTES {
        return Err(format!("a word of {} bytes; at most {MAX_WORD_BYTES}", word.len()));
    }
    Ok(word)
}
