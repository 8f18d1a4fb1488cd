//! Datasets by name.

use crate::{
    DataError, Dataset, Digits, Synthetic, SyntheticSpec, Text,
    digits::{EMBEDDED, EMBEDDED_TEST, EMBEDDED_TRAIN},
};

/// What a dataset may hold in memory unless told otherwise: one GiB.
pub const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// What a name alone does not say.
///
/// ```
/// use plimsoll_data::OpenOptions;
/// let options = OpenOptions { context: 64, ..OpenOptions::default() };
/// assert_eq!(options.max_bytes, 1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Tokens of a window of text.
    pub context: usize,
    /// Seed of synthetic examples.
    pub seed: u64,
    /// What synthetic examples look like.
    pub synthetic: Option<SyntheticSpec>,
    /// Synthetic training examples; a tenth as many, at least one, are the test part.
    pub examples: usize,
    /// Heap bytes the dataset may hold; one that needs more is refused before they are allocated.
    pub max_bytes: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { context: 256, seed: 0, synthetic: None, examples: 10_000, max_bytes: DEFAULT_MAX_BYTES }
    }
}

/// One line of the list of datasets.
///
/// ```
/// let names: Vec<_> = plimsoll_data::catalogue().iter().map(|dataset| dataset.name).collect();
/// assert_eq!(names, ["mnist", "mnist:DIR", "text:FILE", "synthetic"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// How it is opened; the part in capitals is to be replaced.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// One input, where it is known.
    pub input: Option<&'static str>,
    /// Training examples, where they are known.
    pub train: Option<usize>,
    /// Test examples, where they are known.
    pub test: Option<usize>,
    /// Heap bytes once it is open, where they are known.
    pub resident_bytes: Option<usize>,
    /// Bytes it takes in the binary.
    pub embedded_bytes: usize,
}

/// The datasets that [`open`] knows.
///
/// ```
/// let mnist = plimsoll_data::catalogue()[0];
/// assert_eq!((mnist.name, mnist.train, mnist.test), ("mnist", Some(16_000), Some(2_500)));
/// ```
pub fn catalogue() -> &'static [DatasetInfo] {
    &CATALOGUE
}

static CATALOGUE: [DatasetInfo; 4] = [
    DatasetInfo {
        input: Some("f32[28,28,1]"),
        train: Some(EMBEDDED_TRAIN),
        test: Some(EMBEDDED_TEST),
        resident_bytes: Some((EMBEDDED_TRAIN + EMBEDDED_TEST) * (28 * 28 + 1)),
        embedded_bytes: EMBEDDED.len(),
        ..DatasetInfo::outside("mnist", "handwritten digits, a part of MNIST, carried in the binary")
    },
    DatasetInfo::outside("mnist:DIR", "MNIST, or a set like it, as four IDX files in DIR, plain or gzip"),
    DatasetInfo::outside("text:FILE", "next-byte prediction on FILE; its last tenth is the test part"),
    DatasetInfo {
        resident_bytes: Some(0),
        ..DatasetInfo::outside(
            "synthetic",
            "random inputs and labels of the model's types, computed when read",
        )
    },
];

impl DatasetInfo {
    /// A dataset about which nothing is known before it is opened.
    const fn outside(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            description,
            input: None,
            train: None,
            test: None,
            resident_bytes: None,
            embedded_bytes: 0,
        }
    }
}

/// Opens a dataset by its name: `mnist`, `mnist:DIR`, `text:FILE` or `synthetic`.
///
/// ```
/// use plimsoll_data::{OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// assert_eq!((digits.train.len(), digits.test.len()), (Some(16_000), Some(2_500)));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn open(spec: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let (kind, place) = spec.split_once(':').map_or((spec, None), |(kind, place)| (kind, Some(place)));
    match (kind, place) {
        ("mnist", None) => Digits::embedded(options.max_bytes),
        ("mnist", Some(folder)) if !folder.is_empty() => Digits::open(folder, options.max_bytes),
        ("text", Some(file)) if !file.is_empty() => Text::open(file, options.context, options.max_bytes),
        ("synthetic", None) => synthetic(options),
        _ => {
            let known = catalogue().iter().map(|dataset| dataset.name).collect::<Vec<_>>().join(", ");
            Err(DataError::UnknownDataset { spec: spec.into(), known })
        }
    }
}

fn synthetic(options: &OpenOptions) -> Result<Dataset, DataError> {
    let Some(spec) = &options.synthetic else {
        let reason = "needs the types of inputs and labels; set `OpenOptions::synthetic`".into();
        return Err(DataError::Option { option: "synthetic", reason });
    };
    if options.examples == 0 {
        return Err(DataError::Option { option: "examples", reason: "must be at least 1".into() });
    }
    let part = |len, part| Synthetic::new(spec.clone(), len, options.seed, part);
    Ok(Dataset::new("synthetic", part(options.examples, 0)?, part((options.examples / 10).max(1), 1)?))
}
