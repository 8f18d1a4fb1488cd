//! Each of several processes reads, decodes and transforms its own rows of every batch alone: with the bits of one process, in less memory.

use crate::ranks::{bits, examples, on_ranks, trainer};
use plimsoll_data::{Buckets, Dataset, Field, OwnRows, Pipeline, Record, Schema, Synthetic, SyntheticSpec};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::{
    Activation, CrossEntropy, Dense, Dropout, Embedding, Layer, Model, Net, Precision, Sequential, WithLoss,
};
use plimsoll_plan::MiB;
use plimsoll_plan::sheet::{BATCH_BUFFERS, BATCHES_AHEAD};
use plimsoll_train::{TrainError, Trainer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const CLASSES: i32 = 5;

/// With dropout, whose random numbers are those of an example's number.
fn mlp() -> Sequential {
    let hidden = Sequential::classifier([20], CLASSES as usize).push(Dense::new(32)).push(Activation::Relu);
    hidden.push(Dropout::new(0.3)).push(Dense::new(CLASSES as usize))
}

fn mlp_schema() -> Schema {
    Schema::examples([Field::floats([20])], Field::below(CLASSES as usize, []))
}

fn synthetic(count: usize, part: u64) -> Synthetic {
    let spec = SyntheticSpec { inputs: mlp().inputs(), label: mlp().target() };
    Synthetic::new(spec, count, 3, part).unwrap()
}

/// Adds a number to every input that depends on epoch and position, and changes labels; counts the records that it makes.
fn augmented(
    pipeline: Pipeline,
    made: &Arc<AtomicUsize>,
    label: impl Fn(u64, i32) -> i32 + Send + Sync + 'static,
) -> Pipeline {
    let made = made.clone();
    let work = move |input: &Record<'_>, output: &mut Record<'_>| {
        made.fetch_add(1, SeqCst);
        let place = input.place;
        let shift = ((place.epoch * 7919 + place.number * 31) % 101) as f32 / 101.0;
        output.put_f32(0, &input.f32(0).map(|x| x + shift).collect::<Vec<_>>())?;
        output.put_i32(1, label(place.number, input.i32(1).unwrap_or(0)))
    };
    pipeline.map(mlp_schema(), work).unwrap()
}

fn by_index(count: usize, made: &Arc<AtomicUsize>, label: fn(u64, i32) -> i32) -> Dataset {
    let train = augmented(Pipeline::new(synthetic(count, 0)).shuffle(0, 9), made, label);
    Dataset::new("augmented", train, Pipeline::new(synthetic(100, 1)))
}

/// The records of a source as a stream, which its index does not reach.
fn streamed(count: usize, made: &Arc<AtomicUsize>) -> Dataset {
    let stream = Pipeline::new(synthetic(count, 0)).filter(|_| Ok(true)).counted(count);
    let train = augmented(stream.shuffle(50, 9), made, |_, label| label);
    Dataset::new("streamed", train, Pipeline::new(synthetic(100, 1)))
}

/// A run in one process, and in several in each of these ways: processes, micro-batches. With `maps_own`, each makes the records of its
/// rows alone.
fn check(
    what: &str,
    maps_own: bool,
    ways: &[(usize, usize)],
    run: impl Fn(&Arc<AtomicUsize>) -> (Trainer, Dataset) + Sync,
) {
    let start = |trainer: Trainer, data: &Dataset| trainer.epochs(2).plan(data).unwrap().start().unwrap();
    let none = Arc::new(AtomicUsize::new(0));
    let (alone, data) = run(&none);
    let records = 2 * data.train.len().unwrap();
    let alone = bits(&mut start(alone, &data));
    for &(count, micro_batches) in ways {
        let found = on_ranks(count, |ranks| {
            let made = Arc::new(AtomicUsize::new(0));
            let (trainer, data) = run(&made);
            let mut session = start(trainer.ranks(ranks).micro_batches(micro_batches), &data);
            // What compares the data of all ranks has read some of it.
            made.store(0, SeqCst);
            (bits(&mut session), made.load(SeqCst))
        });
        for (rank, (found, _)) in found.iter().enumerate() {
            assert!(*found == alone, "{what}: rank {rank} of {count}, {micro_batches} micro-batches");
        }
        let made: Vec<usize> = found.iter().map(|(_, made)| *made).collect();
        let all: usize = made.iter().sum();
        assert!(!maps_own || all == records && made[0] < records, "{what}: {made:?} of {records}");
    }
}

#[test]
fn shuffled_and_augmented_records_are_made_once_for_all_ranks() {
    // The last batch has less than a block for every rank.
    let ways = [(2, 1), (2, 2), (3, 1), (4, 1)];
    check("by index", true, &ways, |made| {
        (trainer(mlp(), Precision::F32, 384), by_index(2 * 384 + 40, made, |_, label| label))
    });
    check("with workers", false, &[(2, 2), (3, 1)], |made| {
        let mut data = by_index(2 * 384 + 40, made, |_, label| label);
        data.train = data.train.workers(2).prefetch(2);
        (trainer(mlp(), Precision::F32, 384), data)
    });
    check("a stream", true, &ways, |made| {
        (trainer(mlp(), Precision::F32, 384), streamed(2 * 384 + 40, made))
    });
}

#[test]
fn ignored_labels_and_class_weights_have_the_sums_of_one_process() {
    // Some of each batch, and all of one rank's rows of the first.
    let ignored = |number: u64, label: i32| if number < 192 || number.is_multiple_of(3) { -1 } else { label };
    check("ignored", true, &[(2, 1), (2, 2), (3, 1)], move |made| {
        (trainer(mlp(), Precision::F32, 384), by_index(384 + 40, made, ignored))
    });
    let weighted = || {
        let weights = vec![1e-9, 0.3, 1.7e8, 12345.678, 0.1];
        WithLoss::new(mlp(), CrossEntropy::new().class_weights(weights))
    };
    check("weighted", true, &[(2, 1), (2, 3), (3, 2)], move |made| {
        (trainer(weighted(), Precision::F32, 384), by_index(384 + 40, made, ignored))
    });
}

/// The mean over positions.
struct Mean;

impl Layer for Mean {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        net.mean(x, &[1], false)
    }
}

