//! What a run has done is never lost by accident: not to a second run, not to a closed terminal, not to other data.

use crate::support::{self, Scratch, json, number, plimsoll};
use plimsoll::train::{TrainState, checkpoints};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The names of a folder's checkpoints.
fn saved(folder: &str) -> Vec<PathBuf> {
    checkpoints(Path::new(folder)).unwrap_or_default()
}

/// Asserts exit status 2 and a message that contains all words.
fn refused(arguments: &[&str], words: &[&str]) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
}

#[test]
fn a_folder_with_a_run_is_not_overwritten_by_accident() {
    let scratch = Scratch::new("no-overwrite");
    let out = scratch.path("run");
    let run = ["train", "--json", "--batch=32", "--threads=2", "--out", &out];
    json(&plimsoll(&[&run[..], &["--steps=3"]].concat()));
    let (weights, before) = (Path::new(&out).join("weights.safetensors"), saved(&out));
    let parameters = fs::read(&weights).unwrap();
    // The same run and another one.
    for more in [&["--steps=3"][..], &["--steps=2", "--model=mlp"]] {
        let again = [&run[..], more].concat();
        refused(&again, &["step 3 of 3", "--resume", "--overwrite", &out]);
        assert_eq!(saved(&out), before);
        assert!(fs::read(&weights).unwrap() == parameters);
    }
    // A run that cannot be planned loses nothing either.
    let low = [&run[..], &["--steps=2", "--overwrite", "--memory=1MiB"]].concat();
    assert_eq!(plimsoll(&low).status.code(), Some(3));
    assert_eq!(saved(&out), before);
    json(&plimsoll(&[&run[..], &["--steps=2", "--model=mlp", "--overwrite"]].concat()));
    assert_eq!(TrainState::read(Path::new(&out)).unwrap().model, "mlp");
    assert!(!before.iter().any(|path| path.exists()));
    // Weights alone are worth as much.
    saved(&out).iter().for_each(|path| fs::remove_file(path).unwrap());
    refused(&[&run[..], &["--steps=2"]].concat(), &["report.json", "--overwrite"]);
    refused(&["train", "--overwrite"], &["--overwrite", "--out"]);
    refused(&["train", "--overwrite", "--resume", &out], &["there is no checkpoint"]);
    refused(&["plan", "--overwrite"], &["--overwrite is for train"]);
}

#[test]
fn of_two_runs_in_one_folder_the_second_is_refused() {
    let scratch = Scratch::new("two-runs");
    let out = scratch.path("run");
    let run = ["train", "--batch=256", "--steps=2000", "--threads=1", "--save-every=1", "--out", &out];
    let mut first = support::command(&run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while saved(&out).is_empty() {
        std::thread::sleep(Duration::from_millis(2));
    }
    refused(&[&run[..], &["--overwrite"]].concat(), &["another run is writing"]);
    refused(&["train", "--resume", &out], &["another run is writing"]);
    // The first goes on, and leaves a lock that nobody holds.
    assert!(first.try_wait().unwrap().is_none());
    first.kill().unwrap();
    first.wait().unwrap();
    let steps = TrainState::read(Path::new(&out)).unwrap().steps_done + 1;
    let report = json(&plimsoll(&["train", "--json", "--resume", &out, &format!("--steps={steps}")]));
    assert_eq!(number(&report, "steps"), steps as f64);
}

#[cfg(unix)]
#[test]
fn links_in_the_folder_are_replaced_not_followed() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new("links");
    let (out, victim) = (scratch.path("run"), scratch.0.join("victim"));
    fs::create_dir(&out).unwrap();
    fs::write(&victim, "precious").unwrap();
    let partial = |name: &str| Path::new(&out).join(format!("{name}.partial"));
    let names = ["weights.safetensors", "report.json", "resolved.toml", "checkpoints.json"];
    for name in names.iter().chain(&["checkpoint-000000000002.safetensors"]) {
        symlink(&victim, partial(name)).unwrap();
    }
    symlink(&victim, Path::new(&out).join("resolved.toml")).unwrap();
    json(&plimsoll(&["train", "--json", "--steps=2", "--batch=32", "--out", &out]));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    for name in names {
        assert!(fs::symlink_metadata(Path::new(&out).join(name)).unwrap().is_file(), "{name}");
        assert!(!partial(name).is_symlink(), "{name}");
    }
    // The lock is not made through a link.
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    symlink(scratch.0.join("elsewhere"), Path::new(&other).join(".lock")).unwrap();
    refused(&["train", "--steps=2", "--out", &other], &[".lock"]);
    assert!(!scratch.0.join("elsewhere").exists());
}

