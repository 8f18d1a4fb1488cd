//! What shows a run while it goes on and after it: traces, TensorBoard, profiles, comparisons, plots, the terminal.

use crate::support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{Scratch, json, number, plimsoll};

/// A short run of a small model.
const SHORT: [&str; 9] = ["train", "--model", "mlp", "--steps", "6", "--batch", "32", "--threads", "2"];

fn train(more: &[&str]) -> Value {
    json(&plimsoll(&[&SHORT[..], more, &["--json"]].concat()))
}

fn said(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], words: &str) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(message.contains(words), "{arguments:?}: no `{words}` in: {message}");
}

/// The fields of a message: their numbers, and the number or the bytes of each.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for i in 0.. {
            let (byte, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, length) = match key & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (0, 8),
            2 => (0, varint(&mut bytes) as usize),
            5 => (0, 4),
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        found.push((key >> 3, number, content));
        bytes = rest;
    }
    found
}

fn field<'b>(message: &[(u64, u64, &'b [u8])], number: u64) -> Option<(u64, &'b [u8])> {
    message.iter().find(|(n, ..)| *n == number).map(|(_, value, bytes)| (*value, *bytes))
}

#[test]
fn a_trace_has_a_slice_of_every_traced_step_and_kernels_inside() {
    let scratch = Scratch::new("trace");
    let (file, log) = (scratch.path("run.pftrace"), scratch.path("log.jsonl"));
    let plain = train(&[]);
    let report = train(&["--trace", &file, "--trace-steps", "3", "--log", &log]);
    let entry = |report: &Value| -> Option<f64> {
        let outside = report["load_sheet"]["outside"].as_array()?;
        outside.iter().find(|entry| entry["name"] == "trace").map(|entry| number(entry, "bytes"))
    };
    assert!(entry(&report).is_some_and(|bytes| bytes > 65_536.0) && entry(&plain).is_none(), "{report}");
    assert_eq!(number(&report, "final_loss"), number(&plain, "final_loss"));
    let seconds: Vec<f64> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["examples"].is_number())
        .map(|event| number(&event, "seconds"))
        .collect();
    let bytes = fs::read(&file).unwrap();
    let (mut steps, mut kernels, mut counters) = (Vec::new(), 0, 0);
    let mut open: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for (number, _, packet) in fields(&bytes) {
        assert_eq!(number, 1, "a trace holds packets");
        let packet = fields(packet);
        let Some((_, event)) = field(&packet, 11) else { continue };
        let (event, at) = (fields(event), field(&packet, 8).unwrap().0);
        let track = field(&event, 11).unwrap().0;
        counters += usize::from(field(&event, 12).is_some());
        match field(&event, 9).unwrap().0 {
            1 => open.push((track, at, field(&event, 22).unwrap().1.to_vec())),
            // A slice is written when it is over: its beginning and its end follow each other.
            2 => {
                let (begun_on, begun, category) = open.pop().unwrap();
                assert!(begun_on == track && begun <= at);
                match &category[..] {
                    b"step" => steps.push((begun, at)),
                    b"kernel" => kernels += 1,
                    _ => {}
                }
            }
            4 => counters += 1,
            other => panic!("event type {other}"),
        }
    }
    assert_eq!((steps.len(), open.len()), (3, 0));
    for ((begun, ended), seconds) in steps.iter().zip(&seconds) {
        assert!(((ended - begun) as f64 / 1e9 - seconds).abs() < 1e-8, "{steps:?} {seconds:?}");
    }
    assert!(kernels > 10 && counters > 10, "{kernels} {counters}");
    refused(&[&SHORT[..], &["--trace-steps", "3"]].concat(), "--trace");
    refused(&[&SHORT[..], &["--trace", &file, "--trace-steps", "0"]].concat(), "at least 1");
    refused(&[&SHORT[..], &["--trace", "/no/such/folder/file"]].concat(), "there is no folder");
}

