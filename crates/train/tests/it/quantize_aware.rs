//! Quantization-aware training: the same bits in any split and after a resume; ranges in weights files; layers on bytes that answer as
//! the model did in training.

use plimsoll_compress::{Int8Grids, QuantizeAware};
use plimsoll_cpu::Cpu;
use plimsoll_data::datasets;
use plimsoll_nn::{AdamW, Policy, Precision, RANGES, step, zoo};
use plimsoll_testing::Scratch;
use plimsoll_train::{BatchKind, Session, Trainer};

fn trainer() -> Trainer {
    let model = QuantizeAware::new(zoo::lenet()).unwrap();
    Trainer::new(model, AdamW::new(1e-3)).batch(128).steps(12)
}

fn states(session: &Session) -> Vec<Vec<u8>> {
    let names = session.plans().states.iter().map(|state| &state.name);
    names.map(|name| session.state(name).unwrap().as_bytes().to_vec()).collect()
}

fn trained(trainer: Trainer) -> Session {
    let data = datasets::mnist().unwrap();
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    session.fit().unwrap();
    session
}

#[test]
fn splits_and_threads_change_no_bit_of_what_is_learned() {
    let whole = trained(trainer());
    let split = trained(trainer().micro_batches(4).executor(Cpu::new(3).unwrap()));
    assert_eq!(states(&split), states(&whole));
    // Of every place as many examples, older steps counting less.
    let ranges = whole.state(RANGES).unwrap();
    let seen = (0..12).fold(0.0, |seen: f32, _| seen * 0.99 + 128.0);
    for row in ranges.as_f32().unwrap().chunks_exact(5) {
        assert!((row[4] / seen - 1.0).abs() < 1e-4, "{row:?} {seen}");
        assert!(row[0] > row[2], "{row:?}");
    }
}

#[test]
fn a_run_resumes_to_the_same_bits() {
    let scratch = Scratch::new("aware-resume");
    let expected = states(&trained(trainer()));
    let data = datasets::mnist().unwrap();
    trainer().steps(7).checkpoints(&scratch.0, Some(7)).plan(&data).unwrap().start().unwrap().fit().unwrap();
    let mut session = trainer().checkpoints(&scratch.0, None).plan(&data).unwrap().start().unwrap();
    assert_eq!(session.resume(&scratch.0).unwrap().state.steps_done, 7);
    session.fit().unwrap();
    assert_eq!(states(&session), expected);
}

/// Evaluation rounds as layers on bytes do, with what was learned.
#[test]
fn the_model_on_bytes_answers_as_the_one_that_learned_to() {
    let scratch = Scratch::new("aware-bytes");
    let data = datasets::mnist().unwrap();
    let mut session = trained(trainer().steps(120));
    let evaluated = session.evaluate(&data.test).unwrap();
    let grids = Int8Grids::learned(&session.state(RANGES).unwrap()).unwrap();
    let graph = step::prediction(&zoo::lenet(), 1).unwrap();
    let bytes = grids.states(&graph, |name| session.state(name)).unwrap();
    let plain = || Trainer::new(zoo::lenet(), AdamW::new(1e-3)).kinds(&[BatchKind::Evaluate]).batch(64);
    let kept = grids.clone();
    let on_bytes = plain().inference_pass(move |graph| kept.apply(graph));
    let mut on_bytes = on_bytes.plan(&data).unwrap().start().unwrap();
    for (name, state) in &bytes {
        on_bytes.set_state(name, state).unwrap();
    }
    let found = on_bytes.evaluate(&data.test).unwrap();
    assert!((found.loss / evaluated.loss - 1.0).abs() < 0.01, "{found:?} {evaluated:?}");

    // The file holds the ranges; models that do not learn them read it, and those that do read others.
    let file = scratch.0.join("weights.safetensors");
    session.save(&file).unwrap();
    let mut floats = plain().plan(&data).unwrap().start().unwrap();
    floats.load(&file).unwrap();
    let loss = floats.evaluate(&data.test).unwrap().loss;
    assert!((loss / evaluated.loss - 1.0).abs() < 0.05 && loss != evaluated.loss, "{loss} {evaluated:?}");
    floats.save(&file).unwrap();
    let mut fresh = trainer().plan(&data).unwrap().start().unwrap();
    fresh.load(&file).unwrap();
    assert_eq!(Int8Grids::learned(&fresh.state(RANGES).unwrap()), None);
    // Without ranges nothing is rounded but weights.
    let unrounded = fresh.evaluate(&data.test).unwrap().loss;
    assert!((unrounded / loss - 1.0).abs() < 0.01, "{unrounded} {loss}");
}

#[test]
fn other_precisions_are_refused() {
    let data = datasets::mnist().unwrap();
    let Err(error) = trainer().precision(Policy::new(Precision::BF16)).plan(&data) else {
        panic!("bf16 is planned");
    };
    assert!(error.to_string().contains("in f32, not in bf16"), "{error}");
}
