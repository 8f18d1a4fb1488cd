//! What the author of a first program meets.

use plimsoll::eager::tensor;
use plimsoll::prelude::*;
use plimsoll_testing::Scratch;

fn data() -> Dataset {
    let x: Vec<[f32; 2]> = (0..64).map(|i| [i as f32 / 64.0, 1.0]).collect();
    let y: Vec<[f32; 1]> = x.iter().map(|[a, b]| [3.0 * a - b]).collect();
    let part = || Memory::values(x.clone(), y.clone()).unwrap();
    Dataset::new("line", part(), part())
}

fn trainer() -> Trainer {
    let model = Sequential::regression([2], [1]).push(Dense::new(1));
    Trainer::new(model, AdamW::new(0.05)).batch(16).epochs(2).threads(1)
}

#[test]
fn an_error_that_main_returns_is_shown_as_its_message() {
    // A program whose `main` returns an error prints it by `Debug`.
    let refused = trainer().memory(MiB(1)).plan(&data()).err().unwrap();
    assert!(format!("{refused:?}").starts_with("the line is "), "{refused:?}");
    let unknown = datasets::open("minst").unwrap_err();
    assert!(format!("{unknown:?}").starts_with("unknown dataset `minst`"), "{unknown:?}");
    let metric = metrics::from_name("acuracy", 2).err().unwrap();
    assert_eq!(format!("{metric:?}"), metric.to_string());
    let (a, b) = (tensor([1.0f32, 2.0]).unwrap(), tensor([1.0f32, 2.0, 3.0]).unwrap());
    let mismatched = (&a + &b).get().unwrap_err();
    assert!(format!("{mismatched:?}").starts_with("add(f32[2], f32[3])"), "{mismatched:?}");
}

#[test]
fn checkpoints_make_their_folder() {
    let scratch = Scratch::new("made-checkpoints");
    let folder = scratch.0.join("runs/first");
    let trainer = trainer().checkpoints(&folder, Some(3));
    trainer.plan(&data()).unwrap().start().unwrap().fit().unwrap();
    let mut again = trainer.plan(&data()).unwrap().start().unwrap();
    again.resume(&folder).unwrap();
    assert_eq!(again.steps_done(), 8);
    // Where none can be made, the run does not begin.
    scratch.write("file", b"");
    let mut run =
        trainer.checkpoints(scratch.0.join("file/in"), None).plan(&data()).unwrap().start().unwrap();
    assert!(run.fit().unwrap_err().to_string().contains("file/in"));
    assert_eq!(run.steps_done(), 0);
}

#[test]
fn a_generators_own_io_errors_come_out_of_the_pipeline() {
    let schema = Schema::examples([Field::floats([1])], Field::floats([1]));
    let missing = Pipeline::generator(schema, 0, |_epoch: u64| {
        |_: &mut Record<'_>| {
            std::fs::File::open("no/such/file")?;
            Ok(true)
        }
    });
    let mut batches = missing.batch(4).start(Cursor::default()).unwrap();
    let error = batches.next().err().unwrap().to_string();
    assert!(error.contains("No such file"), "{error}");
}
