//! Files written by NumPy, TensorFlow, pyarrow and others (`scripts/make_fixtures.py`) are read exactly; errors name what is
//! wrong; every format can be stopped and resumed.

use crate::support;

use plimsoll_data::{
    Batches, Csv, Cursor, DataError, Dataset, Normalise, Numpy, OneHot, OpenOptions, Pipeline, Record,
    Select, Source, TableOptions, Workers, open, tf_records,
};
use std::path::{Path, PathBuf};
use support::Scratch;

const ROWS: usize = 23;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The features of a row, as the script writes them.
fn features(i: usize) -> [f32; 3] {
    let i = i as f32;
    [i / 4.0, 10.0 - i, i * i]
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// The columns of a record.
fn read(source: &dyn Source, index: usize) -> Result<Vec<Vec<u8>>, DataError> {
    let mut bytes = vec![0; source.schema().capacity()];
    let mut scratch = vec![7; source.scratch_bytes()];
    let mut record = Record::over(source.schema(), &mut bytes);
    source.read(index, &mut record, &mut scratch)?;
    Ok((0..record.columns()).map(|column| record.bytes(column).to_vec()).collect())
}

/// The input and the label's bytes.
type Row = (Vec<f32>, Vec<u8>);

/// All records of an epoch in their order.
fn epoch(pipeline: &Pipeline) -> Result<Vec<Row>, DataError> {
    let mut batches = pipeline.batch(1).start_epoch(Cursor::default())?;
    let mut all = Vec::new();
    while let Some(batch) = batches.next()? {
        all.push((floats(batch.input(0).unwrap()), batch.labels().to_vec()));
    }
    Ok(all)
}

fn class(class: usize) -> Vec<u8> {
    (class as i32).to_ne_bytes().to_vec()
}

fn options() -> OpenOptions {
    let mut options = crate::unsplit();
    options.images.workers = Workers::Exactly(0);
    options
}

#[test]
fn numpy_arrays_are_read_exactly() {
    let points = Numpy::open(fixture("points.npz"), None).unwrap();
    assert_eq!(points.len(), ROWS);
    assert_eq!(points.schema().in_words(), "x f32[3], y i32[]");
    assert_eq!(points.schema().classes(), Some(5));
    let alone = Numpy::open(fixture("x.npy"), fixture("y.npy").to_str()).unwrap();
    let values = Numpy::open(fixture("values.npz"), Some("y")).unwrap();
    assert_eq!(values.schema().classes(), None);
    let kinds = Numpy::open(fixture("kinds.npz"), None).unwrap();
    assert_eq!(kinds.schema().in_words(), "a f32[3], b f32[], c f32[2,2], d f32[], e f32[], y i32[]");
    for i in 0..ROWS {
        let expected = features(i);
        for source in [&points, &alone] {
            let columns = read(source, i).unwrap();
            assert_eq!((floats(&columns[0]), &columns[1]), (expected.to_vec(), &class(i % 5)));
        }
        let columns = read(&values, i).unwrap();
        assert_eq!((floats(&columns[0]), floats(&columns[1])), (expected.to_vec(), vec![expected[0] * 2.0]));
        let columns = read(&kinds, i).unwrap();
        assert_eq!(floats(&columns[0]), expected);
        assert_eq!(floats(&columns[1]), [i as f32 * 1000.0 - 9000.0]);
        assert_eq!(floats(&columns[2]), [0, 1, 2, 3].map(|j| (4 * i + j) as f32));
        assert_eq!(floats(&columns[3]), [if i % 5 > 2 { 1.0 } else { 0.0 }]);
        assert_eq!(floats(&columns[4]), [((1u64 << 40) + i as u64) as f32]);
        assert_eq!(columns[5], class(i % 5));
    }
    assert!(matches!(read(&points, ROWS), Err(DataError::Index { .. })));
}

#[test]
fn parts_of_an_npz_are_found_by_name() {
    let data = open(&format!("npz:{}", fixture("parts.npz").display()), &options()).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (Some(15), Some(8)));
    assert_eq!((data.train.schema().classes(), data.test.schema().classes()), (Some(5), Some(5)));
}

