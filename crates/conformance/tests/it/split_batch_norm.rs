//! Batches with batch norm, split because it was allowed: the mean of what the micro-batches do alone.

use plimsoll_cpu::Cpu;
use plimsoll_data::{Cursor, Dataset, Synthetic, SyntheticSpec};
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
    let spec = SyntheticSpec { inputs: model().inputs(), label: model().target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), len, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

/// Every state after one step of plain descent on batch `at` of the data in order.
fn stepped(
    executor: impl Executor + 'static,
    batch: usize,
    at: usize,
    change: impl Fn(Trainer) -> Trainer,
) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
    let data = data(4 * MICRO_BATCH);
    let trainer = change(Trainer::new(model(), Sgd::new(0.05), executor).batch(batch).steps(1).seed(4));
    let plans = trainer.plan(&data)?;
    let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
    let mut session = trainer.prepare(plans, &data)?;
    let mut batches = data.train.batch(batch).start(Cursor::default())?;
    (0..at).try_for_each(|_| batches.next().map(|_| ()))?;
    session.train_step(batches.next()?.unwrap())?;
    let state = |name: &String| session.state(name).unwrap().as_f32().unwrap().to_vec();
    Ok(names.iter().map(|name| (name.clone(), state(name))).collect())
}

fn split(trainer: Trainer) -> Trainer {
    trainer.allow_split_batch_norm().micro_batches(4)
}

/// Gradients of a mean are the mean of the parts' gradients, and plain descent and the running statistics are linear.
#[test]
fn a_split_step_is_the_mean_of_its_micro_batches_steps() {
    let cpu = || Cpu::new(2).unwrap();
    let found = stepped(cpu(), 4 * MICRO_BATCH, 0, split).unwrap();
    let alone: Vec<_> = (0..4).map(|at| stepped(cpu(), MICRO_BATCH, at, |t| t).unwrap()).collect();
    for (i, (name, values)) in found.iter().enumerate() {
        for (j, &value) in values.iter().enumerate() {
            let mean = alone.iter().map(|states| f64::from(states[i].1[j])).sum::<f64>() / 4.0;
            let spread =
                alone.iter().map(|states| (f64::from(states[i].1[j]) - mean).abs()).fold(0.0, f64::max);
            let error = (f64::from(value) - mean).abs();
            assert!(error <= 2e-6 + 1e-4 * spread, "{name}[{j}]: {value}, mean {mean}, spread {spread}");
        }
    }
    // The micro-batches do differ, and the whole batch at once is another step.
    let whole = stepped(cpu(), 4 * MICRO_BATCH, 0, |t| t).unwrap();
    let kernels = |states: &[(String, Vec<f32>)]| {
        states.iter().filter(|s| s.0.ends_with("running_variance")).cloned().collect::<Vec<_>>()
    };
    assert!(!kernels(&found).is_empty() && kernels(&found) != kernels(&whole));
    assert_ne!(alone[0], alone[1]);
}

#[test]
fn threads_passes_and_lines_do_not_change_the_bits_of_a_split_step() {
    let batch = 4 * MICRO_BATCH;
    let first = stepped(Cpu::new(1).unwrap(), batch, 0, split).unwrap();
    assert!(first == stepped(Cpu::new(3).unwrap(), batch, 0, split).unwrap(), "threads");
    assert!(first == stepped(Cpu::new(2).unwrap().checked(), batch, 0, split).unwrap(), "checked");
    for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
        let without = |t| split(t).without(pass);
        assert!(first == stepped(Cpu::new(2).unwrap(), batch, 0, without).unwrap(), "{pass:?}");
    }
    // Of as many threads as the run has: scratch may depend on them.
    let trainer = split(Trainer::new(model(), Sgd::new(0.05), Cpu::new(2).unwrap()).batch(batch));
    let data = data(batch);
    let floor = trainer.forecast(&data).floor().unwrap();
    let tight = |t| split(t).line(floor + 1024);
    assert!(first == stepped(Cpu::new(2).unwrap(), batch, 0, tight).unwrap(), "line");
}

#[test]
fn the_reference_runs_a_split_step_alike() {
    let found = stepped(Cpu::new(2).unwrap(), 4 * MICRO_BATCH, 0, split).unwrap();
    let reference = stepped(Reference, 4 * MICRO_BATCH, 0, split).unwrap();
    for ((name, found), (_, reference)) in found.iter().zip(&reference) {
        for (a, b) in found.iter().zip(reference) {
            assert!((a - b).abs() <= 1e-5 + 1e-4 * b.abs(), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn batch_norm_is_not_split_unless_allowed() {
    let refused = stepped(Cpu::new(1).unwrap(), 4 * MICRO_BATCH, 0, |t| t.micro_batches(4));
    assert!(matches!(refused, Err(TrainError::Split(_))));
    let data = data(4 * MICRO_BATCH);
    let trainer = |change: fn(Trainer) -> Trainer| {
        change(Trainer::new(model(), Sgd::new(0.05), Cpu::new(1).unwrap()).batch(4 * MICRO_BATCH))
    };
    let plans = trainer(split).plan(&data).unwrap();
    assert!(plans.sheet.to_string().contains("statistics of 6 examples"), "{}", plans.sheet);
    assert!(trainer(|t| t).plan(&data).unwrap().sheet.notes.is_empty());
    // Unless it must be, it is not split.
    let plans = trainer(Trainer::allow_split_batch_norm).plan(&data).unwrap();
    assert_eq!((plans.plans[0].graph.micro_batches, plans.sheet.notes.len()), (1, 0));
}
