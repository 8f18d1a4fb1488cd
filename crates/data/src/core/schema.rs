//! The named columns of a record.

use crate::{DataError, MAX_COLUMNS};
use plimsoll_tensor::{DType, Field, TensorType};

/// What one column of a record holds.
///
/// ```
/// use plimsoll_data::{Field, Kind};
/// assert_eq!(Kind::Tensor(Field::below(10, [])).capacity(), 4);
/// assert_eq!(Kind::Bytes { cap: 1 << 16 }.capacity(), 1 << 16); // any length up to the cap
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor of one type.
    Tensor(Field),
    /// Bytes of any length up to a cap: an encoded image, a line of text.
    Bytes {
        /// The most bytes of one record; a longer record is bad.
        cap: usize,
    },
}

impl Kind {
    /// Bytes to reserve for the column.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Tensor(field) => field.ty.bytes(),
            Self::Bytes { cap } => *cap,
        }
    }
}

/// A column: its name and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// The columns of a record, in their order. The last one is the label; those before it are the inputs.
///
/// ```
/// use plimsoll_data::{Field, Schema};
/// let files = Schema::new().bytes("image", 1 << 16).tensor("label", Field::below(10, []));
/// assert_eq!((files.columns().len(), files.capacity()), (2, (1 << 16) + 4));
/// let decoded = Schema::new().tensor("image", Field::floats([8, 8, 3])).tensor("label", Field::below(10, []));
/// assert_eq!(decoded.classes(), Some(10));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// No columns yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more column, a tensor.
    pub fn tensor(self, name: impl Into<String>, field: Field) -> Self {
        self.column(name, Kind::Tensor(field))
    }

    /// With one more column, bytes of any length up to `cap`.
    pub fn bytes(self, name: impl Into<String>, cap: usize) -> Self {
        self.column(name, Kind::Bytes { cap })
    }

    /// With one more column.
    pub fn column(mut self, name: impl Into<String>, kind: Kind) -> Self {
        self.columns.push(Column { name: name.into(), kind });
        self
    }

    /// The columns with another kind at an index.
    pub(crate) fn replaced(&self, index: usize, kind: Kind) -> Self {
        let mut columns = self.columns.clone();
        columns[index].kind = kind;
        Self { columns }
    }

    /// Inputs named by their number, and a label.
    pub fn examples(inputs: impl IntoIterator<Item = Field>, label: Field) -> Self {
        let name = |i| if i == 0 { "input".to_string() } else { format!("input{i}") };
        let inputs = inputs.into_iter().enumerate();
        inputs.fold(Self::new(), |schema, (i, field)| schema.tensor(name(i), field)).tensor("label", label)
    }

    /// The columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Bytes to reserve for one record.
    pub fn capacity(&self) -> usize {
        self.columns.iter().fold(0, |sum: usize, column| sum.saturating_add(column.kind.capacity()))
    }

    /// The fields of the inputs and of the label; an error for a column that is not a tensor.
    pub fn fields(&self) -> Result<(Vec<&Field>, &Field), DataError> {
        let field = |column| match column {
            &Column { kind: Kind::Tensor(ref field), .. } => Ok(field),
            Column { name, .. } => Err(DataError::NotATensor { column: name.clone() }),
        };
        let mut fields = self.columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        match fields.pop() {
            Some(label) if !fields.is_empty() => Ok((fields, label)),
            _ => Err(DataError::InputCount { found: 0, most: MAX_COLUMNS - 1 }),
        }
    }

    /// Number of classes where labels are i32: each label is below it, and a negative one means "no label", so that its row
    /// has no weight in a loss. `None` where labels are values.
    pub fn classes(&self) -> Option<usize> {
        match self.columns.last()?.kind {
            Kind::Tensor(ref field) => field.bound,
            Kind::Bytes { .. } => None,
        }
    }

    /// The columns in words.
    pub fn in_words(&self) -> String {
        let word = |column: &Column| match &column.kind {
            Kind::Tensor(field) => format!("{} {}", column.name, field.ty),
            Kind::Bytes { cap } => format!("{} of at most {cap} bytes", column.name),
        };
        self.columns.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    /// Checks the number of columns.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        let inputs = self.columns.len().saturating_sub(1);
        if !(1..MAX_COLUMNS).contains(&inputs) {
            return Err(DataError::InputCount { found: inputs, most: MAX_COLUMNS - 1 });
        }
        Ok(())
    }
}

/// Checks the number of inputs, the type of labels and the number of classes of a batch.
pub(crate) fn check_types(
    inputs: usize,
    label: &TensorType,
    classes: Option<usize>,
) -> Result<(), DataError> {
    if !(1..MAX_COLUMNS).contains(&inputs) {
        return Err(DataError::InputCount { found: inputs, most: MAX_COLUMNS - 1 });
    }
    let expected = if classes.is_some() { DType::I32 } else { DType::F32 };
    if label.dtype != expected {
        return Err(DataError::LabelType { found: label.clone(), expected, classes });
    }
    match classes {
        Some(classes) if !(1..=i32::MAX as usize).contains(&classes) => {
            Err(DataError::Option { option: "classes", reason: format!("must be in 1..2^31, not {classes}") })
        }
        _ => Ok(()),
    }
}