#[test]
fn unreadable_arrays_are_refused_with_a_reason() {
    let refused =
        |name: &str, label: Option<&str>| Numpy::open(fixture(name), label).unwrap_err().to_string();
    assert!(refused("compressed.npz", None).contains("write it with numpy.savez"));
    assert!(refused("fortran.npz", None).contains("numpy.ascontiguousarray"));
    assert!(refused("points.npz", Some("z")).contains("holds x, y"), "{}", refused("points.npz", Some("z")));
    assert!(refused("x.npy", None).contains("second .npy"));
    assert!(refused("missing.npz", None).contains("cannot be read"));
    let folder = Scratch::new("numpy");
    let whole = std::fs::read(fixture("x.npy")).unwrap();
    let cut = folder.write("x.npy", &whole[..whole.len() - 1]);
    let error = Numpy::open(cut, fixture("y.npy").to_str()).unwrap_err();
    assert!(matches!(error, DataError::Truncated { promised: 276, found: 275, .. }), "{error}");
    let mut long = whole.clone();
    long.push(0);
    let error = Numpy::open(folder.write("x.npy", &long), fixture("y.npy").to_str()).unwrap_err().to_string();
    assert!(error.contains("1 bytes follow"), "{error}");
    // Nested brackets that would take the library hours to parse.
    let nested = |depth: usize| {
        let shape = ["[".repeat(depth), "1".into(), "]".repeat(depth)].concat();
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let start = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
        let path = folder.write("nested.npy", &[&start, header.as_bytes()].concat());
        Numpy::open(path, fixture("y.npy").to_str()).unwrap_err().to_string()
    };
    assert!(nested(1000).contains("too many brackets"), "{}", nested(1000));
    assert!(nested(4).contains("too many brackets") && !nested(3).contains("too many brackets"));
    // A file that shrinks afterwards.
    let path = folder.write("x.npy", &whole);
    let source = Numpy::open(&path, fixture("y.npy").to_str()).unwrap();
    std::fs::write(&path, &whole[..200]).unwrap();
    let error = read(&source, 20).unwrap_err().to_string();
    assert!(error.contains("x.npy") && error.contains("cannot be read"), "{error}");
}

fn table_options() -> TableOptions {
    let columns = ["colour", "size", "count"].map(String::from);
    TableOptions { label: Some("kind".into()), columns: Some(columns.into()), prepared: None }
}

/// A row of the table: one-hot words in sorted order (blue, green, red), size and count.
fn table_row(i: usize) -> Row {
    let mut row = vec![0.0; 3];
    row[2 - i % 3] = 1.0;
    // red, green, blue are 2, 1, 0 in sorted order.
    row.extend([i as f32 / 4.0, 10.0 - i as f32]);
    (row, class(i % 2))
}

#[test]
fn csv_rows_are_read_exactly() {
    let table = Csv::open(fixture("table.csv"), &table_options()).unwrap();
    assert_eq!((table.len(), table.schema().in_words().as_str()), (ROWS, "features f32[5], kind i32[]"));
    assert_eq!(table.classes(), ["cat", "dog"]);
    assert_eq!(table.features(), ["colour=blue", "colour=green", "colour=red", "size", "count"]);
    for i in (0..ROWS).rev() {
        let columns = read(&table, i).unwrap();
        assert_eq!((floats(&columns[0]), columns[1].clone()), table_row(i));
    }
}

fn csv(folder: &Scratch, content: &str, options: &TableOptions) -> Result<Csv, String> {
    Csv::open(folder.write("t.csv", content.as_bytes()), options).map_err(|e| e.to_string())
}

