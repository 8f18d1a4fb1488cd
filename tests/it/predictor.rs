//! Predictions of tensors, pictures and tables.

use plimsoll::prelude::*;
use plimsoll_testing::Scratch;
use std::fs::File;
use std::path::Path;

fn model() -> Sequential {
    Sequential::classifier([28, 28, 1], 10).push(Flatten).push(Dense::new(10))
}

/// A model that was trained on the digits, saved, and its outputs for the first test digits.
fn trained(folder: &Path, digits: usize) -> Tensor {
    let data = datasets::mnist().unwrap();
    let mut run =
        Trainer::new(model(), Sgd::new(0.05)).batch(50).steps(60).plan(&data).unwrap().start().unwrap();
    run.fit().unwrap();
    let mut batches = data.test.batch(digits).start(Cursor::default()).unwrap();
    // No batch of this size was planned.
    let outputs = run.predict(batches.next().unwrap().unwrap()).unwrap();
    Predictor::from(run).save(folder).unwrap();
    outputs.into_iter().next().unwrap()
}

/// The first test digits, as the model takes them.
fn digits(count: usize) -> Tensor {
    let mut batches = datasets::mnist().unwrap().test.batch(count).start(Cursor::default()).unwrap();
    batches.next().unwrap().unwrap().input_tensors().remove(0)
}

fn write_png(path: &Path, side: u32, pixels: &[u8]) {
    let mut encoder = png::Encoder::new(File::create(path).unwrap(), side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

#[test]
fn any_number_of_rows_has_the_bits_of_a_batch() {
    let scratch = Scratch::new("rows");
    let whole = trained(&scratch.0, 7);
    for batch in [1, 3, 7, 16] {
        let mut predictor = Predictor::builder(model()).batch(batch).load(&scratch.0).unwrap();
        assert_eq!(*predictor.predict([digits(7)]).unwrap().output(), whole, "batches of {batch}");
    }
    // A session, too, of which a batch is larger than any that was planned.
    let trainer = Trainer::new(model(), Sgd::new(0.0)).batch(3).kinds(&[BatchKind::Predict]);
    let mut session = trainer.plan(&datasets::mnist().unwrap()).unwrap().start().unwrap();
    session.load(&scratch.0).unwrap();
    let seven = Batch::unlabelled([digits(7)], &Field::below(10, [])).unwrap();
    assert_eq!(session.predict(&seven).unwrap(), std::slice::from_ref(&whole));
    // Weights in a file have no names of classes.
    let mut predictor = Predictor::builder(model()).load(scratch.path("weights.safetensors")).unwrap();
    let answers = predictor.predict([digits(2)]).unwrap();
    assert_eq!((answers.len(), answers.name(1), answers.likeliest(0, 3).len()), (2, "1".into(), 3));
    assert_eq!(answers.row(1), &whole.as_f32().unwrap()[10..20]);
    let error = predictor.predict([vec![[0.0f32; 784]; 2]]).err().unwrap().to_string();
    assert!(error.contains("f32[784]") && error.contains("f32[28,28,1]"), "{error}");
    let error = predictor.pictures(["seven.png"]).err().unwrap().to_string();
    assert!(error.contains("PredictorBuilder::preparation"), "{error}");
}

#[test]
fn a_picture_is_prepared_as_in_training() {
    let scratch = Scratch::new("pictures");
    let whole = trained(&scratch.0, 3);
    let data = datasets::mnist().unwrap();
    let plimsoll::data::InputPreparation::Picture(picture) = &data.train.preparation().input else {
        panic!()
    };
    let paths = ["a.png", "b.png", "c.png"].map(|name| scratch.0.join(name));
    for (path, digit) in paths.iter().zip(digits(3).as_f32().unwrap().chunks(784)) {
        let pixel = |x: &f32| ((x * picture.deviation[0] + picture.mean[0]) * 255.0).round() as u8;
        write_png(path, 28, &digit.iter().map(pixel).collect::<Vec<u8>>());
    }
    let mut predictor = Predictor::builder(model()).memory(GiB(1)).load(&scratch.0).unwrap();
    let answers = predictor.pictures(&paths).unwrap();
    let pairs = answers.output().as_f32().unwrap().iter().zip(whole.as_f32().unwrap());
    pairs.for_each(|(found, whole)| assert!((found - whole).abs() < 1e-4, "{found} {whole}"));
    assert!(answers.name(1).ends_with("b.png"));
    let line = answers.to_string().lines().next().unwrap().to_string();
    assert!(line.contains("a.png") && line.contains(&answers.likeliest(0, 1)[0].name), "{line}");

    // What decoding takes is known before it begins.
    let large = scratch.0.join("large.png");
    write_png(&large, 6000, &vec![0; 36_000_000]);
    let tight = Predictor::builder(model()).trainer(|trainer| trainer.line(16 << 20));
    let mut tight = tight.load(&scratch.0).unwrap();
    tight.pictures(&paths).unwrap();
    let error = tight.pictures([&large]).err().unwrap().to_string();
    assert!(error.contains("what reading these files takes"), "{error}");
}

#[test]
fn rows_of_a_table_are_prepared_as_in_training() {
    let scratch = Scratch::new("table");
    let rows: String = (0..60)
        .map(|i| format!("{},{},{}\n", i % 3, ["red", "blue"][i % 2], ["ant", "bee", "cow"][i % 3]))
        .collect();
    let table = scratch.write("known.csv", format!("size,colour,kind\n{rows}").as_bytes());
    let data = datasets::open(&format!("csv:{}", table.display())).unwrap();
    let model = || Sequential::classifier([3], 3).push(Dense::new(3));
    let mut run =
        Trainer::new(model(), AdamW::new(0.1)).batch(27).epochs(80).plan(&data).unwrap().start().unwrap();
    run.fit().unwrap();
    Predictor::from(run).save(&scratch.0).unwrap();
    let new = scratch.write("new.csv", b"colour,size\nblue,2\nred,0\n");
    let mut predictor = Predictor::builder(model()).memory(GiB(1)).load(&scratch.0).unwrap();
    let answers = predictor.table(new).unwrap();
    assert_eq!([0, 1].map(|row| answers.likeliest(row, 1)[0].name.clone()), ["cow", "ant"]);
}

#[test]
fn a_line_that_is_too_low_is_refused_before_anything_is_loaded() {
    let error = Predictor::builder(model()).memory(MiB(1)).load("nowhere").err().unwrap();
    assert!(matches!(error, TrainError::Plan(_)), "{error}");
}
