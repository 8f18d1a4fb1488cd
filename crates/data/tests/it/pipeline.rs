//! Random pipelines give the same records for any number of workers and after a resume; errors name the record.

use plimsoll_data::{
    Batches, Buckets, Cache, Cursor, DataError, Field, Pipeline, Prefetch, Record, Schema, Source, Stream,
    Streamed, Workers,
};
use plimsoll_tensor::random::Stream as Random;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn schema() -> Schema {
    Schema::examples([Field::below(1 << 30, [])], Field::below(1 << 30, []))
}

/// Numbers from `first` on.
struct Numbers {
    first: usize,
    len: usize,
    schema: Schema,
}

impl Source for Numbers {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> usize {
        self.len
    }
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        record.put_i32(0, (self.first + index) as i32)?;
        record.put_i32(1, (self.first + index) as i32)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

fn numbers(first: usize, len: usize) -> Pipeline {
    Pipeline::new(Numbers { first, len, schema: schema() })
}

fn generated(first: usize, len: usize) -> Pipeline {
    Pipeline::generator(schema(), 0, move |_| {
        let mut rest = first..first + len;
        move |record| {
            let Some(number) = rest.next() else { return Ok(false) };
            record.put_i32(0, number as i32)?;
            record.put_i32(1, number as i32)?;
            Ok(true)
        }
    })
}

#[derive(Clone, Debug)]
enum Verb {
    Shuffle(usize, u64),
    Map,
    Filter(i32),
    FilterNoise,
    Take(usize),
    Skip(usize),
    Shard(usize, usize),
    Repeat(usize),
    Concatenate(bool, usize),
    Interleave(bool, usize),
    Zip(bool),
    Cache,
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        (1usize..9, 0u64..99).prop_map(|(n, seed)| Verb::Shuffle(n, seed)),
        Just(Verb::Map),
        (2i32..5).prop_map(Verb::Filter),
        Just(Verb::FilterNoise),
        (5usize..40).prop_map(Verb::Take),
        (0usize..5).prop_map(Verb::Skip),
        (0usize..2).prop_map(|rank| Verb::Shard(rank, 2)),
        (1usize..3).prop_map(Verb::Repeat),
        (any::<bool>(), 1usize..20).prop_map(|(stream, len)| Verb::Concatenate(stream, len)),
        (any::<bool>(), 1usize..20).prop_map(|(stream, len)| Verb::Interleave(stream, len)),
        any::<bool>().prop_map(Verb::Zip),
        Just(Verb::Cache),
    ]
}

fn apply(pipeline: Pipeline, verb: &Verb) -> Pipeline {
    let other = |stream: bool, len| if stream { generated(1000, len) } else { numbers(1000, len) };
    match *verb {
        Verb::Shuffle(records, seed) => pipeline.shuffle(records, seed),
        // Noise from epoch and position, like an augmentation.
        Verb::Map => pipeline
            .map(schema(), |input, output| {
                let place = input.place;
                let noise = Random::new(3, place.epoch, "noise").below(place.number, 0, 1 << 20);
                output.put_i32(0, input.i32(0).unwrap_or(0).wrapping_add(noise as i32))?;
                output.put(1, input.bytes(1))
            })
            .unwrap(),
        Verb::Filter(divisor) => pipeline.filter(move |record| Ok(record.i32(1).unwrap_or(0) % divisor != 0)),
        // Filters by a value that depends on the noise.
        Verb::FilterNoise => {
            apply(pipeline, &Verb::Map).filter(|record| Ok(record.i32(0).unwrap_or(0) % 3 != 0))
        }
        Verb::Take(records) => pipeline.take(records),
        Verb::Skip(records) => pipeline.skip(records),
        Verb::Shard(rank, world) => pipeline.shard(rank, world).unwrap(),
        Verb::Repeat(times) => pipeline.repeat(times),
        Verb::Concatenate(stream, len) => pipeline.concatenate(other(stream, len)).unwrap(),
        Verb::Interleave(stream, len) => pipeline.interleave(other(stream, len)).unwrap(),
        Verb::Zip(stream) => {
            let zipped = pipeline.zip(other(stream, 1000)).unwrap();
            // Four columns become two again.
            zipped
                .map(schema(), |input, output| {
                    let sum = input.i32(0).unwrap_or(0).wrapping_add(input.i32(2).unwrap_or(0));
                    output.put_i32(0, sum)?;
                    output.put(1, input.bytes(1))
                })
                .unwrap()
        }
        // Only at the start: after a random stage a cache would keep the first epoch's values.
        Verb::Cache => pipeline,
    }
}