#[test]
fn labels_of_a_table_are_classes_or_values() {
    let folder = Scratch::new("labels");
    let open = |content| csv(&folder, content, &TableOptions::default()).unwrap();
    assert_eq!(open("a,y\n1,0\n2,3\n").schema().classes(), Some(4));
    assert_eq!(open("a,y\n1,0.5\n2,3\n").schema().in_words(), "features f32[1], y f32[1]");
    assert_eq!(open("a,y\n1,-1\n2,3\n").schema().classes(), None);
    let crlf = open("a,y\r\n1,x\r\n\r\n-2e1,y");
    assert_eq!((crlf.len(), floats(&read(&crlf, 1).unwrap()[0])), (2, vec![-20.0]));
    let one = open("y,a\n\"x\ny\",1\nz,0\n");
    assert_eq!(one.features(), ["y=x\ny", "y=z"]);
}

#[test]
fn errors_in_a_table_name_line_and_column() {
    let folder = Scratch::new("wrong");
    let plain = TableOptions::default();
    let wrong = |content: &str| csv(&folder, content, &plain).unwrap_err();
    let ragged = wrong("a,b,y\n1,2,0\n\"1\n2\",3\n");
    assert!(ragged.contains("t.csv`, line 3: 2 fields, the header has 3"), "{ragged}");
    let word = wrong("a,y\n1,0\n2,1\nthree,1\n");
    assert!(word.contains("line 4: column `a`: `three` is not a finite number"), "{word}");
    assert!(wrong("a,y\n1,0\n,1\n").contains("line 3: column `a`: the cell is empty"));
    assert!(wrong("a,y\n1,0\nnan,1\n").contains("`nan` is not a finite number"));
    for first in ["nan", "inf", "1e99"] {
        let error = wrong(&format!("a,y\n{first},0\n1,1\n"));
        assert!(error.contains(&format!("line 2: column `a`: `{first}` is not a finite number")), "{error}");
    }
    assert!(wrong("a,y\n,0\n1,1\n").contains("line 2: column `a`: the cell is empty"));
    assert!(wrong("a,y\nx,0\n \t,1\n").contains("line 3: column `a`: the cell is empty"));
    // Other ends of lines, and empty lines.
    for content in ["a,y\r\n1,0\r\nx,1\r\n", "a,y\n\nx,1,2\n", "a,y\r\n\r\nx,1,2\r\n"] {
        assert!(wrong(content).contains("line 3"), "{}", wrong(content));
    }
    assert!(wrong("a,y\n1,0\n1e99,1\n").contains("not a finite number"));
    assert!(wrong("").contains("holds no examples") && wrong("a,y\n").contains("holds no examples"));
    assert!(wrong("a\n1\n").contains("features besides the label `a`"));
    let names: String = (0..70).map(|i| format!("w{i},0\n")).collect();
    assert!(wrong(&format!("a,y\n{names}")).contains("line 66: column `a`: more than 64 different words"));
    let long = format!("a,y\n\"{}\",1\n", "x".repeat(3 << 20));
    assert!(wrong(&long).contains("at most 1048576 were declared"), "{}", wrong(&long));
    let named = |label: &str| TableOptions { label: Some(label.into()), ..TableOptions::default() };
    let unknown = csv(&folder, "a,y\n1,0\n", &named("z")).unwrap_err();
    assert!(unknown.contains("no column `z`; it has a, y"), "{unknown}");
    // A file that changes afterwards.
    let table = csv(&folder, "a,y\n1,0\n2,1\n3,1\n", &plain).unwrap();
    folder.write("t.csv", b"a,y\n1,0\nx,1\n3,7\n");
    assert!(read(&table, 1).unwrap_err().to_string().contains("the file has changed"));
    assert!(
        read(&table, 2).unwrap_err().to_string().contains("column `y`: label 7 is none of the 2 classes")
    );
    folder.write("t.csv", b"a,y\n1,0\n");
    assert!(read(&table, 2).unwrap_err().to_string().contains("t.csv"));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_and_arrow_rows_are_read_exactly() {
    for name in ["table.parquet", "table-zstd.parquet", "table-plain.parquet", "table.arrow"] {
        let table = plimsoll_data::columnar(fixture(name), &table_options()).unwrap();
        assert_eq!(
            (table.len(), table.schema().in_words().as_str()),
            (Some(ROWS), "features f32[5], kind i32[]")
        );
        assert_eq!(epoch(&table).unwrap(), (0..ROWS).map(table_row).collect::<Vec<_>>(), "{name}");
        let refused = |label: &str| {
            let options = TableOptions { label: Some(label.into()), ..TableOptions::default() };
            plimsoll_data::columnar(fixture(name), &options).err().unwrap().to_string()
        };
        assert!(refused("price").contains("no column `price`; it has size, count, colour, note, kind"));
    }
    let other = plimsoll_data::columnar(fixture("table.csv"), &table_options()).err().unwrap().to_string();
    assert!(other.contains("neither a Parquet nor an Arrow file"), "{other}");
}

fn numbers(end: &str) -> Vec<PathBuf> {
    (0..3).map(|part| fixture(&format!("numbers-{part}.tfrecord{end}"))).collect()
}

#[test]
fn tf_records_are_read_exactly() {
    let plain = tf_records(numbers(""), None, None).unwrap();
    assert_eq!(plain.schema().in_words(), "features f32[4], label i32[]");
    assert_eq!((plain.len(), plain.schema().classes()), (Some(ROWS), Some(5)));
    // Row i is record i / 3 of file i % 3; `n` comes before `x`.
    let order: Vec<usize> = (0..3).flat_map(|part| (part..ROWS).step_by(3)).collect();
    let row = |i: usize| ([&[i as f32 - 3.0][..], &features(i)].concat(), class(i % 5));
    let expected: Vec<_> = order.iter().map(|&i| row(i)).collect();
    assert_eq!(epoch(&plain).unwrap(), expected);
    // Compressed files are interleaved.
    let zipped = tf_records(numbers(".gz"), None, None).unwrap();
    assert!(zipped.source().is_none());
    assert_eq!(epoch(&zipped).unwrap(), (0..ROWS).map(row).collect::<Vec<_>>());
    assert_eq!(
        tf_records(numbers(""), Some("n"), Some(99)).unwrap().schema().in_words(),
        "features f32[4], n i32[]"
    );
    let missing = tf_records(numbers(""), Some("z"), None).err().unwrap().to_string();
    assert!(missing.contains("hold label, n, name, x"), "{missing}");
}

#[test]
fn pictures_in_tf_records_are_decoded() {
    let mut options = options();
    options.images.size = [10, 12, 3];
    let data = open(&format!("tfrecord:{}", fixture("pictures.tfrecord").display()), &options).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (Some(21), Some(2)));
    assert_eq!(data.train.schema().in_words(), "image/encoded f32[10,12,3], image/class/label i32[]");
    for (part, rows) in
        [(&data.train, (0..ROWS).filter(|i| i % 10 != 9).collect()), (&data.test, vec![9, 19])]
    {
        for ((pixels, label), i) in epoch(part).unwrap().into_iter().zip(rows) {
            assert_eq!(label, class(i % 3));
            let red = (pixels[0] * 0.229 + 0.485) * 255.0;
            assert!((red - 10.0 * i as f32).abs() < 3.0, "{red} in row {i}");
        }
    }
}