#[test]
fn tensorboard_gets_the_losses_of_the_log() {
    let scratch = Scratch::new("board");
    let (board, log) = (scratch.path("board"), scratch.path("log.jsonl"));
    train(&["--tensorboard", &board, "--histograms", "3", "--log", &log]);
    let files: Vec<_> = fs::read_dir(&board).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let bytes = fs::read(&files[0]).unwrap();
    let (mut rest, mut losses, mut histograms) = (&bytes[..], Vec::new(), 0);
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let sum = u32::from_le_bytes(rest[8..12].try_into().unwrap());
        assert_eq!(sum, plimsoll::data::tfrecord_checksum(&rest[..8]));
        let record = &rest[12..12 + length];
        let event = fields(record);
        rest = &rest[16 + length..];
        let Some((_, summary)) = field(&event, 5) else { continue };
        let value = fields(fields(summary)[0].2);
        let tag = field(&value, 1).unwrap().1;
        if tag == b"loss/train" {
            losses.push(f32::from_le_bytes(field(&value, 2).unwrap().1.try_into().unwrap()));
        }
        histograms += usize::from(field(&value, 5).is_some());
    }
    let logged: Vec<f32> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["examples"].is_number())
        .map(|event| number(&event, "loss") as f32)
        .collect();
    assert_eq!(losses, logged);
    // Two of every parameter.
    assert!(histograms >= 4 && histograms.is_multiple_of(2), "{histograms}");
    refused(&[&SHORT[..], &["--histograms", "3"]].concat(), "--tensorboard");
    let again = plimsoll(&[&SHORT[..], &["--tensorboard", &board]].concat());
    assert!(String::from_utf8_lossy(&again.stderr).contains("event files of another run"), "{again:?}");
}

#[test]
fn a_profile_accounts_for_the_kernels_of_a_step() {
    let output = plimsoll(&[&SHORT[..], &["--profile", "--profile-steps", "4", "--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of roofline") && text.contains("matmul") && text.contains("dense"), "{text}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Profile of a training step: "), "{text}");
    let profile = &json(&output)["profile"];
    assert_eq!(number(profile, "steps"), 4.0);
    let sum = |rows: &str, what: &str| -> f64 {
        profile[rows].as_array().unwrap().iter().map(|row| number(row, what)).sum()
    };
    for what in ["ns", "flops", "calls", "predicted_ns"] {
        let whole = number(&profile["whole"], what);
        assert!(whole > 0.0, "{profile}");
        for rows in ["layers", "kernels"] {
            assert!((sum(rows, what) / whole - 1.0).abs() < 1e-9, "{rows} {what}: {profile}");
        }
    }
    refused(&[&SHORT[..], &["--profile-steps", "4"]].concat(), "--profile");
}

#[test]
fn runs_are_compared_and_plotted() {
    let scratch = Scratch::new("compare");
    let (first, second) = (scratch.path("first"), scratch.path("evil\x1b[2J<script>"));
    train(&["--out", &first]);
    train(&["--out", &second, "--lr", "0.01"]);
    let table = said(&["compare", &first, &second]);
    assert!(!table.contains('\x1b'), "{table:?}");
    for words in ["first", "evil\\x1b", "--lr", "training loss", "measured peak", "samples/s", "done"] {
        assert!(table.contains(words), "no {words} in:\n{table}");
    }
    assert!(!table.contains("--batch"), "only what differs: {table}");
    let accuracies = table.lines().filter(|line| line.contains(" accuracy "));
    assert!(
        accuracies.clone().count() == 2 && accuracies.clone().all(|line| line.ends_with(" %")),
        "{table}"
    );
    let found = json(&plimsoll(&["compare", &first, &second, "--json"]));
    assert_eq!(found["different_flags"], serde_json::json!(["lr"]));
    assert_ne!(found["runs"][0]["final_loss"], found["runs"][1]["final_loss"]);
    assert_eq!(number(&found["runs"][0], "steps"), 6.0);
    let picture = scratch.path("loss.svg");
    said(&["plot", &first, &second, "--to", &picture]);
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("<polyline") && !svg.contains("<script") && !svg.contains('\x1b'), "{svg}");
    let picture = scratch.path("loss.png");
    said(&["plot", &first, "--to", &picture, "--what", "memory", "--log"]);
    assert!(fs::read(&picture).unwrap().starts_with(b"\x89PNG\r\n"));
    let small = scratch.path("small.png");
    said(&["plot", &first, "--to", &small, "--width", "640", "--height", "480"]);
    // Its header, behind the signature, the chunk's length and its name.
    assert_eq!(fs::read(&small).unwrap()[16..24], [[0, 0, 2, 128], [0, 0, 1, 224]].concat());
    refused(&["plot", &first, "--to", &picture], "--force");
    refused(&["plot", &first, "--to", "loss.pdf"], "end it in .svg or .png");
    refused(&["compare", "no/such/run"], "there is no such folder");
    // A report that was cut off leaves what the events tell.
    fs::write(scratch.0.join("first/report.json"), "{\"steps\":").unwrap();
    let output = plimsoll(&["compare", &first, &second]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("report.json: this is not a report"));
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("training loss"));
    let empty = scratch.path("empty");
    fs::create_dir(&empty).unwrap();
    refused(&["compare", &empty], "there is no run in it");
    // A run that was cut off in the middle of a line tells what is before the cut.
    let events = Path::new(&first).join("events.jsonl");
    let text = fs::read(&events).unwrap();
    fs::write(&events, &text[..text.len() * 2 / 3]).unwrap();
    fs::remove_file(Path::new(&first).join("report.json")).unwrap();
    let cut = json(&plimsoll(&["compare", &first, "--json"]));
    let steps = number(&cut["runs"][0], "steps");
    assert!((1.0..6.0).contains(&steps), "{cut}");
    // The doctor reads what is left of it, too.
    let advice = json(&plimsoll(&["doctor", &first, "--json"]));
    assert!(advice["advice"].as_array().is_some_and(|advice| !advice.is_empty()), "{advice}");
    assert!(number(&advice, "products_f32_flops") > 1e8, "{advice}");
    assert!(advice["run"]["folder"].is_string(), "{advice}");
}

