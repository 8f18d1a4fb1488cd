//! How runs end and resume: signals, callbacks, early stopping, monitors, files of other runs.

use crate::support;

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::graph::op::Attention;
use plimsoll::graph::{Builder, Op};
use plimsoll::plan::{Budget, Executor, plan};
use plimsoll::prelude::*;
use plimsoll::train::{
    BatchKind, EarlyStopping, Ending, Monitor, Progress, RunLog, Saved, TrainState, checkpoints,
};
use std::fs;
use std::path::Path;
use support::{NO_CACHE, Scratch, json, number, plimsoll, prepare};

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

/// Asserts that the arguments fail with this status and a message that contains all words.
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
}

#[test]
fn a_confusion_matrix_counts_against_the_line() {
    let run = ["train", "--json", "--steps=4", "--data=synthetic", "--classes=2000", "--validate-every=2"];
    let output = plimsoll(&[&run[..], &["--metrics=confusion,f1", "--memory=100MiB"]].concat());
    let report = json(&output);
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("confusion has 4000000 figures"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("f1/macro"));
}

#[test]
fn a_signal_during_a_due_validation_interrupts_the_run() {
    let (data, scratch) = (data(), Scratch::new("due-signal"));
    let trainer = trainer().validate_every(3).checkpoints(&scratch.0, None);
    let leave = |event: &TrainEvent<'_>| match event {
        TrainEvent::Step { step: 3, .. } | TrainEvent::Validation { .. } => Control::Leave,
        _ => Control::Continue,
    };
    let mut session = prepare(&trainer, &data);
    assert!(session.fit_with(&mut |event| leave(event)).is_err());
    let mut session = prepare(&trainer, &data);
    session.resume(&scratch.0).unwrap();
    let mut train_loss = 0.0;
    let left = session.fit_with(&mut |event| {
        if let TrainEvent::Validation { train_loss: mean, .. } = event {
            train_loss = *mean;
        }
        leave(event)
    });
    let Err(TrainError::Interrupted { step: 3, saved: Saved::In(_) }) = left else { panic!("{left:?}") };
    // No step was done since the resume.
    assert!(train_loss.is_nan());
    assert_eq!(TrainState::read(&scratch.0).unwrap().validated, 3);
}

#[test]
fn a_listener_of_progress_ends_an_evaluation_with_a_checkpoint() {
    let (data, scratch) = (data(), Scratch::new("left-evaluation"));
    let leave = |progress: &Progress| match progress {
        Progress::Evaluating { examples, of } => {
            assert!(*examples <= of.unwrap());
            Control::Leave
        }
        _ => Control::Continue,
    };
    let trainer = trainer().validate_every(3).checkpoints(&scratch.0, None).on_progress(leave);
    let left = prepare(&trainer, &data).fit();
    let Err(TrainError::Interrupted { step: 3, saved: Saved::In(_) }) = left else { panic!("{left:?}") };
    let state = TrainState::read(&scratch.0).unwrap();
    // The validation was not over: a resumed run does it first.
    assert_eq!((state.steps_done, state.validated), (3, 0));
    let again = self::trainer().validate_every(3).checkpoints(&scratch.0, None);
    let mut session = prepare(&again, &data);
    session.resume(&scratch.0).unwrap();
    let mut first = None;
    session
        .fit_with(&mut |event| {
            first.get_or_insert(matches!(event, TrainEvent::Validation { step: 3, .. }));
            Control::Continue
        })
        .unwrap();
    assert_eq!(first, Some(true));
}

