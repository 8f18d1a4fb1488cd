//! The program says what it does while it does it, what a run will take before it begins, and answers at once where it can.

use crate::support::{Scratch, command, json, number, plimsoll};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A plan whose search takes longer than a second on any machine.
const LONG: &[&str] =
    &["plan", "--model=gpt2", "--batch=4", "--memory=2GiB", "--curve", "--json", "--threads=2"];
/// A model of a thousand million parameters and more, whose states no small line holds.
const XL: &[&str] =
    &["plan", "--model=gpt2", "--layers=48", "--width=1600", "--heads=25", "--batch=1", "--threads=2"];

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(unix)]
#[test]
fn planning_shows_progress_and_a_signal_ends_it_at_once() {
    use std::io::{BufRead, BufReader};
    let started = Instant::now();
    let mut child = command(LONG).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("plimsoll: planning: plan "), "{first}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let sent = Instant::now();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    // Progress is never on standard output.
    assert_eq!(text(&output), "");
}

#[test]
fn a_run_begins_with_a_summary_and_the_sheet_is_there_for_the_asking() {
    let scratch = Scratch::new("summary");
    let out = scratch.path("run");
    let run = ["train", "--steps=2", "--batch=48", "--memory=64MiB", "--threads=2"];
    let short = text(&plimsoll(&[&run[..], &["--out", &out]].concat()));
    let words = [
        "lenet, 61,706 parameters",
        "14,400 training, 1,600 validation and 2,500 test",
        "48 examples a step, 2 steps",
    ];
    let more = ["the line is 64.0 MiB", "a step", "3 checkpoints of", &out, "--sheet"];
    for word in words.iter().chain(&more) {
        assert!(short.contains(word), "no `{word}` in {short}");
    }
    assert!(!short.contains("Load sheet"), "{short}");
    let long = text(&plimsoll(&[&run[..], &["--sheet"]].concat()));
    assert!(long.starts_with("Load sheet for cpu") && long.contains("heap cap"), "{long}");
    // Times and batch types are in words.
    assert!(long.contains("training, 48 examples") && !long.contains("train × 48"), "{long}");
}

#[test]
fn offloaded_states_have_lines_of_their_own() {
    // 95 MiB without a line, 48 MiB at least.
    let run = ["plan", "--model=mlp", "--batch=8", "--threads=2", "--data=synthetic", "--memory=70MiB"];
    let sheet = text(&plimsoll(&run));
    let parts = ["in the spill file, on disk", "optimizer state", "spill file", "written in a step"];
    assert!(parts.iter().all(|part| sheet.contains(part)), "{sheet}");
    // What a step takes is told for a disk that nobody tried, unless its speed is given.
    assert!(sheet.contains("for a disk of 2.5 GiB a second. With --spill-speed measure"), "{sheet}");
    let told = text(&plimsoll(&[&run[..], &["--spill-speed=2GiB"]].concat()));
    assert!(told.contains("longer than without") && !told.contains("--spill-speed measure"), "{told}");
    let listed = &json(&plimsoll(&[&run[..], &["--json"]].concat()))["load_sheet"];
    let bytes: f64 = listed["spilled"].as_array().unwrap().iter().map(|entry| number(entry, "bytes")).sum();
    assert!(bytes > 0.0 && bytes == number(listed, "spilled_bytes"), "{listed}");
}

#[test]
fn a_model_that_is_far_too_large_is_refused_at_once_and_again_from_the_cache() {
    let scratch = Scratch::new("far-too-large");
    let cache = scratch.path("cache");
    let run = [XL, &["--spill=none", "--memory=2GiB", "--json", "--plan-cache", &cache]].concat();
    let answers: Vec<(Value, String, Duration)> = (0..2)
        .map(|_| {
            let started = Instant::now();
            let output = plimsoll(&run);
            assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
            (serde_json::from_str(&text(&output)).unwrap(), errors(&output), started.elapsed())
        })
        .collect();
    let (first, message, time) = &answers[0];
    assert!(*time < Duration::from_secs(60), "{time:?}");
    // Parameters and their two moments.
    assert!(number(first, "least_bytes") > 12.0 * 1.5e9, "{first}");
    assert!(message.contains("parameters and optimizer state") && message.contains("--spill ."), "{message}");
    let (second, message, time) = &answers[1];
    assert!(*time < Duration::from_secs(5), "{time:?}");
    assert_eq!(
        (number(second, "needed_bytes"), &second["cached"]),
        (number(first, "needed_bytes"), &true.into())
    );
    assert!(message.contains("--spill ."), "{message}");
    // The lower bound is one: what a plan needs is more, with a disk and without.
    for spill in ["--spill=.", "--spill=none"] {
        let small =
            ["plan", "--model=gpt", "--layers=1", "--width=32", "--heads=2", "--batch=16", spill, "--json"];
        let floor = number(&json(&plimsoll(&small)), "floor_bytes");
        assert!(floor > 10.0 * 1024.0 * 1024.0, "{floor}");
    }
}

#[test]
fn alternatives_of_a_language_model_have_fewer_key_heads() {
    let sizes = ["--layers=1", "--width=128", "--heads=2", "--context=16", "--classes=50", "--batch=2"];
    let run = [
        "plan",
        "--model=gpt",
        "--data=synthetic",
        "--memory=12MiB",
        "--threads=1",
        "--spill=none",
        "--json",
    ];
    let output = plimsoll(&[&run[..], &sizes].concat());
    assert_eq!(output.status.code(), Some(3));
    let answer: Value = serde_json::from_str(&text(&output)).unwrap();
    let flags: Vec<&Value> = answer["alternatives"].as_array().unwrap().iter().map(|a| &a["flags"]).collect();
    assert!(flags.iter().any(|flags| **flags == "--kv-heads 1"), "{flags:?}");
}

#[test]
fn alternatives_appear_under_the_refusal_and_none_needs_more_than_it_replaces() {
    let scratch = Scratch::new("alternatives-cached");
    let run =
        ["plan", "--model=resnet20", "--batch=64", "--memory=24MiB", "--threads=2", "--spill=none", "--json"];
    let cache = scratch.path("cache");
    let cached = [&run[..], &["--plan-cache", &cache]].concat();
    let output = plimsoll(&cached);
    let message = errors(&output);
    let answer: Value = serde_json::from_str(&text(&output)).unwrap();
    let alternatives = answer["alternatives"].as_array().unwrap();
    assert!(alternatives.len() > 2, "{answer}");
    assert!(alternatives.iter().any(|alternative| alternative["flags"] == "--precision bf16"), "{answer}");
    for alternative in alternatives {
        let less = number(alternative, "planned_peak_bytes") < number(&answer, "floor_bytes");
        assert!(less || alternative["fits"] == true, "{alternative}");
        assert!(message.contains(alternative["flags"].as_str().unwrap()), "{message}");
    }
    let started = Instant::now();
    let again = plimsoll(&cached);
    assert_eq!(again.status.code(), Some(3));
    let second: Value = serde_json::from_str(&text(&again)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!((&second["alternatives"], &second["cached"]), (&answer["alternatives"], &true.into()));
    // Another line is another question.
    let other = [&cached[..], &["--memory=23MiB"]].concat();
    let other: Vec<&str> = other.into_iter().filter(|flag| *flag != "--memory=24MiB").collect();
    let other: Value = serde_json::from_str(&text(&plimsoll(&other))).unwrap();
    assert_ne!(number(&other, "line_bytes"), number(&answer, "line_bytes"));
    assert_ne!(other["cached"], true);
}