/// Numbers as sequences of up to six tokens, in three buckets.
fn bucketed(pipeline: Pipeline) -> Pipeline {
    let tokens = Schema::new().bytes("tokens", 6 * 4).tensor("label", Field::below(1 << 30, []));
    let sequences = pipeline.map(tokens, |input, output| {
        let number = input.i32(0).unwrap_or(0) & 0xffff;
        let tokens: Vec<u8> = (0..number % 7).flat_map(|i| (number + i).to_ne_bytes()).collect();
        output.put(0, &tokens)?;
        output.put(1, input.bytes(1))
    });
    let buckets = Buckets::new([1, 3, 6]).column("tokens", Field::below(1 << 30, []), 9).with_length();
    sequences.unwrap().bucket(buckets).unwrap()
}

/// The results of `calls` calls: inputs and labels of each batch, empty at the end of an epoch, and the cursor after it.
fn run(mut batches: Batches, calls: usize) -> Vec<(Vec<u8>, Vec<u8>, Cursor)> {
    (0..calls)
        .map(|_| {
            let (input, labels) = match batches.next() {
                Ok(Some(batch)) => (batch.inputs().flatten().copied().collect(), batch.labels().to_vec()),
                Ok(None) => (Vec::new(), Vec::new()),
                // An empty epoch.
                Err(error) => (error.to_string().into_bytes(), Vec::new()),
            };
            (input, labels, batches.cursor())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_resumed_pipeline_equals_an_uninterrupted_one_for_any_workers(
        stream in any::<bool>(),
        cache in any::<bool>(),
        verbs in prop::collection::vec(verb(), 0..5),
        batch in 1usize..7,
        prefetch in 1usize..4,
        autotuned in any::<bool>(),
        drop_remainder in any::<bool>(),
        buckets in any::<bool>(),
    ) {
        let mut pipeline = if stream { generated(0, 23) } else { numbers(0, 23) };
        if cache && !stream {
            pipeline = pipeline.cache(Cache::Memory { most_bytes: 1000 }).unwrap();
        }
        pipeline = verbs.iter().fold(pipeline, apply).batch(batch);
        if buckets {
            pipeline = bucketed(pipeline);
        }
        if drop_remainder {
            pipeline = pipeline.drop_remainder();
        }
        let Ok(mut first) = pipeline.start(Cursor::default()) else { return Ok(()) };
        // The epoch is empty, or no batch is ever full.
        if first.next().is_err() {
            return Ok(());
        }
        let calls = 12;
        let whole = run(pipeline.start(Cursor::default()).unwrap(), calls);
        let failed = whole.iter().any(|(input, labels, _)| !input.is_empty() && labels.is_empty());
        for workers in [Workers::Exactly(1), Workers::Exactly(2), Workers::Exactly(4), Workers::UpTo(3)] {
            let prefetch = if autotuned { Prefetch::UpTo(prefetch) } else { Prefetch::Exactly(prefetch) };
            let pipeline = pipeline.clone().workers(workers).prefetch(prefetch);
            prop_assert_eq!(&run(pipeline.start(Cursor::default()).unwrap(), calls), &whole);
            for done in (0..10).filter(|done| !failed || *done == 0) {
                let resumed = run(pipeline.start(whole[done].2).unwrap(), calls - done - 1);
                prop_assert_eq!(&resumed[..], &whole[done + 1..], "after {} calls", done + 1);
            }
        }
    }
}

fn labels(pipeline: &Pipeline) -> Vec<i32> {
    let mut batches = pipeline.start_epoch(Cursor::default()).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        all.extend(batch.label_tensor().as_i32().unwrap());
    }
    all
}

#[test]
fn verbs_mean_what_they_mean_in_tf_data() {
    for make in [numbers, generated] {
        let check = |pipeline: Pipeline, expected: &[i32]| assert_eq!(labels(&pipeline.batch(4)), expected);
        check(make(0, 6).take(4), &[0, 1, 2, 3]);
        check(make(0, 6).skip(4), &[4, 5]);
        check(make(0, 7).shard(1, 3).unwrap(), &[1, 4]);
        check(make(0, 3).repeat(2), &[0, 1, 2, 0, 1, 2]);
        check(make(0, 2).concatenate(make(5, 2)).unwrap(), &[0, 1, 5, 6]);
        check(make(0, 4).interleave(make(5, 2)).unwrap(), &[0, 5, 1, 6, 2, 3]);
        check(make(0, 1).interleave(make(5, 3)).unwrap(), &[0, 5, 6, 7]);
        check(make(0, 6).filter(|record| Ok(record.i32(1).unwrap_or(0) % 2 == 1)), &[1, 3, 5]);
        let mut shuffled = labels(&make(0, 50).shuffle(8, 3).batch(7));
        assert!(!shuffled.is_sorted());
        shuffled.sort_unstable();
        assert!(shuffled.into_iter().eq(0..50));
        let mut ranks = Vec::new();
        for rank in 0..3 {
            ranks.extend(labels(&make(0, 50).shuffle(8, 3).shard(rank, 3).unwrap().batch(4)));
        }
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..50), "each rank has its own shard of one order");
    }
    let other = Schema::examples([Field::floats([2])], Field::below(3, []));
    let other = Pipeline::generator(other, 0, |_| |_: &mut Record<'_>| Ok(false));
    assert!(numbers(0, 3).concatenate(other).err().unwrap().to_string().contains("same columns"));
}

