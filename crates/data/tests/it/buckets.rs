//! Bucketing: batches of few lengths, no record lost or repeated, padding distinguishable.

use plimsoll_data::{Batch, Buckets, Cursor, DataError, Field, Pipeline, Record, Schema, Source};

fn words(tokens: impl Iterator<Item = i32>) -> Vec<u8> {
    tokens.flat_map(i32::to_ne_bytes).collect()
}

fn schema() -> Schema {
    Schema::new().bytes("tokens", 40).tensor("label", Field::below(100, []))
}

/// One sequence for each length; sequence `i` holds tokens from `10 * i` on.
fn sequences(lengths: &'static [i32]) -> Pipeline {
    Pipeline::generator(schema(), 0, move |_| {
        let mut rest = lengths.iter().enumerate();
        move |record| {
            let Some((i, &length)) = rest.next() else { return Ok(false) };
            record.put(0, &words((0..length).map(|token| 10 * i as i32 + token)))?;
            record.put_i32(1, i as i32)?;
            Ok(true)
        }
    })
}

fn tokens() -> Field {
    Field::below(1000, [])
}

fn buckets() -> Buckets {
    Buckets::new([2, 4, 6]).column("tokens", tokens(), 999).with_length()
}

/// Type, labels and lengths of a batch.
type Seen = (String, Vec<i32>, Vec<i32>);

fn seen(batch: &Batch) -> Seen {
    let inputs = batch.input_tensors();
    let labels = batch.label_tensor().as_i32().unwrap().to_vec();
    let lengths = inputs[1].as_i32().unwrap().to_vec();
    let each = inputs[0].ty().shape[1];
    for (i, row) in inputs[0].as_i32().unwrap().chunks(each).enumerate() {
        // A skipped record is an item of padding.
        let length = if labels[i] < 0 { 0 } else { lengths[i] as usize };
        assert!(labels[i] >= 0 || lengths[i] == 1);
        assert!(row[..length].iter().copied().eq((0..length as i32).map(|t| 10 * labels[i].max(0) + t)));
        assert!(row[length..].iter().all(|&token| token == 999), "{row:?} of {length}");
    }
    (inputs[0].ty().to_string(), labels, lengths)
}

fn epoch(pipeline: &Pipeline) -> Vec<Seen> {
    let mut batches = pipeline.start_epoch(Cursor::default()).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        let types: Vec<_> = batch.example_types().map(ToString::to_string).collect();
        assert!(pipeline.batch_schemas().iter().any(|schema| {
            let (inputs, label) = schema.fields().unwrap();
            inputs.into_iter().chain([label]).map(|field| field.ty.to_string()).eq(types.iter().cloned())
        }));
        all.push(seen(batch));
    }
    all
}

#[test]
fn records_go_to_the_smallest_bucket_that_fits_and_leftovers_move_up() {
    // Numbers 0 to 9.
    let pipeline = sequences(&[1, 5, 2, 3, 6, 0, 2, 4, 4, 1]).bucket(buckets()).unwrap().batch(2);
    let batch = |ty: &str, labels: &[i32], lengths: &[i32]| (ty.into(), labels.to_vec(), lengths.to_vec());
    let expected = [
        batch("i32[2,2]", &[0, 2], &[1, 2]),
        batch("i32[2,6]", &[1, 4], &[5, 6]),
        batch("i32[2,2]", &[5, 6], &[0, 2]),
        batch("i32[2,4]", &[3, 7], &[3, 4]),
        // 8 and 9 are left, of four tokens and of one.
        batch("i32[2,4]", &[8, 9], &[4, 1]),
    ];
    assert_eq!(epoch(&pipeline), expected);
    let odd = pipeline.clone().skip(1);
    assert_eq!(epoch(&odd).last(), Some(&batch("i32[1,6]", &[8], &[4])), "only the last is not full");
    assert_eq!(epoch(&odd.drop_remainder()).len(), 4);
    for records in 1..10 {
        for size in 1..5 {
            let batches = epoch(&pipeline.clone().take(records).batch(size));
            let mut labels: Vec<i32> = batches.iter().flat_map(|(_, labels, _)| labels.clone()).collect();
            labels.sort_unstable();
            assert!(labels.into_iter().eq(0..records as i32), "no record is lost or repeated");
            let full = batches.iter().filter(|(_, labels, _)| labels.len() == size).count();
            assert_eq!((full, batches.len()), (records / size, records.div_ceil(size)));
        }
    }
}

