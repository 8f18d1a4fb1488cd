//! Datasets by name.

mod pictures;

use crate::digits::{EMBEDDED, EMBEDDED_TEST, EMBEDDED_TRAIN};
use crate::files::{is_for_measuring, matching};
use crate::folder::TEST_SHARE;
use crate::{
    Csv, DataError, Dataset, Digits, Folder, Kind, Normalise, Numpy, Pairs, Paths, Pipeline, Prefetch,
    Shards, Synthetic, SyntheticSpec, TableOptions, Text, Workers, tf_records,
};
use pictures::{images, masks};
use std::path::{Path, PathBuf};

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
    /// How images become inputs, and who reads them.
    pub images: ImageOptions,
    /// Which column, array or feature is the label, and which are features.
    pub table: TableOptions,
    /// Classes of the labels, where they are known: then not every record is looked at before the first.
    pub classes: Option<usize>,
    /// Records through which a stream is shuffled.
    pub shuffle: Option<usize>,
    /// A Hugging Face tokenizer file for text [default: tokens are bytes].
    pub tokenizer: Option<PathBuf>,
    /// Heap bytes the dataset may hold; one that needs more is refused before they are allocated.
    pub max_bytes: usize,
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
    /// Whether training sees random windows, every second mirrored.
    pub augment: bool,
    /// Threads that read and decode.
    pub workers: Workers,
    /// Batches that they may have ready.
    pub prefetch: Prefetch,
    /// Bad images to pass over, at most.
    pub skip_bad: Option<u64>,
    /// Pixels of an image at most [default: what the headers say of every image, or, of more than a thousand, twice what
    /// those of a thousand say; 64 million].
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

/// One line of the list of datasets.
///
/// ```
/// let names: Vec<_> = plimsoll_data::catalogue().iter().map(|dataset| dataset.name).collect();
/// assert_eq!(names[..4], ["mnist", "mnist:DIR", "images:DIR", "tar:GLOB"]);
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

static CATALOGUE: [DatasetInfo; 13] = [
    DatasetInfo {
        input: Some("f32[28,28,1]"),
        train: Some(EMBEDDED_TRAIN),
        test: Some(EMBEDDED_TEST),
        resident_bytes: Some((EMBEDDED_TRAIN + EMBEDDED_TEST) * (28 * 28 + 1)),
        embedded_bytes: EMBEDDED.len(),
        ..DatasetInfo::outside("mnist", "handwritten digits, a part of MNIST, carried in the binary")
    },
    DatasetInfo::outside("mnist:DIR", "MNIST, or a set like it, as four IDX files in DIR, plain or gzip"),
    DatasetInfo::outside(
        "images:DIR",
        "JPEG and PNG files in a folder for each class, read as they are needed",
    ),
    DatasetInfo::outside(
        "tar:GLOB",
        "the same in tar files, or with a class beside each, as WebDataset has it",
    ),
    DatasetInfo::outside("paths:FILE", "image files that a table lists: a column of paths and one of labels"),
    DatasetInfo::outside("masks:DIR", "images in DIR/images with a class for each pixel in DIR/masks"),
    DatasetInfo::outside(
        "raster:FILE",
        "windows of a TIFF file of any size, with a class for each pixel in a second file, which --label names",
    ),
    DatasetInfo::outside(
        "tfrecord:GLOB",
        "tf.train.Examples in TFRecord files, plain or gzip: pictures or numbers, and a label",
    ),
    DatasetInfo::outside(
        "csv:FILE",
        "rows of a table with a header; words become numbers, numbers are normalised",
    ),
    DatasetInfo::outside("parquet:FILE", "the same in a Parquet or Arrow file, as a stream"),
    DatasetInfo::outside("npz:FILE", "arrays of NumPy, normalised; one of them is the label"),
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

/// Opens a dataset by its name: one of [`catalogue`], with the part in capitals replaced.
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
        ("images", Some(folder)) if !folder.is_empty() => {
            let (train, test) = Folder::open(folder, options.max_bytes)?;
            images(spec, train, test, options)
        }
        ("tar", Some(pattern)) if !pattern.is_empty() => {
            let (train, test) = Shards::open(pattern, options.max_bytes)?;
            images(spec, train, test, options)
        }
        ("paths", Some(list)) if !list.is_empty() => {
            let files = Pipeline::new(Paths::open(list, &options.table)?);
            let (train, test) = parts(spec, files, None)?;
            images(spec, train, test, options)
        }
        ("masks", Some(folder)) if !folder.is_empty() => {
            let (train, test) = Pairs::open(folder, options.max_bytes)?;
            let (train, test) = parts(spec, Pipeline::new(train), test.map(Pipeline::new))?;
            masks(spec, train, test, options)
        }
        ("raster", Some(file)) if !file.is_empty() => raster(spec, file, options),
        ("tfrecord", Some(pattern)) if !pattern.is_empty() => examples(spec, pattern, options),
        ("csv", Some(file)) if !file.is_empty() => {
            rows(spec, Pipeline::new(Csv::open(file, &options.table)?), None, options)
        }
        ("parquet", Some(file)) if !file.is_empty() => rows(spec, table(file, options)?, None, options),
        ("npz", Some(file)) if !file.is_empty() => {
            let (train, test) = Numpy::open_parts(Path::new(file), options.table.label.as_deref())?;
            rows(spec, Pipeline::new(train), test.map(Pipeline::new), options)
        }
        ("text", Some(file)) if !file.is_empty() => match &options.tokenizer {
            None => Text::open(file, options.context),
            Some(tokenizer) => tokens(file, tokenizer, options),
        },
        ("synthetic", None) => synthetic(options),
        _ => {
            let known = catalogue().iter().map(|dataset| dataset.name).collect::<Vec<_>>().join(", ");
            Err(DataError::UnknownDataset { spec: spec.into(), known })
        }
    }
}

