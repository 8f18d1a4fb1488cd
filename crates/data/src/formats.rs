//! Formats: one file each, and the registry. A new format is a file in this folder and a row of [`FORMATS`].

mod csv;
mod images;
mod masks;
mod mnist;
mod npz;
mod options;
#[cfg(feature = "parquet")]
mod parquet;
mod paths;
#[cfg(feature = "tiff")]
mod raster;
mod registry;
pub(crate) mod shared;
mod synthetic;
mod tar;
pub(crate) mod text;
mod tfrecord;

pub use csv::Csv;
pub use images::Folder;
pub use masks::Pairs;
pub use mnist::Digits;
pub use npz::Numpy;
pub use options::{
    DEFAULT_MAX_BYTES, FormatOption, ImageOptions, OpenOptions, TableOptions, ValidationSplit,
};
#[cfg(feature = "parquet")]
pub use parquet::columnar;
pub use paths::Paths;
#[cfg(feature = "tiff")]
pub use raster::Raster;
pub use registry::{Family, Format, ModelSize};
pub use synthetic::{Synthetic, SyntheticSpec};
pub use tar::Shards;
pub use text::Text;
#[cfg(feature = "tokenizers")]
pub use text::tokens::Tokens;
pub use tfrecord::{tf_records, tfrecord_checksum};

use crate::{DataError, Dataset};
use mnist::{EMBEDDED, EMBEDDED_TEST, EMBEDDED_TRAIN};
use registry::{Opener, opener};