#[test]
fn errors_in_tf_records_name_file_and_offset() {
    let folder = Scratch::new("tfrecord");
    let whole = std::fs::read(fixture("numbers-0.tfrecord")).unwrap();
    let size = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 16;
    // A byte of the second record.
    let mut bad = whole.clone();
    bad[size + 30] ^= 1;
    // Its label, which must not raise the number of classes.
    let label = size + bad[size..].windows(5).position(|word| word == b"label").unwrap();
    let value = label + bad[label..].iter().position(|byte| *byte == 0x1a).unwrap() + 4;
    bad[value] = 100;
    let path = folder.write("bad.tfrecord", &bad);
    let pipeline = tf_records(vec![path.clone()], None, None).unwrap();
    assert_eq!(pipeline.schema().classes(), Some(5));
    let error = epoch(&pipeline).unwrap_err().to_string();
    assert!(
        error.contains(&format!("bad.tfrecord` at byte {size}: the checksum of the record is wrong")),
        "{error}"
    );
    let mut skipping = pipeline.skip_bad(1).batch(8).start(Cursor::default()).unwrap();
    skipping.next().unwrap();
    assert_eq!(skipping.skipped().0, 1);
    // Its length.
    bad[size] ^= 1;
    let error = tf_records(vec![folder.write("bad.tfrecord", &bad)], None, None).err().unwrap().to_string();
    assert!(
        error.contains(&format!("at byte {size}: the checksum of a record's length is wrong")),
        "{error}"
    );
    let cut = folder.write("cut.tfrecord", &whole[..size + 20]);
    let error = tf_records(vec![cut], None, None).err().unwrap().to_string();
    assert!(error.contains(&format!("at byte {size}` is cut short")), "{error}");
    let empty = tf_records(vec![folder.write("empty", b"")], None, None).err().unwrap();
    assert!(matches!(empty, DataError::Empty { .. }));
    let other = tf_records(vec![fixture("table.csv")], None, None).err().unwrap().to_string();
    assert!(other.contains("not a TFRecord file"), "{other}");
    // Compressed: a bad record is skipped from the first pass on.
    let mut bad = whole.clone();
    bad[size + 30] ^= 1;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &[&bad[..], &whole].concat()).unwrap();
    let path = folder.write("bad.tfrecord.gz", &packed.finish().unwrap());
    let mut skipping = options();
    skipping.images.skip_bad = Some(1);
    let by_name = |options: &OpenOptions| open(&format!("tfrecord:{}", path.display()), options);
    assert!(by_name(&options()).is_err());
    by_name(&skipping).unwrap();
    // Compressed: a byte in the middle.
    let mut zipped = std::fs::read(fixture("numbers-0.tfrecord.gz")).unwrap();
    let path = folder.write("whole.gz", &zipped);
    let pipeline = tf_records(vec![path.clone()], None, None).unwrap();
    let middle = zipped.len() / 2;
    zipped[middle] ^= 0x55;
    std::fs::write(&path, &zipped).unwrap();
    let error = epoch(&pipeline).unwrap_err().to_string();
    assert!(error.contains("whole.gz"), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn windows_of_a_text_are_the_tokenizers_tokens() {
    let tokens = std::fs::read_to_string(fixture("tokens.txt")).unwrap();
    let tokens: Vec<i32> = tokens.split_whitespace().map(|word| word.parse().unwrap()).collect();
    // The longer the context, the longer the chunks.
    for context in [1, 7, 64, 300] {
        let text =
            plimsoll_data::Tokens::open(fixture("text.txt"), fixture("tokenizer.json"), context).unwrap();
        let windows = (tokens.len() - 1) / context;
        let test = (windows / 10).max(1);
        assert_eq!((text.train.len(), text.test.len()), (Some(windows - test), Some(test)));
        assert_eq!(text.train.schema().classes(), Some(300));
        for (part, first, count) in [(&text.train, 0, windows - test), (&text.test, windows - test, test)] {
            for index in (0..count).step_by(1 + count / 20).chain([count - 1]) {
                let columns = read(part.source().unwrap(), index).unwrap();
                let start = (first + index) * context;
                let expected = |at: usize| -> Vec<u8> {
                    tokens[at..at + context].iter().flat_map(|token| token.to_ne_bytes()).collect()
                };
                assert_eq!(columns, [expected(start), expected(start + 1)], "window {index} of {context}");
            }
        }
    }
    let refused = |text: &Path, tokenizer: &Path, context| {
        plimsoll_data::Tokens::open(text, tokenizer, context).unwrap_err().to_string()
    };
    let short = refused(&fixture("text.txt"), &fixture("tokenizer.json"), 5000);
    assert!(short.contains("tokens, a context of 5000 needs at least 10001"), "{short}");
    let wrong = refused(&fixture("text.txt"), &fixture("table.csv"), 8);
    assert!(wrong.contains("table.csv` is no tokenizer file"), "{wrong}");
    let binary = refused(&fixture("table.parquet"), &fixture("tokenizer.json"), 8);
    assert!(binary.contains("table.parquet` at byte") && binary.contains("not UTF-8"), "{binary}");
    // Random merges are off.
    let folder = Scratch::new("tokens");
    let json = std::fs::read_to_string(fixture("tokenizer.json")).unwrap();
    let dropout = json.replace("\"dropout\": null", "\"dropout\": 0.5");
    assert_ne!(dropout, json);
    let dropout = folder.write("dropout.json", dropout.as_bytes());
    let text = plimsoll_data::Tokens::open(fixture("text.txt"), dropout, 64).unwrap();
    let first: Vec<u8> = tokens[..64].iter().flat_map(|token| token.to_ne_bytes()).collect();
    assert_eq!(read(text.train.source().unwrap(), 0).unwrap()[0], first);
    // A file that changes afterwards.
    let path = folder.write("t.txt", &std::fs::read(fixture("text.txt")).unwrap());
    let text = plimsoll_data::Tokens::open(&path, fixture("tokenizer.json"), 8).unwrap();
    std::fs::write(&path, [b'x'; 100]).unwrap();
    let error = read(text.test.source().unwrap(), 0).unwrap_err().to_string();
    assert!(error.contains("t.txt"), "{error}");
}

#[test]
fn table_stages_normalise_select_and_one_hot() {
    let table = Pipeline::new(Csv::open(fixture("table.csv"), &table_options()).unwrap());
    let normal = Normalise::measure(&table).unwrap();
    let rows = epoch(&table.clone().apply(normal).unwrap()).unwrap();
    for feature in 0..5 {
        let values: Vec<f64> = rows.iter().map(|(row, _)| f64::from(row[feature])).collect();
        let mean = values.iter().sum::<f64>() / ROWS as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / ROWS as f64;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-5, "{mean} {variance}");
    }
    let kinds = Pipeline::new(Numpy::open(fixture("kinds.npz"), None).unwrap());
    let some = kinds.apply(Select::new(["c", "y"])).unwrap();
    assert_eq!(some.schema().in_words(), "c f32[2,2], y i32[]");
    assert_eq!(epoch(&some).unwrap()[2], (vec![8.0, 9.0, 10.0, 11.0], class(2)));
    let hot = some.apply(Select::new(["y", "c"])).unwrap().apply(OneHot::new("y")).unwrap();
    assert_eq!(epoch(&hot).unwrap()[2].0, [0.0, 0.0, 1.0, 0.0, 0.0]);
}

