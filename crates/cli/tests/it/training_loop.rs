//! Validations, early stopping, time limits, logs, divergence and callbacks.

use crate::support;

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::graph::op::Unary;
use plimsoll::prelude::*;
use plimsoll::train::{Ending, Monitor, TrainState, checkpoints};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::time::Duration;
use support::{Scratch, json, number, plimsoll, prepare, states};

fn model() -> Sequential {
    Sequential::classifier([6], 3)
        .named("small")
        .layer("hidden", Dense::new(8))
        .layer("relu", Relu)
        .layer("head", Dense::new(3))
}

/// Batches of 64, 64, 64 and 8.
fn data() -> Dataset {
    let spec = SyntheticSpec { inputs: model().inputs(), label: model().target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 200, 0, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer() -> Trainer {
    Trainer::new(model(), AdamW::new(1e-2))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .batch(64)
        .seed(3)
        .epochs(3)
}

/// The steps and epochs of the validations of a run.
fn validations(trainer: Trainer) -> Vec<(u64, u64)> {
    validations_over(&data(), trainer)
}

fn validations_over(data: &Dataset, trainer: Trainer) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let listen = &mut |event: &TrainEvent<'_>| {
        if let TrainEvent::Validation { step, epoch, .. } = event {
            found.push((*step, *epoch));
        }
        Control::Continue
    };
    prepare(&trainer, data).fit_with(listen).unwrap();
    found
}

#[test]
fn validations_follow_epochs_or_validate_every() {
    assert_eq!(validations(trainer()), [(4, 0), (8, 1), (12, 2)]);
    assert_eq!(validations(trainer().steps(6)), [(4, 0), (6, 1)]);
    assert_eq!(validations(trainer().validate_every(5)), [(5, 1), (10, 2), (12, 2)]);
    assert_eq!(validations(trainer().steps_per_epoch(3)), [(3, 0), (6, 1), (9, 2)]);
    assert_eq!(validations(trainer().steps_per_epoch(3).validate_every(4)), [(4, 1), (8, 2), (9, 2)]);
    let mut whole = data();
    whole.train = whole.train.drop_remainder();
    assert_eq!(validations_over(&whole, trainer()), [(3, 0), (6, 1), (9, 2)]);
}

#[test]
fn metrics_are_reported_with_validations_and_counted_in_the_plan() {
    let data = data();
    let specs = ["accuracy", "f1", "perplexity"].map(|name| name.parse().unwrap());
    let trainer = trainer().metrics(&specs).monitor(Monitor::Highest("f1/macro".into()));
    let plans = trainer.plan(&data).unwrap();
    assert!(plans.sheet.outside.iter().any(|entry| entry.name == "metrics"));
    let mut best = Vec::new();
    let mut session = plans.start().unwrap();
    let report = session.fit_with(&mut |event| {
        if let TrainEvent::Validation { evaluation, figures, since_best, .. } = event {
            let figure = |wanted: &str| figures.iter().find(|(name, _)| name == wanted).unwrap().1;
            assert_eq!(evaluation.accuracy, Some(figure("accuracy")));
            assert!((figure("perplexity") - evaluation.loss.exp()).abs() < 1e-4 * figure("perplexity"));
            best.push((figure("f1/macro"), *since_best));
        }
        Control::Continue
    });
    assert_eq!(best.len(), 3);
    for (i, (f1, since_best)) in best.iter().enumerate() {
        let highest = best[..=i].iter().map(|(f1, _)| *f1).fold(f64::MIN, f64::max);
        assert_eq!(
            *since_best == 0,
            *f1 == highest && best[..i].iter().all(|(other, _)| other < f1),
            "{best:?}"
        );
    }
    // Equal to a separate evaluation.
    let again = session.evaluate(&data.test).unwrap();
    assert_eq!(report.unwrap().evaluation.loss, again.loss);
}

/// A trainer whose best validation is its first, because the highest loss counts as the best.
fn ever_worse(folder: &Path) -> Trainer {
    let loss = ["loss".parse().unwrap()];
    let worse = trainer().epochs(9).metrics(&loss).monitor(Monitor::Highest("loss".into()));
    worse.checkpoints(folder, None).validate_every(2)
}

