//! The heap of a running pipeline never exceeds the stated bytes, and is not much below them.

mod support;

use jpeg_encoder::SamplingFactor;
use plimsoll_data::{
    Buckets, Cache, Crop, Cursor, DATA_SET, Decode, Field, Folder, OwnRows, Pipeline, Schema, Source,
};
use plimsoll_testing::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Runs some batches and compares the heap's peak with the stated bytes.
fn check(what: &str, pipeline: Pipeline, resident: usize) {
    let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum::<usize>() - resident;
    let before = HEAP.restart_peak();
    let mut batches = pipeline.start(Cursor::default()).unwrap();
    for _ in 0..40 {
        batches.next().unwrap();
    }
    drop(batches);
    let peak = HEAP.peak_bytes() - before;
    drop(pipeline);
    let left = HEAP.live_bytes().saturating_sub(before);
    eprintln!("{what}: stated {stated}, measured {peak}");
    assert_eq!(left, 0, "{what}: memory leaked");
    assert!(peak <= stated, "{what}: {peak} bytes, {stated} were stated");
    assert!(stated as f64 <= 1.3 * peak as f64, "{what}: {stated} stated for {peak}");
}

fn schema(cap: usize) -> Schema {
    Schema::new().bytes("text", cap).tensor("label", Field::below(9, []))
}

fn lines() -> Pipeline {
    Pipeline::generator(schema(3000), 0, |epoch| {
        let mut left = 5000u64;
        move |record| {
            left -= 1;
            let length = 3000 - (left * (epoch + 7) % 100) as usize;
            record.set_length(0, length)?;
            record.put_i32(1, (left % 9) as i32)?;
            Ok(left > 0)
        }
    })
}

fn decoded(pipeline: Pipeline) -> Pipeline {
    let output = Schema::examples([Field::floats([2000])], Field::below(9, []));
    pipeline
        .map(output, |input, output| {
            output.buffer_mut(0).fill(input.bytes(0).len() as u8);
            output.put(1, input.bytes(1))
        })
        .unwrap()
}

/// Every format stays within its stated bytes, whatever its library allocates.
fn formats() {
    let fixture = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let columns = ["colour", "size", "count"].map(String::from);
    let mut table = plimsoll_data::OpenOptions::default();
    table.table.columns = Some(columns.into());
    let plain = plimsoll_data::OpenOptions { context: 64, ..Default::default() };
    #[cfg(feature = "tokenizers")]
    let tokens =
        plimsoll_data::OpenOptions { tokenizer: Some(fixture("tokenizer.json").into()), ..plain.clone() };
    let specs = [
        ("npz", "points.npz", &plain),
        ("csv", "table.csv", &table),
        ("tfrecord", "numbers-*.tfrecord", &plain),
        ("tfrecord", "numbers-*.tfrecord.gz", &plain),
        ("tfrecord", "pictures.tfrecord", &plain),
        ("text", "text.txt", &plain),
        #[cfg(feature = "parquet")]
        ("parquet", "table.parquet", &table),
        #[cfg(feature = "parquet")]
        ("parquet", "table-zstd.parquet", &table),
        #[cfg(feature = "parquet")]
        ("parquet", "table.arrow", &table),
        #[cfg(feature = "tokenizers")]
        ("text", "text.txt", &tokens),
    ];
    let mut tested: Vec<&str> = specs.iter().map(|spec| spec.0).collect();
    tested.extend((!cfg!(feature = "parquet")).then_some("parquet"));
    // The others hold file lists or examples of known size.
    let elsewhere = ["mnist", "images", "tar", "paths", "masks", "raster", "synthetic"];
    support::assert_covers_registry(&tested, &elsewhere);
    for (kind, name, options) in specs {
        let before = HEAP.restart_peak();
        let data = plimsoll_data::open(&format!("{kind}:{}", fixture(name)), options).unwrap();
        let pipeline = data.train.batch(8);
        let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        // Temporary memory of opening is freed.
        let held = HEAP.live_bytes() - before;
        HEAP.restart_peak();
        for _ in 0..20 {
            batches.next().unwrap();
        }
        let peak = HEAP.peak_bytes() - before;
        drop((batches, pipeline));
        eprintln!("{kind}:{name}: stated {stated}, held {held}, measured {peak}");
        assert!(peak <= stated, "{kind}:{name}: {peak} bytes, {stated} were stated");
        drop(data);
    }
}

/// Writes a Parquet file of columns of floats, whole numbers and words, which may be empty.
#[cfg(feature = "parquet")]
fn parquet_file(folder: &support::Scratch, columns: usize, rows: usize) -> String {
    use arrow_array::{ArrayRef, Float32Array, Int32Array, RecordBatch, StringArray};
    use std::sync::Arc;
    let column = |i: usize| -> (String, ArrayRef, bool) {
        let number = |row: usize| (row * (i + 7) * 2_654_435_761) % 1_000_003;
        let of: ArrayRef = match i % 3 {
            _ if i == 0 => Arc::new(Int32Array::from_iter_values((0..rows).map(|row| (row % 3) as i32))),
            0 => Arc::new(Int32Array::from_iter_values((0..rows).map(|row| number(row) as i32))),
            1 => Arc::new(Float32Array::from_iter_values((0..rows).map(|row| number(row) as f32))),
            _ => Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("word {}", row % 5)))),
        };
        (if i == 0 { "label".into() } else { format!("column {i}") }, of, true)
    };
    let batch = RecordBatch::try_from_iter_with_nullable((0..columns).map(column)).unwrap();
    let path = folder.path(&format!("{columns}.parquet"));
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

