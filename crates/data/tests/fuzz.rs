//! Damaged files of every format give an error or records, never a panic, and never exceed the stated bytes.

mod support;

use plimsoll_data::{Cursor, DataError, Dataset, OpenOptions, Pipeline, TableOptions, Workers, open};
use plimsoll_tensor::random::Stream;
use plimsoll_testing::CountingAllocator;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use support::Scratch;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The most memory of opening: buffers of the first pass, and of libraries that read headers.
const OPENING: usize = 24 << 20;

fn options() -> OpenOptions {
    let columns = ["colour", "size", "count"].map(String::from);
    let mut options = OpenOptions { table: TableOptions::default(), context: 32, ..OpenOptions::default() };
    options.table.columns = Some(columns.into());
    options.images.workers = Workers::Exactly(0);
    options.images.size = [8, 8, 3];
    options
}

/// Flips, truncates, inserts and repeats bytes.
fn damage(file: &[u8], seed: u64) -> Vec<u8> {
    let stream = Stream::new(seed, 0, "damage");
    let mut file = file.to_vec();
    let rounds = 1 + stream.below(0, 0, 4);
    for round in 1..=u64::from(rounds) {
        let below = |element, bound: usize| stream.below(round, element, bound.max(1) as u32) as usize;
        let at = below(0, file.len());
        match below(1, 10) {
            0 => file.truncate(at),
            1 => file.insert(at.min(file.len()), below(2, 256) as u8),
            2 if !file.is_empty() => drop(file.remove(at)),
            3 => {
                let end = (at + below(2, 64)).min(file.len());
                let part = file[at.min(end)..end].to_vec();
                file.splice(at.min(end)..at.min(end), part);
            }
            4 => {
                let end = (at + 1 + below(2, 8)).min(file.len());
                file[at.min(end)..end].fill(0xff);
            }
            _ if !file.is_empty() => file[at] ^= 1 << below(2, 8),
            _ => {}
        }
    }
    file
}

/// Opens a dataset and reads an epoch of both parts; returns the number of records.
fn read(spec: &str, options: &OpenOptions) -> Result<usize, DataError> {
    let before = HEAP.restart_peak();
    let data: Result<Dataset, DataError> = open(spec, options);
    let opened = HEAP.peak_bytes() - before;
    assert!(opened < OPENING, "opening took {opened} bytes");
    let data = data?;
    let mut count = 0;
    for part in [&data.train, &data.test] {
        count += run(part)?;
    }
    Ok(count)
}

/// Reads an epoch; returns the number of records.
fn run(part: &Pipeline) -> Result<usize, DataError> {
    let pipeline = if part.schema().classes().is_some() { part.clone().skip_bad(3) } else { part.clone() };
    let pipeline = pipeline.batch(4);
    let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
    let before = HEAP.restart_peak();
    let mut batches = pipeline.start_epoch(Cursor::default())?;
    let mut count = 0;
    let result = loop {
        match batches.next() {
            Ok(Some(batch)) => count += batch.examples(),
            Ok(None) => break Ok(count),
            Err(error) => break Err(error),
        }
    };
    let peak = HEAP.peak_bytes() - before;
    // The memory of error messages is not stated.
    assert!(peak <= stated + (8 << 10), "{peak} bytes, {stated} were stated: {result:?}");
    result
}

/// A third of the cases, for CI's time; `PLIMSOLL_LONG=1`, as `.ci/long` has it, runs all.
fn fewer(cases: u64) -> u64 {
    if std::env::var_os("PLIMSOLL_LONG").is_some() { cases } else { cases.div_ceil(3) }
}