/// A dataset of every format of which there are fixtures.
fn every() -> Vec<(&'static str, Dataset)> {
    let mut table = options();
    table.table = table_options();
    let mut pictures = options();
    pictures.images.size = [8, 8, 3];
    pictures.images.augment = true;
    let mut shuffled = options();
    shuffled.shuffle = Some(5);
    let plain = options();
    // As many windows as the other fixtures have rows.
    let bytes = OpenOptions { context: 192, ..options() };
    #[cfg(feature = "tokenizers")]
    let tokens = OpenOptions { tokenizer: Some(fixture("tokenizer.json")), context: 68, ..options() };
    let specs = [
        ("npz:points.npz", &plain),
        ("npz:parts.npz", &plain),
        ("csv:table.csv", &table),
        ("tfrecord:numbers-*.tfrecord", &plain),
        ("tfrecord:numbers-*.tfrecord.gz", &plain),
        ("tfrecord:numbers-*.tfrecord.gz", &shuffled),
        ("tfrecord:pictures.tfrecord", &pictures),
        ("text:text.txt", &bytes),
        #[cfg(feature = "parquet")]
        ("parquet:table.parquet", &table),
        #[cfg(feature = "parquet")]
        ("parquet:table.arrow", &table),
        #[cfg(feature = "tokenizers")]
        ("text:text.txt", &tokens),
    ];
    let mut tested: Vec<&str> = specs.iter().filter_map(|(spec, _)| spec.split(':').next()).collect();
    tested.extend((!cfg!(feature = "parquet")).then_some("parquet"));
    // Tests of these write their own files.
    let elsewhere = ["mnist", "images", "tar", "paths", "masks", "raster", "synthetic"];
    support::assert_covers_registry(&tested, &elsewhere);
    let open_one = |(spec, options): (&'static str, &OpenOptions)| {
        let (kind, name) = spec.split_once(':').unwrap();
        (spec, open(&format!("{kind}:{}", fixture(name).display()), options).unwrap())
    };
    specs.into_iter().map(open_one).collect()
}

