//! What can be wrong with data, and what to change.

use plimsoll_tensor::{DType, TensorType};
use std::fmt;
use std::io;
use thiserror::Error;

/// Why a dataset could not be opened or read.
///
/// ```
/// use plimsoll_data::{OpenOptions, open};
/// let error = open("minst", &OpenOptions::default()).unwrap_err();
/// assert!(error.to_string().starts_with("unknown dataset `minst`; known are mnist, mnist:DIR, images:DIR, "));
/// ```
#[derive(Error)]
#[non_exhaustive]
pub enum DataError {
    /// No dataset has this name.
    #[error("unknown dataset `{spec}`; known are {known}")]
    UnknownDataset {
        /// The name given.
        spec: String,
        /// The known names.
        known: String,
    },
    /// The format needs a Cargo feature that this build lacks.
    #[error(
        "`{spec}` needs the Cargo feature `{feature}`, which is off in this build; build with `--features {feature}`"
    )]
    FeatureOff {
        /// The dataset asked for.
        spec: String,
        /// The feature to build with.
        feature: &'static str,
    },
    /// An option is missing or outside its range.
    #[error("{option}: {reason}")]
    Option {
        /// The option to change.
        option: &'static str,
        /// What it must be.
        reason: String,
    },
    /// Neither the file nor its compressed form is in the folder.
    #[error(
        "`{folder}` holds neither `{name}` nor `{name}.gz`; MNIST's four files are {{train,t10k}}-images-idx3-ubyte and \
         {{train,t10k}}-labels-idx1-ubyte, plain or with .gz"
    )]
    MissingFile {
        /// The folder searched.
        folder: String,
        /// The file looked for.
        name: String,
    },
    /// The folder of MNIST's files is not there.
    #[error(
        "there is no folder `{folder}`; mnist:DIR is the folder of MNIST's four files, and plain `mnist` is a part of them that \
         needs no files"
    )]
    NoFolder {
        /// The folder.
        folder: String,
    },
    /// The operating system or the decompression failed.
    #[error("`{file}` cannot be read: {}", reason(source))]
    Read {
        /// The file.
        file: String,
        /// What was reported.
        source: io::Error,
    },
    /// The system's error in a program's own code: a generator, or a closure of a pipeline.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file named `.gz` that is not gzip.
    #[error("`{file}` is not gzip; remove `.gz` from its name if it is not compressed, or fetch it again")]
    NotGzip {
        /// The file.
        file: String,
    },
    /// The first four bytes are not those of the file expected.
    #[error(
        "`{file}` starts with {found:08x}, an IDX file of {content} with {expected:08x}; if it is gzip, name it `.gz`"
    )]
    Magic {
        /// The file.
        file: String,
        /// What the file should hold.
        content: &'static str,
        /// The four bytes found, most significant first.
        found: u32,
        /// The four bytes expected.
        expected: u32,
    },
    /// Fewer bytes than the header announces.
    #[error(
        "`{file}` is cut short: {promised} more bytes were announced, at most {found} follow; fetch it again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Bytes announced.
        promised: u64,
        /// Bytes found, or an upper bound of them.
        found: u64,
    },
    /// More bytes than the header announces.
    #[error("`{file}` goes on after the {examples} examples its header announces; fetch it again")]
    Trailing {
        /// The file.
        file: String,
        /// Examples announced.
        examples: usize,
    },
    /// Images of an unsupported size.
    #[error("`{file}` holds images of {height}x{width} pixels; each side must be in 1..={limit}")]
    ImageSize {
        /// The file.
        file: String,
        /// Rows of an image.
        height: u32,
        /// Columns of an image.
        width: u32,
        /// The longest side allowed.
        limit: u32,
    },
    /// No examples.
    #[error("{what} holds no examples; at least one is needed")]
    Empty {
        /// What is empty.
        what: String,
    },
    /// The numbers of images and labels differ.
    #[error("`{images_file}` holds {images} images, `{labels_file}` {labels} labels; take both from one set")]
    Counts {
        /// The file of images.
        images_file: String,
        /// Its images.
        images: usize,
        /// The file of labels.
        labels_file: String,
        /// Its labels.
        labels: usize,
    },
    /// Training and test examples differ in type.
    #[error("training examples are {train}, test examples {test}; take both from one set")]
    PartsDiffer {
        /// One training example.
        train: TensorType,
        /// One test example.
        test: TensorType,
    },
    /// A label outside the classes.
    #[error(
        "`{file}`: label {label} of example {index} is outside 0..{classes}; correct or remove the example"
    )]
    Label {
        /// The file, or `labels` where they were in memory.
        file: String,
        /// Index of the example.
        index: usize,
        /// The label found.
        label: i64,
        /// Number of classes.
        classes: usize,
    },
    /// A class of the test part that the training part does not have.
    #[error("`{file}`: there is no such class in `{folder}`; give both parts the same folders")]
    UnknownClass {
        /// The folder of the class.
        file: String,
        /// The folder of the training part.
        folder: String,
    },
    /// A text too short for one training and one test window.
    #[error(
        "`{file}` holds {length} bytes, a context of {context} needs at least {needed}; shorten the context"
    )]
    TooShort {
        /// The file.
        file: String,
        /// Its bytes.
        length: u64,
        /// Bytes needed.
        needed: u64,
        /// Tokens of a window.
        context: usize,
    },
    /// A text with too few tokens for one training and one test window.
    #[error(
        "`{file}` holds {tokens} tokens, a context of {context} needs at least {needed}; shorten the context"
    )]
    TooFewTokens {
        /// The file.
        file: String,
        /// Its tokens.
        tokens: u64,
        /// Tokens needed.
        needed: u64,
        /// Tokens of a window.
        context: usize,
    },
    /// More memory than allowed; nothing was allocated.
    #[error("{what} needs {bytes} bytes in memory, {limit} are allowed; allow more, or take less data")]
    TooLarge {
        /// What the memory is for.
        what: String,
        /// Bytes needed, together with what is held already.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The system has not enough memory.
    #[error("the system refused {bytes} bytes for {what}; take a smaller batch or less data")]
    OutOfMemory {
        /// What the memory is for.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// An index past the end.
    #[error("example {index} of {len} was asked for; take an index in 0..{len}")]
    Index {
        /// The index given.
        index: usize,
        /// Number of examples.
        len: usize,
    },
    /// A slice whose length differs from the input's or label's.
    #[error("{what} takes {expected} bytes, {found} were given; take the sizes from the source's types")]
    Buffer {
        /// Which buffer.
        what: String,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// More or fewer slices than a record has columns.
    #[error("a record has {expected} columns, {found} buffers were given; give one for each")]
    BufferCount {
        /// Columns of a record.
        expected: usize,
        /// Buffers given.
        found: usize,
    },
    /// Examples without inputs, or with too many.
    #[error("examples with {found} inputs; from 1 to {most} are possible")]
    InputCount {
        /// Inputs found.
        found: usize,
        /// The most that are possible.
        most: usize,
    },
    /// A type of labels that contradicts the stated number of classes.
    #[error(
        "labels are {found}, must be {expected} {}; i32 labels go with a number of classes, f32 labels with none",
        classes.map_or("without classes".into(), |n| format!("with {n} classes"))
    )]
    LabelType {
        /// Type of the labels.
        found: TensorType,
        /// The element type needed.
        expected: DType,
        /// The classes stated.
        classes: Option<usize>,
    },
    /// A column that must be a tensor.
    #[error("column `{column}` holds bytes of any length; a stage must make a tensor of it first")]
    NotATensor {
        /// The column.
        column: String,
    },
    /// Sources with different columns cannot be joined.
    #[error("the first has {expected}, the second {found}; map them to the same columns")]
    OtherColumns {
        /// The columns of the first.
        expected: String,
        /// The columns of the second.
        found: String,
    },
    /// A record over its size limit.
    #[error("{what} takes {found}, at most {cap} were declared; raise the cap, or leave it out")]
    OverCap {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The limit.
        cap: u64,
    },
    /// A sequence for which no bucket is long enough.
    #[error(
        "a sequence of {items} items, the largest bucket holds {most}; add a larger one, or leave it out"
    )]
    OverBuckets {
        /// Its items.
        items: usize,
        /// Items that the largest bucket holds.
        most: usize,
    },
    /// Something is wrong with one record.
    #[error("{origin}: {reason}{}", if *skippable { ", or let it be skipped" } else { "" })]
    Item {
        /// Where it is from.
        origin: String,
        /// What is wrong.
        reason: Box<Self>,
        /// Whether [`crate::Pipeline::skip_bad`] would pass over it.
        skippable: bool,
    },
    /// Bytes that are not what they should be.
    #[error("{reason}; replace or remove it")]
    Corrupt {
        /// What was found.
        reason: String,
    },
    /// More bad records than may be skipped.
    #[error("more than {most} bad records, the last: {last}")]
    TooManyBad {
        /// The limit.
        most: u64,
        /// The one over the limit.
        last: Box<Self>,
    },
    /// Code of a stage, a source or a closure panicked.
    #[error("a stage of the pipeline panicked: {message}")]
    Panic {
        /// The panic's message.
        message: String,
    },
    /// A pipeline that failed before.
    #[error("the pipeline stopped after an error; start it again from a cursor")]
    Stopped,
    /// A stream that ended before the position to resume from.
    #[error("the stream ended after {given} records, {wanted} were given before; resume with the same data")]
    Shorter {
        /// Records it gave.
        given: u64,
        /// Records to skip.
        wanted: u64,
    },
    /// An epoch whose number of records differs from the stated one.
    #[error("the epoch had {found} records, {expected} were stated; state as many as there are")]
    OtherCount {
        /// Records stated.
        expected: u64,
        /// Records found.
        found: u64,
    },
    /// Threads that the system refused.
    #[error("cannot start {workers} input workers: {source}; take fewer")]
    Threads {
        /// Threads asked for.
        workers: usize,
        /// What was reported.
        source: io::Error,
    },
    /// The file of a cache failed.
    #[error("the cache `{file}` failed: {source}; give a folder on a disk with enough space")]
    Cache {
        /// The file.
        file: String,
        /// What was reported.
        source: io::Error,
    },
    /// A tensor without a batch axis.
    #[error("{what} is {found}, without a first axis for the examples; reshape it")]
    NoExamplesAxis {
        /// Which tensor.
        what: String,
        /// Its type.
        found: TensorType,
    },
    /// Tensors whose first axes differ.
    #[error("input 0 holds {expected} examples, {what} {found}; give all tensors the same first axis")]
    Examples {
        /// Which tensor.
        what: String,
        /// Examples of the first input.
        expected: usize,
        /// Examples of this tensor.
        found: usize,
    },
}