#[cfg(unix)]
#[test]
fn a_closed_terminal_leaves_a_checkpoint() {
    let scratch = Scratch::new("hang-up");
    let out = scratch.path("run");
    let run = ["train", "--batch=256", "--steps=2000", "--threads=1", "--validate-every=1000", "--out", &out];
    let mut child = support::command(&run).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The resolved flags are written just before the first step.
    while !Path::new(&out).join("resolved.toml").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(200));
    Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(129));
    let state = TrainState::read(Path::new(&out)).unwrap();
    assert!((1..2000).contains(&state.steps_done), "{}", state.steps_done);
}

#[test]
fn a_closed_pipe_leaves_a_checkpoint() {
    let scratch = Scratch::new("closed-pipe");
    let out = scratch.path("run");
    let run = ["train", "--batch=64", "--steps=2000", "--threads=1", "--validate-every=5", "--out", &out];
    let mut child = support::command(&run).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // As `| head` does: some lines are read, then nobody is there.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("step 5:")));
    drop(lines);
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(141), "{message}");
    assert!(message.contains("--resume") && !message.contains("panicked"), "{message}");
    let state = TrainState::read(Path::new(&out)).unwrap();
    assert!((6..2000).contains(&state.steps_done), "{}", state.steps_done);
}

#[test]
fn a_run_that_is_over_says_so_and_trains_on_if_asked() {
    let scratch = Scratch::new("over");
    let out = scratch.path("run");
    json(&plimsoll(&["train", "--json", "--steps=3", "--out", &out]));
    let files = || {
        let mut files: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let before = files();
    let output = plimsoll(&["train", "--resume", &out]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        ["is over: its 3 steps are done", "--steps N", "plimsoll evaluate"]
            .iter()
            .all(|word| said.contains(word)),
        "{said}"
    );
    let report = json(&plimsoll(&["train", "--json", "--resume", &out]));
    assert_eq!(number(&report, "steps"), 3.0);
    assert!(files() == before, "nothing was written");
    // One that was killed before it wrote its report is completed.
    fs::remove_file(Path::new(&out).join("report.json")).unwrap();
    let report = json(&plimsoll(&["train", "--json", "--resume", &out]));
    assert_eq!(number(&report, "steps"), 3.0);
    assert!(Path::new(&out).join("report.json").exists());
    let report = json(&plimsoll(&["train", "--json", "--resume", &out, "--steps=5"]));
    assert_eq!(number(&report, "steps"), 5.0);
}

#[test]
fn a_run_does_not_resume_over_data_that_changed() {
    let scratch = Scratch::new("changed-data");
    let (out, table) = (scratch.path("run"), scratch.0.join("t.csv"));
    let rows = |changed: usize| {
        let row = |i: usize| format!("{},{},{}\n", i + usize::from(i == changed), i % 7, i % 3);
        let rows: String = (0..90).map(row).collect();
        fs::write(&table, format!("a,b,label\n{rows}")).unwrap();
    };
    rows(usize::MAX);
    let data = format!("--data=csv:{}", table.display());
    let run = ["train", "--json", "--model=mlp", "--width=8", "--batch=8", "--steps=3", &data, "--out", &out];
    json(&plimsoll(&run));
    // One number of one row.
    rows(40);
    refused(&["train", "--resume", &out, "--steps=5"], &["training data", "hash"]);
    // The same rows under another name are the same data.
    rows(usize::MAX);
    let moved = scratch.0.join("moved.csv");
    fs::rename(&table, &moved).unwrap();
    let data = format!("--data=csv:{}", moved.display());
    let report = json(&plimsoll(&["train", "--json", "--resume", &out, "--steps=5", &data]));
    assert_eq!(number(&report, "steps"), 5.0);
}
