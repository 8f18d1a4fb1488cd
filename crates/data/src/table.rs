//! What the columns of a table mean: which are features, how words become numbers, and what the label is.

use crate::{DataError, Field, Record, Schema};
use std::collections::BTreeSet;

/// Words that a column of features may have: each becomes a feature.
const MOST_WORDS: usize = 64;
/// Words that a label may have: each becomes a class.
const MOST_CLASSES: usize = 1 << 16;
/// The longest word of a class or feature.
const MOST_WORD_BYTES: usize = 256;
/// The most features: a row of them is in every batch.
const MOST_FEATURES: usize = 1 << 20;

/// Which columns of a table are used.
///
/// ```
/// use plimsoll_data::TableOptions;
/// let options = TableOptions { label: Some("price".into()), ..TableOptions::default() };
/// assert_eq!(options.columns, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// The column that is the label [default: the last].
    pub label: Option<String>,
    /// The columns that are features, in this order [default: all but the label].
    pub columns: Option<Vec<String>>,
}

/// What stands in a place of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    /// Text that may be a number.
    Raw(&'a [u8]),
    /// A number, and whether its type has whole ones alone.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "only Parquet and Arrow have types"))]
    Number(f64, bool),
    /// Text that is no number.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "only Parquet and Arrow have types"))]
    Word(&'a str),
}

#[derive(Debug, PartialEq)]
enum Role {
    Feature,
    Label,
    Ignored,
}

/// What a column holds, as its first row says.
#[derive(Debug)]
enum Holds {
    Unknown,
    Numbers,
    /// In the order of the words, once all were seen.
    Words(Vec<String>),
}

#[derive(Debug)]
struct Meaning {
    name: String,
    role: Role,
    holds: Holds,
    seen: BTreeSet<String>,
    /// Its first feature.
    start: usize,
}

/// The columns of a table, and what becomes of them.
#[derive(Debug)]
pub(crate) struct Plan {
    columns: Vec<Meaning>,
    /// The features in the order asked for.
    order: Vec<usize>,
    label: usize,
    /// Whether all labels are whole, and the least and largest.
    whole: bool,
    range: [f64; 2],
    schema: Schema,
}

impl Plan {
    /// Of the columns with these names.
    pub fn new(names: Vec<String>, options: &TableOptions, shown: &str) -> Result<Self, DataError> {
        let invalid = |option, reason| Err(DataError::Option { option, reason });
        let find = |option, name: &String| match names.iter().position(|known| known == name) {
            Some(place) => Ok(place),
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
        let meaning =
            |(name, role)| Meaning { name, role, holds: Holds::Unknown, seen: BTreeSet::new(), start: 0 };
        let columns = names.into_iter().zip(roles).map(meaning).collect();
        let range = [f64::INFINITY, f64::NEG_INFINITY];
        Ok(Self { columns, order, label, whole: true, range, schema: Schema::new() })
    }

    pub fn name(&self, column: usize) -> &str {
        &self.columns[column].name
    }

    /// Whether a column is used at all.
    #[cfg(feature = "parquet")]
    pub fn uses(&self, column: usize) -> bool {
        self.columns[column].role != Role::Ignored
    }

    /// Looks at what stands in a column of the next row.
    pub fn see(&mut self, column: usize, cell: Cell<'_>) -> Result<(), String> {
        let meaning = &mut self.columns[column];
        if meaning.role == Role::Ignored {
            return Ok(());
        }
        if let Holds::Unknown = meaning.holds {
            let number =
                matches!(cell, Cell::Number(..)) || matches!(cell, Cell::Raw(text) if parsed(text).is_some());
            meaning.holds = if number { Holds::Numbers } else { Holds::Words(Vec::new()) };
        }
        if let Holds::Numbers = meaning.holds {
            let (value, whole) = as_number(cell)?;
            if meaning.role == Role::Label {
                self.whole &= whole;
                self.range = [self.range[0].min(value), self.range[1].max(value)];
            }
            return Ok(());
        }
        let word = as_word(cell)?;
        if !meaning.seen.contains(word) {
            let most = if meaning.role == Role::Label { MOST_CLASSES } else { MOST_WORDS };
            if meaning.seen.len() == most {
                return Err(format!("more than {most} different words; leave the column out"));
            }
            meaning.seen.insert(word.to_string());
        }
        Ok(())
    }

    /// Numbers features and classes, once all rows were seen.
    pub fn finish(&mut self, shown: &str) -> Result<(), DataError> {
        for meaning in &mut self.columns {
            let seen = std::mem::take(&mut meaning.seen);
            if let Holds::Words(words) = &mut meaning.holds {
                *words = seen.into_iter().collect();
                words.shrink_to_fit();
            }
        }
        let mut features = 0usize;
        for &column in &self.order {
            self.columns[column].start = features;
            features += self.columns[column].width();
        }
        if features > MOST_FEATURES {
            let reason = format!("`{shown}`: {features} features; at most {MOST_FEATURES}");
            return Err(DataError::Option { option: "columns", reason });
        }
        let label = &self.columns[self.label];
        let field = match (&label.holds, self.range) {
            (Holds::Words(words), _) => Field::below(words.len().max(1), []),
            (_, [least, most]) if self.whole && least >= 0.0 && most < MOST_CLASSES as f64 => {
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

    /// The words of a label that are classes.
    pub fn classes(&self) -> &[String] {
        match &self.columns[self.label].holds {
            Holds::Words(words) => words,
            _ => &[],
        }
    }

    /// Names of the features; those of a word are called `column=word`.
    pub fn features(&self) -> Vec<String> {
        let names = self.order.iter().flat_map(|&column| {
            let meaning = &self.columns[column];
            match &meaning.holds {
                Holds::Words(words) => words.iter().map(|word| format!("{}={word}", meaning.name)).collect(),
                _ => vec![meaning.name.clone()],
            }
        });
        names.collect()
    }

    /// Writes what stands in a column of a row.
    pub fn write(&self, column: usize, cell: Cell<'_>, record: &mut Record<'_>) -> Result<(), String> {
        let meaning = &self.columns[column];
        let (start, width) = (meaning.start, meaning.width());
        let place = |words: &[String]| {
            let word = as_word(cell)?;
            let found = words.binary_search_by(|known| known.as_str().cmp(word));
            found.map_err(|_| format!("`{word}` was not there in the first pass"))
        };
        match (&meaning.role, &meaning.holds) {
            (Role::Ignored, _) | (_, Holds::Unknown) => Ok(()),
            (Role::Feature, Holds::Numbers) => {
                let value = as_number(cell)?.0 as f32;
                record.room(0)[4 * start..4 * start + 4].copy_from_slice(&value.to_ne_bytes());
                Ok(())
            }
            (Role::Feature, Holds::Words(words)) => {
                let place = place(words)?;
                let room = &mut record.room(0)[4 * start..4 * (start + width)];
                room.fill(0);
                room[4 * place..4 * place + 4].copy_from_slice(&1f32.to_ne_bytes());
                Ok(())
            }
            (Role::Label, Holds::Words(words)) => {
                let class = place(words)? as i32;
                record.put_i32(1, class).map_err(|e| e.to_string())
            }
            (Role::Label, Holds::Numbers) => {
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
        let words = |meaning: &Meaning| match &meaning.holds {
            Holds::Words(words) => words.iter().map(|word| word.capacity() + size_of::<String>()).sum(),
            _ => 0,
        };
        let columns: usize =
            self.columns.iter().map(|m| m.name.capacity() + size_of::<Meaning>() + words(m)).sum();
        columns + self.order.capacity() * size_of::<usize>()
    }
}

impl Meaning {
    /// Features it makes.
    fn width(&self) -> usize {
        if let Holds::Words(words) = &self.holds { words.len() } else { 1 }
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned()
}

/// A number, finite or not.
fn parsed(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// A finite number and whether it is written as a whole one.
fn number(text: &[u8]) -> Result<(f64, bool), String> {
    let text = text.trim_ascii();
    match parsed(text) {
        Some(value) if (value as f32).is_finite() => {
            let whole = text.iter().all(|byte| byte.is_ascii_digit() || [b'-', b'+'].contains(byte));
            Ok((value, whole))
        }
        None if text.is_empty() => Err("nothing stands there, where a number should".into()),
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
            return Err("nothing stands there; fill it, or leave the column out".into());
        }
        Cell::Raw(text) => {
            std::str::from_utf8(text).map_err(|_| format!("`{}` is not UTF-8", shown(text)))?
        }
        Cell::Word(word) => word,
        Cell::Number(value, _) => return Err(format!("{value} is a number, not a word")),
    };
    let word = word.trim();
    if word.len() > MOST_WORD_BYTES {
        return Err(format!("a word of {} bytes; at most {MOST_WORD_BYTES}", word.len()));
    }
    Ok(word)
}
