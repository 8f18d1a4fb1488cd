//! Pipelines of several processes, each of which reads its own rows of every batch: together they give what one gives.

use plimsoll_data::{
    BATCHES, Batch, Buckets, Cursor, DataError, Field, Memory, OwnRows, Pipeline, Record, Schema,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const BATCH: usize = 12;

/// Rows of each of three processes in two micro-batches; the last batch is one micro-batch, of which the third takes nothing.
fn rows(process: usize) -> impl Fn(usize) -> OwnRows {
    move |examples| match examples {
        BATCH => OwnRows { first: 2 * process, rows: 2, stride: 6 },
        _ => {
            let parts = [examples.min(3), examples.saturating_sub(3), 0];
            OwnRows { first: parts[..process].iter().sum(), rows: parts[process], stride: examples }
        }
    }
}

/// Numbers that depend on the record, its epoch and its position; counts how many were made.
fn augmented(pipeline: Pipeline, made: &Arc<AtomicUsize>) -> Pipeline {
    let (made, schema) = (made.clone(), Schema::examples([Field::floats([2])], Field::below(100, [])));
    let work = move |input: &Record<'_>, output: &mut Record<'_>| {
        made.fetch_add(1, SeqCst);
        let (label, place) = (input.i32(1).unwrap(), input.place);
        output.put_f32(0, &[label as f32, (place.epoch * 1000 + place.number) as f32])?;
        output.put_i32(1, label)
    };
    pipeline.map(schema, work).unwrap()
}

fn by_index(records: i32) -> Pipeline {
    let inputs: Vec<[f32; 1]> = (0..records).map(|i| [i as f32]).collect();
    Pipeline::new(Memory::classes(inputs, (0..records).collect::<Vec<_>>(), 100).unwrap())
}

fn streamed(records: i32) -> Pipeline {
    let schema = Schema::examples([Field::floats([1])], Field::below(100, []));
    let numbers = Pipeline::generator(schema, 0, move |_| {
        let mut numbers = 0..records;
        move |record| {
            let Some(number) = numbers.next() else { return Ok(false) };
            record.put_f32(0, &[number as f32])?;
            record.put_i32(1, number).map(|()| true)
        }
    });
    numbers.counted(records as usize)
}

fn bucketed(records: i32) -> Pipeline {
    let schema = Schema::new().bytes("tokens", 40).tensor("label", Field::below(100, []));
    let words = streamed(records).map(schema, |input, output| {
        let label = input.i32(1).unwrap();
        let tokens: Vec<u8> = (0..label * 7 % 10).flat_map(i32::to_ne_bytes).collect();
        output.put(0, &tokens)?;
        output.put_i32(1, label)
    });
    words.unwrap().bucket(Buckets::new([3, 6, 9]).column("tokens", Field::below(20, []), 19)).unwrap()
}

/// A batch's types, where it starts and ends, and for each row its place and its bytes.
type Seen = (Vec<String>, [Cursor; 2], usize, Vec<(usize, Vec<u8>)>);

fn seen(batch: &Batch) -> Seen {
    let first = Cursor { epoch: batch.epoch(), example: batch.first_example() };
    let row = |row: usize| {
        let columns = batch.inputs().chain([batch.labels()]);
        let bytes = columns.flat_map(|column| {
            let each = column.len() / batch.held();
            column[row * each..][..each].to_vec()
        });
        (batch.place(row), bytes.collect())
    };
    let types = batch.example_types().map(ToString::to_string).collect();
    (types, [first, batch.after()], batch.examples(), (0..batch.held()).map(row).collect())
}

/// So many calls from a cursor on; `None` is the end of an epoch.
fn read(pipeline: &Pipeline, cursor: Cursor, calls: usize) -> Vec<Option<Seen>> {
    let mut batches = pipeline.start(cursor).unwrap();
    (0..calls).map(|_| batches.next().unwrap().map(seen)).collect()
}

/// What the processes read together, as one.
fn joined(parts: Vec<Vec<Option<Seen>>>) -> Vec<Option<Seen>> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap();
    for part in parts {
        for (whole, part) in whole.iter_mut().zip(part) {
            assert_eq!(whole.is_none(), part.is_none());
            let (Some(whole), Some(part)) = (whole, part) else { continue };
            assert_eq!((&whole.0, whole.1, whole.2), (&part.0, part.1, part.2));
            whole.3.extend(part.3);
            whole.3.sort_unstable();
        }
    }
    whole
}

/// Makes a pipeline that counts the records which its stage is run on.
type Source<'s> = &'s dyn Fn(&Arc<AtomicUsize>) -> Pipeline;