#[cfg(target_os = "linux")]
#[test]
fn files_that_cannot_be_written_are_refused_before_the_run_is_planned() {
    let scratch = Scratch::new("not-writable");
    let board = scratch.write("board", b"");
    // Nobody, not even root, makes files in /proc.
    for (flag, name) in [
        ("--tensorboard", "/proc/x"),
        ("--tensorboard", "/proc"),
        ("--tensorboard", board.to_str().unwrap()),
        ("--trace", "/proc/x"),
        ("--log", "/proc/x.jsonl"),
        ("--report", "/proc/x.html"),
    ] {
        let output = plimsoll(&[&SHORT[..], &[flag, name]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flag} {name}: {message}");
        assert!(output.stdout.is_empty(), "{flag} {name}: it was planned");
        assert!(message.contains(&format!("{flag} {name}")) && message.contains("name a"), "{message}");
    }
    // What is there stays, and nothing is left of a trial.
    let kept = scratch.write("kept.jsonl", b"before");
    let folder = scratch.path("folder");
    let low =
        ["--log", kept.to_str().unwrap(), "--tensorboard", &folder, "--memory", "40MiB", "--spill=none"];
    assert_eq!(plimsoll(&[&SHORT[..], &low].concat()).status.code(), Some(3));
    assert_eq!(fs::read(&kept).unwrap(), b"before");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn the_terminal_needs_one() {
    refused(&[&SHORT[..], &["--tui"]].concat(), "--tui needs a terminal");
}

/// Needs the program `script`, which starts another on a terminal of its own.
#[cfg(target_os = "linux")]
#[test]
fn the_terminal_is_given_back_after_the_run() {
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let line = format!(
        "stty cols 100 rows 30; {program} train --tui --steps 120 --threads 2 --plan-cache none --validation-split 0"
    );
    let mut script = std::process::Command::new("script");
    script.args(["-qfec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
    let Ok(output) = script.output() else {
        eprintln!("skipped: there is no program `script`");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let (_, shown) = text.split_once("\x1b[?1049h").expect("another screen");
    let (shown, after) = shown.split_once("\x1b[?25h\x1b[?1049l").expect("the screen is left");
    for words in ["plimsoll  lenet on mnist", "host: planned", "of 120, epoch 1", "Ctrl-C"] {
        assert!(shown.contains(words), "no {words} in {shown:?}");
    }
    // What was said meanwhile, and then the figures.
    assert!(after.contains("test accuracy") && after.contains("measured peak"), "{after:?}");
    assert!(!after.contains("\x1b["), "{after:?}");
}
