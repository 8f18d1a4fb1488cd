//! Models that leave and come back: exported, imported, they say the same, and train.

use plimsoll_data::{Dataset, Memory, Pipeline};
use plimsoll_export::{Batch, Format, OnnxModel};
use plimsoll_nn::zoo::{self, ZOO};
use plimsoll_nn::{Adam, Field, Model, Sgd};
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_testing::Scratch;
use plimsoll_train::{BatchKind, Session, TrainError, Trainer};

const ROWS: usize = 3;

fn random_rows(field: &Field, seed: u64) -> Tensor {
    let ty = TensorType::new(field.ty.dtype, [&[ROWS], &field.ty.shape[..]].concat());
    let stream = Stream::new(seed, 1, "rows");
    let value = |i: u64| match field.ty.dtype {
        DType::F32 => f64::from(stream.normal(0, i)),
        _ => f64::from(stream.below(0, i, field.bound.unwrap_or(2) as u32)),
    };
    let values: Vec<f64> = (0..ty.shape.elements() as u64).map(value).collect();
    Tensor::from_f64(ty, &values).unwrap()
}

fn rows_of(model: &dyn Model) -> Vec<Tensor> {
    model.inputs().iter().enumerate().map(|(i, field)| random_rows(field, i as u64)).collect()
}

fn session(model: impl Model + 'static, inputs: &[Tensor]) -> Session {
    let rows = Pipeline::new(Memory::unlabelled(inputs.to_vec(), &model.target()).unwrap());
    let data = Dataset::new("rows", rows.clone(), rows);
    let trainer = Trainer::new(model, Sgd::new(0.0)).kinds(&[BatchKind::Predict]).batch(ROWS);
    trainer.plan(&data).unwrap().start().unwrap()
}

/// Gives norms and biases values that show.
fn randomise(session: &mut Session) {
    let states: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in states {
        let middle = match name.rsplit('/').next() {
            Some("gain" | "running_variance") => 1.0,
            Some("bias" | "recurrent_bias" | "running_mean" | "class_token") => 0.0,
            _ => continue,
        };
        let ty = session.state(&name).unwrap().ty().clone();
        let stream = Stream::new(7, 0, &name);
        let value = |i: u64| middle + 0.3 * (f64::from(stream.uniform(0, i)) * 2.0 - 1.0);
        let values: Vec<f64> = (0..ty.shape.elements() as u64).map(value).collect();
        session.set_state(&name, &Tensor::from_f64(ty, &values).unwrap()).unwrap();
    }
}

/// The first output for the session's rows, which are one batch.
fn said(session: &mut Session) -> Tensor {
    let (rows, mut said) = (session.data().test.clone(), None);
    let keep = |outputs: &[Tensor]| {
        said = outputs.first().cloned();
        Ok::<(), TrainError>(())
    };
    session.predict_each(&rows, keep).unwrap();
    said.unwrap()
}

/// Outputs differ by at most this share of the largest.
fn assert_close(name: &str, ours: &Tensor, theirs: &Tensor) {
    let (ours, theirs) = (ours.as_f32().unwrap(), theirs.as_f32().unwrap());
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let most = ours.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let off = ours.iter().zip(theirs).fold(0.0f32, |off, (a, b)| off.max((a - b).abs()));
    assert!(most > 1e-3 && off <= 1e-4 * most, "{name}: off by {off}, the largest output is {most}");
}

#[test]
fn a_model_that_was_exported_and_imported_says_the_same() {
    let scratch = Scratch::new("export-zoo");
    for entry in &ZOO {
        let model = || (entry.make)(&entry.small);
        let inputs = rows_of(model().as_ref());
        let mut ours = session(model(), &inputs);
        randomise(&mut ours);
        let path = scratch.0.join("model.onnx");
        let batch = if entry.name == "vit_tiny" { Batch::Fixed(ROWS) } else { Batch::Dynamic };
        ours.export(&path, Format::Onnx, batch).unwrap();
        let mut theirs = session(OnnxModel::open(&path).unwrap(), &inputs);
        assert_close(entry.name, &said(&mut ours), &said(&mut theirs));
    }
}

#[test]
fn an_imported_model_trains_under_a_line_and_leaves_again() {
    let scratch = Scratch::new("export-train");
    let (path, again) = (scratch.0.join("resnet20.onnx"), scratch.0.join("trained.onnx"));
    let inputs = rows_of(&zoo::resnet20_of([8, 8, 3], 10));
    session(zoo::resnet20_of([8, 8, 3], 10), &inputs).export(&path, Format::Onnx, Batch::Dynamic).unwrap();
    let labels = random_rows(&Field::below(10, []), 5);
    let rows = Memory::classes(inputs[0].clone(), labels, 10).unwrap();
    let data = Dataset::new("rows", rows.clone(), rows);
    let run = |model: OnnxModel| {
        let trainer = Trainer::new(model, Adam::new(1e-3)).batch(ROWS).steps(12).line(8 << 20);
        let mut run = trainer.plan(&data).unwrap().start().unwrap();
        let before = run.evaluate(&data.test).unwrap().loss;
        let statistic = |run: &Session| run.state("norm/running_mean").unwrap().to_f64();
        let first = statistic(&run);
        run.fit().unwrap();
        let after = run.evaluate(&data.test).unwrap().loss;
        (
            run.export(&again, Format::Onnx, Batch::Dynamic).unwrap().tensors,
            before,
            after,
            first == statistic(&run),
        )
    };
    let (tensors, before, after, still) = run(OnnxModel::open(&path).unwrap());
    assert!(after < before && still, "{before} {after} {still}");
    assert!(tensors > 60, "{tensors}");
    // On request, batch norms take the statistics of the batch.
    let (_, _, after, still) = run(OnnxModel::open(&path).unwrap().train_batch_norm());
    assert!(after.is_finite() && !still);
    assert_eq!(OnnxModel::open(&again).unwrap().target(), Field::below(10, []));
}
