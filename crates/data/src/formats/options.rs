//! Options of `open`, and the names of those that only some formats take.

use crate::{InputPreparation, Pipeline, Prefetch, Preparation, SyntheticSpec, Workers};
use std::path::PathBuf;

/// The default limit of a dataset's memory: one GiB.
pub const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// Options of [`crate::open`], beyond a dataset's name. Which of them a format reads, [`crate::Format::options`] says.
///
/// ```
/// use plimsoll_data::OpenOptions;
/// let options = OpenOptions { context: 64, ..OpenOptions::default() };
/// assert_eq!(options.max_bytes, 1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OpenOptions {
    /// Tokens of a window of text.
    pub context: usize,
    /// Seed of synthetic examples.
    pub seed: u64,
    /// The types of synthetic examples.
    pub synthetic: Option<SyntheticSpec>,
    /// Synthetic training examples; a tenth as many, at least one, are the test part.
    pub examples: usize,
    /// How images become inputs, and how many workers read them.
    pub images: ImageOptions,
    /// Which column, array or feature is the label, and which are features.
    pub table: TableOptions,
    /// Number of classes, if known: then formats need no pass over all labels.
    pub classes: Option<usize>,
    /// Records of the buffer through which a stream is shuffled.
    pub shuffle: Option<usize>,
    /// A Hugging Face tokenizer file for text [default: tokens are bytes].
    pub tokenizer: Option<PathBuf>,
    /// The limit of the dataset's heap bytes; a larger one is refused before allocation.
    pub max_bytes: usize,
    /// The validation part.
    pub validation: ValidationSplit,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            context: 256,
            seed: 0,
            synthetic: None,
            examples: 10_000,
            images: ImageOptions::default(),
            table: TableOptions::default(),
            classes: None,
            shuffle: None,
            tokenizer: None,
            max_bytes: DEFAULT_MAX_BYTES,
            validation: ValidationSplit::default(),
        }
    }
}

impl OpenOptions {
    /// Sets height, width and channels of images: others are resized, and grey or colour as it is asked for.
    ///
    /// ```
    /// use plimsoll_data::OpenOptions;
    /// let options = OpenOptions::default().image_size([32, 32, 3]); // for `open("images:flowers", &options)`
    /// assert_eq!(options.images.size, [32, 32, 3]);
    /// ```
    #[must_use]
    pub fn image_size(mut self, size: [usize; 3]) -> Self {
        self.images.size = size;
        self
    }
}

/// How many of the training examples become the validation part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ValidationSplit {
    /// A tenth of them. A stream, whose records cannot be picked, and a handful of examples are not split.
    #[default]
    Tenth,
    /// This share, or an error where the training part cannot be split.
    Share(f64),
    /// None: the dataset has no validation part.
    None,
}

/// Training examples that a dataset needs for [`ValidationSplit::Tenth`].
const FEWEST_TO_SPLIT: usize = 20;

impl ValidationSplit {
    /// The share of these training examples, if they are to be split.
    pub(super) fn share(self, train: &Pipeline) -> Option<f64> {
        match self {
            Self::Tenth if train.is_stream() => None,
            Self::Tenth => train.len().filter(|&len| len >= FEWEST_TO_SPLIT).map(|_| 0.1),
            Self::Share(share) => Some(share),
            Self::None => None,
        }
    }
}

/// How images become inputs.
///
/// ```
/// use plimsoll_data::{ImageOptions, Workers};
/// let images = ImageOptions { size: [32, 32, 3], augment: true, ..ImageOptions::default() };
/// assert!(images.workers.most() >= 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Height, width and channels.
    pub size: [usize; 3],
    /// Whether they are rounded to bf16 ([`crate::Decode::bf16`]).
    pub bf16: bool,
    /// Whether training takes random windows, half of them mirrored.
    pub augment: bool,
    /// Threads that read and decode.
    pub workers: Workers,
    /// Batches that workers may have ready.
    pub prefetch: Prefetch,
    /// The most bad records to skip.
    pub skip_bad: Option<u64>,
    /// The most pixels of an image [default: the maximum over all headers, or, beyond a thousand images, twice the maximum
    /// over a sample of a thousand; at most 64 million].
    pub most_pixels: Option<usize>,
}

impl Default for ImageOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            size: [224, 224, 3],
            bf16: false,
            augment: false,
            workers: Workers::UpTo(cores),
            prefetch: Prefetch::Exactly(1),
            skip_bad: None,
            most_pixels: None,
        }
    }
}

/// Which columns of a table are used.
///
/// ```
/// use plimsoll_data::TableOptions;
/// let options = TableOptions { label: Some("price".into()), ..TableOptions::default() };
/// assert_eq!(options.columns, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableOptions {
    /// The column that is the label [default: the last].
    pub label: Option<String>,
    /// The columns that are features, in this order [default: all but the label].
    pub columns: Option<Vec<String>>,
    /// What the rows of another table went through, with the same columns: its words, classes, means and factors are taken
    /// instead of this one's own.
    pub prepared: Option<Preparation>,
}

impl TableOptions {
    /// The label and columns of another table, and what its rows went through; `None` where that is no table.
    pub fn as_prepared(preparation: &Preparation) -> Option<Self> {
        let InputPreparation::Row(row) = &preparation.input else { return None };
        let columns = row.columns.iter().map(|column| column.name.clone()).collect();
        let prepared = Some(preparation.clone());
        Some(Self { label: Some(row.label.clone()), columns: Some(columns), prepared })
    }
}

/// An option that applies to some formats and not to others ([`crate::Format::options`]).
///
/// ```
/// use plimsoll_data::FormatOption;
/// assert_eq!(FormatOption::ImageSize.name(), "image-size");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatOption {
    /// [`ImageOptions::size`]: height and width.
    ImageSize,
    /// [`ImageOptions::size`]: channels.
    Channels,
    /// [`ImageOptions::augment`].
    Augment,
    /// [`ImageOptions::most_pixels`].
    MaxPixels,
    /// [`ImageOptions::workers`].
    Workers,
    /// [`ImageOptions::prefetch`].
    Prefetch,
    /// [`ImageOptions::skip_bad`].
    SkipBad,
    /// [`TableOptions::label`].
    Label,
    /// [`TableOptions::columns`].
    Columns,
    /// [`OpenOptions::shuffle`].
    Shuffle,
    /// [`OpenOptions::tokenizer`].
    Tokenizer,
    /// [`OpenOptions::context`].
    Context,
}

impl FormatOption {
    /// Its name, as in flags and configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::ImageSize => "image-size",
            Self::Channels => "channels",
            Self::Augment => "augment",
            Self::MaxPixels => "max-pixels",
            Self::Workers => "workers",
            Self::Prefetch => "prefetch",
            Self::SkipBad => "skip-bad",
            Self::Label => "label",
            Self::Columns => "columns",
            Self::Shuffle => "shuffle",
            Self::Tokenizer => "tokenizer",
            Self::Context => "context",
        }
    }
}