#[test]
fn a_monitor_without_its_metric_is_refused_before_the_run() {
    // Evaluations that return outputs for metrics have no accuracy of their own.
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
fn a_run_that_stopped_early_stays_stopped_on_resume() {
    let (data, scratch) = (data(), Scratch::new("stays"));
    let trainer = ever_worse(&scratch.0);
    for resume in [false, true] {
        let mut session = prepare(&trainer, &data);
        if resume {
            session.resume(&scratch.0).unwrap();
        }
        session.add(EarlyStopping::new(2));
        let report = session.fit().unwrap();
        assert_eq!((report.steps, report.ending), (6, Ending::Restored(2)), "{resume}");
    }
    // With more patience it continues.
    let mut session = prepare(&trainer, &data);
    session.resume(&scratch.0).unwrap();
    session.add(EarlyStopping::new(3));
    assert_eq!(session.fit().unwrap().steps, 8);
}

#[test]
fn a_final_validation_that_was_not_due_does_not_count_for_patience() {
    let (data, scratch) = (data(), Scratch::new("not-due"));
    let trainer = ever_worse(&scratch.0).steps(5);
    let report = prepare(&trainer, &data).fit().unwrap();
    let best = TrainState::read(&scratch.0).unwrap().best;
    assert_eq!((report.steps, best.step, best.waited), (5, 2, 1));
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
fn a_failing_callback_leaves_a_checkpoint() {
    let (data, scratch) = (data(), Scratch::new("fails"));
    let trainer = trainer().checkpoints(&scratch.0, None);
    let mut session = prepare(&trainer, &data);
    session.add(Fails);
    assert!(matches!(session.fit(), Err(TrainError::Setting(_))));
    assert_eq!(TrainState::read(&scratch.0).unwrap().steps_done, 3);
}

#[test]
fn the_search_for_a_diverged_layer_is_reported_and_interruptible() {
    let data = data();
    let wild = Trainer::new(model(), Sgd::new(1e18))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .batch(64)
        .steps(20);
    for leave in [false, true] {
        let mut reported = Vec::new();
        let error = prepare(&wild, &data).fit_with(&mut |event| {
            let TrainEvent::Diverged { replayed, .. } = event else { return Control::Continue };
            reported.push(*replayed);
            if leave { Control::Leave } else { Control::Continue }
        });
        let Err(TrainError::Diverged(found)) = error else { panic!("{error:?}") };
        assert_eq!(reported[0], 0);
        assert_eq!((found.origin.is_none(), reported.len() == 1), (leave, leave), "{found}: {reported:?}");
    }
}

#[test]
fn a_final_evaluation_that_is_not_finite_is_a_failure() {
    let wild = ["train", "--steps=1", "--lr=1e30", "--optimizer=sgd"];
    refused(&wild, 4, &["the loss became", "smaller learning rate"]);
}

#[test]
fn a_damaged_best_checkpoint_leaves_the_last_parameters() {
    let (data, scratch) = (data(), Scratch::new("lost-best"));
    let trainer = ever_worse(&scratch.0);
    let mut last = Vec::new();
    for damaged in [false, true] {
        let mut session = prepare(&trainer, &data);
        session.add(EarlyStopping::new(2));
        let report = session.fit_with(&mut |event| {
            if let (TrainEvent::Step { step: 6, .. }, true) = (event, damaged) {
                let path = scratch.0.join("checkpoint-000000000002.safetensors");
                let mut bytes = fs::read(&path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(&path, bytes).unwrap();
            }
            Control::Continue
        });
        let report = report.unwrap();
        assert_eq!(report.ending, if damaged { Ending::Stopped } else { Ending::Restored(2) });
        assert_eq!(report.refused.is_some_and(|why| why.contains("000000000002")), damaged);
        // The session holds what was saved last.
        if damaged {
            last = session.state("head/kernel").unwrap().as_bytes().to_vec();
            assert_eq!(session.steps_done(), 6);
        }
    }
    let mut session = prepare(&trainer, &data);
    session.resume(&scratch.0).unwrap();
    assert!(session.state("head/kernel").unwrap().as_bytes() == last);
}

#[test]
fn the_best_checkpoint_is_found_in_the_folder_resumed_from() {
    let (data, scratch) = (data(), Scratch::new("best-there"));
    let [from, to] = ["a", "b"].map(|name| scratch.0.join(name));
    [&from, &to].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let first = ever_worse(&from).steps(4);
    prepare(&first, &data).fit().unwrap();
    let second = ever_worse(&to);
    let mut session = prepare(&second, &data);
    session.resume(&from).unwrap();
    session.add(EarlyStopping::new(2));
    let report = session.fit().unwrap();
    assert_eq!((report.steps, report.ending), (6, Ending::Restored(2)));
}

#[test]
fn headers_of_checkpoints_are_checked_before_the_first_step() {
    let (data, scratch) = (data(), Scratch::new("header"));
    let noted = trainer().checkpoints(&scratch.0, None).note("long", "x".repeat(5 << 20));
    let error = prepare(&noted, &data).fit_with(&mut |_| panic!("a step was done")).unwrap_err();
    assert!(error.to_string().contains("make them shorter"), "{error}");
    // A header of many long names is read back.
    let mut deep = Sequential::classifier([6], 3).named("deep");
    for i in 0..900 {
        deep = deep.layer(format!("{i}{}", "x".repeat(800)), Dense::new(6));
    }
    let deep = Trainer::new(deep.layer("head", Dense::new(3)), AdamW::new(1e-3))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX);
    let deep = deep.batch(64).kinds(&[BatchKind::Train]);
    let mut session = prepare(&deep, &data);
    let path = session.checkpoint(&scratch.0).unwrap();
    let header = u64::from_le_bytes(fs::read(path).unwrap()[..8].try_into().unwrap());
    assert!(header > 4 << 20, "{header}");
    session.resume(&scratch.0).unwrap();
    assert_eq!(TrainState::read(&scratch.0).unwrap().model, "deep");
}

#[test]
fn checkpoints_of_another_run_are_neither_used_nor_removed() {
    let scratch = Scratch::new("foreign");
    let (out, other) = (scratch.path("run"), scratch.path("other"));
    let run = |out: &str, more: &[&str]| {
        plimsoll(&[&["train", "--json", "--batch=32", "--out", out, "--weight-names=torch"], more].concat())
    };
    let log = scratch.path("log.jsonl");
    json(&run(&out, &["--steps=3", "--log", &log]));
    json(&run(&other, &["--steps=9", "--model=mlp"]));
    let resolved = fs::read_to_string(Path::new(&out).join("resolved.toml")).unwrap();
    assert!(resolved.contains("weight-names = \"torch\"") && resolved.contains(&log), "{resolved}");
    let foreign = Path::new(&out).join("checkpoint-000000000009.safetensors");
    fs::copy(Path::new(&other).join("checkpoint-000000000009.safetensors"), &foreign).unwrap();
    let output = plimsoll(&["train", "--json", "--resume", &out, "--steps=5"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((number(&json(&output), "steps"), foreign.exists()), (5.0, true), "{message}");
    assert!(message.contains("refused") && message.contains("000000000009"), "{message}");
    // A new run does not start beside it, and says why.
    let again = ["train", "--batch=32", "--steps=3", "--out", &out];
    refused(&again, 2, &["000000000009", "a run of mlp", "--overwrite", "another folder"]);
}

#[test]
fn results_of_an_earlier_run_are_removed_when_a_run_begins() {
    let scratch = Scratch::new("stale");
    for file in ["report.json", "weights.safetensors"] {
        fs::write(scratch.0.join(file), "{}").unwrap();
    }
    let out = scratch.path("");
    let run = ["train", "--steps=60", "--lr=1000", "--optimizer=sgd", "--overwrite", "--out", &out];
    refused(&run, 4, &["checkpoint"]);
    for file in ["report.json", "weights.safetensors"] {
        assert!(!scratch.0.join(file).exists(), "{file}");
    }
}

#[test]
fn a_log_has_every_step_up_to_the_checkpoint() {
    let (data, scratch) = (data(), Scratch::new("log-killed"));
    let trainer = trainer().checkpoints(&scratch.0, Some(1));
    let path = scratch.0.join("log.jsonl");
    let mut session = prepare(&trainer, &data);
    session.add(RunLog::create(&path).unwrap());
    let _ = session.fit_with(&mut |event| match event {
        TrainEvent::Step { step: 2, .. } => Control::Leave,
        _ => Control::Continue,
    });
    // As if killed: no destructor runs.
    std::mem::forget(session);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[cfg(unix)]
#[test]
fn an_ignored_signal_stays_ignored() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let scratch = Scratch::new("ignored");
    let out = scratch.path("run");
    // Steps of half a second, so that the second signal arrives inside one.
    let mut child = Command::new("sh")
        .env(NO_CACHE.0, NO_CACHE.1)
        .args(["-c", r#"trap "" INT; exec "$0" "$@""#, env!("CARGO_BIN_EXE_plimsoll"), "train"])
        .args(["--batch=8000", "--steps=60", "--save-every=1", "--threads=1", "--out", &out])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while checkpoints(&out).unwrap_or_default().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let id = child.id().to_string();
    let send = |signal: &str| Command::new("kill").args([signal, &id]).status().unwrap();
    send("-TERM");
    let (mut said, mut byte) = (Vec::new(), [0]);
    let mut errors = child.stderr.take().unwrap();
    while !said.ends_with(b"at once\n") && errors.read(&mut byte).unwrap() == 1 {
        said.push(byte[0]);
    }
    send("-INT");
    std::io::copy(&mut errors, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_a_log_with_every_step_also_without_a_folder() {
    use std::process::{Command, Stdio};
    let scratch = Scratch::new("log-stopped");
    let log = scratch.0.join("log.jsonl");
    let run = [
        "train",
        "--model=mlp",
        "--width=8",
        "--batch=4",
        "--steps=1000000",
        "--validate-every=1000000",
        "--log",
    ];
    let mut command = support::command(&[&run[..], &[log.to_str().unwrap()]].concat());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    while lines() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{message}");
    let steps: Vec<u64> =
        plimsoll::train::read_events(&log).unwrap().map(|event| event.unwrap().step).collect();
    let last = *steps.last().unwrap();
    // Before them is the line of the run's beginning.
    assert_eq!(steps, (0..=last).collect::<Vec<_>>());
    assert!(message.contains(&format!("after step {last}")), "{message}");
}

#[test]
fn a_fully_masked_query_is_not_reported_as_diverged() {
    let float = |shape: [usize; 4]| TensorType::new(DType::F32, shape);
    let mut b = Builder::new(1, 1);
    let q = b.input("q", float([1, 2, 1, 4]), true);
    let mask = b.input("mask", TensorType::new(DType::Bool, [1, 1, 2, 2]), true);
    let op = Op::Attention(Attention::Forward { causal: false, window: None, masked: true });
    let outputs = b.node(op, &[q, q, q, mask]).unwrap();
    outputs.iter().enumerate().for_each(|(i, value)| b.output(&format!("y{i}"), *value));
    let (cpu, budget) = (Cpu::new(1).unwrap(), Budget::new(usize::MAX, Vec::new()));
    let plans = plan(&[("test".into(), b.finish().unwrap())], cpu.target(), &budget).unwrap();
    let mut prepared = cpu.prepare(plans.into()).unwrap();
    let bytes = |x: f32| [x.to_ne_bytes(); 8].concat();
    // The second query is fully masked: its logarithm of the sum is that of zero.
    let mask = [1, 1, 0, 0];
    assert_eq!(prepared.run_until_bad(0, &[&bytes(1.0), &mask]).unwrap(), None);
    let mut sums = [0; 8];
    prepared.read_output(0, 1, &mut sums).unwrap();
    assert_eq!(sums[4..], f32::NEG_INFINITY.to_ne_bytes());
    assert!(prepared.run_until_bad(0, &[&bytes(f32::NAN), &mask]).unwrap().is_some());
}
