//! `mnist` and `mnist:DIR`: handwritten digits, embedded in the binary or from MNIST's four files.

mod idx;

use crate::core::budget::Budget;
use crate::core::record::write_words;
use crate::source::check_read;
use crate::{
    DataError, Dataset, InputPreparation, OpenOptions, PicturePreparation, Pipeline, Preparation, Record,
    Schema, Source,
};
use idx::{IdxReader, Images};
use plimsoll_tensor::{DType, Field, TensorType};
use std::path::{Path, PathBuf};

pub(super) fn open_embedded(_: &str, _: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    Digits::embedded(options.max_bytes)
}

pub(super) fn open(_: &str, folder: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    Digits::open(folder, options.max_bytes)
}

/// The embedded digits; `scripts/make_digits.py` makes the file, `assets/README.md` names their origin.
pub(super) static EMBEDDED: &[u8] = include_bytes!("../../assets/digits.gz");
pub(super) const EMBEDDED_TRAIN: usize = 16_000;
pub(super) const EMBEDDED_TEST: usize = 2_500;

const CLASSES: usize = 10;
/// MNIST's mean and deviation, of pixels from 0 to 1.
const MEAN: f32 = 0.1307;
const DEVIATION: f32 = 0.3081;

/// The normalised value of each pixel byte: MNIST's mean subtracted and divided by its deviation, in f32 as in other frameworks.
static NORMALISED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut pixel = 0;
    while pixel < 256 {
        table[pixel] = (pixel as f32 / 255.0 - MEAN) / DEVIATION;
        pixel += 1;
    }
    table
};

/// Digits stored as bytes and normalised when read: inputs f32 `[height, width, 1]`, labels i32 in `0..10`.
///
/// ```
/// use plimsoll_data::{DEFAULT_MAX_BYTES, Digits};
/// let digits = Digits::embedded(DEFAULT_MAX_BYTES)?;
/// assert_eq!(digits.train.schema().in_words(), "input f32[28,28,1], label i32[]");
/// assert_eq!(digits.train.schema().classes(), Some(10));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Digits {
    height: usize,
    width: usize,
    pixels: Vec<u8>,
    labels: Vec<u8>,
    schema: Schema,
}

impl Digits {
    /// The embedded digits: 16,000 training and 2,500 test digits, evenly spaced over MNIST. They are decompressed straight into
    /// their final buffer; the decompressor's own state is some 50 KiB while it runs.
    pub fn embedded(max_bytes: usize) -> Result<Dataset, DataError> {
        let (what, bytes) = ("embedded digits", (EMBEDDED_TRAIN + EMBEDDED_TEST) * (28 * 28 + 1));
        if bytes > max_bytes {
            return Err(DataError::TooLarge {
                what: what.into(),
                bytes: bytes as u64,
                limit: max_bytes as u64,
            });
        }
        let budget = &mut Budget::new(max_bytes);
        let mut reader = IdxReader::gzip(what.into(), EMBEDDED, EMBEDDED.len() as u64)?;
        let mut part = || {
            let images = reader.images(budget)?;
            let labels = reader.labels(CLASSES, budget)?;
            Self::new((&reader.file, images), (&reader.file, labels))
        };
        let (train, test) = (part()?, part()?);
        reader.finish()?;
        dataset("mnist", train, test)
    }

    /// MNIST's four files in `folder`, under their usual names, each plain or with `.gz`. Both parts together hold at
    /// most `max_bytes`.
    ///
    /// ```
    /// use plimsoll_data::{DEFAULT_MAX_BYTES, Digits};
    /// let error = Digits::open("no/such/folder", DEFAULT_MAX_BYTES).unwrap_err();
    /// assert!(error.to_string().starts_with("there is no folder `no/such/folder`"));
    /// ```
    pub fn open(folder: impl AsRef<Path>, max_bytes: usize) -> Result<Dataset, DataError> {
        let (folder, budget) = (folder.as_ref(), &mut Budget::new(max_bytes));
        if !folder.is_dir() {
            return Err(DataError::NoFolder { folder: folder.display().to_string() });
        }
        let train = Self::part(folder, "train", budget)?;
        let test = Self::part(folder, "t10k", budget)?;
        dataset(&format!("mnist:{}", folder.display()), train, test)
    }

    fn part(folder: &Path, stem: &str, budget: &mut Budget) -> Result<Self, DataError> {
        let mut reader = IdxReader::open(&find(folder, &format!("{stem}-images-idx3-ubyte"))?)?;
        let images = reader.images(budget)?;
        let images_file = reader.file.clone();
        reader.finish()?;

        let mut reader = IdxReader::open(&find(folder, &format!("{stem}-labels-idx1-ubyte"))?)?;
        let labels = reader.labels(CLASSES, budget)?;
        let labels_file = reader.file.clone();
        reader.finish()?;

        Self::new((&images_file, images), (&labels_file, labels))
    }

    fn new(
        (images_file, images): (&str, Images),
        (labels_file, labels): (&str, Vec<u8>),
    ) -> Result<Self, DataError> {
        if images.count != labels.len() {
            return Err(DataError::Counts {
                images_file: images_file.into(),
                images: images.count,
                labels_file: labels_file.into(),
                labels: labels.len(),
            });
        }
        let Images { height, width, pixels, .. } = images;
        let schema = Schema::examples([Field::floats([height, width, 1])], Field::below(CLASSES, []));
        Ok(Self { height, width, pixels, labels, schema })
    }

    fn image(&self) -> TensorType {
        TensorType::new(DType::F32, [self.height, self.width, 1])
    }

    fn pixels_each(&self) -> usize {
        self.height * self.width
    }
}

impl Source for Digits {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let pixels = &self.pixels[index * self.pixels_each()..][..self.pixels_each()];
        let words = pixels.iter().map(|&pixel| NORMALISED[usize::from(pixel)].to_ne_bytes());
        write_words(record.buffer_mut(0), words);
        record.put_i32(1, i32::from(self.labels[index]))
    }

    fn resident_bytes(&self) -> usize {
        self.pixels.capacity() + self.labels.capacity()
    }
}

fn dataset(name: &str, train: Digits, test: Digits) -> Result<Dataset, DataError> {
    if train.image() != test.image() {
        return Err(DataError::PartsDiffer { train: train.image(), test: test.image() });
    }
    let size = [train.height, train.width, 1];
    let (mean, deviation) = ([MEAN; 3], [DEVIATION; 3]);
    let picture = PicturePreparation { size, shorter_side: None, mean, deviation };
    let preparation = Preparation { input: InputPreparation::Picture(picture), ..Preparation::default() };
    Ok(Dataset::new(name, Pipeline::new(train).prepared(preparation), test))
}

/// The file, plain or compressed.
fn find(folder: &Path, name: &str) -> Result<PathBuf, DataError> {
    [folder.join(name), folder.join(format!("{name}.gz"))]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| DataError::MissingFile { folder: folder.display().to_string(), name: name.into() })
}