#[test]
fn labels_may_be_sequences_and_padding_is_no_label() {
    let both = Schema::new().bytes("tokens", 40).bytes("tags", 40);
    let tagged = sequences(&[3, 1]).map(both, |input, output| {
        output.put(0, input.bytes(0))?;
        output.put(1, input.bytes(0))
    });
    let buckets = Buckets::new([4]).column("tokens", tokens(), 0).column("tags", tokens(), -1);
    let mut batches = tagged.unwrap().bucket(buckets).unwrap().batch(2).start(Cursor::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    assert_eq!(format!("{batch:?}"), "Batch(i32[2,4] -> i32[2,4])");
    assert_eq!(batch.label_tensor().as_i32().unwrap(), [0, 1, 2, -1, 10, -1, -1, -1]);
    assert_eq!(batch.input_tensors()[0].as_i32().unwrap(), [0, 1, 2, 0, 10, 0, 0, 0]);
}

#[test]
fn a_sequence_too_long_for_all_buckets_is_named_or_skipped() {
    for workers in [0, 2] {
        let long = sequences(&[1, 7, 2, 5, 6]).workers(workers).batch(2);
        let long = |skip| if skip { long.clone().skip_bad(1) } else { long.clone() };
        let mut batches = long(false).bucket(buckets()).unwrap().start(Cursor::default()).unwrap();
        let error = batches.next().unwrap_err().to_string();
        assert!(error.contains("record 1") && error.contains("of 7") && error.contains("holds 6"), "{error}");
        assert!(matches!(batches.next(), Err(DataError::Stopped)));
        let pipeline = long(true).counted(5).bucket(buckets()).unwrap();
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        let first = batches.next().unwrap().unwrap();
        assert_eq!(first.label_tensor().as_i32(), Some(&[0, -1][..]), "its row stays, without a label");
        assert_eq!(first.input_tensors()[0].as_i32().unwrap(), [0, 999, 999, 999]);
        assert_eq!(first.input_tensors()[1].as_i32(), Some(&[1, 1][..]));
        assert_eq!((batches.next().unwrap().unwrap().examples(), batches.skipped().0), (2, 1));
        assert_eq!(batches.next().unwrap().unwrap().examples(), 1);
        assert!(batches.next().unwrap().is_none());
    }
    // With random access the error names the index, whatever the order.
    let indexed = Pipeline::new(Growing(schema())).shuffle(0, 3).bucket(buckets()).unwrap().batch(8);
    let error = indexed.start(Cursor::default()).unwrap().next().unwrap_err().to_string();
    assert!(error.contains("example 7: a sequence of 7"), "{error}");
}

/// Record i has i tokens, up to 7.
struct Growing(Schema);

impl Source for Growing {
    fn schema(&self) -> &Schema {
        &self.0
    }
    fn len(&self) -> usize {
        8
    }
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        record.put(0, &words((0..index as i32).map(|token| 10 * index as i32 + token)))?;
        record.put_i32(1, index as i32)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_resumed_run_with_skipped_records_gives_the_same_batches() {
    let pipeline = Pipeline::new(Growing(schema())).shuffle(0, 3).repeat(2).skip_bad(2).batch(3);
    let pipeline = pipeline.bucket(buckets()).unwrap();
    let calls = |cursor, count: usize| -> Vec<_> {
        let mut batches = pipeline.start(cursor).unwrap();
        let one = |_| (batches.next().unwrap().map(seen), batches.cursor());
        (0..count).map(one).collect()
    };
    let whole = calls(Cursor::default(), 14);
    let labels = |range: &[(Option<Seen>, Cursor)]| {
        let all = range.iter().filter_map(|(batch, _)| batch.as_ref());
        all.flat_map(|(_, labels, _)| labels.clone()).filter(|&label| label < 0).count()
    };
    assert!(
        whole[6].0.is_none() && labels(&whole[..6]) == 2,
        "six batches of sixteen records, two of them empty"
    );
    for done in 0..13 {
        assert_eq!(calls(whole[done].1, 13 - done), whole[done + 1..], "after {} calls", done + 1);
    }
}

#[test]
fn buckets_that_do_not_match_the_columns_are_refused() {
    let refused = |buckets: Buckets, reason: &str| {
        let error = sequences(&[1]).bucket(buckets).err().unwrap().to_string();
        assert!(error.starts_with("buckets: ") && error.contains(reason), "{error}");
    };
    refused(Buckets::new([]).column("tokens", tokens(), 0), "rise from at least 1");
    refused(Buckets::new([0, 2]).column("tokens", tokens(), 0), "rise from at least 1");
    refused(Buckets::new([4, 4]).column("tokens", tokens(), 0), "rise from at least 1");
    refused(Buckets::new([4]), "no column is a sequence");
    refused(Buckets::new([4]).column("label", tokens(), 0), "`label` must be a column of bytes");
    refused(Buckets::new([4]).column("words", tokens(), 0), "`words` must be a column of bytes");
    refused(Buckets::new([4]).column("tokens", tokens(), 1000), "padding must be in 0..1000");
    refused(
        Buckets::new([4]).column("tokens", Field { bound: None, ..tokens() }, 0.5),
        "0.5 is not representable as i32",
    );
    let both = Schema::new().bytes("tokens", 40).bytes("tags", 40);
    let tagged = sequences(&[3]).map(both, |_, _| Ok(())).unwrap();
    let tags = Buckets::new([4]).column("tags", tokens(), 0);
    assert!(tagged.clone().bucket(tags).err().unwrap().to_string().contains("no label, not 0"));
    // An undeclared sequence is refused at the start.
    let unnamed = tagged.bucket(Buckets::new([4]).column("tokens", tokens(), 0)).unwrap();
    assert!(matches!(unnamed.start(Cursor::default()).err(), Some(DataError::NotATensor { .. })));
    let later = sequences(&[1]).bucket(buckets()).unwrap();
    let later = later.map(schema().tensor("more", Field::below(9, [])), |_, _| Ok(())).unwrap();
    assert!(later.start(Cursor::default()).err().unwrap().to_string().contains("change columns before"));
    let broken = sequences(&[1]).map(schema(), |input, output| {
        output.put(0, &[1, 2, 3])?;
        output.put(1, input.bytes(1))
    });
    let broken = broken.unwrap().bucket(buckets()).unwrap();
    let error = broken.start(Cursor::default()).unwrap().next().unwrap_err().to_string();
    assert!(
        error.contains("record 0") && error.contains("not a whole number of items of 4 bytes"),
        "{error}"
    );
}