/// Damages a fixture in `cases` ways.
fn check(folder: &Scratch, kind: &str, name: &str, options: &OpenOptions, cases: u64) {
    let cases = fewer(cases);
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap();
    let path = folder.write(name, &whole);
    let spec = format!("{kind}:{}", path.display());
    let all = read(&spec, options).unwrap();
    assert!(all >= 20, "{name}: {all}");
    let (mut good, mut bad, mut caught) = (0, 0, 0);
    for seed in 0..cases {
        std::fs::write(&path, damage(&whole, seed)).unwrap();
        match catch_unwind(AssertUnwindSafe(|| read(&spec, options))) {
            Ok(Ok(_)) => good += 1,
            Ok(Err(error)) => {
                // A panic in a library is an error here.
                let panics = error.to_string().contains("panicked");
                assert!(!panics || kind == "parquet", "{name}, seed {seed}: {error}");
                caught += u64::from(panics);
                bad += 1;
            }
            Err(_) => panic!("{name}: seed {seed}"),
        }
    }
    eprintln!("{name}: {good} were read, {bad} refused, {caught} panics caught");
    assert!(bad > cases / 20, "{name}: only {bad} of {cases} were refused");
    assert_eq!(std::fs::write(&path, &whole).ok().map(|()| read(&spec, options).unwrap()), Some(all));
}

/// A damaged gzip file of several members.
fn compressed(folder: &Scratch, options: &OpenOptions) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/numbers-0.tfrecord.gz");
    let whole = std::fs::read(fixture).unwrap().repeat(4);
    let path = folder.write("numbers.tfrecord.gz", &whole);
    damaged(&path, &whole, &format!("tfrecord:{}", path.display()), options, 1000);
}

/// Damaged lists of good files.
fn lists(folder: &Scratch, options: &OpenOptions) {
    (0..4).for_each(|i| drop(folder.write(&format!("some/{i}.jpg"), &support::photo(20 + i, 24, i))));
    let rows: String = (0..40).map(|i| format!("some/{}.jpg,{}\n", i % 4, ["cat", "dog"][i % 2])).collect();
    let whole = format!("path,kind\n{rows}").into_bytes();
    let path = folder.write("list.csv", &whole);
    damaged(&path, &whole, &format!("paths:{}", path.display()), options, 1000);
}

/// A damaged mask beside good ones.
fn masks(folder: &Scratch, options: &OpenOptions) {
    let mask = support::png(24, 20, &[[0, 1, 2, 255]; 120].concat(), png::ColorType::Grayscale);
    for i in 0..12 {
        folder.write(&format!("pairs/images/{i}.jpg"), &support::photo(24, 20, i));
        folder.write(&format!("pairs/masks/{i}.png"), &mask);
    }
    let spec = format!("masks:{}", folder.0.join("pairs").display());
    damaged(&folder.0.join("pairs/masks/5.png"), &mask, &spec, options, 1000);
}

/// Damages a file of a dataset in `cases` ways.
fn damaged(path: &Path, whole: &[u8], spec: &str, options: &OpenOptions, cases: u64) {
    let cases = fewer(cases);
    let all = read(spec, options).unwrap();
    let (mut good, mut bad) = (0, 0);
    for seed in 0..cases {
        std::fs::write(path, damage(whole, seed)).unwrap();
        // Bad records are skipped, so an error concerns the whole file.
        match catch_unwind(AssertUnwindSafe(|| read(spec, options))) {
            Ok(Ok(_)) => good += 1,
            Ok(Err(error)) => {
                assert!(!error.to_string().contains("panicked"), "{spec}, seed {seed}: {error}");
                bad += 1;
            }
            Err(_) => panic!("{spec}: seed {seed}"),
        }
    }
    eprintln!("{spec}: {good} were read, {bad} refused");
    assert_eq!(std::fs::write(path, whole).ok().map(|()| read(spec, options).unwrap()), Some(all));
}