#[test]
fn a_cache_in_memory_or_a_file_reads_each_record_once() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for cache in [Cache::Memory { most_bytes: 20 * 9 }, Cache::File { folder }] {
        let reads = Arc::new(AtomicUsize::new(0));
        let counter = reads.clone();
        let counted = numbers(0, 20).map(schema(), move |input, output| {
            counter.fetch_add(1, SeqCst);
            output.copy_from(input)
        });
        let pipeline = counted.unwrap().cache(cache).unwrap().shuffle(0, 1).repeat(3).workers(2).batch(6);
        let mut all = labels(&pipeline);
        all.sort_unstable();
        assert!(all.into_iter().eq((0..20).flat_map(|i| [i; 3])));
        // Two workers may read the same record concurrently.
        assert!(reads.load(SeqCst) <= 24, "{} reads", reads.load(SeqCst));
    }
    let refused = numbers(0, 20).cache(Cache::Memory { most_bytes: 20 * 9 - 1 });
    assert!(matches!(refused.err(), Some(DataError::TooLarge { bytes: 180, limit: 179, .. })));
}

/// Numbers of which some are bad.
fn faulty(bad: &'static [i32], stream: bool) -> Pipeline {
    let base = if stream { generated(0, 20) } else { numbers(0, 20) };
    base.map(schema(), |input, output| {
        let number = input.i32(1).unwrap_or(0);
        match bad.contains(&number) {
            true => Err(DataError::Corrupt { reason: format!("{number} is bad") }),
            false => output.copy_from(input),
        }
    })
    .unwrap()
}

#[test]
fn an_error_surfaces_in_its_batch_and_names_the_record() {
    for (workers, stream) in [(0, false), (1, false), (3, false), (0, true), (3, true)] {
        let mut batches =
            faulty(&[9, 11], stream).workers(workers).prefetch(4).batch(4).start(Cursor::default()).unwrap();
        for _ in 0..2 {
            assert!(batches.next().unwrap().is_some());
        }
        let error = batches.next().unwrap_err().to_string();
        assert!(error.contains(" 9: 9 is bad"), "{error}");
        assert_eq!(batches.cursor(), Cursor { epoch: 0, example: 8 }, "the cursor stays before the batch");
        assert!(matches!(batches.next(), Err(DataError::Stopped)));
    }
}