fn synthetic(options: &OpenOptions) -> Result<Dataset, DataError> {
    let Some(spec) = &options.synthetic else {
        let reason = "needs the types of inputs and labels, which a model has: give one".into();
        return Err(DataError::Option { option: "synthetic", reason });
    };
    if options.examples == 0 {
        return Err(DataError::Option { option: "examples", reason: "must be at least 1".into() });
    }
    let part = |len, part| Synthetic::new(spec.clone(), len, options.seed, part);
    Ok(Dataset::new("synthetic", part(options.examples, 0)?, part((options.examples / 10).max(1), 1)?))
}

/// Windows of a raster with the classes of another, normalised band by band.
#[cfg(feature = "tiff")]
fn raster(name: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let Some(label) = &options.table.label else {
        let reason = format!("`{name}` needs the file with the classes of its pixels: name it as the label");
        return Err(DataError::Option { option: "label", reason });
    };
    let classes = match options.classes {
        Some(classes) => classes,
        None => crate::Raster::count_classes(label)?,
    };
    let [height, width, _] = options.images.size;
    let windows = crate::Raster::open(file, label, [height, width], classes)?;
    let bands = windows.bands();
    let (train, test) = parts(name, Pipeline::new(windows), None)?;
    let normal = Normalise::measure_groups(&train, bands)?;
    finish(name, train.apply(normal.clone())?, test.apply(normal)?, options)
}

#[cfg(not(feature = "tiff"))]
fn raster(_: &str, _: &str, _: &OpenOptions) -> Result<Dataset, DataError> {
    Err(without("raster", "tiff"))
}

#[cfg(feature = "tokenizers")]
fn tokens(file: &str, tokenizer: &Path, options: &OpenOptions) -> Result<Dataset, DataError> {
    let Dataset { name, train, test } = crate::Tokens::open(file, tokenizer, options.context)?;
    finish(&name, train, test, options)
}

#[cfg(not(feature = "tokenizers"))]
fn tokens(_: &str, _: &Path, _: &OpenOptions) -> Result<Dataset, DataError> {
    Err(without("tokenizer", "tokenizers"))
}

#[cfg(feature = "parquet")]
fn table(file: &str, options: &OpenOptions) -> Result<Pipeline, DataError> {
    crate::columnar(file, &options.table)
}