/// One test: allocations of a second one, on another thread, would be counted.
#[test]
fn damaged_files_never_panic_or_exceed_the_stated_bytes() {
    // Panics of libraries become errors here; they are not printed.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_none_or(|location| !location.file().contains("registry/src")) {
            report(info);
        }
    }));
    let folder = Scratch::new("fuzz");
    let table = options();
    let mut plain = options();
    plain.table.columns = None;
    check(&folder, "npz", "points.npz", &plain, 2000);
    check(&folder, "npz", "kinds.npz", &plain, 1000);
    check(&folder, "csv", "table.csv", &table, 3000);
    check(&folder, "tfrecord", "pictures.tfrecord", &plain, 1000);
    compressed(&folder, &plain);
    lists(&folder, &plain);
    masks(&folder, &plain);
    #[cfg(feature = "parquet")]
    {
        check(&folder, "parquet", "table.parquet", &table, 1500);
        check(&folder, "parquet", "table-plain.parquet", &table, 1500);
        check(&folder, "parquet", "table.arrow", &table, 1500);
    }
    #[cfg(feature = "tokenizers")]
    {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokens = OpenOptions { tokenizer: Some(fixtures.join("tokenizer.json")), ..plain.clone() };
        check(&folder, "text", "text.txt", &tokens, 100);
        let path = folder.write("tokenizer.json", &[]);
        let tokens = OpenOptions { tokenizer: Some(path.clone()), ..plain.clone() };
        let (whole, spec) = (
            std::fs::read(fixtures.join("tokenizer.json")).unwrap(),
            format!("text:{}", fixtures.join("text.txt").display()),
        );
        for seed in 0..fewer(200) {
            std::fs::write(&path, damage(&whole, seed)).unwrap();
            let read = catch_unwind(AssertUnwindSafe(|| read(&spec, &tokens)));
            assert!(read.is_ok(), "tokenizer.json: seed {seed}");
        }
    }
    #[cfg(feature = "tiff")]
    for name in ["tiled.tif", "strips.tif"] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let whole = std::fs::read(fixtures.join(name)).unwrap();
        let (mut good, mut bad) = (0, 0);
        for seed in 0..fewer(1000) {
            let path = folder.write(name, &damage(&whole, seed));
            let before = HEAP.restart_peak();
            let raster = plimsoll_data::Raster::open(path, fixtures.join("classes.tif"), [8, 8], 3);
            let opened = HEAP.peak_bytes() - before;
            assert!(opened < OPENING, "{name}, seed {seed}: opening took {opened} bytes");
            let read = raster.and_then(|raster| run(&Pipeline::new(raster)));
            match read {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
        eprintln!("{name}: {good} were read, {bad} refused");
        assert!(bad > 50);
    }
    // Checksums catch damage before records are parsed: damaged content with valid checksums.
    let record = |bytes: &[u8]| {
        let sum =
            |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
        let length = (bytes.len() as u64).to_le_bytes();
        [&length[..], &sum(&length), bytes, &sum(bytes)].concat()
    };
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/numbers-0.tfrecord"))
            .unwrap();
    let mut records = Vec::new();
    let mut at = 0;
    while at < whole.len() {
        let size = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
        records.push(whole[at + 12..at + 12 + size].to_vec());
        at += 16 + size;
    }
    for seed in 0..2000 {
        let damaged = records.iter().enumerate().map(|(i, bytes)| match i {
            0 => record(bytes),
            i => record(&damage(bytes, seed * 100 + i as u64)),
        });
        // Twice, so that there is a test part.
        let damaged: Vec<u8> = damaged.collect::<Vec<_>>().concat().repeat(2);
        let spec = format!("tfrecord:{}", folder.write("numbers.tfrecord", &damaged).display());
        match catch_unwind(AssertUnwindSafe(|| read(&spec, &plain))) {
            Ok(Err(error)) => assert!(!error.to_string().contains("panicked"), "seed {seed}: {error}"),
            Ok(Ok(_)) => {}
            Err(_) => panic!("numbers.tfrecord: seed {seed}"),
        }
    }
    assert!(HEAP.live_bytes() > 0);
    let damaged = ["npz", "csv", "tfrecord", "paths", "masks", "parquet", "text", "raster"];
    // Unit tests and property tests damage IDX files, images and their archives.
    support::assert_covers_registry(&damaged, &["mnist", "images", "tar", "synthetic"]);
}
