//! What a format did to make inputs and classes of its records: enough to do the same to other records later.

use serde::{Deserialize, Serialize};

/// What predicting needs besides the weights: the names of the classes, and what records go through.
///
/// ```
/// use plimsoll_data::{InputPreparation, OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let preparation = digits.train.preparation();
/// assert_eq!(preparation.class(7), "7");
/// let InputPreparation::Picture(picture) = &preparation.input else { panic!("digits are pictures") };
/// assert_eq!((picture.size, picture.mean[0]), ([28, 28, 1], 0.1307));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// Names of the classes, in the order of their numbers; empty where they have only numbers.
    pub classes: Vec<String>,
    /// What inputs go through.
    pub input: InputPreparation,
    /// Decisions that a user should know of, as sentences.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// What inputs go through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputPreparation {
    /// Nothing that other records could go through.
    #[default]
    None,
    /// Picture files.
    Picture(PicturePreparation),
    /// Rows of a table.
    Row(RowPreparation),
}

/// What picture files go through: decoded, resized, the central window, normalised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PicturePreparation {
    /// Height, width and channels of the result.
    pub size: [usize; 3],
    /// Pixels of the shorter side before the window is taken; `None` where all pictures had the size of the result.
    pub shorter_side: Option<usize>,
    /// Mean of each channel, from 0 to 1, which is subtracted.
    pub mean: [f32; 3],
    /// Deviation of each channel, by which the difference is divided.
    pub deviation: [f32; 3],
}

impl PicturePreparation {
    /// Pixels of the shorter side of any picture before the window is taken: the whole picture where training saw whole ones.
    pub fn resized_side(&self) -> usize {
        let [height, width, _] = self.size;
        self.shorter_side.unwrap_or(height.max(width))
    }
}

/// What rows of a table go through: words become numbers, numbers are normalised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowPreparation {
    /// Name of the label's column.
    pub label: String,
    /// The columns that are features, in their order.
    pub columns: Vec<ColumnPreparation>,
    /// The mean of each feature, which is subtracted.
    pub mean: Vec<f32>,
    /// The factor of each feature, by which the difference is multiplied.
    pub factor: Vec<f32>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnPreparation {
    /// Its name.
    pub name: String,
    /// Its words, sorted, where it holds words: each is a feature. `None` for numbers.
    pub words: Option<Vec<String>>,
}

impl Preparation {
    /// The name of a class: its number where it has no other.
    pub fn class(&self, class: usize) -> String {
        self.classes.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Classes by name.
    pub(crate) fn named(classes: &[String]) -> Self {
        Self { classes: classes.to_vec(), ..Self::default() }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        let words =
            |words: &[String]| words.iter().map(|w| w.capacity() + size_of::<String>()).sum::<usize>();
        let input = match &self.input {
            InputPreparation::Row(row) => {
                let column = |column: &ColumnPreparation| {
                    let own = column.name.capacity() + size_of::<ColumnPreparation>();
                    own + column.words.as_deref().map_or(0, words)
                };
                row.columns.iter().map(column).sum::<usize>() + 4 * (row.mean.len() + row.factor.len())
            }
            _ => 0,
        };
        words(&self.classes) + words(&self.notes) + input
    }
}