/// A table's reader takes what its own columns take.
#[cfg(feature = "parquet")]
fn tables() {
    let folder = support::Scratch::new("tables");
    for (columns, rows) in [(1000, 300), (20, 30_000)] {
        let spec = format!("parquet:{}", parquet_file(&folder, columns, rows));
        let before = HEAP.restart_peak();
        let data = plimsoll_data::open(&spec, &plimsoll_data::OpenOptions::default()).unwrap();
        let pipeline = data.train.batch(8);
        let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        let held = HEAP.live_bytes() - before;
        HEAP.restart_peak();
        for _ in 0..100 {
            batches.next().unwrap();
        }
        let peak = HEAP.peak_bytes() - before;
        drop(batches);
        eprintln!("{columns} columns: stated {stated}, held {held}, measured {peak}");
        assert!(peak <= stated, "{columns} columns: {peak} bytes, {stated} were stated");
        assert!(stated as f64 <= 1.25 * peak as f64 + 1e5, "{columns} columns: {stated} stated for {peak}");
    }
}

/// One test: allocations of a second one, on another thread, would be counted.
#[test]
fn the_heap_stays_within_the_stated_bytes() {
    let digits = plimsoll_data::open("mnist", &plimsoll_data::OpenOptions::default()).unwrap().train;
    let resident = digits.bytes().iter().find(|share| share.name == DATA_SET).unwrap().bytes;
    for workers in [0, 1, 4] {
        let run = |pipeline: Pipeline| pipeline.workers(workers).prefetch(2).batch(32);
        check("digits by index", run(digits.clone().shuffle(10_000, 1)), resident);
        check("a stream", run(decoded(lines())), 0);
        check("a shuffled stream", run(decoded(lines().shuffle(300, 1))), 0);
        check("stages before a filter", run(decoded(lines()).filter(|r| Ok(r.i32(1) != Some(3)))), 0);
        let buckets = Buckets::new([2910, 2930, 2960, 3000]);
        let buckets = buckets.column("text", Field { ty: "u8[]".parse().unwrap(), bound: None }, 0);
        check("buckets", run(lines().shuffle(100, 1).bucket(buckets.with_length()).unwrap()), 0);
        let third = |examples: usize| OwnRows { first: examples / 3, rows: examples / 3, stride: examples };
        let own = |pipeline: Pipeline| run(pipeline.counted(4999)).own_rows(third);
        check("own rows by index", run(digits.clone().shuffle(10_000, 1)).own_rows(third), resident);
        check("own rows of a stream", own(decoded(lines())), 0);
        check("own rows of a stream without stages", own(decoded(lines()).filter(|_| Ok(true))), 0);
        check("two joined", run(decoded(lines().shuffle(100, 1).interleave(lines()).unwrap())), 0);
    }
    let folder = support::Scratch::new("bytes");
    for i in 0..40 {
        let file = support::jpeg(500, 375, i, true, SamplingFactor::R_4_4_4);
        // A colour profile of a MiB, which decoding does not need.
        let profile = [&[0xff, 0xe2, 0xff, 0xff][..], b"ICC_PROFILE\0\x01\x10", &[7; 0xffff - 16]].concat();
        let file = [&file[..2], &profile.repeat(16), &file[2..]].concat();
        folder.write(&format!("class{}/{i}.jpg", i % 3), &file);
    }
    for (workers, resize) in [(0, None), (2, None), (2, Some(256))] {
        let (train, _) = Folder::open(&folder.0, 1 << 20).unwrap();
        let held = train.resident_bytes();
        let decode = Decode::new([224, 224, 3], 500 * 375).crop(Crop::Random { pad: 0 }).flip();
        let decode = if let Some(side) = resize { decode.resize(side) } else { decode };
        let images = Pipeline::new(train).apply(decode).unwrap();
        let what = format!("images, {workers} workers, resized to {resize:?}");
        let images = images.shuffle(0, 1).workers(workers).batch(8);
        check(&what, images, held);
    }
    formats();
    #[cfg(feature = "parquet")]
    tables();
    let before = HEAP.restart_peak();
    let cached = digits.take(1000).cache(Cache::Memory { most_bytes: 4 << 20 }).unwrap();
    let stated = cached.bytes().iter().find(|share| share.name == plimsoll_data::CACHE).unwrap().bytes;
    let held = HEAP.live_bytes() - before;
    assert!(stated <= held && held < stated + 4096, "{stated} stated, {held} held");
    let total: usize = cached.bytes().iter().map(|share| share.bytes).sum();
    assert!(total > resident + 1000 * 28 * 28 * 4);
}
