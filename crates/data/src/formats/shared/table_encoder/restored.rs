//! Rows of another table, encoded as those of the table that a model was trained on.

use super::{Cell, ColumnEncoding, Content, MAX_FEATURES, Role, TableEncoder, as_number, as_word};
use crate::{DataError, Field, InputPreparation, Preparation, RowPreparation, Schema};
use std::collections::BTreeSet;

/// The most words that a message lists.
const MOST_LISTED: usize = 12;

impl TableEncoder {
    /// For columns with these names, of which the preparation's are read, in any order. Labels are not read: `label` is only
    /// their type.
    pub fn restored(
        names: Vec<String>,
        preparation: &Preparation,
        label: &Field,
        shown: &str,
    ) -> Result<Self, DataError> {
        let row = checked(preparation)?;
        let mut columns: Vec<ColumnEncoding> = names.iter().map(|name| ignored(name)).collect();
        let mut order = Vec::with_capacity(row.columns.len());
        let mut start = 0;
        for wanted in &row.columns {
            let mut found = names.iter().enumerate().filter(|(_, name)| **name == wanted.name);
            let (Some((index, _)), None) = (found.next(), found.next()) else {
                let (name, has) = (&wanted.name, names.join(", "));
                let reason = format!(
                    "`{shown}` needs one column `{name}`, with which the model was trained; it has {has}"
                );
                return Err(DataError::Option { option: "columns", reason });
            };
            let content = wanted.words.clone().map_or(Content::Numbers, Content::Words);
            let column = &mut columns[index];
            (column.role, column.content, column.start) = (Role::Feature, content, start);
            start += column.width();
            order.push(index);
        }
        // The label is a column beyond those of the file.
        columns.push(ColumnEncoding { role: Role::Label, ..ignored(&row.label) });
        let schema = Schema::new().tensor("features", Field::floats([start])).tensor("label", label.clone());
        let label = columns.len() - 1;
        let range = [f64::INFINITY, f64::NEG_INFINITY];
        Ok(Self { columns, order, label, whole: true, range, schema, prepared: None })
    }

    /// Takes the words of features and label from another table, with the same columns, in place of those that were found.
    pub(super) fn impose(&mut self, preparation: &Preparation, shown: &str) -> Result<(), DataError> {
        let row = checked(preparation)?;
        let classes = Some(&preparation.classes).filter(|classes| !classes.is_empty());
        let features = row.columns.iter().map(|column| (&column.name, column.words.as_ref()));
        let wanted = features.chain([(&row.label, classes)]);
        for (index, (name, words)) in self.order.iter().copied().chain([self.label]).zip(wanted) {
            let wrong = |reason: String| {
                let reason = format!("`{shown}`: column `{name}`: {reason}");
                Err(DataError::Option { option: "columns", reason })
            };
            let content = &mut self.columns[index].content;
            match (&content, words) {
                (Content::Words(found), Some(known)) => {
                    if let Some(word) = found.iter().find(|word| known.binary_search(word).is_err()) {
                        return wrong(format!("the model was not trained with `{word}`"));
                    }
                }
                (Content::Words(_), None) => return wrong("the model was trained with numbers there".into()),
                _ => {}
            }
            *content = words.map_or(Content::Numbers, |words| Content::Words(words.clone()));
        }
        Ok(())
    }

    /// Checks a cell of a table other than that of training.
    pub fn check(&self, column: usize, cell: Cell<'_>) -> Result<(), String> {
        match (&self.columns[column].role, &self.columns[column].content) {
            (Role::Feature, Content::Numbers) => as_number(cell).map(|_| ()),
            (Role::Feature, Content::Words(words)) => {
                let word = as_word(cell)?;
                if words.iter().any(|known| known == word) {
                    return Ok(());
                }
                let known: Vec<&str> = words.iter().take(MOST_LISTED).map(String::as_str).collect();
                let more = if words.len() > MOST_LISTED { ", ..." } else { "" };
                Err(format!("the model was not trained with `{word}`, but with {}{more}", known.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

fn ignored(name: &str) -> ColumnEncoding {
    let (role, content, seen) = (Role::Ignored, Content::Unknown, BTreeSet::new());
    ColumnEncoding { name: name.to_string(), role, content, seen, start: 0 }
}

/// The rows of a preparation, if its numbers fit each other.
fn checked(preparation: &Preparation) -> Result<&RowPreparation, DataError> {
    let wrong = |reason: &str| Err(DataError::Option { option: "columns", reason: reason.into() });
    let InputPreparation::Row(row) = &preparation.input else {
        return wrong("the model was not trained with rows of a table");
    };
    let widths = row.columns.iter().map(|column| column.words.as_ref().map_or(1, Vec::len));
    let features = widths.fold(0, usize::saturating_add);
    let constants = [row.mean.len(), row.factor.len()];
    if !(1..=MAX_FEATURES).contains(&features) || constants != [features; 2] {
        return wrong("the columns with which the model was trained are damaged");
    }
    Ok(row)
}
