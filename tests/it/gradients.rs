//! Gradients that a training loop reads.

use plimsoll::nn::LossScale;
use plimsoll::prelude::*;

const EXAMPLES: usize = 64;

/// Smooth, so that differences of the loss approach the gradient.
fn model() -> Sequential {
    Sequential::regression([3], [2]).push(Dense::new(5)).push(Tanh).push(Dense::new(2))
}

fn points() -> (Vec<[f32; 3]>, Vec<[f32; 2]>) {
    let x = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 40.0;
    let inputs: Vec<[f32; 3]> = (0..EXAMPLES).map(|i| [x(i), x(i + 7), x(3 * i)]).collect();
    let targets = inputs.iter().map(|[a, b, c]| [a * b, c - a]).collect();
    (inputs, targets)
}

fn data() -> Dataset {
    let part = || Memory::values(points().0, points().1).unwrap();
    Dataset::new("points", part(), part())
}

fn batch() -> Batch {
    Batch::of([points().0], points().1).unwrap()
}

fn trainer(optimizer: impl Optimizer + 'static) -> Trainer {
    Trainer::new(model(), optimizer).threads(1).batch(EXAMPLES).seed(5)
}

fn start(trainer: &Trainer) -> Session {
    trainer.plan(&data()).unwrap().start().unwrap()
}

/// The gradients of all parameters after a step.
fn gradients(trainer: &Trainer) -> Vec<Tensor> {
    let mut run = start(trainer);
    run.train_step(&batch()).unwrap();
    ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
        .map(|name| run.gradient(name).unwrap())
        .to_vec()
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    // A step that changes nothing.
    let still = || Recipe::new(Sgd::new(0.0)).read_gradients("*");
    let mut run = start(&trainer(still()));
    run.train_step(&batch()).unwrap();
    for name in ["dense/kernel", "dense_1/bias"] {
        let gradient = run.gradient(name).unwrap();
        let start = run.state(name).unwrap();
        for element in 0..gradient.as_f32().unwrap().len() {
            let mut loss_at = |distance: f32| {
                let mut moved = start.as_f32().unwrap().to_vec();
                moved[element] += distance;
                run.set_state(name, &Tensor::new(&start.ty().shape[..], moved).unwrap()).unwrap();
                run.train_step(&batch()).unwrap()
            };
            let slope = (loss_at(1e-2) - loss_at(-1e-2)) / 2e-2;
            let found = f64::from(gradient.as_f32().unwrap()[element]);
            assert!((slope - found).abs() < 1e-3 + 1e-2 * found.abs(), "{name} {element}: {slope}, {found}");
        }
        run.set_state(name, &start).unwrap();
        // Differences were steps, too; the gradient is that of the last one.
        run.train_step(&batch()).unwrap();
        assert_eq!(run.gradient(name).unwrap(), gradient);
    }
}

#[test]
fn gradients_are_those_of_the_whole_batch_before_clipping() {
    let kept = || Recipe::new(AdamW::new(1e-2)).read_gradients("*");
    let whole = gradients(&trainer(kept()));
    assert_eq!(gradients(&trainer(kept()).micro_batches(2)), whole);
    assert_eq!(gradients(&trainer(kept().clip(Clip::GlobalNorm(1e-3)))), whole);
    // f16 scales its loss, and the gradient is divided by the scale.
    let half = Policy::new(Precision::F16).loss_scale(LossScale { initial: 1024.0, growth: 100 });
    for (half, whole) in gradients(&trainer(kept()).precision(half)).iter().zip(&whole) {
        let pairs = half.as_f32().unwrap().iter().zip(whole.as_f32().unwrap());
        pairs.for_each(|(half, whole)| assert!((half - whole).abs() < 2e-2, "{half} {whole}"));
    }
}

#[test]
fn gradients_that_are_read_change_nothing_and_are_in_the_plan() {
    let (plain, kept) =
        (trainer(AdamW::new(1e-2)), trainer(Recipe::new(AdamW::new(1e-2)).read_gradients("*")));
    let states = |trainer: &Trainer| {
        let mut run = start(trainer);
        for _ in 0..3 {
            run.train_step(&batch()).unwrap();
        }
        run.state("dense/kernel").unwrap()
    };
    assert_eq!(states(&plain), states(&kept));

    // Where gradients decide the peak: each is freed after its update, unless it is read.
    const WIDTH: usize = 256;
    let arena = |optimizer: Recipe| {
        let model = Sequential::regression([3], [2]).push(Dense::new(WIDTH)).push(Dense::new(WIDTH));
        let model = model.push(Dense::new(WIDTH)).push(Dense::new(WIDTH)).push(Dense::new(2));
        let trainer = Trainer::new(model, optimizer).threads(1).batch(8);
        trainer.plan(&data()).unwrap().load_sheet().arena_bytes
    };
    let plain = arena(Recipe::new(Sgd::new(0.1)));
    let (one, all) = (4 * WIDTH * WIDTH, 4 * (3 * WIDTH * WIDTH + 10 * WIDTH));
    let kept = arena(Recipe::new(Sgd::new(0.1)).read_gradients("*"));
    assert!((one..all).contains(&(kept - plain)), "{plain} without, {kept} with gradients");
}

#[test]
fn a_gradient_that_is_not_there_says_why() {
    let message = |result: Result<Tensor, TrainError>| result.unwrap_err().to_string();
    let mut run = start(&trainer(Recipe::new(Sgd::new(0.1)).read_gradients("dense/kernel")));
    assert!(message(run.gradient("dense/kernel")).contains("after `train_step`"));
    run.train_step(&batch()).unwrap();
    assert!(message(run.gradient("dense/bias")).contains("Recipe::read_gradients"));
    assert!(message(run.gradient("dense/kernal")).contains("the nearest is `dense/kernel`"));
    run.evaluate(&data().test).unwrap();
    assert!(message(run.gradient("dense/kernel")).contains("after `train_step`"));
    let none = trainer(Recipe::new(Sgd::new(0.1)).read_gradients("conv")).plan(&data()).unwrap_err();
    assert!(none.to_string().contains("no parameter is named `conv`"), "{none}");
}