#[test]
fn early_stopping_restores_the_best_also_after_a_resume() {
    let (data, scratch) = (data(), Scratch::new("early"));
    let (folder, other) = (scratch.0.join("a"), scratch.0.join("b"));
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(&other).unwrap();
    let first = ever_worse(&folder).steps(2);
    let mut session = prepare(&first, &data);
    session.fit().unwrap();
    let (best, loss) = (states(&session), session.evaluate(&data.test).unwrap().loss);
    let whole = ever_worse(&folder);
    let mut session = prepare(&whole, &data);
    session.add(EarlyStopping::new(3));
    let report = session.fit().unwrap();
    // The best after 2 steps, and three validations after that.
    assert_eq!((report.steps, report.ending), (8, Ending::Restored(2)));
    assert!(states(&session) == best);
    assert_eq!(report.evaluation.loss, loss);
    // Interrupted in between, its patience is no longer.
    let part = ever_worse(&other);
    let mut session = prepare(&part, &data);
    session.add(EarlyStopping::new(3));
    let leave = &mut |event: &TrainEvent<'_>| match event {
        TrainEvent::Step { step: 5, .. } => Control::Leave,
        _ => Control::Continue,
    };
    assert!(matches!(session.fit_with(leave), Err(TrainError::Interrupted { step: 5, .. })));
    let mut session = prepare(&part, &data);
    session.resume(&other).unwrap();
    session.add(EarlyStopping::new(3));
    let report = session.fit().unwrap();
    assert_eq!((report.steps, report.ending), (8, Ending::Restored(2)));
    assert!(states(&session) == best);
}

#[test]
fn a_due_validation_is_not_lost_when_a_run_is_interrupted() {
    let (data, scratch) = (data(), Scratch::new("due"));
    let seen = RefCell::new(Vec::new());
    let run = |stop: Option<u64>, resume: bool| {
        let trainer = trainer().validate_every(3).checkpoints(&scratch.0, None);
        let mut session = prepare(&trainer, &data);
        if resume {
            session.resume(&scratch.0).unwrap();
        }
        let result = session.fit_with(&mut |event| match event {
            TrainEvent::Step { step, .. } if Some(*step) == stop => Control::Leave,
            TrainEvent::Validation { step, evaluation, .. } => {
                seen.borrow_mut().push((*step, evaluation.loss.to_bits()));
                Control::Continue
            }
            _ => Control::Continue,
        });
        assert_eq!(result.is_err(), stop.is_some());
        std::mem::take(&mut *seen.borrow_mut())
    };
    let whole = run(None, false);
    assert_eq!(whole.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 6, 9, 12]);
    for stop in 1..12 {
        let parts = [run(Some(stop), false), run(None, true)].concat();
        assert_eq!(parts, whole, "left after step {stop}");
    }
}

#[test]
fn a_time_limit_ends_the_run_with_a_checkpoint() {
    let scratch = Scratch::new("limit");
    let (whole, parts) = (scratch.path("whole"), scratch.path("parts"));
    let run = ["train", "--json", "--epochs=40", "--seed=2", "--threads=2", "--schedule=constant"];
    let output = plimsoll(&[&run[..], &["--time-limit=0.3s", "--out", &parts]].concat());
    let report = json(&output);
    let (steps, text) = (number(&report, "steps") as u64, String::from_utf8_lossy(&output.stdout));
    assert!(steps > 0 && report["ending"] == "time limit", "{report}");
    assert!(text.contains("The time limit was reached") && text.contains("--resume"), "{text}");
    let state = TrainState::read(&parts).unwrap();
    assert_eq!((state.steps_done, state.total_steps), (steps, 9_000));
    // It resumes to the same bits.
    let more = format!("--steps={}", steps + 3);
    json(&plimsoll(&["train", "--json", "--resume", &parts, &more]));
    let run = ["train", "--json", &more, "--seed=2", "--threads=2", "--schedule=constant", "--out", &whole];
    json(&plimsoll(&run));
    let weights = |folder: &str| fs::read(Path::new(folder).join("weights.safetensors")).unwrap();
    assert!(weights(&whole) == weights(&parts));
    let data = data();
    let limited = trainer().time_limit(Duration::ZERO);
    let report = prepare(&limited, &data).fit().unwrap();
    assert_eq!((report.steps, report.ending), (1, Ending::TimeLimit));
}

