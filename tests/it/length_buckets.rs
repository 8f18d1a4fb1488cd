//! Training with length buckets: every batch type is planned before the first step, with the same bits however it runs.

use crate::examples::buckets::{Majority, data, trainer};
use plimsoll::prelude::*;
use plimsoll_testing::Scratch;

const LENGTHS: [usize; 3] = [16, 48, 128];

/// Five steps an epoch: four batches of 64, and one of 44 from the largest bucket.
fn sequences(workers: usize) -> Dataset {
    let data = data(300, &LENGTHS).unwrap();
    Dataset::new(data.name, data.train.workers(workers).prefetch(2), data.test.workers(workers))
}

fn run(threads: usize) -> Trainer {
    trainer(&LENGTHS, threads).unwrap().line(usize::MAX).batch(64).epochs(2)
}

/// With whole batches, where the planner might split them to be faster.
fn whole(threads: usize) -> Trainer {
    run(threads).micro_batches(1)
}

fn states(session: &Session) -> Vec<Vec<u8>> {
    let names = session.plans().states.iter().map(|state| state.name.clone());
    names.map(|name| session.state(&name).unwrap().as_bytes().to_vec()).collect()
}

/// The result of a run: states, the last test loss, and whether the plan splits batches or rematerializes.
fn end(trainer: &Trainer, data: &Dataset) -> (Vec<Vec<u8>>, u64, bool) {
    let plans = trainer.plan(data).unwrap();
    let first = &plans.plans[0];
    let changed = first.graph.micro_batches > 1 || first.rematerialized().count() > 0;
    let mut session = plans.start().unwrap();
    let report = session.fit().unwrap();
    assert_eq!(session.steps_done(), 10);
    (states(&session), report.evaluation.loss.to_bits(), changed)
}

#[test]
fn every_batch_type_is_planned_over_one_arena_before_the_first_step() {
    let (data, trainer) = (sequences(0), whole(1));
    let plans = trainer.plan(&data).unwrap();
    let names: Vec<&str> = plans.plans.iter().map(|plan| plan.name.as_str()).collect();
    let of =
        |kind: &str, examples: usize, length: usize| format!("{kind} × {examples} of i32[{length}], i32[]");
    let mut expected =
        vec![of("train", 64, 128), of("train", 44, 128), of("train", 64, 48), of("train", 64, 16)];
    // The test part has 37 sequences.
    for kind in ["evaluate", "predict"] {
        expected.extend([128, 48, 16].map(|length| of(kind, 37, length)));
    }
    assert_eq!(names, expected);
    let sheet = plans.sheet.to_string();
    let rows = ["training, 64", "training, 44", "evaluation, 37", "prediction, 37"];
    let rows = rows.map(|row| format!("{row} examples of i32[128], i32[]"));
    assert!(rows.iter().all(|row| sheet.contains(row)), "{sheet}");
    let peak = plans.plans.iter().map(|plan| plan.peak_bytes).max().unwrap();
    assert_eq!(plans.plans[0].peak_bytes, peak, "the largest bucket needs most");
    assert!(plans.plans[3].peak_bytes < peak / 2);
}

#[test]
fn threads_workers_micro_batches_and_lines_change_no_bit() {
    let total = whole(1).plan(&sequences(0)).unwrap().sheet.total_bytes;
    let (expected, loss, changed) = end(&whole(1), &sequences(0));
    assert!(!changed);
    for (trainer, workers, changes) in [
        (whole(2), 1, false),
        (whole(3), 2, false),
        (run(2).micro_batches(2), 3, true),
        (run(1).line(total * 3 / 5), 0, true),
        (whole(2).line(total * 9 / 10), 2, true),
    ] {
        let (found, found_loss, changed) = end(&trainer, &sequences(workers));
        assert_eq!(changed, changes, "with {workers} workers");
        assert!(found == expected, "with {workers} workers");
        // An evaluation of smaller batches sums its losses in another order.
        assert!(changed || found_loss == loss, "with {workers} workers");
    }
}

#[test]
fn a_run_interrupted_several_times_ends_in_the_same_bits() {
    let (expected, ..) = end(&run(1), &sequences(0));
    let scratch = Scratch::new("buckets");
    let piece = |threads, workers, until: u64| {
        let (trainer, data) = (run(threads).checkpoints(&scratch.0, None), sequences(workers));
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        if until > 3 {
            session.resume(&scratch.0).unwrap();
        }
        let listen = &mut |event: &TrainEvent<'_>| match event {
            TrainEvent::Step { step, .. } if *step == until => Control::Leave,
            _ => Control::Continue,
        };
        assert!(matches!(session.fit_with(listen), Err(TrainError::Interrupted { .. })) || until > 10);
        states(&session)
    };
    // Within the first epoch, at its end, within the second.
    for (threads, workers, until) in [(2, 1, 3), (1, 0, 5), (1, 3, 7)] {
        piece(threads, workers, until);
    }
    assert!(piece(2, 2, 11) == expected);
    let (other, data) = (trainer(&[16, 128], 1).unwrap().batch(64).epochs(2), data(300, &[16, 128]).unwrap());
    let mut session = other.plan(&data).unwrap().start().unwrap();
    let refused = session.resume(&scratch.0).unwrap_err().to_string();
    assert!(refused.contains("majority of i32[128], i32[] or i32[16], i32[] or i32[48], i32[]"), "{refused}");
}

