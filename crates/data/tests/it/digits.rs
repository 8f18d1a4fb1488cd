//! The embedded digits, and errors of invalid MNIST files.

use flate2::{Compression, write::GzEncoder};
use plimsoll_data::{DEFAULT_MAX_BYTES, DataError, Dataset, Digits, Pipeline, Record, catalogue, open};
use std::{fs, io::Write, path::PathBuf};

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

/// A folder with a small correct set, in which a test then breaks one thing.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        for stem in ["train", "t10k"] {
            folder.write(&format!("{stem}-images-idx3-ubyte"), &images(3, 2, 4));
            folder.write(&format!("{stem}-labels-idx1-ubyte"), &labels(&[0, 9, 4]));
        }
        folder
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    fn replace_by_gzip(&self, name: &str, bytes: &[u8]) {
        fs::remove_file(self.0.join(name)).unwrap();
        self.write(&format!("{name}.gz"), bytes);
    }

    fn open(&self) -> Result<Dataset, DataError> {
        open(&format!("mnist:{}", self.0.display()), &crate::unsplit())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn images(count: u32, height: u32, width: u32) -> Vec<u8> {
    let mut bytes = words(&[0x803, count, height, width]);
    bytes.extend((0..count * height * width).map(|i| i as u8));
    bytes
}

fn labels(labels: &[u8]) -> Vec<u8> {
    [&words(&[0x801, labels.len() as u32]), labels].concat()
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn example(part: &Pipeline, index: usize) -> (Vec<f32>, i32) {
    let source = part.source().unwrap();
    let mut bytes = vec![0; source.schema().capacity()];
    let mut record = Record::over(source.schema(), &mut bytes);
    source.read(index, &mut record, &mut []).unwrap();
    let input = record.bytes(0).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
    (input, record.i32(1).unwrap())
}

/// Breaks one file and returns the error, which must match the pattern.
macro_rules! check_refused {
    ($name:literal, $break:expr, $pattern:pat) => {{
        let folder = Folder::new($name);
        let break_it: fn(&Folder) = $break;
        break_it(&folder);
        let error = folder.open().expect_err("the files are broken");
        assert!(matches!(error, $pattern), "{error}");
        error.to_string()
    }};
}

#[test]
fn the_embedded_digits_match_the_registry() {
    let (digits, listed) = (Digits::embedded(DEFAULT_MAX_BYTES).unwrap(), catalogue()[0]);
    assert_eq!((digits.train.len(), digits.test.len()), (listed.train, listed.test));
    assert_eq!(Some(digits.resident_bytes()), listed.resident_bytes);
    let (inputs, _) = digits.train.schema().fields().unwrap();
    assert_eq!(Some(inputs[0].ty.to_string().as_str()), listed.input);
    assert!(digits.train.len() >= Some(10_000) && digits.test.len() >= Some(2_000));
    assert!(listed.embedded_bytes <= 3_000_000);
}

#[test]
fn the_embedded_digits_have_the_statistics_and_order_of_mnist() {
    let digits = Digits::embedded(DEFAULT_MAX_BYTES).unwrap();
    // Mean and mean square of each part, computed from MNIST's own files by another program.
    for (part, mean, square) in [(&digits.train, 0.00133, 1.00341), (&digits.test, -0.00024, 1.00207)] {
        let (mut classes, mut sum, mut squares) = ([0usize; 10], 0.0, 0.0);
        let len = part.len().unwrap();
        for index in 0..len {
            let (pixels, label) = example(part, index);
            classes[label as usize] += 1;
            sum += pixels.iter().map(|&x| f64::from(x)).sum::<f64>();
            squares += pixels.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        }
        let elements = (len * 28 * 28) as f64;
        assert!(classes.iter().all(|&c| (len / 13..len / 8).contains(&c)), "{classes:?}");
        assert!((sum / elements - mean).abs() < 1e-4 && (squares / elements - square).abs() < 1e-4);
    }
    let first: Vec<i32> = (0..10).map(|i| example(&digits.train, i).1).collect();
    assert_eq!(first, [5, 1, 3, 5, 7, 6, 9, 4, 3, 9], "the order of MNIST");
}

#[test]
fn the_embedded_digits_respect_the_memory_limit() {
    let needed = catalogue()[0].resident_bytes.unwrap();
    assert!(Digits::embedded(needed).is_ok());
    let error = Digits::embedded(needed - 1).unwrap_err();
    assert!(matches!(error, DataError::TooLarge { .. }), "{error}");
}

#[test]
fn plain_and_gzip_files_are_read() {
    let folder = Folder::new("plain-and-gzip");
    folder.replace_by_gzip(IMAGES, &compress(&images(3, 2, 4)));
    let set = folder.open().unwrap();
    assert_eq!(set.train.schema().in_words(), "input f32[2,4,1], label i32[]");
    for part in [&set.train, &set.test] {
        let (pixels, label) = example(part, 1);
        assert_eq!(label, 9);
        let expected: Vec<f32> = (8..16).map(|p| (p as f32 / 255.0 - 0.1307) / 0.3081).collect();
        assert_eq!(pixels, expected);
        assert_eq!(part.resident_bytes(), 3 * 9);
    }
}

#[test]
fn reading_checks_index_and_lengths() {
    let set = Folder::new("reading").open().unwrap();
    let source = set.train.source().unwrap();
    let read = |index, input, label| {
        let (mut input, mut label) = (vec![0; input], vec![0; label]);
        source.read(index, &mut Record::new([&mut input[..], &mut label[..]]), &mut [])
    };
    assert!(read(2, 32, 4).is_ok());
    assert!(matches!(read(3, 32, 4), Err(DataError::Index { index: 3, len: 3 })));
    assert!(matches!(read(0, 31, 4), Err(DataError::Buffer { what, .. }) if what == "input"));
    assert!(matches!(read(0, 32, 8), Err(DataError::Buffer { what, .. }) if what == "label"));
    let one = source.read(0, &mut Record::new([&mut [0; 4][..]]), &mut []);
    assert!(matches!(one, Err(DataError::BufferCount { expected: 2, found: 1 })));
}

#[test]
fn truncated_files_are_refused() {
    let message = check_refused!(
        "truncated",
        |f| f.write(IMAGES, &images(3, 2, 4)[..39]),
        DataError::Truncated { promised: 24, found: 23, .. }
    );
    assert!(message.contains(IMAGES), "{message}");
    check_refused!("header", |f| f.write(LABELS, &labels(&[1])[..6]), DataError::Truncated { .. });
    check_refused!("empty", |f| f.write(IMAGES, &[]), DataError::Truncated { .. });
    check_refused!(
        "gzip-content",
        |f| f.replace_by_gzip(IMAGES, &compress(&images(3, 2, 4)[..30])),
        DataError::Truncated { promised: 24, found: 14, .. }
    );
    check_refused!(
        "gzip-stream",
        |f| f.replace_by_gzip(IMAGES, &compress(&images(3, 2, 4))[..20]),
        DataError::Truncated { .. }
    );
}

#[test]
fn wrong_magic_is_refused() {
    let message = check_refused!(
        "magic",
        |f| f.write(IMAGES, &labels(&[1, 2, 3])),
        DataError::Magic { found: 0x801, expected: 0x803, .. }
    );
    assert!(message.contains("00000801") && message.contains("00000803"), "{message}");
    check_refused!("unnamed-gzip", |f| f.write(IMAGES, &compress(&images(3, 2, 4))), DataError::Magic { .. });
}

#[test]
fn absurd_extents_are_refused() {
    let huge = |f: &Folder| f.write(IMAGES, &words(&[0x803, u32::MAX, 1024, 1024]));
    check_refused!("huge-count", huge, DataError::Truncated { promised: 4_503_599_626_321_920, .. });
    check_refused!(
        "huge-labels",
        |f| f.write(LABELS, &words(&[0x801, u32::MAX])),
        DataError::Truncated { promised: 0xffff_ffff, found: 0, .. }
    );
    check_refused!(
        "wide",
        |f| f.write(IMAGES, &images(1, 1, 1025)),
        DataError::ImageSize { width: 1025, .. }
    );
    check_refused!("flat", |f| f.write(IMAGES, &images(1, 0, 5)), DataError::ImageSize { height: 0, .. });
    check_refused!("none", |f| f.write(IMAGES, &images(0, 2, 4)), DataError::Empty { .. });
}

#[test]
fn trailing_bytes_are_refused() {
    let longer = |f: &Folder| f.write(IMAGES, &[images(3, 2, 4), vec![0]].concat());
    check_refused!("trailing", longer, DataError::Trailing { examples: 3, .. });
    check_refused!(
        "trailing-in-gzip",
        |f| f.replace_by_gzip(LABELS, &compress(&[labels(&[1, 2, 3]), vec![0]].concat())),
        DataError::Trailing { .. }
    );
    check_refused!(
        "trailing-after-gzip",
        |f| f
            .replace_by_gzip(LABELS, &[compress(&labels(&[1, 2, 3])), b"garbage after it".to_vec()].concat()),
        DataError::Read { .. }
    );
}

#[test]
fn damaged_gzip_is_refused() {
    check_refused!("not-gzip", |f| f.replace_by_gzip(IMAGES, &images(3, 2, 4)), DataError::NotGzip { .. });
    check_refused!("empty-gzip", |f| f.replace_by_gzip(IMAGES, &[]), DataError::NotGzip { .. });
    // The checksum is in the last eight bytes.
    let wrong_sum = |f: &Folder| {
        let mut packed = compress(&labels(&[1, 2, 3]));
        let place = packed.len() - 8;
        packed[place] ^= 1;
        f.replace_by_gzip(LABELS, &packed);
    };
    check_refused!("wrong-sum", wrong_sum, DataError::Read { .. });
}

#[test]
fn a_label_out_of_range_is_named() {
    let message = check_refused!(
        "label",
        |f| f.write(LABELS, &labels(&[3, 10, 2])),
        DataError::Label { index: 1, label: 10, classes: 10, .. }
    );
    assert!(
        message.contains(LABELS) && message.contains("label 10 of example 1 is outside 0..10"),
        "{message}"
    );
}

#[test]
fn mismatched_files_are_refused() {
    check_refused!(
        "counts",
        |f| f.write(LABELS, &labels(&[1, 2])),
        DataError::Counts { images: 3, labels: 2, .. }
    );
    check_refused!(
        "sizes",
        |f| f.write("t10k-images-idx3-ubyte", &images(3, 4, 2)),
        DataError::PartsDiffer { .. }
    );
}

#[test]
fn missing_files_are_named() {
    let message = check_refused!(
        "missing",
        |f| fs::remove_file(f.0.join("t10k-labels-idx1-ubyte")).unwrap(),
        DataError::MissingFile { .. }
    );
    assert!(message.contains("`t10k-labels-idx1-ubyte.gz`"), "{message}");
    let folder_for_file = |f: &Folder| {
        fs::remove_file(f.0.join(IMAGES)).unwrap();
        fs::create_dir(f.0.join(IMAGES)).unwrap();
    };
    let message = check_refused!("folder-for-file", folder_for_file, DataError::Read { .. });
    assert!(message.contains("not a regular file"), "{message}");
}