#[test]
fn logs_have_every_step_once_also_after_a_resume() {
    let (data, scratch) = (data(), Scratch::new("log"));
    let [table, lines] = ["log.csv", "log.jsonl"].map(|name| scratch.0.join(name));
    let run = |stop: Option<u64>, resume: bool| {
        let trainer = trainer().metrics(&["f1".parse().unwrap()]).checkpoints(&scratch.0, None);
        let mut session = prepare(&trainer, &data);
        let mut open = |path: &Path| match resume {
            true => RunLog::resume(path, session.resume(&scratch.0).unwrap().state.steps_done).unwrap(),
            false => RunLog::create(path).unwrap(),
        };
        let logs = [open(&table), open(&lines)];
        logs.into_iter().for_each(|log| session.add(log));
        let _ = session.fit_with(&mut |event| match event {
            TrainEvent::Step { step, .. } if Some(*step) == stop => Control::Leave,
            _ => Control::Continue,
        });
        drop(session);
        [&table, &lines].map(|path| without_times(&fs::read_to_string(path).unwrap()))
    };
    let whole = run(None, false);
    assert_eq!(whole[0].lines().count(), 4, "{}", whole[0]);
    assert!(whole[0].starts_with("step,epoch,since_best,train_loss,test_loss,accuracy,f1/"), "{}", whole[0]);
    assert_eq!(whole[1].lines().count(), 12 + 3, "{}", whole[1]);
    run(Some(9), false);
    // A killed run left lines after its checkpoint; they are replaced.
    let mut text = fs::read_to_string(&lines).unwrap();
    text += "{\"step\":10,\"loss\":1.0}\n{\"step\":11,\"lo";
    fs::write(&lines, text).unwrap();
    let again = run(None, true);
    assert_eq!(again[1], whole[1]);
    // The mean training loss covers only the steps since the resume.
    let steps =
        |text: &str| text.lines().map(|l| l.split(',').next().unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(steps(&again[0]), steps(&whole[0]));
}

/// Lines of JSON without what differs from run to run: times, and mean losses since a resume.
fn without_times(text: &str) -> String {
    let cut = |line: &str| {
        let Ok(mut object) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_string() };
        if let Some(fields) = object.as_object_mut() {
            for measured in ["seconds", "data_seconds", "time", "resident_bytes", "swapped_bytes"] {
                fields.remove(measured);
            }
        }
        if let Some(fields) = object.get_mut("validation").and_then(|v| v.as_object_mut()) {
            fields.remove("train_loss");
        }
        object.to_string()
    };
    text.lines().map(cut).map(|line| line + "\n").collect()
}