#[test]
fn bad_records_are_skipped_up_to_the_limit() {
    for (workers, stream) in [(0, false), (3, false), (2, true)] {
        let pipeline = faulty(&[2, 9, 11], stream).workers(workers);
        let mut batches = pipeline.clone().skip_bad(3).batch(20).start(Cursor::default()).unwrap();
        let labels = batches.next().unwrap().unwrap().label_tensor();
        let expected: Vec<i32> = (0..20).map(|i| if [2, 9, 11].contains(&i) { -1 } else { i }).collect();
        assert_eq!(labels.as_i32().unwrap(), expected);
        let (count, first) = batches.skipped();
        assert!(count == 3 && first.unwrap().contains("is bad"));
        let mut batches = pipeline.skip_bad(2).batch(20).start(Cursor::default()).unwrap();
        let error = batches.next().unwrap_err().to_string();
        assert!(error.contains("more than 2 bad records") && error.contains("is bad"), "{error}");
    }
    let values = Schema::examples([Field::floats([])], Field::floats([]));
    let values = Pipeline::generator(values, 0, |_| |_: &mut Record<'_>| Ok(false)).skip_bad(1);
    assert!(values.start(Cursor::default()).err().unwrap().to_string().contains("classes"));
}

#[test]
fn a_panic_in_a_closure_is_an_error_of_its_record() {
    for workers in [0, 2] {
        let panics = numbers(0, 20).map(schema(), |input, output| {
            assert!(input.i32(0) != Some(13), "thirteen is unlucky");
            output.copy_from(input)
        });
        let mut batches = panics.unwrap().workers(workers).batch(4).start(Cursor::default()).unwrap();
        let error = (0..5).find_map(|_| batches.next().err()).unwrap().to_string();
        assert!(error.contains("example 13") && error.contains("thirteen is unlucky"), "{error}");
    }
    let unlucky = generated(0, 9).filter(|_| panic!("never")).workers(2);
    assert!(unlucky.start(Cursor::default()).unwrap().next().unwrap_err().to_string().contains("never"));
}

#[test]
fn dropping_batches_stops_the_threads_at_once() {
    for pipeline in [numbers(0, usize::MAX >> 8), generated(0, usize::MAX >> 8).shuffle(100, 1)] {
        for calls in [0, 1, 3] {
            let begin = Instant::now();
            let pipeline = pipeline.clone().workers(4).prefetch(3).batch(100);
            let mut batches = pipeline.start(Cursor::default()).unwrap();
            for _ in 0..calls {
                batches.next().unwrap();
            }
            drop(batches);
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
    }
}

#[test]
fn ten_billion_records_are_shuffled_without_memory() {
    let pipeline = numbers(0, 10_000_000_000).shuffle(0, 1).workers(2).batch(64);
    let stated: usize = pipeline.bytes().iter().map(|share| share.bytes).sum();
    assert!(stated < 32 << 10, "{:?}", pipeline.bytes());
    let mut batches = pipeline.start(Cursor { epoch: 3, example: 9_999_999_000 }).unwrap();
    let mut seen: Vec<i32> = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        seen.extend(batch.label_tensor().as_i32().unwrap());
    }
    assert_eq!(seen.len(), 1000);
}

#[test]
fn a_wrong_stated_count_is_an_error() {
    let counted = |n| generated(0, 10).counted(n).batch(4);
    assert_eq!(labels(&counted(10)).len(), 10);
    let mut batches = counted(11).start(Cursor::default()).unwrap();
    let error = (0..4).find_map(|_| batches.next().err()).unwrap();
    assert!(error.to_string().contains("had 10 records, 11 were stated"), "{error}");
    let nothing = generated(0, 10).filter(|_| Ok(false)).workers(1);
    assert!(matches!(nothing.start(Cursor::default()).unwrap().next(), Err(DataError::Empty { .. })));
}

/// The labels of two epochs, in one batch each.
fn two_epochs(pipeline: Pipeline) -> [Vec<i32>; 2] {
    let mut batches = pipeline.batch(100).start(Cursor::default()).unwrap();
    [0, 1].map(|_| {
        let labels = batches.next().unwrap().unwrap().label_tensor().as_i32().unwrap().to_vec();
        assert!(batches.next().unwrap().is_none());
        labels
    })
}

#[test]
fn a_skipped_record_of_a_stream_keeps_the_position_of_the_others() {
    let stream = |bad| faulty(bad, true).filter(|_| Ok(true)).skip_bad(9);
    let zipped = stream(&[3, 7]).zip(stream(&[5, 7])).unwrap().map(schema(), |pair, output| {
        assert_eq!(pair.bytes(0), pair.bytes(3), "records of one pair");
        output.put(0, pair.bytes(0))?;
        output.put(1, pair.bytes(1))
    });
    let expected: Vec<i32> = (0..20).filter(|i| ![3, 5, 7].contains(i)).collect();
    assert_eq!(two_epochs(zipped.unwrap()), [expected.clone(), expected]);
    let check = |pipeline: Pipeline, expected: &[i32]| {
        assert_eq!(two_epochs(pipeline), [expected.to_vec(), expected.to_vec()]);
    };
    check(stream(&[2, 4]).take(6), &[0, 1, 3, 5]);
    check(stream(&[2, 17]).skip(16), &[16, 18, 19]);
    check(stream(&[6, 7]).shard(2, 4).unwrap(), &[2, 10, 14, 18]);
}

#[test]
fn the_limit_of_bad_records_is_per_epoch_and_skipped_records_count_as_stated() {
    for stream in [false, true] {
        let pipeline = faulty(&[2, 9], stream).skip_bad(2).workers(2).batch(7);
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        (0..40).for_each(|_| assert!(batches.next().is_ok()));
        assert_eq!(batches.skipped().0, 2);
    }
    let counted = faulty(&[2, 9], true).filter(|_| Ok(true)).counted(20).skip_bad(2);
    assert_eq!(two_epochs(counted.clone()).map(|labels| labels.len()), [18, 18]);
    // Also when resumed in the middle of an epoch.
    let mut batches = counted.batch(4).start(Cursor { epoch: 1, example: 12 }).unwrap();
    assert_eq!(batches.next().unwrap().unwrap().label_tensor().as_i32().unwrap(), [14, 15, 16, 17]);
    assert_eq!(batches.next().unwrap().unwrap().examples(), 2);
    assert!(batches.next().unwrap().is_none());
    let fewer = faulty(&[2, 9], true).filter(|_| Ok(true)).counted(21).skip_bad(2).batch(100);
    let mut batches = fewer.start(Cursor::default()).unwrap();
    assert!(batches.next().unwrap().is_some() && batches.next().is_err());
}

#[test]
fn stages_before_a_shuffle_see_positions_and_each_repetition_is_an_epoch() {
    let numbered = |repeat| {
        let numbered = generated(0, 20).map(schema(), |input, output| {
            output.put_i32(0, 0)?;
            output.put_i32(1, (100 * input.place.epoch + input.place.number) as i32)
        });
        numbered.unwrap().shuffle(5, 1).repeat(repeat)
    };
    let [mut first, second] = two_epochs(numbered(1));
    first.sort_unstable();
    assert!(first.into_iter().eq(0..20));
    let [mut twice, _] = two_epochs(numbered(2));
    let mut expected: Vec<i32> = (0..20).chain(100..120).collect();
    twice.sort_unstable();
    expected.sort_unstable();
    assert_eq!(twice, expected);
    assert!(second.iter().all(|number| (100..120).contains(number)));
}

#[test]
fn an_endless_search_for_a_record_stops_when_dropped() {
    let forever = || {
        Pipeline::generator(schema(), 0, |_| {
            |record: &mut Record<'_>| record.put_i32(0, 1).and(record.put_i32(1, 1)).map(|()| true)
        })
    };
    let none = |pipeline: Pipeline| pipeline.filter(|_| Ok(false));
    let zipped = none(forever()).zip(forever()).unwrap().map(schema(), |_, _| Ok(())).unwrap();
    let searches = [
        none(forever()),
        none(forever()).shuffle(9, 1),
        forever().skip(usize::MAX >> 1),
        none(none(forever()).map(schema(), |_, _| Ok(())).unwrap()),
        zipped,
    ];
    for search in searches {
        let begin = Instant::now();
        let batches = search.workers(2).start(Cursor::default()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        drop(batches);
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    // Skipping to a cursor stops, too.
    let batches = forever().workers(1).start(Cursor { epoch: 0, example: u64::MAX >> 1 }).unwrap();
    drop(batches);
    let mut nothing = none(generated(0, 3)).repeat(usize::MAX).start(Cursor::default()).unwrap();
    assert!(matches!(nothing.next(), Err(DataError::Empty { .. })));
    let mut never = generated(0, 3).repeat(0).start(Cursor::default()).unwrap();
    assert!(matches!(never.next(), Err(DataError::Empty { .. })));
}

/// Numbers whose origin names their stream.
struct Named(&'static str, i32, Schema);

impl Streamed for Named {
    fn schema(&self) -> &Schema {
        &self.2
    }
    fn start(&self, _: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(Counting(self.1, 0)))
    }
    fn resident_bytes(&self) -> usize {
        0
    }
    fn origin(&self, origin: u64) -> String {
        format!("{} {origin}", self.0)
    }
}

struct Counting(i32, u64);

impl Stream for Counting {
    fn next(&mut self, record: &mut Record<'_>, _: &mut [u8]) -> Result<bool, DataError> {
        record.place.origin = self.1;
        self.1 += 1;
        record.put_i32(0, self.0)?;
        record.put_i32(1, self.0 + self.1 as i32 - 1)?;
        Ok(self.1 <= 3)
    }
}

#[test]
fn an_error_in_joined_streams_names_its_stream() {
    let named = |name, first| Pipeline::stream(Named(name, first, schema()));
    let first = || named("a", 0).concatenate(named("b", 10)).unwrap();
    let second = || named("c", 20).interleave(named("d", 30)).unwrap();
    for (bad, origin) in [(1, "a 1"), (12, "b 2"), (20, "c 0"), (31, "d 1")] {
        for joined in
            [first().concatenate(second()), first().interleave(second()), second().concatenate(first())]
        {
            let mapped = joined.unwrap().map(schema(), move |input, output| match input.i32(1) {
                Some(number) if number == bad => Err(DataError::Corrupt { reason: "bad".into() }),
                _ => output.copy_from(input),
            });
            let mut batches = mapped.unwrap().batch(20).start(Cursor::default()).unwrap();
            let error = batches.next().unwrap_err().to_string();
            assert!(error.starts_with(origin), "{error}, not {origin}");
        }
    }
}

#[test]
fn closures_run_guarded_against_panics() {
    let seen = numbers(0, 3).map(numbers(0, 3).schema().clone(), |input, output| {
        assert!(plimsoll_data::is_guarded());
        (0..input.columns()).try_for_each(|column| output.put(column, input.bytes(column)))
    });
    for workers in [0, 1] {
        assert_eq!(labels(&seen.as_ref().unwrap().clone().workers(workers)), [0, 1, 2]);
    }
    assert!(!plimsoll_data::is_guarded());
}

#[test]
fn errors_offer_skipping_only_where_it_is_possible() {
    let failing = |label: Field| {
        let schema = Schema::examples([Field::floats([1])], label);
        let failing =
            numbers(0, 5).map(schema, |_, _| Err(DataError::Corrupt { reason: "it is torn".into() }));
        failing.unwrap().start(Cursor::default()).unwrap().next().unwrap_err().to_string()
    };
    let classes = failing(Field::below(3, []));
    assert!(classes.ends_with("it is torn; replace or remove it, or let it be skipped"), "{classes}");
    let values = failing(Field::floats([1]));
    assert!(values.ends_with("it is torn; replace or remove it"), "{values}");
}
