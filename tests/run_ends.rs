//! How runs end and go on: signals, callbacks, early stopping, figures that validations have, other runs' files.

mod support;

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::prelude::*;
use plimsoll::train::{EarlyStopping, Ending, Monitor, Saved, TrainState};
use std::path::Path;
use support::{Scratch, json, number, plimsoll};

fn model() -> Sequential {
    Sequential::classifier("small", [6], 3)
        .layer("hidden", Dense::new(8))
        .layer("relu", Activation::Relu)
        .layer("head", Dense::new(3))
}

/// Batches of 64, 64, 64 and 8.
fn data() -> Dataset {
    let spec = SyntheticSpec { inputs: model().inputs(), label: model().target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 200, 0, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer() -> Trainer {
    Trainer::new(model(), AdamW::new(1e-2), Cpu::new(1).unwrap()).batch(64).seed(3).epochs(3)
}

fn prepare<'t>(trainer: &'t Trainer, data: &Dataset) -> Session<'t> {
    trainer.prepare(trainer.plan(data).unwrap(), data).unwrap()
}

/// Fails, with this status and all of these words.
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
}

#[test]
fn a_table_of_classes_stays_under_the_line() {
    let run = ["train", "--json", "--steps=4", "--data=synthetic", "--classes=2000", "--validate-every=2"];
    let output = plimsoll(&[&run[..], &["--metrics=confusion,f1", "--memory=100MiB"]].concat());
    let report = json(&output);
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("confusion has 4000000 figures"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("f1/macro"));
}

#[test]
fn a_signal_in_a_validation_that_was_due_leaves_the_run() {
    let (data, scratch) = (data(), Scratch::new("due-signal"));
    let trainer = trainer().validate_every(3).checkpoints(&scratch.0, None);
    let leave = |event: &TrainEvent<'_>| match event {
        TrainEvent::Step { step: 3, .. } | TrainEvent::Validation { .. } => Control::Leave,
        _ => Control::Continue,
    };
    let mut session = prepare(&trainer, &data);
    assert!(session.fit(&data, &mut |event| leave(event)).is_err());
    let mut session = prepare(&trainer, &data);
    session.resume(&scratch.0).unwrap();
    let mut train_loss = 0.0;
    let left = session.fit(&data, &mut |event| {
        if let TrainEvent::Validation { train_loss: mean, .. } = event {
            train_loss = *mean;
        }
        leave(event)
    });
    let Err(TrainError::Interrupted { step: 3, saved: Saved::In(_) }) = left else { panic!("{left:?}") };
    // No step was done since the run went on.
    assert!(train_loss.is_nan());
    assert_eq!(TrainState::read(&scratch.0).unwrap().validated, 3);
}

#[test]
fn a_figure_that_validations_do_not_have_is_refused_before_the_run() {
    // Evaluations that give outputs for metrics count no hits themselves.
    let f1 = ["f1".parse().unwrap()];
    let trainer = trainer().metrics(&f1).monitor(Monitor::Highest("accuracy".into()));
    let error = trainer.plan(&data()).unwrap_err().to_string();
    assert!(error.contains("no `accuracy`") && error.contains("f1/macro"), "{error}");
    refused(&["plan", "--monitor=nonsense"], 2, &["no `nonsense`", "loss, accuracy"]);
    refused(&["plan", "--keep=2"], 2, &["--keep is for train"]);
}

/// A trainer whose best validation is its first, because the highest loss counts as the best.
fn ever_worse(folder: &Path) -> Trainer {
    let loss = ["loss".parse().unwrap()];
    let worse = trainer().metrics(&loss).monitor(Monitor::Highest("loss".into()));
    worse.checkpoints(folder, None).validate_every(2)
}

#[test]
fn a_run_that_stopped_early_stays_so() {
    let (data, scratch) = (data(), Scratch::new("stays"));
    let trainer = ever_worse(&scratch.0);
    for resume in [false, true] {
        let mut session = prepare(&trainer, &data);
        if resume {
            session.resume(&scratch.0).unwrap();
        }
        session.add(EarlyStopping::new(2));
        let report = session.fit(&data, &mut |_| Control::Continue).unwrap();
        assert_eq!((report.steps, report.ending), (6, Ending::Restored(2)), "{resume}");
    }
    // With more patience it goes on.
    let mut session = prepare(&trainer, &data);
    session.resume(&scratch.0).unwrap();
    session.add(EarlyStopping::new(3));
    assert_eq!(session.fit(&data, &mut |_| Control::Continue).unwrap().steps, 8);
}

#[test]
fn a_last_validation_that_was_not_due_is_not_waited_for() {
    let (data, scratch) = (data(), Scratch::new("not-due"));
    let trainer = ever_worse(&scratch.0).steps(5);
    let report = prepare(&trainer, &data).fit(&data, &mut |_| Control::Continue).unwrap();
    let best = TrainState::read(&scratch.0).unwrap().best;
    assert_eq!((report.steps, best.step, best.waited), (5, 2, 1));
}

/// A callback that cannot do its work.
struct Fails;

impl Callback for Fails {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        match event {
            TrainEvent::Step { step: 3, .. } => Err(TrainError::Setting("no more".into())),
            _ => Ok(Control::Continue),
        }
    }
}

#[test]
fn a_callback_that_fails_leaves_a_checkpoint() {
    let (data, scratch) = (data(), Scratch::new("fails"));
    let trainer = trainer().checkpoints(&scratch.0, None);
    let mut session = prepare(&trainer, &data);
    session.add(Fails);
    assert!(matches!(session.fit(&data, &mut |_| Control::Continue), Err(TrainError::Setting(_))));
    assert_eq!(TrainState::read(&scratch.0).unwrap().steps_done, 3);
}

#[test]
fn the_search_for_a_bad_layer_is_told_and_may_be_left() {
    let data = data();
    let wild = Trainer::new(model(), Sgd::new(1e18), Cpu::new(1).unwrap()).batch(64).steps(20);
    for leave in [false, true] {
        let mut told = Vec::new();
        let error = prepare(&wild, &data).fit(&data, &mut |event| {
            let TrainEvent::Diverged { again, .. } = event else { return Control::Continue };
            told.push(*again);
            if leave { Control::Leave } else { Control::Continue }
        });
        let Err(TrainError::Diverged(found)) = error else { panic!("{error:?}") };
        assert_eq!(told[0], 0);
        assert_eq!((found.origin.is_none(), told.len() == 1), (leave, leave), "{found}: {told:?}");
    }
}

#[test]
fn a_last_evaluation_that_is_no_number_is_a_failure() {
    let wild = ["train", "--steps=1", "--lr=1e30", "--optimizer=sgd"];
    refused(&wild, 4, &["the loss became", "smaller learning rate"]);
}