fn words(length: usize) -> Sequential {
    Sequential::new(Field::below(100, [length]), Field::below(2, []))
        .named("words")
        .layer("embed", Embedding::new(100, 8))
        .layer("mean", Mean)
        .layer("head", Dense::new(2))
}

fn bucketed(count: usize) -> Dataset {
    let schema = || Schema::new().bytes("tokens", 64).tensor("label", Field::below(2, []));
    let records = |count: usize| {
        let records = Pipeline::generator(schema(), 0, move |epoch| {
            let mut numbers = 0..count as i32;
            move |record| {
                let Some(number) = numbers.next() else { return Ok(false) };
                let tokens = (0..(number * 11 + epoch as i32) % 17).map(|i| (number + i) % 100);
                record.put(0, &tokens.flat_map(i32::to_ne_bytes).collect::<Vec<u8>>())?;
                record.put_i32(1, number % 2).map(|()| true)
            }
        });
        let buckets = Buckets::new([4, 8, 16]).column("tokens", Field::below(100, []), 0);
        records.counted(count).bucket(buckets).unwrap()
    };
    Dataset::new("words", records(count), records(20))
}

#[test]
fn batches_of_buckets_have_the_bits_of_one_process() {
    check("buckets", false, &[(2, 1), (3, 1)], |_| {
        let trainer = trainer(words(16), Precision::F32, 192).variant(words(8)).variant(words(4));
        (trainer, bucketed(3 * 192 + 40))
    });
}