#[test]
fn processes_read_each_row_once_and_together_what_one_reads() {
    // 41 records: three batches of 12, and one of 5.
    let none = Arc::new(AtomicUsize::new(0));
    let sources: [(&str, bool, Source<'_>); 5] = [
        ("by index", true, &|made| augmented(by_index(41).shuffle(0, 3), made)),
        ("a stream", true, &|made| augmented(streamed(41).shuffle(8, 3), made)),
        ("a stream without stages", false, &|_| streamed(41)),
        ("buckets", false, &|_| bucketed(41)),
        ("dropped remainders", false, &|made| augmented(by_index(41).shuffle(0, 3).drop_remainder(), made)),
    ];
    for (what, maps_own, source) in sources {
        for (workers, start) in [(0, 0), (0, BATCH), (3, 0)] {
            let cursor = Cursor { epoch: 1, example: start as u64 };
            let whole = read(&source(&none).batch(BATCH).workers(workers).prefetch(2), cursor, 10);
            let made: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
            let parts = (0..3).map(|process| {
                let pipeline = source(&made[process]).batch(BATCH).workers(workers).prefetch(2);
                read(&pipeline.own_rows(rows(process)), cursor, 10)
            });
            let parts: Vec<_> = parts.collect();
            let held = |part: &Vec<Option<Seen>>| part.iter().flatten().map(|seen| seen.3.len()).sum();
            let held: Vec<usize> = parts.iter().map(held).collect();
            assert_eq!(joined(parts), whole, "{what}, {workers} workers, from {start}");
            // Workers read ahead.
            if maps_own && workers == 0 {
                let made: Vec<usize> = made.iter().map(|made| made.load(SeqCst)).collect();
                assert_eq!(made, held, "{what}, from {start}");
            }
        }
    }
}

#[test]
fn batches_hold_own_rows_alone() {
    let bytes = |pipeline: &Pipeline| {
        let share = pipeline.bytes().into_iter().find(|share| share.name == BATCHES).unwrap();
        (pipeline.batch_bytes(), share.how)
    };
    let whole = by_index(41).batch(BATCH);
    assert_eq!(bytes(&whole), (12 * 8, "1 × 12 examples".into()));
    for (process, rows_of) in [4, 4, 4].into_iter().enumerate() {
        let own = whole.clone().own_rows(rows(process));
        assert_eq!((bytes(&own), own.held_rows()), ((rows_of * 8, "1 × 4 of 12 examples".into()), rows_of));
    }
    // Of a last batch a process may have more.
    let uneven = whole.clone().own_rows(|examples| OwnRows { first: 0, rows: 5, stride: examples });
    assert_eq!(uneven.held_rows(), 5);
}

#[test]
fn whole_batches_are_read_where_rows_depend_on_what_others_find() {
    let skipping = by_index(41).batch(BATCH).skip_bad(2).own_rows(rows(1));
    assert!(!skipping.reads_own_rows() && skipping.held_rows() == BATCH);
    assert_eq!(read(&skipping, Cursor::default(), 5), read(&by_index(41).batch(BATCH), Cursor::default(), 5));
    let schema = Schema::examples([Field::floats([1])], Field::below(100, []));
    let uncounted = Pipeline::generator(schema, 0, |_| |_: &mut Record<'_>| Ok(false));
    assert!(!uncounted.batch(BATCH).own_rows(rows(1)).reads_own_rows());
    assert!(by_index(41).batch(BATCH).own_rows(rows(1)).reads_own_rows());
}

#[test]
fn errors_of_a_stream_reach_every_process_and_those_of_stages_the_one_whose_row_it_is() {
    let failing = |at: i32, stage: bool| {
        let schema = || Schema::examples([Field::floats([1])], Field::below(100, []));
        let check = move |label: i32, fails: bool| match fails && label == at {
            true => Err(DataError::Corrupt { reason: format!("record {label} is bad") }),
            false => Ok(()),
        };
        let copied = streamed(41).map(schema(), move |input, output| {
            check(input.i32(1).unwrap(), stage)?;
            output.copy_from(input)
        });
        let copied = copied.unwrap();
        if stage {
            copied
        } else {
            copied.filter(move |record| check(record.i32(1).unwrap(), true).map(|()| true)).counted(41)
        }
    };
    let error = |pipeline: Pipeline| {
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        (0..3).find_map(|_| batches.next().err()).map(|error| error.to_string())
    };
    for workers in [0, 2] {
        for process in 0..3 {
            let own = |pipeline: Pipeline| pipeline.batch(BATCH).workers(workers).own_rows(rows(process));
            // Record 2 is of the second process.
            let found = error(own(failing(2, true)));
            assert_eq!(found.is_some_and(|error| error.contains("record 2 is bad")), process == 1);
            let found = error(own(failing(2, false))).unwrap();
            assert!(found.contains("record 2 is bad"), "{found}");
            // A stream that ends early: the rows of its last batch are not known.
            let found = error(own(streamed(28).counted(29))).unwrap();
            assert!(found.contains("29") && found.contains("28"), "{found}");
            // And one that goes on.
            let found = error(own(streamed(30).counted(29))).unwrap();
            assert!(found.contains("29") && found.contains("30"), "{found}");
        }
    }
}