#[test]
fn a_share_is_held_out_for_validation() {
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let validation = data.validation.as_ref().and_then(Pipeline::len);
    assert_eq!((data.train.len(), validation, data.test.len()), (Some(14_400), Some(1_600), Some(2_500)));
    let scratch = Scratch::new("held-out");
    let (out, file) = (scratch.path("run"), scratch.path("run.toml"));
    let text = "validation-split = 0.1\nvalidate-every = 4\nearly-stop = 50\nsteps = 6\nkeep = 1\nmetrics = \"top3\"\n\
                monitor = \"top3\"\nseed = 9\njson = true\n";
    fs::write(&file, text).unwrap();
    let output = plimsoll(&["train", &file, "--out", &out]);
    let report = json(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("step 4: ") && text.contains("validation accuracy") && text.contains("top3 "),
        "{text}"
    );
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    let state = TrainState::read(&out).unwrap();
    assert_eq!((state.examples, state.validated, state.monitor.as_str()), (14_400, 4, "highest top3"));
    // A resumed run keeps these flags.
    json(&plimsoll(&["train", "--json", "--resume", &out, "--steps=8"]));
    assert_eq!(TrainState::read(&out).unwrap().validated, 8);
    let output = plimsoll(&["train", "--resume", &out, "--steps=9", "--validation-split=0.2"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_loss_that_is_not_finite_names_its_layer_and_the_last_intact_checkpoint() {
    let (data, scratch) = (data(), Scratch::new("nan"));
    let folder = &scratch.0;
    // A gate whose parameter is driven below zero, where it has no logarithm.
    struct Explodes;
    impl Layer for Explodes {
        fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
            let speed = net.parameter("speed", [], Init::Ones);
            let price = net.scale(speed, 100.0)?;
            net.add_penalty(price)?;
            let height = net.unary(Unary::Log, speed)?;
            net.mul(x, height)
        }
    }
    let explosive = || {
        Sequential::classifier([6], 3)
            .named("explosive")
            .layer("hidden", Dense::new(8))
            .layer("gate", Explodes)
            .layer("head", Dense::new(3))
    };
    let build = |every| {
        let trainer =
            Trainer::new(explosive(), AdamW::new(4e-2)).executor(Cpu::new(2).unwrap()).line(usize::MAX);
        trainer.batch(64).steps(60).micro_batches(1).checkpoints(folder, every)
    };
    let fail = |trainer: &Trainer| {
        let mut session = prepare(trainer, &data);
        let Err(TrainError::Diverged(found)) = session.fit() else { panic!("it did not diverge") };
        // Diverged states are never saved.
        assert!(session.checkpoint(folder).is_err() && session.save(folder.join("weights")).is_err());
        found
    };
    let found = fail(&build(Some(3)));
    let origin = found.origin.clone().expect("the layer is known");
    assert_eq!(origin.layer, "gate", "{found}");
    let kept = checkpoints(folder).unwrap();
    assert_eq!(found.checkpoint.as_deref(), kept.last().map(|path| path.as_path()), "{found}");
    let state = TrainState::read(folder).unwrap();
    assert!(state.steps_done <= origin.step && origin.step <= found.step, "{found}");
    let text = found.to_string();
    assert!(
        text.contains("layer `gate`") && text.contains("checkpoint-") && text.contains("learning rate"),
        "{text}"
    );
    // The same answer without a checkpoint, from the start of the run.
    kept.iter().for_each(|path| fs::remove_file(path).unwrap());
    let again = fail(&build(None));
    assert_eq!((again.origin, again.step), (Some(origin), found.step));
}

#[test]
fn a_diverged_run_has_its_own_exit_status() {
    let scratch = Scratch::new("status");
    let out = scratch.path("run");
    let wild = ["train", "--steps=60", "--lr=1000", "--optimizer=sgd", "--save-every=1", "--out", &out];
    let output = plimsoll(&wild);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(
        message.contains("came from layer `") && message.contains("last good checkpoint is"),
        "{message}"
    );
    assert!(!Path::new(&out).join("weights.safetensors").exists());
    assert!(TrainState::read(&out).unwrap().steps_done > 0);
}

/// A callback that fails.
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
fn callbacks_may_end_a_run_and_the_strongest_request_counts() {
    let data = data();
    let trainer = trainer();
    let mut session = prepare(&trainer, &data);
    session.add(|event: &TrainEvent<'_>| match event {
        TrainEvent::Step { step: 2, .. } => Control::Stop,
        _ => Control::Continue,
    });
    let report = session.fit().unwrap();
    assert_eq!((report.steps, report.ending), (2, Ending::Stopped));
    // The callback stays for the next fit, which counts its own steps.
    let report = session.fit().unwrap();
    assert_eq!((report.steps, session.steps_done()), (2, 4));
    let leave = session.fit_with(&mut |_| Control::Leave);
    assert!(matches!(leave, Err(TrainError::Interrupted { step: 1, .. })), "{leave:?}");
    let mut session = prepare(&trainer, &data);
    session.add(Fails);
    let failed = session.fit();
    assert!(matches!(failed, Err(TrainError::Setting(_))) && session.steps_done() == 3);
}

#[test]
fn a_custom_schedule_has_the_bits_of_the_equal_built_in_one() {
    let (data, scratch) = (data(), Scratch::new("own-schedule"));
    let there = trainer().steps(8).schedule(Schedule::Step { every: 3, factor: 0.5 });
    let mut session = prepare(&there, &data);
    session.fit().unwrap();
    let wanted = states(&session);
    let own = || OwnSchedule(|step, _| 0.5f64.powi((step / 3) as i32));
    let constant = trainer().steps(8).checkpoints(&scratch.0, None);
    let mut session = prepare(&constant, &data);
    session.fit().unwrap();
    assert!(states(&session) != wanted, "the schedule changes nothing");
    // Interrupted in between, it resumes where it was.
    let mut session = prepare(&constant, &data);
    session.add(own());
    let leave = &mut |event: &TrainEvent<'_>| match event {
        TrainEvent::Step { step: 5, .. } => Control::Leave,
        _ => Control::Continue,
    };
    assert!(session.fit_with(leave).is_err());
    let mut session = prepare(&constant, &data);
    session.resume(&scratch.0).unwrap();
    session.add(own());
    session.fit().unwrap();
    assert!(states(&session) == wanted);
}

#[test]
fn classes_of_weight_zero_are_not_learned() {
    let scratch = Scratch::new("class-weights");
    let out = scratch.path("run");
    let weights = "--class-weights=0,0,1,1,1,1,1,1,1,0.5";
    let report = json(&plimsoll(&["train", "--json", "--steps=60", weights, "--seed=1", "--out", &out]));
    let found = json(&plimsoll(&["evaluate", &out, "--json", "--metrics=recall/classes"]));
    assert!(number(&found["metrics"], "recall/7") > 0.5 && found["metrics"]["recall/0"].is_null(), "{found}");
    let table = String::from_utf8(plimsoll(&["predict", &out]).stdout).unwrap();
    let said = table.lines().skip(1).filter(|line| ["0", "1"].contains(&line.split(',').nth(1).unwrap()));
    assert_eq!(said.count(), 0);
    // Evaluation weights the loss in the same way, also from a checkpoint alone.
    assert_eq!(number(&found, "loss"), number(&report, "test_loss"));
    fs::remove_file(Path::new(&out).join("report.json")).unwrap();
    assert_eq!(number(&json(&plimsoll(&["evaluate", &out, "--json"])), "loss"), number(&report, "test_loss"));
}