#[test]
fn remainders_in_more_micro_batches_than_a_full_batch_have_the_bits_of_one_process() {
    // Three micro-batches of 192 examples, and seven of 64.
    let run = |made: &Arc<AtomicUsize>| {
        (trainer(mlp(), Precision::F32, 576), by_index(576 + 448, made, |_, label| label))
    };
    check("remainder", true, &[(2, 3)], run);
    let (alone, data) = run(&Arc::default());
    let split = alone.clone().micro_batches(3).plan(&data).unwrap();
    assert_eq!(split.plans[..2].iter().map(|plan| plan.graph.micro_batches).collect::<Vec<_>>(), [3, 7]);
    assert!(bits(&mut split.start().unwrap()) == bits(&mut alone.plan(&data).unwrap().start().unwrap()));
}

#[test]
fn what_one_rank_cannot_read_or_refuses_ends_all_by_name() {
    let errors = |data: fn() -> Dataset| {
        on_ranks(3, |ranks| {
            let mut session =
                trainer(mlp(), Precision::F32, 192).ranks(ranks).plan(&data()).unwrap().start().unwrap();
            session.fit().unwrap_err()
        })
    };
    // Position 100 of the second batch, whose 64 rows from 64 on are the second rank's.
    let label =
        errors(|| by_index(384, &Arc::default(), |number, label| if number == 292 { 9 } else { label }));
    assert_eq!(label[1].to_string(), "label 9 at place 100 of the batch is not in 0..5");
    for rank in [0, 2] {
        assert_eq!(label[rank].to_string(), "rank 1: label 9 at place 100 of the batch is not in 0..5");
    }
    let unread = errors(|| {
        let fails = |input: &Record<'_>, output: &mut Record<'_>| match input.place.number {
            292 => output.put(1, &[0; 8]),
            _ => output.copy_from(input),
        };
        let train = Pipeline::new(synthetic(384, 0)).shuffle(0, 9).map(mlp_schema(), fails).unwrap();
        Dataset::new("unread", train, Pipeline::new(synthetic(100, 1)))
    });
    assert!(matches!(unread[1], TrainError::Data(_)), "{}", unread[1]);
    for rank in [0, 2] {
        assert_eq!(unread[rank].to_string(), format!("rank 1: {}", unread[1]));
    }
}

#[test]
fn the_load_sheet_has_own_rows_alone_or_says_why_not() {
    let run = || trainer(mlp(), Precision::F32, 384).micro_batches(1).memory(MiB(512));
    let data = |skipped: u64| {
        let mut data = examples(&mlp(), 768);
        data.train = data.train.workers(1).prefetch(2);
        data.train = if skipped > 0 { data.train.skip_bad(skipped) } else { data.train };
        data
    };
    let sheets = |ranks: usize, skipped: u64| -> Vec<(usize, usize, bool)> {
        let plans = run().plan_ranks(&data(skipped), &vec![512 << 20; ranks]).unwrap();
        let sheet = |plan: &plimsoll_train::TrainingPlan| {
            let sheet = plan.load_sheet();
            let whole = sheet.notes.iter().any(|note| note.starts_with("Every rank reads whole batches"));
            (sheet.outside_bytes(BATCH_BUFFERS), sheet.outside_bytes(BATCHES_AHEAD), whole)
        };
        plans.iter().map(sheet).collect()
    };
    let (alone, third) = (sheets(1, 0), sheets(3, 0));
    let row = 20 * 4 + 4;
    // Ranks evaluate smaller batches.
    let whole = alone[0].0 - (384 - 128) * row;
    // Three batches of 128 rows instead of 384, and labels, two weights and a number for each.
    let less = 3 * (384 - 128) * row + (384 - 128) * (4 + 8 + 4);
    for rank in &third {
        assert_eq!(*rank, (whole - less, 0, false));
    }
    // What the pipeline of a rank states is what it takes.
    let own = data(0).train.batch(384).own_rows(|examples| OwnRows { first: 0, rows: 128, stride: examples });
    assert_eq!(own.batch_bytes(), 128 * row);
    for rank in sheets(3, 1) {
        assert_eq!(rank, (whole, 0, true));
    }
}