impl DataError {
    /// Adds where the record is from, unless the error says so already.
    pub(crate) fn of(self, origin: impl FnOnce() -> String) -> Self {
        match self {
            Self::Item { .. } | Self::Read { .. } | Self::Index { .. } => self,
            reason => Self::item(origin(), reason),
        }
    }

    /// An error of the record from this origin.
    pub(crate) fn item(origin: String, reason: Self) -> Self {
        Self::Item { origin, reason: Box::new(reason), skippable: false }
    }

    /// The error after `skipped` bad records were skipped. Where skipping is off but possible, the message offers it.
    pub(crate) fn beyond(self, skipped: Option<u64>, may_skip: bool) -> Self {
        match (skipped, self) {
            (Some(most), error) => Self::TooManyBad { most, last: Box::new(error) },
            (None, Self::Item { origin, reason, .. }) => Self::Item { origin, reason, skippable: may_skip },
            (None, error) => error,
        }
    }
}

/// As the message: that is what a program shows whose `main` returns the error.
impl fmt::Debug for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a file cannot be read, and what to do about it.
fn reason(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => "there is no such file or folder; check the path".into(),
        io::ErrorKind::PermissionDenied => format!("{source}; it must be yours to read"),
        _ => format!("{source}; check the path, and that the file is whole"),
    }
}
