//! A row of the registry, and how a dataset's name finds its row.

use super::FormatOption;
use crate::{DataError, Dataset, OpenOptions};

/// What kind of data a format holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Pictures, with a class each or a class for each pixel.
    Images,
    /// Rows of named features: numbers, or a picture.
    Table,
    /// Windows of tokens, each token labelled with the next.
    Text,
    /// Random examples of a model's types.
    Synthetic,
}

/// A size of a model that follows from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSize {
    /// The number of classes, or of tokens.
    Classes,
    /// The channels of an image.
    Channels,
    /// The features of a row.
    Features,
}

/// Opens a dataset: its whole name, the part after the colon, and the options.
pub(super) type Open = fn(&str, &str, &OpenOptions) -> Result<Dataset, DataError>;

/// The function that opens a format, and the Cargo feature that it needs; made by [`opener!`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Opener {
    pub feature: Option<&'static str>,
    pub open: Option<Open>,
}

/// An [`Opener`], with the Cargo feature that its module needs, if any.
macro_rules! opener {
    ($open:path) => {
        Opener { feature: None, open: Some($open) }
    };
    ($feature:literal, $open:path) => {
        Opener {
            feature: Some($feature),
            #[cfg(feature = $feature)]
            open: Some($open),
            #[cfg(not(feature = $feature))]
            open: None,
        }
    };
}
pub(super) use opener;

/// One format: a row of the registry.
///
/// ```
/// let mnist = plimsoll_data::catalogue()[0];
/// assert_eq!((mnist.name, mnist.train, mnist.test), ("mnist", Some(16_000), Some(2_500)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// How a dataset is named; the part in capitals is a placeholder.
    pub name: &'static str,
    /// An option that this format needs, and the placeholder of its value.
    pub requires: Option<(FormatOption, &'static str)>,
    /// What kind of data it holds.
    pub family: Family,
    /// What it is, in one line.
    pub description: &'static str,
    /// The options that apply to it.
    pub options: &'static [FormatOption],
    /// Sizes of a model that follow from the data.
    pub model_sizes: &'static [ModelSize],
    /// The type of one input, where it is known.
    pub input: Option<&'static str>,
    /// Training examples, where they are known.
    pub train: Option<usize>,
    /// Test examples, where they are known.
    pub test: Option<usize>,
    /// Heap bytes once it is open, where they are known.
    pub resident_bytes: Option<usize>,
    /// Bytes it takes in the binary.
    pub embedded_bytes: usize,
    pub(super) opener: Opener,
}

impl Format {
    /// A format of which nothing more is known before a dataset is opened.
    pub(super) const fn new(
        name: &'static str,
        family: Family,
        description: &'static str,
        options: &'static [FormatOption],
        opener: Opener,
    ) -> Self {
        Self {
            name,
            requires: None,
            family,
            description,
            options,
            model_sizes: &[],
            input: None,
            train: None,
            test: None,
            resident_bytes: None,
            embedded_bytes: 0,
            opener,
        }
    }

    /// The row for a dataset of this name. Of rows with the same name, the last whose required option is given.
    ///
    /// ```
    /// use plimsoll_data::{Format, FormatOption};
    /// let bytes = Format::find("text:book.txt", &[]).expect("a row");
    /// let tokens = Format::find("text:book.txt", &[FormatOption::Tokenizer]).expect("another row");
    /// assert!(!bytes.takes(FormatOption::Workers) && tokens.takes(FormatOption::Workers));
    /// assert!(Format::find("text", &[]).is_none());
    /// ```
    pub fn find(spec: &str, given: &[FormatOption]) -> Option<&'static Self> {
        let (prefix, argument) = spec.split_once(':').map_or((spec, None), |(p, a)| (p, Some(a)));
        let named = |format: &&Self| {
            format.prefix() == prefix
                && format.name.contains(':') == argument.is_some()
                && argument.is_none_or(|argument| !argument.is_empty())
        };
        let ready = |format: &&Self| format.requires.is_none_or(|(option, _)| given.contains(&option));
        let rows = || super::FORMATS.iter().filter(named);
        rows().rfind(ready).or_else(|| rows().next())
    }

    /// What a dataset's name starts with, before any colon.
    pub fn prefix(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(prefix, _)| prefix)
    }

    /// Whether an option applies to it.
    pub fn takes(&self, option: FormatOption) -> bool {
        self.options.contains(&option)
    }

    /// The Cargo feature that it needs.
    pub fn feature(&self) -> Option<&'static str> {
        self.opener.feature
    }

    /// Whether its Cargo feature, if it needs one, is on in this build.
    pub fn is_built(&self) -> bool {
        self.opener.open.is_some()
    }

    pub(super) fn open(&self, spec: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
        let argument = spec.split_once(':').map_or("", |(_, argument)| argument);
        match self.opener {
            Opener { open: Some(open), .. } => open(spec, argument, options),
            Opener { feature, .. } => {
                let feature = feature.unwrap_or_default();
                Err(DataError::FeatureOff { spec: spec.into(), feature })
            }
        }
    }
}
