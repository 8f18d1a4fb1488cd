//! A run that is killed, stopped or out of disk resumes to the same bits; damaged checkpoints are refused.

use crate::support;

use plimsoll::cpu::isa::Isa;
use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::prelude::*;
use plimsoll::tensor::random::Lcg;
use plimsoll::train::{
    BatchKind, EVENTS_FILE, MANIFEST, Monitor, RunEventKind, Saved, TrainState, checkpoints, read_events,
};
use plimsoll_testing::or_skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{NO_CACHE, Scratch, json, number, plimsoll, prepare, states};

const LENET: &[&str] = &["--steps=40", "--batch=64", "--seed=5"];
/// Every epoch ends with a smaller batch.
const GPT: &[&str] = &[
    "--model=gpt",
    "--context=32",
    "--layers=2",
    "--width=32",
    "--heads=2",
    concat!("--data=text:", env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md"),
    "--batch=32",
    "--steps=60",
];
/// Dropout and masked tokens: two streams of random numbers.
const BERT: &[&str] = &[
    "--model=bert_tiny",
    "--context=32",
    "--layers=2",
    "--width=32",
    "--heads=2",
    "--dropout=0.2",
    concat!("--data=text:", env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md"),
    "--batch=32",
    "--steps=50",
    "--optimizer=momentum",
    "--schedule=constant",
];

fn start(arguments: &[&str]) -> Child {
    let mut command = support::command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn weights(folder: &str) -> Vec<u8> {
    fs::read(Path::new(folder).join("weights.safetensors")).unwrap()
}

/// The newest checkpoint of a folder, if there is one.
fn newest(folder: impl AsRef<Path>) -> Option<PathBuf> {
    checkpoints(&folder).ok()?.pop()
}

/// The states' elements of the newest checkpoint, without its header.
fn elements(folder: &str) -> Vec<u8> {
    let bytes = fs::read(newest(folder).unwrap()).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

/// The steps that the log of a folder tells of, in their order.
fn logged(folder: &str) -> Vec<u64> {
    let events = read_events(Path::new(folder).join(EVENTS_FILE)).unwrap().map(Result::unwrap);
    let steps = events.filter(|event| matches!(event.what, RunEventKind::Step { .. }));
    steps.map(|event| event.step).collect()
}

#[test]
fn a_run_killed_at_any_time_resumes_to_the_same_bits() {
    let scratch = Scratch::new("killed");
    for (name, run, kills) in [("lenet", LENET, 20), ("gpt", GPT, 15), ("bert", BERT, 15)] {
        let (whole, killed) = (scratch.path(&format!("{name}-whole")), scratch.path(name));
        let took = Instant::now();
        json(&plimsoll(&[&["train", "--json", "--threads=2", "--out", &whole], run].concat()));
        let took = took.elapsed();
        let (mut stopped_inside, mut random) = (0, Lcg::new(0x9e37_79b9));
        // Each time with another line, number of threads or micro-batches.
        let ways: [&[&str]; 4] =
            [&["--threads=1"], &["--threads=3"], &["--micro-batches=2"], &["--memory=2GiB", "--threads=2"]];
        for way in ways.iter().cycle().take(kills) {
            let resume = newest(&killed).is_some();
            let first = [&["train", "--save-every=1", "--out", &killed], run, way].concat();
            let again = [&["train", "--resume", &killed], *way].concat();
            let mut child = start(if resume { &again } else { &first });
            std::thread::sleep(took.mul_f64(random.unit() * 0.6));
            child.kill().unwrap();
            child.wait().unwrap();
            if let Ok(state) = TrainState::read(Path::new(&killed)) {
                stopped_inside += u64::from(state.steps_done < state.total_steps);
            }
        }
        assert!(stopped_inside > 0, "{name}: no kill came inside the run");
        let report = json(&plimsoll(&["train", "--json", "--resume", &killed, "--threads=2"]));
        let steps = number(&report, "steps") as u64;
        assert!(run.contains(&format!("--steps={steps}").as_str()));
        // Before a checkpoint its steps are in the log, though many wait to be written together.
        assert_eq!(logged(&killed), (1..=steps).collect::<Vec<_>>(), "{name}: the log");
        assert!(weights(&whole) == weights(&killed), "{name}: the weights differ");
        assert!(elements(&whole) == elements(&killed), "{name}: moments differ");
    }
}

#[test]
fn a_resumed_run_keeps_optimizer_clipping_and_averages() {
    let scratch = Scratch::new("recipe");
    let (whole, parts) = (scratch.path("whole"), scratch.path("parts"));
    let gpt = ["train", "--json", "--model=gpt", "--context=16", "--layers=1", "--width=32", "--heads=2"];
    let recipe = [
        "--moments=8bit",
        "--weight-decay=0.1",
        "--decay-group=vectors=0,tokens=0.01",
        "--clip-global-norm=0.5",
        "--ema=0.8",
        "--freeze=*/bias",
        "--schedule=step",
        "--every=4",
        "--factor=0.5",
        "--warmup=3",
        "--batch=8",
        "--accumulate=2",
    ];
    let run = [&gpt[..], &recipe].concat();
    json(&plimsoll(&[&run[..], &["--steps=12", "--threads=2", "--out", &whole]].concat()));
    json(&plimsoll(&[&run[..], &["--steps=7", "--threads=1", "--out", &parts]].concat()));
    json(&plimsoll(&["train", "--json", "--resume", &parts, "--steps=12", "--threads=3"]));
    assert!(weights(&whole) == weights(&parts), "the weights differ");
    assert!(elements(&whole) == elements(&parts), "moments differ");
    for (flag, word) in [("--ema=0.9", "0.8"), ("--accumulate=4", "2"), ("--freeze=tokens", "*/bias")] {
        let output = plimsoll(&["train", "--resume", &parts, "--steps=20", flag]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(&flag.replace('=', " ")) && message.contains(word), "{message}");
    }
}

#[test]
fn a_signal_finishes_the_step_saves_and_says_how_to_resume() {
    let scratch = Scratch::new("signal");
    let (whole, stopped) = (scratch.path("whole"), scratch.path("stopped"));
    let run = ["train", "--batch=256", "--steps=80", "--threads=2"];
    json(&plimsoll(&[&run[..], &["--json", "--out", &whole]].concat()));
    let child = start(&[&run[..], &["--save-every=1", "--out", &stopped]].concat());
    while newest(&stopped).is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{message}");
    assert!(message.contains("stopped after step") && message.contains("--resume"), "{message}");
    assert!(!Path::new(&stopped).join("weights.safetensors").exists());
    let state = TrainState::read(Path::new(&stopped)).unwrap();
    assert!(state.steps_done < 80, "the run was over before the signal came");
    // Flags that agree are accepted, those that contradict are named.
    let output = plimsoll(&["train", "--resume", &stopped, "--batch=64"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("--batch") && message.contains("256"), "{message}");
    let report = json(&plimsoll(&["train", "--resume", &stopped, "--json", "--batch=256"]));
    assert_eq!(number(&report, "steps"), 80.0);
    assert!(weights(&whole) == weights(&stopped));
    // More steps change the schedule; the run continues.
    let report = json(&plimsoll(&["train", "--resume", &stopped, "--json", "--steps=90"]));
    assert_eq!(number(&report, "steps"), 90.0);
    assert!(weights(&whole) != weights(&stopped));
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_signal_kills_the_run() {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    let scratch = Scratch::new("second-signal");
    let out = scratch.path("run");
    // Steps of half a second, so that the second signal arrives inside one.
    // A program in the background starts with the first one ignored.
    let mut child = Command::new("env");
    child.env(NO_CACHE.0, NO_CACHE.1).args([
        "--default-signal=INT",
        env!("CARGO_BIN_EXE_plimsoll"),
        "train",
        "--batch=8000",
        "--steps=60",
    ]);
    child.args(["--save-every=1", "--threads=1", "--out", &out]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("the program starts");
    while newest(&out).is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let id = child.id().to_string();
    let send = |signal: &str| Command::new("kill").args([signal, &id]).status().unwrap();
    send("-INT");
    let (mut said, mut byte) = (Vec::new(), [0]);
    let mut errors = child.stderr.take().unwrap();
    while !said.ends_with(b"at once\n") && errors.read(&mut byte).unwrap() == 1 {
        said.push(byte[0]);
    }
    // A different signal than the first.
    send("-TERM");
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(15), "{status:?}");
    assert!(TrainState::read(&out).unwrap().steps_done < 60);
}

#[test]
fn a_file_size_limit_leaves_the_last_checkpoint() {
    let scratch = Scratch::new("full");
    let out = scratch.path("run");
    json(&plimsoll(&["train", "--json", "--steps=3", "--out", &out]));
    let last = newest(&out).unwrap();
    let before = fs::read(&last).unwrap();
    // Files of at most 400 blocks of 512 bytes: the checkpoint is larger.
    let limited = r#"ulimit -f 400; exec "$0" train --resume "$1" --steps 6 --save-every 1"#;
    let mut command = Command::new("sh");
    command.env(NO_CACHE.0, NO_CACHE.1);
    let output =
        command.args(["-c", limited, env!("CARGO_BIN_EXE_plimsoll"), &out]).output().expect("a shell runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("checkpoint-000000000004") && message.contains("untouched"), "{message}");
    assert_eq!(newest(&out), Some(last.clone()));
    assert!(fs::read(&last).unwrap() == before);
    assert!(!Path::new(&out).join("checkpoint-000000000004.safetensors.partial").exists());
    let report = json(&plimsoll(&["train", "--json", "--resume", &out, "--steps=6"]));
    assert_eq!(number(&report, "steps"), 6.0);
}

#[test]
fn split_batch_norm_and_offloading_resume_to_the_same_bits() {
    let scratch = Scratch::new("kept-flags");
    let split =
        ["--model=resnet20", "--image-size=8", "--batch=8", "--micro-batches=2", "--allow-split-batchnorm"];
    let norms = [&split[..], &["--schedule=constant", "--threads=2"]].concat();
    // Most of the memory of an mlp with Adam is state; half of it exceeds the line.
    let large = ["--model=mlp", "--batch=8", "--data=synthetic", "--schedule=constant", "--threads=2"];
    let spill = scratch.path("");
    for (name, flags, line) in [("norms", &norms[..], "90%"), ("offloaded", &large[..], "90MiB")] {
        let (whole, parts) = (scratch.path(&format!("{name}-whole")), scratch.path(&format!("{name}-parts")));
        let train = |more: &[&str]| {
            plimsoll(&[&["train", "--json", "--spill", &spill, "--memory", line], more].concat())
        };
        json(&train(&[flags, &["--steps=6", "--out", &whole]].concat()));
        json(&train(&[flags, &["--steps=3", "--out", &parts]].concat()));
        let report = json(&train(&["--resume", &parts, "--steps=6", "--threads=2"]));
        let kept = if name == "norms" {
            number(&report, "micro_batches") == 2.0
        } else {
            number(&report, "spilled") > 0.0
        };
        assert!(kept, "{name}: {report}");
        assert!(weights(&whole) == weights(&parts), "{name}");
    }
    // A missing folder is refused before anything is planned.
    let resumed =
        ["train", "--resume", &scratch.path("offloaded-parts"), "--steps=9", "--spill=/nonexistent"];
    assert_eq!(plimsoll(&resumed).status.code(), Some(2));
}

fn model() -> Sequential {
    Sequential::classifier([6], 3)
        .named("small")
        .layer("hidden", Dense::new(8))
        .layer("relu", Relu)
        .layer("dropout", Dropout::new(0.5))
        .layer("head", Dense::new(3))
}

fn data(examples: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model().inputs(), label: model().target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), examples, 0, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer(threads: usize) -> Trainer {
    Trainer::new(model(), AdamW::new(1e-2))
        .executor(Cpu::new(threads).unwrap())
        .line(usize::MAX)
        .batch(64)
        .seed(3)
        .epochs(3)
        .schedule(Schedule::Cosine)
}

#[test]
fn a_session_resumes_where_another_stopped() {
    let scratch = Scratch::new("session");
    // Batches of 64, 64, 64 and 8.
    let data = data(200);
    let whole = trainer(2);
    let mut session = prepare(&whole, &data);
    session.fit().unwrap();
    let expected = states(&session);
    for stop in 1..12 {
        let first = trainer(1).checkpoints(&scratch.0, Some(5)).note("mine", "a \"note\"");
        let mut session = prepare(&first, &data);
        let mut listen = |event: &TrainEvent| match event {
            TrainEvent::Step { step, .. } if *step == stop => Control::Leave,
            _ => Control::Continue,
        };
        match session.fit_with(&mut listen) {
            Err(TrainError::Interrupted { step, saved: Saved::In(_) }) => assert_eq!(step, stop),
            other => panic!("{other:?}"),
        }
        let second = trainer(3).micro_batches(2);
        let mut session = prepare(&second, &data);
        let state = session.resume(&scratch.0).unwrap().state;
        assert_eq!((state.steps_done, state.total_steps, state.micro_batches), (stop, 12, 1));
        assert_eq!(state.notes["mine"], "a \"note\"");
        let report = session.fit().unwrap();
        assert_eq!(report.steps, 12);
        assert!(states(&session) == expected, "stopped after step {stop}");
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused_naming_the_difference() {
    let scratch = Scratch::new("other");
    let small = data(200);
    let saver = trainer(1);
    prepare(&saver, &small).checkpoint(&scratch.0).unwrap();
    let refused = |trainer: Trainer, data: &Dataset, words: &[&str]| {
        let message = prepare(&trainer, data).resume(&scratch.0).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refused(trainer(1).batch(32), &small, &["batch", "64", "32"]);
    refused(trainer(1).seed(4), &small, &["seed", "3", "4"]);
    refused(trainer(1).schedule(Schedule::Constant), &small, &["schedule", "cosine", "constant"]);
    refused(trainer(1), &data(100), &["training examples", "200", "100"]);
    let other = Trainer::new(model(), Sgd::new(1e-2))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .batch(64)
        .seed(3);
    refused(other.schedule(Schedule::Cosine), &small, &["optimizer", "sgd", "adamw"]);
    let wider = Sequential::classifier([6], 3)
        .named("small")
        .layer("hidden", Dense::new(9))
        .layer("relu", Relu)
        .layer("head", Dense::new(3));
    let wider = Trainer::new(wider, AdamW::new(1e-2))
        .executor(Cpu::new(1).unwrap())
        .line(usize::MAX)
        .batch(64)
        .seed(3);
    refused(wider.schedule(Schedule::Cosine), &small, &["hidden/kernel", "[6, 8]", "f32[6,9]"]);
    let nowhere = scratch.0.join("nowhere");
    let error = prepare(&saver, &small).checkpoint(&nowhere).unwrap_err();
    assert!(matches!(error, TrainError::Save { .. }), "{error}");
}

#[test]
fn damaged_checkpoints_are_refused() {
    let scratch = Scratch::new("damaged");
    let data = data(200);
    let trainer = trainer(1);
    let mut session = prepare(&trainer, &data);
    session.checkpoint(&scratch.0).unwrap();
    let path = newest(&scratch.0).unwrap();
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut refused = |what: String, bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        assert!(session.resume(&scratch.0).is_err(), "{what} was taken");
        // Reading its position does no harm either.
        let _ = TrainState::read(&scratch.0);
    };
    for cut in
        [0, 1, 7, 8, 9, 60, header / 2, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1]
    {
        refused(format!("a file of {cut} bytes"), &whole[..cut]);
    }
    refused("a longer file".into(), &[&whole[..], &[0]].concat());
    for size in
        [0, 1, header as u64, whole.len() as u64, 4 << 20, u64::from(u32::MAX), u64::MAX / 2, u64::MAX]
    {
        refused(format!("a header of {size} bytes"), &[&size.to_le_bytes(), &whole[8..]].concat());
    }
    for place in 0..header {
        for bit in [0, 5] {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            refused(format!("bit {bit} of byte {place} flipped"), &bytes);
        }
    }
    for place in (header..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x80;
        refused(format!("byte {place} of the elements"), &bytes);
    }
    // A session whose states may be half read is not saved.
    assert!(session.checkpoint(&scratch.0).is_err());
    fs::write(&path, &whole).unwrap();
    session.resume(&scratch.0).unwrap();
    session.checkpoint(&scratch.0).unwrap();
    assert!(fs::read(&path).unwrap() == whole);
}

/// A run of lenet with a checkpoint after each of its steps, and its newest one.
fn with_checkpoints(out: &str, more: &[&str]) -> PathBuf {
    let run = ["train", "--json", "--steps=4", "--batch=32", "--save-every=1", "--threads=2", "--out", out];
    json(&plimsoll(&[&run[..], more].concat()));
    newest(out).unwrap()
}

#[test]
fn the_last_checkpoints_and_the_best_are_kept() {
    let scratch = Scratch::new("kept");
    let out = scratch.path("run");
    fs::create_dir(&out).unwrap();
    let steps = |folder: &str| -> Vec<u64> {
        checkpoints(folder).unwrap().iter().map(|path| step_of(path)).collect()
    };
    // The highest loss counts as the best, and the loss falls: the first validation is the best.
    let worst = Monitor::Highest("loss".into());
    let trainer = trainer(1).steps(9).validate_every(2).metrics(&["loss".parse().unwrap()]).monitor(worst);
    let trainer = trainer.checkpoints(&out, Some(1)).keep(2);
    prepare(&trainer, &data(200)).fit().unwrap();
    assert_eq!(steps(&out), [2, 8, 9]);
    let list: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&out).join(MANIFEST)).unwrap()).unwrap();
    assert_eq!(list["best"], "checkpoint-000000000002.safetensors");
    assert_eq!(list["checkpoints"][2]["step"], 9);
    assert!(list["checkpoints"][0]["instructions"].as_str().unwrap().starts_with("cpu "), "{list}");
    // Another run neither starts there nor removes them.
    let output = plimsoll(&["train", "--steps=4", "--out", &out]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("--overwrite") && message.contains("another folder"), "{message}");
    assert_eq!(steps(&out), [2, 8, 9]);
    // The same run, started again, does not resume from the old ones.
    let trainer = trainer.steps(4).keep(3);
    prepare(&trainer, &data(200)).fit().unwrap();
    assert_eq!(steps(&out), [2, 3, 4]);
}

fn step_of(path: &Path) -> u64 {
    path.file_stem().unwrap().to_str().unwrap().rsplit('-').next().unwrap().parse().unwrap()
}

#[test]
fn the_newest_intact_checkpoint_is_resumed() {
    let scratch = Scratch::new("newest");
    let (out, other) = (scratch.path("run"), scratch.path("other"));
    let last = with_checkpoints(&out, &[]);
    let (expected, whole) = (weights(&out), fs::read(&last).unwrap());
    let mut random = Lcg::new(7);
    let cuts = (0..whole.len()).step_by(4 << 10).map(|cut| (whole[..cut].to_vec(), format!("cut at {cut}")));
    let mut flip = |_| {
        let (mut bytes, place, bit) = (whole.clone(), random.below(whole.len()), random.below(8));
        bytes[place] ^= 1 << bit;
        (bytes, format!("bit {bit} of byte {place} flipped"))
    };
    let flips: Vec<(Vec<u8>, String)> = (0..100).map(&mut flip).collect();
    for (bytes, what) in cuts.chain(flips) {
        fs::write(&last, bytes).unwrap();
        assert_eq!(TrainState::read(&out).unwrap().steps_done, 3, "{what}");
    }
    // The program reports which one it refused, why, and which one it resumes from.
    let output = plimsoll(&["train", "--resume", &out]);
    let (text, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{message}");
    assert!(message.contains("refused") && message.contains("000000000004"), "{message}");
    assert!(text.contains("Resuming after step 3 of 4") && text.contains("000000000003"), "{text}");
    assert!(weights(&out) == expected, "the weights differ");
    // A checkpoint of another model is refused by name, too.
    let wrong = with_checkpoints(&other, &["--model=mlp"]);
    fs::copy(&wrong, Path::new(&out).join("checkpoint-000000000009.safetensors")).unwrap();
    let trainer =
        Trainer::new(zoo::lenet(), AdamW::new(1e-3)).executor(Cpu::new(2).unwrap()).line(usize::MAX);
    let trainer = trainer.batch(32).steps(4).schedule(Schedule::Cosine).kinds(&[BatchKind::Train]);
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let resumed = prepare(&trainer, &data).resume(&out).unwrap();
    assert_eq!((step_of(&resumed.path), resumed.refused.len()), (4, 1));
    assert!(resumed.refused[0].contains("000000000009") && resumed.refused[0].contains("mlp"), "{resumed:?}");
    // Where none is intact, all are named.
    for path in checkpoints(&out).unwrap() {
        fs::write(path, "").unwrap();
    }
    let output = plimsoll(&["train", "--resume", &out]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("no checkpoint is good") && message.contains("000000000004"), "{message}");
}

#[test]
fn resuming_reports_another_instruction_set() {
    let scratch = Scratch::new("instructions");
    let data = data(200);
    let plain = |isa| {
        let executor = Cpu::with_isa(1, isa).unwrap();
        Trainer::new(model(), AdamW::new(1e-2)).executor(executor).line(usize::MAX).batch(64).epochs(3)
    };
    let saver = plain(Isa::Portable);
    prepare(&saver, &data).checkpoint(&scratch.0).unwrap();
    let same = prepare(&saver, &data).resume(&scratch.0).unwrap();
    assert_eq!(same.differs, None);
    if let Some(isa) = or_skip(Isa::Avx2.available()) {
        let best = plain(isa);
        let differs = prepare(&best, &data).resume(&scratch.0).unwrap().differs.unwrap();
        // The revision of the arithmetic is part of it: a run of an older program is told, too.
        assert!(
            differs.contains("cpu portable, arithmetic ") && differs.contains("bits may differ"),
            "{differs}"
        );
    }
}

#[test]
fn a_checkpoint_alone_is_enough_to_evaluate_and_predict() {
    let scratch = Scratch::new("alone");
    let (out, table) = (scratch.path("run"), scratch.path("scores.csv"));
    let report = {
        with_checkpoints(&out, &["--ema=0.9"]);
        json(&plimsoll(&["evaluate", &out, "--json"]))
    };
    for file in ["report.json", "weights.safetensors", "resolved.toml"] {
        fs::remove_file(Path::new(&out).join(file)).unwrap();
    }
    let found = json(&plimsoll(&["evaluate", &out, "--json"]));
    assert_eq!(number(&found, "loss"), number(&report, "loss"));
    assert_eq!(number(&json(&plimsoll(&["predict", &out, "--json", "--out", &table])), "rows"), 2500.0);
}
