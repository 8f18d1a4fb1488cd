//! Batch norm in micro-batches, where that is allowed: a step is the mean of its micro-batches' steps.

use plimsoll_conformance::{any_executor, executors, executors_of_long_tests, synthetic};
use plimsoll_data::{Cursor, Dataset};
use plimsoll_nn::{Model, Sgd, zoo};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_train::{TrainError, Trainer};
use plimsoll_transform::Pass;

const MICRO_BATCH: usize = 6;

fn model() -> impl Model {
    zoo::resnet20_of([8, 8, 3], 10)
}

fn data(len: usize) -> Dataset {
    synthetic(&model(), len, len, 3)
}

/// Every state after one SGD step on batch `at` of the data in order.
fn stepped(
    executor: impl Executor + 'static,
    batch: usize,
    at: usize,
    change: impl Fn(Trainer) -> Trainer,
) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
    let data = data(4 * MICRO_BATCH);
    let trainer = change(
        Trainer::new(model(), Sgd::new(0.05))
            .executor(executor)
            .line(usize::MAX)
            .batch(batch)
            .steps(1)
            .seed(4),
    );
    let plans = trainer.plan(&data)?;
    let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
    let mut session = plans.start()?;
    let mut batches = data.train.batch(batch).start(Cursor::default())?;
    (0..at).try_for_each(|_| batches.next().map(|_| ()))?;
    session.train_step(batches.next()?.unwrap())?;
    let state = |name: &String| session.state(name).unwrap().as_f32().unwrap().to_vec();
    Ok(names.iter().map(|name| (name.clone(), state(name))).collect())
}

fn split(trainer: Trainer) -> Trainer {
    trainer.allow_split_batch_norm().micro_batches(4)
}

/// The gradient of a mean is the mean of the micro-batches' gradients; SGD and the running statistics are linear in them.
#[test]
fn a_split_step_is_the_mean_of_its_micro_batches_steps() {
    let found = stepped(any_executor(), 4 * MICRO_BATCH, 0, split).unwrap();
    let alone: Vec<_> = (0..4).map(|at| stepped(any_executor(), MICRO_BATCH, at, |t| t).unwrap()).collect();
    for (i, (name, values)) in found.iter().enumerate() {
        for (j, &value) in values.iter().enumerate() {
            let mean = alone.iter().map(|states| f64::from(states[i].1[j])).sum::<f64>() / 4.0;
            let spread =
                alone.iter().map(|states| (f64::from(states[i].1[j]) - mean).abs()).fold(0.0, f64::max);
            let error = (f64::from(value) - mean).abs();
            assert!(error <= 2e-6 + 1e-4 * spread, "{name}[{j}]: {value}, mean {mean}, spread {spread}");
        }
    }
    // The micro-batches differ, and the whole batch at once is another step.
    let whole = stepped(any_executor(), 4 * MICRO_BATCH, 0, |t| t).unwrap();
    let variances = |states: &[(String, Vec<f32>)]| {
        states.iter().filter(|s| s.0.ends_with("running_variance")).cloned().collect::<Vec<_>>()
    };
    assert!(!variances(&found).is_empty() && variances(&found) != variances(&whole));
    assert_ne!(alone[0], alone[1]);
}

#[test]
fn threads_passes_and_lines_do_not_change_the_bits_of_a_split_step() {
    let batch = 4 * MICRO_BATCH;
    for executor in executors_of_long_tests() {
        let first = stepped(executor.on(1), batch, 0, split).unwrap();
        assert!(first == stepped(executor.on(3), batch, 0, split).unwrap(), "threads");
        assert!(first == stepped(executor.checked(2), batch, 0, split).unwrap(), "checked");
        for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
            let without = |t| split(t).without(pass);
            assert!(first == stepped(executor.on(2), batch, 0, without).unwrap(), "{pass:?}");
        }
        // The floor of as many threads as the run has: scratch may depend on them.
        let trainer = split(
            Trainer::new(model(), Sgd::new(0.05)).executor(executor.on(2)).line(usize::MAX).batch(batch),
        );
        let data = data(batch);
        let floor = trainer.forecast(&data).floor().unwrap();
        let tight = |t| split(t).computing_line(floor + 1024);
        assert!(first == stepped(executor.on(2), batch, 0, tight).unwrap(), "line");
    }
}

#[test]
fn a_split_step_matches_the_reference() {
    let reference = stepped(Reference, 4 * MICRO_BATCH, 0, split).unwrap();
    for executor in executors() {
        let found = stepped(executor.on(2), 4 * MICRO_BATCH, 0, split).unwrap();
        for ((name, found), (_, reference)) in found.iter().zip(&reference) {
            for (a, b) in found.iter().zip(reference) {
                assert!((a - b).abs() <= 1e-5 + 1e-4 * b.abs(), "{name} on {}: {a} and {b}", executor.name);
            }
        }
    }
}

#[test]
fn batch_norm_is_not_split_unless_allowed() {
    let refused = stepped(any_executor(), 4 * MICRO_BATCH, 0, |t| t.micro_batches(4));
    assert!(matches!(refused, Err(TrainError::Split(_))));
    let data = data(4 * MICRO_BATCH);
    let trainer = |change: fn(Trainer) -> Trainer| {
        change(
            Trainer::new(model(), Sgd::new(0.05))
                .executor(any_executor())
                .line(usize::MAX)
                .batch(4 * MICRO_BATCH),
        )
    };
    let plans = trainer(split).plan(&data).unwrap();
    assert!(plans.sheet.to_string().contains("statistics of 6 examples"), "{}", plans.sheet);
    assert!(trainer(|t| t).plan(&data).unwrap().sheet.notes.is_empty());
    // Allowed does not mean split: without a line there is no need.
    let plans = trainer(Trainer::allow_split_batch_norm).plan(&data).unwrap();
    assert_eq!((plans.plans[0].graph.micro_batches, plans.sheet.notes.len()), (1, 0));
}