#[cfg(not(feature = "parquet"))]
fn table(_: &str, _: &OpenOptions) -> Result<Pipeline, DataError> {
    Err(without("parquet", "parquet"))
}

/// What was left out of this build.
#[cfg(not(all(feature = "tokenizers", feature = "parquet", feature = "tiff")))]
fn without(option: &'static str, feature: &str) -> DataError {
    let reason = format!("this build has no such reader; build it with the feature `{feature}`");
    DataError::Option { option, reason }
}

/// Training and test part of records: told apart already, or every tenth for measuring.
fn parts(name: &str, train: Pipeline, test: Option<Pipeline>) -> Result<(Pipeline, Pipeline), DataError> {
    let (train, test) = match test {
        Some(test) => (train, test),
        None => train.split(TEST_SHARE),
    };
    if test.is_empty() {
        let what = format!("`{name}`: every {TEST_SHARE}th record is for measuring, and the test part");
        return Err(DataError::Empty { what });
    }
    Ok((train, test))
}

/// Rows of numbers, normalised by what a first pass over the training part finds.
fn rows(
    name: &str,
    train: Pipeline,
    test: Option<Pipeline>,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let (train, test) = parts(name, train, test)?;
    // What may be skipped later may be skipped here.
    let normal = match options.images.skip_bad {
        Some(records) => Normalise::measure(&train.clone().skip_bad(records))?,
        None => Normalise::measure(&train)?,
    };
    finish(name, train.apply(normal.clone())?, test.apply(normal)?, options)
}

/// TFRecord files; those that are called `test` or `val` are for measuring.
fn examples(name: &str, pattern: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let label = options.table.label.as_deref();
    let open = |paths: Vec<PathBuf>, classes| tf_records(paths, label, classes);
    let (test, train): (Vec<_>, Vec<_>) =
        matching("tfrecord", pattern)?.into_iter().partition(|path| is_for_measuring(path));
    let (train, test) = if train.is_empty() || test.is_empty() {
        (open(train.into_iter().chain(test).collect(), options.classes)?, None)
    } else {
        let (one, other) = (open(train.clone(), options.classes)?, open(test.clone(), options.classes)?);
        match (one.schema().classes(), other.schema().classes()) {
            // The classes of both count; knowing them, nobody looks again.
            (Some(a), Some(b)) if a != b => (open(train, Some(a.max(b)))?, Some(open(test, Some(a.max(b)))?)),
            _ => (one, Some(other)),
        }
    };
    let is_image = matches!(train.schema().columns()[0].kind, Kind::Bytes { .. });
    if !is_image {
        let ImageOptions { augment, most_pixels, .. } = options.images;
        let given = [("augment", augment), ("max_pixels", most_pixels.is_some())];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            let reason = format!("`{name}` holds numbers, not pictures; leave it out");
            return Err(DataError::Option { option, reason });
        }
        return rows(name, train, test, options);
    }
    let (train, test) = parts(name, train, test)?;
    images(name, train, test, options)
}

/// Both parts with those who read them; a stream is shuffled as it was asked for.
fn finish(name: &str, train: Pipeline, test: Pipeline, options: &OpenOptions) -> Result<Dataset, DataError> {
    let ImageOptions { workers, prefetch, skip_bad, .. } = options.images;
    let run = |part: Pipeline| {
        let part = part.workers(workers).prefetch(prefetch);
        if let Some(records) = skip_bad { part.skip_bad(records) } else { part }
    };
    let train = match (options.shuffle, train.source()) {
        (Some(0), _) => {
            return Err(DataError::Option { option: "shuffle", reason: "must be at least 1".into() });
        }
        (Some(_), Some(_)) => {
            let reason = "its records have places, so that all of them are shuffled, and no buffer is needed";
            return Err(DataError::Option {
                option: "shuffle",
                reason: format!("`{name}`: {reason}; leave it out"),
            });
        }
        (Some(records), None) => train.shuffle(records, options.seed),
        (None, _) => train,
    };
    Ok(Dataset::new(name, run(train), run(test)))
}
