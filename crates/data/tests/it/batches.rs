//! Order, sizes and types of batches; prefetching and idle workers.

use plimsoll_data::{
    Batch, Batches, Cursor, DataError, Field, MAX_COLUMNS, Pipeline, Prefetch, Record, Schema, Source,
    Synthetic, SyntheticSpec,
};
use plimsoll_tensor::{Tensor, TensorType};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Examples whose values are their index.
struct Counting(usize, Schema);

fn counting(len: usize) -> Counting {
    let fields = ["i32[2]", "u8[]"].map(|ty| Field { ty: ty.parse().unwrap(), bound: None });
    Counting(len, Schema::examples(fields, Field::below(len.max(1), [])))
}

impl Source for Counting {
    fn schema(&self) -> &Schema {
        &self.1
    }
    fn len(&self) -> usize {
        self.0
    }
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        record.buffer_mut(0)[..4].copy_from_slice(&(index as i32).to_ne_bytes());
        record.buffer_mut(0)[4..].copy_from_slice(&(-(index as i32)).to_ne_bytes());
        record.buffer_mut(1)[0] = index as u8;
        record.put_i32(2, index as i32)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

fn pipeline(len: usize) -> Pipeline {
    Pipeline::new(counting(len))
}

fn start(pipeline: &Pipeline) -> Batches {
    pipeline.start(Cursor::default()).unwrap()
}

/// The labels of each batch, an empty one at the end of each epoch, for `calls` calls.
fn labels(batches: &mut Batches, calls: usize) -> Vec<Vec<i32>> {
    (0..calls)
        .map(|_| {
            let before = batches.cursor();
            let Some(batch) = batches.next().unwrap() else { return Vec::new() };
            assert_eq!((batch.epoch(), batch.first_example()), (before.epoch, before.example));
            let labels = batch.label_tensor().as_i32().unwrap().to_vec();
            let pairs: Vec<i32> = labels.iter().flat_map(|&i| [i, -i]).collect();
            let bytes: Vec<u8> = labels.iter().map(|&i| i as u8).collect();
            let tensors = batch.input_tensors();
            assert_eq!((tensors[0].as_i32().unwrap(), tensors[1].as_bytes()), (&*pairs, &*bytes));
            assert!(batch.inputs().eq(tensors.iter().map(|tensor| tensor.as_bytes())));
            assert_eq!((batch.input(1), batch.input(2)), (Some(&*bytes), None));
            let types: Vec<TensorType> = tensors.iter().map(|tensor| tensor.ty().clone()).collect();
            assert_eq!(batch.input_types(), types);
            labels
        })
        .collect()
}

#[test]
fn without_a_shuffle_batches_are_in_order_and_the_remainder_is_last() {
    for workers in 0..4 {
        let mut batches = start(&pipeline(7).workers(workers).batch(3));
        let expected = [vec![0, 1, 2], vec![3, 4, 5], vec![6], vec![], vec![0, 1, 2]];
        assert_eq!(labels(&mut batches, 5), expected, "{workers} workers");
        assert_eq!(batches.cursor(), Cursor { epoch: 1, example: 3 });
    }
}

#[test]
fn a_whole_number_of_batches_has_no_remainder() {
    let whole = [vec![0, 1, 2], vec![3, 4, 5], vec![]];
    assert_eq!(labels(&mut start(&pipeline(6).batch(3)), 3), whole);
    let mut batches = start(&pipeline(8).workers(2).batch(3).drop_remainder());
    assert_eq!(labels(&mut batches, 6), [whole.clone(), whole].concat());
}

#[test]
fn start_epoch_ends_after_one_epoch() {
    for workers in [0, 2] {
        let mut batches = pipeline(5).workers(workers).batch(3).start_epoch(Cursor::default()).unwrap();
        assert_eq!(labels(&mut batches, 5), [vec![0, 1, 2], vec![3, 4], vec![], vec![], vec![]]);
    }
}

#[test]
fn a_shuffled_epoch_has_every_example_once_and_the_next_differs() {
    let mut batches = start(&pipeline(50).shuffle(0, 5).workers(3).batch(8));
    let mut epoch = || labels(&mut batches, 8).concat();
    let (first, second) = (epoch(), epoch());
    assert_ne!(first, second);
    for mut epoch in [first, second] {
        assert!(!epoch.is_sorted());
        epoch.sort_unstable();
        assert!(epoch.into_iter().eq(0..50));
    }
}

#[test]
fn the_order_does_not_depend_on_the_batch_size() {
    let epoch = |size| labels(&mut start(&pipeline(23).shuffle(0, 5).batch(size)), 24).concat();
    assert_eq!(epoch(1)[..23], epoch(4)[..23]);
}

#[test]
fn batches_keep_their_addresses() {
    let mut batches = start(&pipeline(7).shuffle(0, 5).batch(3));
    let addresses = |batch: &Batch| -> Vec<_> {
        batch.inputs().chain([batch.labels()]).map(|bytes| bytes.as_ptr()).collect()
    };
    let before = addresses(batches.next().unwrap().unwrap());
    for _ in 0..8 {
        let Some(batch) = batches.next().unwrap() else { continue };
        assert_eq!(addresses(batch), before);
        let lengths: Vec<_> = batch.inputs().chain([batch.labels()]).map(<[u8]>::len).collect();
        assert_eq!(lengths, [8, 1, 4].map(|bytes| batch.examples() * bytes));
    }
    let whole = pipeline(7).batch(usize::MAX).bytes();
    assert_eq!(whole, pipeline(7).batch(7).bytes(), "a batch is never longer than the source");
}

#[test]
fn invalid_settings_are_refused() {
    let refused = |pipeline: Pipeline, cursor| pipeline.start(cursor).err().expect("refused").to_string();
    let begin = Cursor::default();
    assert!(refused(pipeline(0).batch(3), begin).contains("no examples"));
    assert!(refused(pipeline(7).batch(0), begin).contains("batch size"));
    assert!(refused(pipeline(2).batch(3).drop_remainder(), begin).contains("never fill"));
    assert!(refused(pipeline(7).batch(3), Cursor { epoch: 0, example: 8 }).contains("cursor"));
    assert!(pipeline(7).shard(2, 2).is_err());
    let enormous = TensorType::new(plimsoll_tensor::DType::F32, [usize::MAX / 8]);
    let spec =
        SyntheticSpec { inputs: vec![Field { ty: enormous, bound: Some(9) }], label: Field::below(2, []) };
    let enormous = Pipeline::new(Synthetic::new(spec, 7, 0, 0).unwrap());
    assert!(refused(enormous.batch(3), begin).contains("overflow"));
    assert!(matches!(enormous.batch(1).start(begin), Err(DataError::OutOfMemory { .. })));
    let bytes = Schema::new().bytes("line", 9).tensor("label", Field::below(2, []));
    let bytes = Pipeline::generator(bytes, 0, |_| |_: &mut Record<'_>| Ok(false));
    assert!(refused(bytes, begin).contains("column `line` holds bytes"));
}

/// A source of any columns, whose bytes count up.
struct Stated(Schema);

impl Source for Stated {
    fn schema(&self) -> &Schema {
        &self.0
    }
    fn len(&self) -> usize {
        1
    }
    fn read(&self, _: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        (0..record.columns()).for_each(|column| record.buffer_mut(column)[0] = column as u8 + 1);
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

fn stated(inputs: usize, label: &str, classes: Option<usize>) -> Pipeline {
    let input = Field { ty: "u8[]".parse().unwrap(), bound: None };
    let label = Field { ty: label.parse().unwrap(), bound: classes };
    Pipeline::new(Stated(Schema::examples(vec![input; inputs], label)))
}

#[test]
fn the_maximum_number_of_inputs_works_and_more_are_refused() {
    let mut batches = start(&stated(MAX_COLUMNS - 1, "f32[]", None));
    let batch = batches.next().unwrap().unwrap();
    assert_eq!(batch.inputs().collect::<Vec<_>>().concat(), [1, 2, 3, 4, 5, 6, 7, 8]);
    for count in [0, MAX_COLUMNS] {
        let refused = stated(count, "f32[]", None).start(Cursor::default()).err();
        assert!(matches!(refused, Some(DataError::InputCount { found, most: 8 }) if found == count));
    }
}

#[test]
fn labels_are_classes_or_values() {
    let check =
        |label, classes| stated(1, label, classes).start(Cursor::default()).err().map(|e| e.to_string());
    assert_eq!(check("i32[5]", Some(3)), None);
    assert_eq!(check("f32[5]", None), None);
    assert!(check("f32[5]", Some(3)).unwrap().contains("f32[5], must be i32 with 3 classes"));
    assert!(check("i32[5]", None).unwrap().contains("i32[5], must be f32 without classes"));
    assert!(check("i32[]", Some(0)).unwrap().contains("classes: must be in 1..2^31, not 0"));
}

#[test]
fn settle_waits_until_every_batch_is_ready_and_workers_are_idle() {
    for (prefetch, taken, ready) in [(3, 0, 4), (3, 1, 4), (3, 2, 5), (50, 0, 10), (50, 2, 10)] {
        let made = Arc::new(AtomicUsize::new(0));
        let (counted, source) = (made.clone(), pipeline(20));
        let schema = source.schema().clone();
        let slowly = source.map(schema, move |input, output| {
            std::thread::sleep(Duration::from_micros(300));
            counted.fetch_add(1, SeqCst);
            (0..3).try_for_each(|column| output.put(column, input.bytes(column)))
        });
        let slowly = slowly.unwrap().workers(3).prefetch(prefetch).batch(2);
        let mut batches = slowly.start_epoch(Cursor::default()).unwrap();
        for _ in 0..taken {
            batches.next().unwrap();
        }
        batches.settle();
        assert_eq!(made.load(SeqCst), 2 * ready, "{prefetch} ahead, {taken} taken");
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(made.load(SeqCst), 2 * ready, "a worker was not idle");
    }
}

/// Examples that take some time each, depending on their index.
fn taking(len: usize, time: impl Fn(i32) -> Duration + Send + Sync + 'static) -> Pipeline {
    let source = pipeline(len);
    let schema = source.schema().clone();
    let slowly = source.map(schema, move |input, output| {
        std::thread::sleep(time(input.i32(2).unwrap()));
        (0..3).try_for_each(|column| output.put(column, input.bytes(column)))
    });
    slowly.unwrap()
}

#[test]
fn uneven_batches_grow_the_prefetch_up_to_its_maximum() {
    let uneven = |index: i32| Duration::from_millis(if index % 8 == 7 { 12 } else { 0 });
    let pipeline = taking(4000, uneven).workers(1).prefetch(Prefetch::UpTo(3)).batch(2);
    assert_eq!(pipeline.batches_ahead(), 3);
    let mut batches = start(&pipeline);
    assert_eq!(batches.batches_ahead(), 1);
    let mut given: Vec<i32> = Vec::new();
    while batches.batches_ahead() < 3 {
        given.extend(
            batches.next().unwrap().expect("a larger prefetch by now").label_tensor().as_i32().unwrap(),
        );
        std::thread::sleep(Duration::from_millis(4));
    }
    for _ in 0..8 {
        given.extend(batches.next().unwrap().expect("a batch").label_tensor().as_i32().unwrap());
    }
    assert!(given.iter().copied().eq(0..given.len() as i32), "{given:?}");
    assert_eq!(batches.batches_ahead(), 3);
}

#[test]
fn busy_workers_do_not_grow_the_prefetch() {
    let pipeline = taking(20, |_| Duration::from_millis(30)).workers(1).prefetch(Prefetch::UpTo(3)).batch(1);
    let mut batches = start(&pipeline);
    for _ in 0..5 {
        batches.next().unwrap();
    }
    assert_eq!(batches.batches_ahead(), 1);
}

#[test]
fn prefetch_within_bounds_an_autotuned_prefetch() {
    let pipeline = pipeline(100).workers(1).batch(10);
    let each = pipeline.batch_bytes();
    assert_eq!(each, 10 * (8 + 1 + 4));
    let ahead = |prefetch: Prefetch, bytes| {
        pipeline.clone().prefetch(prefetch).prefetch_within(bytes).batches_ahead()
    };
    assert_eq!(ahead(Prefetch::UpTo(4), 0), 1);
    assert_eq!(ahead(Prefetch::UpTo(4), 2 * each - 1), 2);
    assert_eq!(ahead(Prefetch::UpTo(4), 2 * each), 3);
    assert_eq!(ahead(Prefetch::UpTo(4), usize::MAX), 4);
    assert_eq!(ahead(Prefetch::Exactly(4), 0), 4);
}

#[test]
fn a_prefetch_without_a_number_of_workers_has_one() {
    let ahead = |pipeline: &Pipeline| (pipeline.worker_count(), pipeline.batches_ahead());
    assert_eq!(ahead(&pipeline(9)), (0, 0));
    let prefetched = pipeline(9).prefetch(2).batch(2);
    assert_eq!(ahead(&prefetched), (1, 2));
    assert_eq!(start(&prefetched).active_workers(), 1);
    // Stated numbers stay, before and after.
    assert_eq!(ahead(&pipeline(9).workers(0).prefetch(2)), (0, 0));
    assert_eq!(ahead(&pipeline(9).prefetch(2).workers(0)), (0, 0));
    assert_eq!(ahead(&pipeline(9).workers(3).prefetch(2)), (3, 2));
}

#[test]
fn a_batch_of_tensors_is_as_one_of_a_pipeline() {
    let (x, labels) = ([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 1]);
    let source = plimsoll_data::Memory::classes(x, labels, 2).unwrap();
    let mut batches = Pipeline::new(source).batch(3).start(Cursor::default()).unwrap();
    let (read, made) = (batches.next().unwrap().unwrap(), Batch::of([x], labels).unwrap());
    assert_eq!(made.input_tensors(), read.input_tensors());
    assert_eq!(made.label_tensor(), read.label_tensor());
    assert!(made.example_types().eq(read.example_types()));
    assert_eq!((made.examples(), made.first_example()), (3, 0));
    let unlabelled = Batch::unlabelled([x], &Field::floats([2, 2])).unwrap();
    assert_eq!(unlabelled.label_tensor(), Tensor::from([[[0.0f32; 2]; 2]; 3]));
    let none: [Tensor; 0] = [];
    assert!(matches!(Batch::of(none.clone(), labels), Err(DataError::InputCount { found: 0, .. })));
    assert!(matches!(Batch::unlabelled(none, &Field::floats([])), Err(DataError::Empty { .. })));
    assert!(matches!(Batch::of([x], [1, 2]), Err(DataError::Examples { expected: 3, found: 2, .. })));
    let scalar = Tensor::zeros("f32[]".parse().unwrap());
    assert!(matches!(Batch::of([scalar], labels), Err(DataError::NoExamplesAxis { .. })));
}
