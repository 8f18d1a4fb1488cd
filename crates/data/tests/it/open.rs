//! Datasets by name, texts and synthetic examples.

use plimsoll_data::{Cursor, DataError, Dataset, OpenOptions, Pipeline, Record, SyntheticSpec, open};
use plimsoll_tensor::Field;
use std::{fs, path::PathBuf};

fn with_file(name: &str, content: &[u8], context: usize, check: impl FnOnce(Result<Dataset, DataError>)) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::write(&path, content).unwrap();
    let options = OpenOptions { context, ..crate::unsplit() };
    check(open(&format!("text:{}", path.display()), &options));
    fs::remove_file(path).unwrap();
}

fn read(part: &Pipeline, index: usize) -> (Vec<i32>, Vec<i32>) {
    let (mut inputs, label) = read_all(part, index);
    assert_eq!(inputs.len(), 1);
    (inputs.remove(0), label)
}

fn read_all(part: &Pipeline, index: usize) -> (Vec<Vec<i32>>, Vec<i32>) {
    let source = part.source().unwrap();
    let mut bytes = vec![0; source.schema().capacity()];
    let mut record = Record::over(source.schema(), &mut bytes);
    source.read(index, &mut record, &mut vec![0; source.scratch_bytes()]).unwrap();
    let words = |b: &[u8]| b.chunks_exact(4).map(|w| i32::from_ne_bytes(w.try_into().unwrap())).collect();
    let mut columns: Vec<Vec<i32>> = (0..record.columns()).map(|i| words(record.bytes(i))).collect();
    let label = columns.pop().unwrap();
    (columns, label)
}

fn tokens(spec_input: &str) -> SyntheticSpec {
    several(&[(spec_input, 40)], "i32[5]", Some(3))
}

fn several(inputs: &[(&str, usize)], label: &str, classes: Option<usize>) -> SyntheticSpec {
    let inputs =
        inputs.iter().map(|&(ty, bound)| Field { ty: ty.parse().unwrap(), bound: Some(bound) }).collect();
    SyntheticSpec { inputs, label: Field { ty: label.parse().unwrap(), bound: classes } }
}

fn synthetic(seed: u64, spec: SyntheticSpec) -> Result<Dataset, DataError> {
    open("synthetic", &OpenOptions { seed, synthetic: Some(spec), examples: 200, ..crate::unsplit() })
}

#[test]
fn labels_of_a_text_are_one_byte_ahead() {
    // 23 windows of four tokens and three bytes left over; two windows are the test part.
    let content: Vec<u8> = (160..255).collect();
    with_file("ahead", &content, 4, |text| {
        let text = text.unwrap();
        assert_eq!((text.train.len(), text.test.len()), (Some(21), Some(2)));
        assert_eq!(read(&text.train, 0), (vec![160, 161, 162, 163], vec![161, 162, 163, 164]));
        assert_eq!(read(&text.train, 20), (vec![240, 241, 242, 243], vec![241, 242, 243, 244]));
        assert_eq!(read(&text.test, 0), (vec![244, 245, 246, 247], vec![245, 246, 247, 248]));
        assert_eq!(read(&text.test, 1), (vec![248, 249, 250, 251], vec![249, 250, 251, 252]));
        let mut record = [[0; 16], [0; 16]];
        let mut record = Record::new(record.iter_mut().map(|column| &mut column[..]));
        assert!(text.test.source().unwrap().read(2, &mut record, &mut []).is_err());
        assert!(text.resident_bytes() < 2048, "{} bytes for a file's name", text.resident_bytes());
    });
}

#[test]
fn too_short_a_text_names_the_length_needed() {
    with_file("shortest", &[7; 21], 10, |text| {
        let text = text.unwrap();
        assert_eq!((text.train.len(), text.test.len()), (Some(1), Some(1)));
    });
    with_file("short", &[7; 20], 10, |text| {
        let message = text.unwrap_err().to_string();
        assert!(message.contains("holds 20 bytes, a context of 10 needs at least 21"), "{message}");
    });
    with_file("empty", &[], usize::MAX, |text| {
        assert!(matches!(text, Err(DataError::TooShort { needed: u64::MAX, .. })));
    });
}

#[test]
fn a_text_without_context_or_that_shrinks_is_refused() {
    with_file("context", &[7; 50], 0, |text| {
        assert!(matches!(text, Err(DataError::Option { option: "context", .. })));
    });
    let folder = format!("text:{}", env!("CARGO_TARGET_TMPDIR"));
    let message = open(&folder, &crate::unsplit()).unwrap_err().to_string();
    assert!(message.contains("not a regular file"), "{message}");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shrinks-{}", std::process::id()));
    fs::write(&path, [7; 1000]).unwrap();
    let options = OpenOptions { context: 10, ..crate::unsplit() };
    let text = open(&format!("text:{}", path.display()), &options).unwrap();
    fs::write(&path, [7; 100]).unwrap();
    let mut batches = text.train.batch(50).start(Cursor::default()).unwrap();
    let message = batches.next().unwrap_err().to_string();
    assert!(message.contains("shrinks") && message.contains("at byte 90"), "{message}");
    fs::remove_file(path).unwrap();
}