/// The results of `calls` calls: the bytes of each batch, empty at the end of an epoch, and the cursor after it.
fn run(mut batches: Batches, calls: usize) -> Vec<(Vec<u8>, Vec<u8>, Cursor)> {
    let call = |_| {
        let next = batches.next().unwrap();
        let (input, labels) =
            next.map_or_else(Default::default, |b| (b.input(0).unwrap().to_vec(), b.labels().to_vec()));
        (input, labels, batches.cursor())
    };
    (0..calls).map(call).collect()
}

#[test]
fn every_format_resumes_exactly_with_any_number_of_workers() {
    for (spec, data) in every() {
        let train =
            if data.train.is_shuffled() { data.train.clone() } else { data.train.clone().shuffle(4, 3) };
        let pipeline = train.batch(4);
        let whole = run(pipeline.start(Cursor::default()).unwrap(), 14);
        assert_ne!(whole[0], whole[7], "{spec}: each epoch has its own order");
        for workers in [0, 1, 3] {
            let pipeline = pipeline.clone().workers(workers);
            assert_eq!(run(pipeline.start(Cursor::default()).unwrap(), 14), whole, "{spec}");
            for done in 0..13 {
                let resumed = run(pipeline.start(whole[done].2).unwrap(), 13 - done);
                assert_eq!(resumed, whole[done + 1..], "{spec} after {} calls", done + 1);
            }
        }
        // Training and test part are the whole.
        let count = |part: &Pipeline| epoch(part).unwrap().len();
        assert_eq!(count(&data.train) + count(&data.test), ROWS, "{spec}");
    }
}

