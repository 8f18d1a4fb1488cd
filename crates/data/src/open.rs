//! Datasets by name.

use crate::{
    Crop, DataError, Dataset, Decode, Digits, Folder, Pipeline, Record, Shards, Source, Synthetic,
    SyntheticSpec, Text, Workers,
    budget::zeroed,
    digits::{EMBEDDED, EMBEDDED_TEST, EMBEDDED_TRAIN},
    image::announced,
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
    /// How images become inputs.
    pub images: ImageOptions,
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
    /// Whether training sees random windows, every second mirrored.
    pub augment: bool,
    /// Threads that read and decode.
    pub workers: Workers,
    /// Batches that they may have ready.
    pub prefetch: usize,
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
            augment: false,
            workers: Workers::UpTo(cores),
            prefetch: 1,
            skip_bad: None,
            most_pixels: None,
        }
    }
}

/// One line of the list of datasets.
///
/// ```
/// let names: Vec<_> = plimsoll_data::catalogue().iter().map(|dataset| dataset.name).collect();
/// assert_eq!(names, ["mnist", "mnist:DIR", "images:DIR", "tar:GLOB", "text:FILE", "synthetic"]);
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

static CATALOGUE: [DatasetInfo; 6] = [
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

/// Opens a dataset by its name: `mnist`, `mnist:DIR`, `images:DIR`, `tar:GLOB`, `text:FILE` or `synthetic`.
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

/// Headers that are looked at before the first batch.
const HEADERS: usize = 1000;
/// Pixels of an image at most, unless told otherwise.
const MOST_PIXELS: usize = 64 << 20;

/// Image files as inputs: resized where they have another size, cut to it, normalised.
fn images(
    name: &str,
    train: impl Source + 'static,
    test: impl Source + 'static,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let ImageOptions { size, augment, workers, prefetch, skip_bad, most_pixels } = options.images.clone();
    let bytes = size.iter().try_fold(4usize, |bytes, n| bytes.checked_mul(*n)).unwrap_or(usize::MAX);
    if bytes > options.max_bytes {
        let (what, limit) = (format!("one image of {size:?}"), options.max_bytes as u64);
        return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
    }
    let cap = most_pixels.unwrap_or(MOST_PIXELS);
    // Where the cap was given or bad images are passed over, one past it is bad when it is used.
    let strict = most_pixels.is_none() && skip_bad.is_none();
    let looks = [look(&train, cap, strict)?, look(&test, cap, strict)?];
    let every = looks.iter().all(|look| look.every);
    let largest = looks.iter().map(|look| look.pixels).max().unwrap_or(0);
    let most = if every { largest } else { largest.saturating_mul(2) };
    let most = most_pixels.unwrap_or(most.min(cap));
    let side = size[0].max(size[1]);
    let same = looks.iter().all(|look| look.sizes == Some([size[0], size[1]]));
    let plain = || {
        let decode = Decode::new(size, most).seed(options.seed);
        // As published models look at pictures: the middle seven eighths.
        if same { decode } else { decode.resize(side.saturating_mul(8).div_ceil(7)) }
    };
    let pad = if same { side / 8 } else { 0 };
    let training = if augment { plain().crop(Crop::Random { pad }).flip() } else { plain() };
    let run = |part: Pipeline| {
        let part = part.workers(workers).prefetch(prefetch);
        if let Some(records) = skip_bad { part.skip_bad(records) } else { part }
    };
    let train = run(Pipeline::new(train).apply(training)?);
    Ok(Dataset::new(name, train, run(Pipeline::new(test).apply(plain())?)))
}

/// What headers say of the images of a source.
struct Look {
    /// Pixels of the largest.
    pixels: usize,
    /// Height and width, if all have the same.
    sizes: Option<[usize; 2]>,
    /// Whether every image was looked at.
    every: bool,
}

/// Looks at headers, spread over the whole. What cannot be read shows when it is used.
fn look(source: &dyn Source, cap: usize, strict: bool) -> Result<Look, DataError> {
    let mut bytes = zeroed("a file", source.schema().room() as u64)?;
    let mut record = Record::over(source.schema(), &mut bytes);
    let count = source.len().min(HEADERS);
    let mut look = Look { pixels: 0, sizes: None, every: count == source.len() };
    let mut differs = false;
    for i in 0..count {
        let index = (i as u128 * source.len() as u128 / count as u128) as usize;
        let read = source.read(index, &mut record, &mut []);
        let Ok([height, width]) = read.and_then(|()| announced(record.bytes(0))) else { continue };
        let pixels = height.saturating_mul(width);
        if pixels > cap && strict {
            let reason = format!("{height}×{width} pixels, more than {cap}; allow them with --max-pixels");
            return Err(DataError::Corrupt { reason }.of(|| source.origin(index, 0)));
        }
        look.pixels = look.pixels.max(if pixels > cap { 1 } else { pixels });
        differs |= *look.sizes.get_or_insert([height, width]) != [height, width];
    }
    if differs {
        look.sizes = None;
    }
    if look.pixels == 0 {
        let (what, reason) = (source.origin(0, 0), "none of the files is a JPEG or PNG image");
        return Err(DataError::Item {
            origin: what,
            reason: Box::new(DataError::Corrupt { reason: reason.into() }),
        });
    }
    Ok(look)
}