/// The registry. `open`, the command line's flags and help, the table in `docs/data.md` and the tests take their lists from it.
static FORMATS: &[Format] = {
    use FormatOption::{
        Augment, Channels, Columns, Context, ImageSize, Label, MaxPixels, Prefetch, Shuffle, SkipBad,
        Tokenizer, Workers,
    };
    &[
        Format {
            input: Some("f32[28,28,1]"),
            train: Some(EMBEDDED_TRAIN),
            test: Some(EMBEDDED_TEST),
            resident_bytes: Some((EMBEDDED_TRAIN + EMBEDDED_TEST) * (28 * 28 + 1)),
            embedded_bytes: EMBEDDED.len(),
            ..Format::new(
                "mnist",
                Family::Images,
                "handwritten digits, a part of MNIST, inside the binary",
                &[],
                opener!(mnist::open_embedded),
            )
        },
        Format::new(
            "mnist:DIR",
            Family::Images,
            "MNIST, or a set like it, as four IDX files, plain or gzip",
            &[],
            opener!(mnist::open),
        ),
        Format {
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "images:DIR",
                Family::Images,
                "JPEG and PNG files, `DIR/class/*`, or `DIR/train/class/*` and `DIR/test/class/*`",
                &[ImageSize, Channels, Augment, MaxPixels, Workers, Prefetch, SkipBad],
                opener!(images::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "tar:GLOB",
                Family::Images,
                "the same in tar files, or `key.jpg` beside `key.cls` as in WebDataset",
                &[ImageSize, Channels, Augment, MaxPixels, Workers, Prefetch, SkipBad],
                opener!(tar::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "paths:FILE",
                Family::Images,
                "image files that a CSV file lists: a column of paths and one of labels",
                &[ImageSize, Channels, Augment, MaxPixels, Workers, Prefetch, SkipBad, Label, Columns],
                opener!(paths::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "masks:DIR",
                Family::Images,
                "segmentation: pictures in `DIR/images`, a class for each pixel in `DIR/masks/*.png`",
                &[ImageSize, Channels, Augment, MaxPixels, Workers, Prefetch, SkipBad],
                opener!(masks::open),
            )
        },
        Format {
            requires: Some((Label, "FILE")),
            model_sizes: &[ModelSize::Classes, ModelSize::Channels],
            ..Format::new(
                "raster:FILE",
                Family::Images,
                "segmentation: windows of a TIFF file of any size, a class for each pixel in a second one; `--image-size` is the window",
                &[ImageSize, Workers, Prefetch, SkipBad, Label],
                opener!("tiff", raster::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Features, ModelSize::Classes],
            ..Format::new(
                "tfrecord:GLOB",
                Family::Table,
                "tf.train.Examples in TFRecord files, plain or gzip: pictures (`image/encoded`) or numbers, and a label",
                &[ImageSize, Channels, Augment, MaxPixels, Workers, Prefetch, SkipBad, Label, Shuffle],
                opener!(tfrecord::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Features, ModelSize::Classes],
            ..Format::new(
                "csv:FILE",
                Family::Table,
                "rows of a CSV file with a header; words become numbers, numbers are normalised",
                &[Workers, Prefetch, SkipBad, Label, Columns],
                opener!(csv::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Features, ModelSize::Classes],
            ..Format::new(
                "parquet:FILE",
                Family::Table,
                "the same in a Parquet or Arrow file, as a stream",
                &[Workers, Prefetch, SkipBad, Label, Columns, Shuffle],
                opener!("parquet", parquet::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Features, ModelSize::Classes],
            ..Format::new(
                "npz:FILE",
                Family::Table,
                "NumPy arrays that `numpy.savez` wrote, one of which is the label; or an .npy with `--label OTHER.npy`",
                &[Workers, Prefetch, SkipBad, Label],
                opener!(npz::open),
            )
        },
        Format {
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "text:FILE",
                Family::Text,
                "the bytes of a file as tokens, for models of text; the last tenth is the test part",
                &[Context],
                opener!(text::open),
            )
        },
        Format {
            requires: Some((Tokenizer, "FILE")),
            model_sizes: &[ModelSize::Classes],
            ..Format::new(
                "text:FILE",
                Family::Text,
                "the same in the tokens of a Hugging Face `tokenizer.json`; its vocabulary is the model's",
                &[Context, Tokenizer, Workers, Prefetch],
                opener!("tokenizers", text::tokens::open),
            )
        },
        Format {
            resident_bytes: Some(0),
            ..Format::new(
                "synthetic",
                Family::Synthetic,
                "random inputs and labels of the model's types, computed when read",
                &[],
                opener!(synthetic::open),
            )
        },
    ]
};

/// The formats that [`open`] knows: the rows of the registry.
///
/// ```
/// use plimsoll_data::{Family, catalogue};
/// let names: Vec<_> = catalogue().iter().map(|format| format.name).collect();
/// assert_eq!(names[..4], ["mnist", "mnist:DIR", "images:DIR", "tar:GLOB"]);
/// let tables = catalogue().iter().filter(|format| format.family == Family::Table);
/// assert!(tables.map(|format| format.prefix()).eq(["tfrecord", "csv", "parquet", "npz"]));
/// ```
pub fn catalogue() -> &'static [Format] {
    FORMATS
}

/// Opens a dataset by its name: one of [`catalogue`], with the part in capitals replaced. A tenth of the training part
/// becomes the validation part, unless [`OpenOptions::validation`] says otherwise.
///
/// ```
/// use plimsoll_data::{OpenOptions, ValidationSplit, open};
/// let options = OpenOptions { validation: ValidationSplit::None, ..OpenOptions::default() };
/// let digits = open("mnist", &options)?;
/// assert_eq!((digits.train.len(), digits.test.len()), (Some(16_000), Some(2_500)));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn open(spec: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let mut given = Vec::new();
    given.extend(options.table.label.as_ref().map(|_| FormatOption::Label));
    given.extend(options.tokenizer.as_ref().map(|_| FormatOption::Tokenizer));
    let Some(format) = Format::find(spec, &given) else {
        let mut names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        names.dedup();
        return Err(DataError::UnknownDataset { spec: spec.into(), known: names.join(", ") });
    };
    let data = format.open(spec, options)?;
    let Some(share) = options.validation.share(&data.train) else { return Ok(data) };
    if !options.images.augment {
        return data.split_validation(share);
    }
    // Held-out examples are not augmented.
    let plain = ImageOptions { augment: false, ..options.images.clone() };
    let plain = format.open(spec, &OpenOptions { images: plain, ..options.clone() })?;
    let (train, _) = data.train.hold_out(share)?;
    let (_, held_out) = plain.train.hold_out(share)?;
    Ok(Dataset { train, validation: Some(held_out), ..data })
}

/// Datasets by name, with default options.
///
/// ```
/// use plimsoll_data::datasets;
/// let digits = datasets::mnist()?; // 14,400 + 1,600 + 2,500 digits
/// let same = datasets::open("mnist")?;
/// assert_eq!(digits.test.len(), same.test.len());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub mod datasets {
    use crate::{DataError, Dataset, OpenOptions};

    /// The embedded handwritten digits, a part of MNIST.
    pub fn mnist() -> Result<Dataset, DataError> {
        open("mnist")
    }

    /// The dataset of this name, like `images:photos` or `csv:table.csv`: one of [`crate::catalogue`].
    pub fn open(spec: &str) -> Result<Dataset, DataError> {
        crate::open(spec, &OpenOptions::default())
    }
}

#[cfg(test)]
mod tests;