#[test]
fn an_unknown_name_lists_the_known_formats() {
    for spec in ["", "cifar", "mnist:", "text", "text:", "synthetic:3", ":"] {
        let message = open(spec, &crate::unsplit()).unwrap_err().to_string();
        assert!(
            message.contains("mnist, mnist:DIR, images:DIR, tar:GLOB, paths:FILE, masks:DIR, raster:FILE,"),
            "{message}"
        );
    }
}

#[test]
fn synthetic_examples_are_functions_of_seed_part_and_index() {
    let open = |seed| synthetic(seed, tokens("i32[5]")).unwrap();
    let (one, same, other) = (open(1), open(1), open(2));
    assert_eq!((one.train.len(), one.test.len(), one.resident_bytes()), (Some(200), Some(20), 0));
    assert_eq!(read(&one.train, 9), read(&same.train, 9));
    assert_ne!(read(&one.train, 9), read(&one.train, 8));
    assert_ne!(read(&one.train, 9), read(&one.test, 9));
    assert_ne!(read(&one.train, 9), read(&other.train, 9));
}

#[test]
fn synthetic_values_fill_their_range() {
    let set = synthetic(1, tokens("i32[5]")).unwrap();
    let (mut inputs, mut labels) = ([0; 40], [0; 3]);
    for index in 0..200 {
        let (input, label) = read(&set.train, index);
        input.iter().for_each(|&x| inputs[x as usize] += 1);
        label.iter().for_each(|&x| labels[x as usize] += 1);
    }
    assert!(inputs.iter().all(|&n| n > 5) && labels.iter().all(|&n| n > 250), "{inputs:?} {labels:?}");

    let set = synthetic(1, tokens("f32[10,5]")).unwrap();
    let values: Vec<f32> =
        (0..200).flat_map(|i| read(&set.train, i).0).map(|bits| f32::from_bits(bits as u32)).collect();
    check_standard_normal(&values);
}

fn check_standard_normal(values: &[f32]) {
    let count = values.len() as f32;
    assert_eq!(count, 10_000.0);
    let mean = values.iter().sum::<f32>() / count;
    let variance = values.iter().map(|x| x * x).sum::<f32>() / count;
    assert!(mean.abs() < 0.04 && (variance - 1.0).abs() < 0.06, "{mean} {variance}");
}

#[test]
fn synthetic_float_labels_are_standard_normal() {
    let set = synthetic(1, several(&[("i32[]", 4)], "f32[50]", None)).unwrap();
    assert_eq!(set.train.schema().classes(), None);
    let labels = (0..200).flat_map(|i| read(&set.train, i).1);
    check_standard_normal(&labels.map(|bits| f32::from_bits(bits as u32)).collect::<Vec<_>>());
}

#[test]
fn synthetic_inputs_differ_and_the_first_does_not_depend_on_the_others() {
    let fields = [("i32[50]", 1000), ("i32[50]", 1000), ("f32[2]", 0), ("i32[20]", 3)];
    let set = synthetic(1, several(&fields, "i32[]", Some(2))).unwrap();
    let alone = synthetic(1, several(&fields[..1], "i32[]", Some(2))).unwrap();
    let words = set.train.schema().in_words();
    assert_eq!(words, "input i32[50], input1 i32[50], input2 f32[2], input3 i32[20], label i32[]");
    let ((inputs, label), (first, same_label)) = (read_all(&set.train, 9), read(&alone.train, 9));
    assert_eq!((&inputs[0], label), (&first, same_label));
    assert_ne!(inputs[0], inputs[1]);
    assert!(inputs[3].iter().all(|token| (0..3).contains(token)), "{:?}", inputs[3]);
}

#[test]
fn synthetic_examples_of_unsupported_types_are_refused() {
    let refused = |spec| synthetic(1, spec).unwrap_err().to_string();
    assert!(refused(tokens("u8[5]")).contains("must be f32 or i32, not u8[5]"));
    let one = [("f32[5]", 0)];
    assert!(refused(several(&one, "f32[]", Some(3))).contains("must be i32"));
    assert!(refused(several(&one, "i32[]", None)).contains("must be f32"));
    assert!(refused(several(&one, "f64[]", None)).contains("must be f32"));
    assert!(refused(several(&one, "i32[]", Some(0))).contains("classes"));
    assert!(refused(several(&one, "i32[]", Some(1 << 31))).contains("classes"));
    assert!(refused(several(&[("f32[5]", 0), ("i32[5]", 0)], "f32[]", None)).contains("input bound"));
    assert!(refused(several(&[], "f32[]", None)).contains("from 1 to 8"));
    assert!(refused(several(&[("f32[]", 0); 9], "f32[]", None)).contains("from 1 to 8"));
    assert!(synthetic(1, several(&one, "f32[]", None)).is_ok());
    let message = open("synthetic", &crate::unsplit()).unwrap_err().to_string();
    assert!(message.contains("which a model has"), "{message}");
}