#[test]
fn a_batch_of_an_undeclared_type_is_refused() {
    let (planned, trainer) = (sequences(0), run(1));
    let mut session = trainer.plan(&planned).unwrap().start().unwrap();
    let mut refused = |lengths: &[usize], examples: usize| {
        let data = data(300, lengths).unwrap();
        let mut batches = data.train.batch(examples).start(Cursor::default()).unwrap();
        session.train_step(batches.next().unwrap().unwrap()).unwrap_err().to_string()
    };
    let other = refused(&[130], 64);
    let expected = "the examples of the batch are i32[130], i32[], the model `majority` takes i32[128], i32[] or i32[16]";
    assert!(other.starts_with(expected), "{other}");
    let fewer = refused(&LENGTHS, 44);
    assert!(fewer.contains("batches of 44 examples of i32[16]"), "{fewer}");
    let data = data(300, &[16, 32, 128]).unwrap();
    let missing = trainer.plan(&data).unwrap_err().to_string();
    assert!(
        missing.contains("the data has i32[32], i32[]") && missing.contains("`Trainer::variant`"),
        "{missing}"
    );
}

/// The model with a table of positions, so that its parameters depend on the length.
struct Placed(usize);

impl Model for Placed {
    fn name(&self) -> &str {
        "placed"
    }
    fn inputs(&self) -> Vec<Field> {
        Majority(self.0).inputs()
    }
    fn target(&self) -> Field {
        Majority(self.0).target()
    }
    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let table = net.parameter("positions", [self.0], Init::Zeros);
        let sum = net.sum(table, &[0], false)?;
        let Head::Outputs(outputs) = Majority(self.0).forward(net, inputs)? else {
            return Ok(Head::Outputs(vec![]));
        };
        Ok(Head::Outputs(vec![net.add(outputs[0], sum)?]))
    }
}

#[test]
fn variants_with_other_parameters_are_refused() {
    let data = data(300, &[16, 128]).unwrap();
    let trainer = Trainer::new(Placed(128), AdamW::new(1e-3))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .variant(Placed(16));
    let refused = trainer.plan(&data).unwrap_err().to_string();
    assert!(refused.contains("`positions` is f32[16]") && refused.contains("has f32[128]"), "{refused}");
    let trainer = Trainer::new(Placed(128), AdamW::new(1e-3))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .variant(Majority(16));
    let refused = trainer.plan(&data).unwrap_err().to_string();
    assert!(refused.contains("`positions` is f32[128]") && refused.contains("has none"), "{refused}");
}

/// A class for every token of a sequence.
fn tagger(length: usize) -> Sequential {
    let (tokens, tags) = (Field::below(9, [length]), Field::below(8, [length]));
    Sequential::new(tokens, tags)
        .named("tagger")
        .layer("embed", Embedding::new(9, 16))
        .layer("head", Dense::new(8))
}

/// Each token's tag is its successor modulo eight.
fn tagged(lengths: &[usize]) -> Dataset {
    let part = |part: Pipeline| {
        let schema = Schema::new().bytes("tokens", 512).bytes("tags", 512);
        let tagged = part.map(schema, |input, output| {
            let tokens = input.bytes(0).chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            let tags: Vec<u8> = tokens.flat_map(|token| ((token + 1) % 8).to_ne_bytes()).collect();
            output.put(0, input.bytes(0))?;
            output.put(1, &tags)
        });
        let buckets = Buckets::new(lengths.iter().copied());
        let buckets =
            buckets.column("tokens", Field::below(9, []), 8).column("tags", Field::below(8, []), -1);
        tagged.unwrap().bucket(buckets).unwrap()
    };
    let all = data(300, &[128]).unwrap();
    Dataset::new("tags", part(all.train), part(all.test))
}

#[test]
fn padding_does_not_count_in_the_loss() {
    let loss = |trainer: Trainer, data: Dataset| {
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        session.evaluate(&data.test).unwrap()
    };
    let [padded, bucketed] =
        [&[128][..], &LENGTHS].map(|lengths| loss(trainer(lengths, 1).unwrap(), data(300, lengths).unwrap()));
    assert!((padded.loss - bucketed.loss).abs() < 1e-6 && padded.accuracy == bucketed.accuracy);
    let tagger_of = |lengths: &[usize]| {
        let first = Trainer::new(tagger(128), AdamW::new(3e-2))
            .executor(Cpu::new(1).unwrap())
            .line(usize::MAX)
            .batch(8);
        lengths.iter().filter(|&&length| length != 128).fold(first, |t, &length| t.variant(tagger(length)))
    };
    let [padded, bucketed] = [&[128][..], &LENGTHS].map(|lengths| loss(tagger_of(lengths), tagged(lengths)));
    assert!((padded.loss - bucketed.loss).abs() < 1e-6, "{padded:?} and {bucketed:?}");
    let report =
        tagger_of(&LENGTHS).epochs(3).plan(&tagged(&LENGTHS)).unwrap().start().unwrap().fit().unwrap();
    assert!(report.evaluation.accuracy > Some(0.99), "{report:?}");
}