#[test]
fn the_first_label_decides_between_words_and_numbers() {
    let folder = Scratch::new("label-mix");
    let wrong = |text: &str| {
        let path = folder.write("mix.csv", text.as_bytes());
        Csv::open(path, &TableOptions::default()).unwrap_err().to_string()
    };
    let word = wrong("a,y\n1,0\n2,1\n3,cat\n");
    assert!(word.contains("line 4: column `y`: `cat` is not a finite number"), "{word}");
    // A column that begins with a word holds words: a number is one of them.
    let path = folder.write("words.csv", b"a,y\n1,cat\n2,7\n3,cat\n");
    assert_eq!(Csv::open(path, &TableOptions::default()).unwrap().classes(), ["7", "cat"]);
    // One fraction makes all labels values.
    let path = folder.write("values.csv", b"a,y\n1,0\n2,1\n3,1.5\n");
    let values = Csv::open(path, &TableOptions::default()).unwrap();
    assert_eq!(values.schema().in_words(), "features f32[1], y f32[1]");
}

#[cfg(feature = "tokenizers")]
#[test]
fn context_and_tokenizer_size_are_limited() {
    for context in [0, (1 << 20) + 1, usize::MAX] {
        let refused = plimsoll_data::Tokens::open(fixture("text.txt"), fixture("tokenizer.json"), context);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("context") && error.contains("1..=2^20"), "{error}");
    }
    let folder = Scratch::new("token-limits");
    let large = folder.write("large.json", b"{");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(1 << 40).unwrap();
    let error = plimsoll_data::Tokens::open(fixture("text.txt"), &large, 8).unwrap_err().to_string();
    assert!(
        error.contains("large.json") && error.contains("a tokenizer file takes 1099511627776"),
        "{error}"
    );
}
