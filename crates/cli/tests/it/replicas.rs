//! Replicas on logical devices through the real binary: flags, bits, lines, placement, resuming.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use support::{Scratch, command, json, number, plimsoll};

const MLP: [&str; 5] = ["--model=mlp", "--width=64", "--batch=192", "--data=synthetic", "--threads=2"];

pub(super) fn run(command: &str, more: &[&str]) -> Output {
    plimsoll(&[&[command], &MLP[..], more].concat())
}

pub(super) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn refused(output: &Output, status: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "no `{word}` in: {message}"));
}

/// The weights that a run leaves in a folder.
pub(super) fn weights(folder: &str, steps: &str, more: &[&str]) -> Vec<u8> {
    json(&run("train", &[&["--json", "--out", folder, "--steps", steps], more].concat()));
    fs::read(format!("{folder}/weights.safetensors")).unwrap()
}

#[test]
fn replicas_leave_the_weights_of_one_device_and_resume_on_any_number() {
    let scratch = Scratch::new("replicas");
    let folder = |name: &str| scratch.path(name);
    let one = weights(&folder("one"), "6", &[]);
    let lines = ["--replicas=2", "--device-memory=cpu:0=64MiB,cpu:1=32MiB"];
    assert!(weights(&folder("two"), "6", &lines) == one);
    assert!(weights(&folder("three"), "6", &["--replicas=3", "--micro-batches=2"]) == one);
    let resumed = |name: &str, before: &[&str], after: &[&str]| {
        let folder = folder(name);
        weights(&folder, "3", before);
        json(&plimsoll(&[&["train", "--resume", &folder, "--steps=6", "--json"], after].concat()));
        fs::read(format!("{folder}/weights.safetensors")).unwrap()
    };
    let one = resumed("resumed", &[], &[]);
    assert!(resumed("from one to three", &[], &["--replicas=3"]) == one);
    assert!(resumed("from two to one", &["--replicas=2"], &[]) == one);
}

#[test]
fn the_planner_answers_for_replicas_as_for_one_device() {
    let answer = |more: &[&str]| json(&run("plan", &[&["--json", "--replicas=2"], more].concat()));
    let curve = answer(&["--curve"])["curve"].as_array().unwrap().clone();
    let (whole, floor) = (&curve[0], curve.last().unwrap());
    assert!(curve.len() > 1 && number(floor, "line_bytes") < number(whole, "line_bytes"));
    assert!(curve.windows(2).all(|two| number(&two[0], "predicted_ms") <= number(&two[1], "predicted_ms")));
    let fits = |batch: f64, line: f64, more: &[&str]| {
        let (batch, line) = (format!("--batch={batch}"), format!("--memory={line}"));
        let mlp = ["plan", "--model=mlp", "--width=64", "--data=synthetic", "--threads=2", "--replicas=2"];
        plimsoll(&[&mlp[..], &[&batch, &line], more].concat()).status.success()
    };
    let lowest = number(floor, "line_bytes");
    assert!(fits(192.0, lowest, &[]) && !fits(192.0, lowest * 0.95, &[]));

    // Each device takes whole blocks, so the next larger batch has one more for each.
    let line = number(whole, "planned_peak_bytes");
    let memory = format!("--memory={line}");
    let mlp =
        ["plan", "--model=mlp", "--width=64", "--data=synthetic", "--threads=2", "--replicas=2", "--json"];
    let found = json(&plimsoll(&[&mlp[..], &["--max-batch", &memory]].concat()));
    let largest = number(&found["max_batch"]["without_micro_batches"], "batch");
    assert!(largest >= 192.0 && largest % 64.0 == 0.0, "{largest}");
    let whole = ["--micro-batches=1"];
    assert!(fits(largest, line, &whole) && !fits(largest + 64.0, line, &whole), "{largest}");
    let split = number(&found["max_batch"]["with_micro_batches"], "batch");
    assert!(split >= largest && fits(split, line, &[]), "{split}");

    let batches = answer(&["--batches"])["batches"].as_array().unwrap().clone();
    let sizes: Vec<f64> = batches.iter().map(|row| number(row, "batch")).collect();
    assert_eq!(sizes, [64.0, 128.0, 192.0, 256.0, 512.0]);
}

#[test]
fn the_load_sheet_shows_every_device_and_its_line() {
    let report = json(&run("plan", &["--json", "--replicas=2", "--device-memory=cpu:1=24MiB"]));
    let devices = report["load_sheet"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(number(&devices[1], "line_bytes"), f64::from(24 << 20));
    let arenas: f64 = devices.iter().map(|device| number(device, "arena_bytes")).sum();
    assert!(number(&devices[1], "total_bytes") <= f64::from(24 << 20));
    assert!(arenas < number(&report, "planned_peak_bytes"));
    let sheet = text(&run("plan", &["--replicas=2", "--device-memory=cpu:1=24MiB"]));
    assert!(sheet.contains("cpu:0") && sheet.contains("cpu:1") && sheet.contains("24.0 MiB"), "{sheet}");
    let low = run("plan", &["--replicas=2", "--device-memory=cpu:1=100KiB"]);
    refused(&low, 3, &["the line of cpu:1", "too low"]);
    refused(&run("plan", &["--replicas=2", "--memory=4MiB"]), 3, &["the line is", "too low"]);
}

#[test]
fn a_refusal_adds_up_to_the_bytes_that_it_names_and_is_json_where_that_is_asked_for() {
    let all: [&[&str]; 4] = [
        &["--replicas=2", "--memory=8MiB"],
        &["--replicas=2", "--memory=8MiB", "--device-memory=cpu:0=64MiB"],
        &["--place=dense1=cpu:0,*=cpu:1", "--memory=8MiB"],
        &["--ranks=3", "--memory=8MiB,64MiB,64MiB"],
    ];
    for flags in all {
        let output = run("plan", &[flags, &["--json"]].concat());
        refused(&output, 3, &["too low"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let sheet = &answer["load_sheet"];
        let outside = sheet["outside"].as_array().unwrap().iter().map(|entry| number(entry, "bytes"));
        assert_eq!(number(sheet, "arena_bytes") + outside.sum::<f64>(), number(&answer, "needed_bytes"));
        let missing = number(&answer, "needed_bytes") - number(&answer, "line_bytes");
        assert_eq!(number(&answer, "missing_bytes"), missing, "{flags:?}");
        assert_eq!(answer["feasible"], false, "{flags:?}");
    }
    refused(&run("plan", all[3]), 3, &["the line of rank 0 is"]);
}

#[test]
fn a_line_of_the_bytes_that_a_refusal_of_several_devices_names_is_enough() {
    let all: [&[&str]; 4] = [
        &["--model=mlp", "--width=64", "--place=dense1=cpu:0,*=cpu:1"],
        &["--model=mlp", "--width=64", "--batch=192", "--replicas=3"],
        &["--model=lenet", "--replicas=2", "--device-memory=cpu:0=64MiB"],
        &["--model=gpt", "--place=auto=cpu:0-2", "--layers=2", "--width=32", "--heads=2", "--context=16"],
    ];
    for flags in all {
        let plan = |line: f64| {
            plimsoll(&[&["plan", "--threads=2", "--json", &format!("--memory={line}")], flags].concat())
        };
        let output = plan(8_000_000.0);
        refused(&output, 3, &["too low"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let needed = number(&answer, "needed_bytes");
        let answer: serde_json::Value = serde_json::from_slice(&plan(needed).stdout).unwrap();
        assert_eq!(answer["feasible"], true, "{flags:?}: {needed} bytes");
        assert!(number(&answer, "planned_peak_bytes") <= needed, "{flags:?}: {answer}");
        refused(&plan(needed - 4096.0), 3, &["too low"]);
    }
}

#[test]
fn the_placement_lists_ops_layers_devices_and_bytes() {
    let table = text(&run("plan", &["--replicas=2", "--log-placement"]));
    let row = |device: &str, op: &str| {
        table.lines().any(|row| row.starts_with(device) && row.contains(op) && row.contains("dense1"))
    };
    assert!(row("cpu:0", "matmul") && row("cpu:1", "matmul") && row("cpu:1", "receive"), "{table}");
    assert!(table.contains("cpu:1 receives") && table.contains("KiB"), "{table}");
    let one = text(&run("plan", &["--log-placement"]));
    assert!(one.contains("matmul") && !one.contains("receive "), "{one}");
}

#[test]
fn wrong_device_flags_say_what_to_change() {
    refused(&run("plan", &["--replicas=0"]), 2, &["--replicas must be at least 1"]);
    refused(&run("plan", &["--replicas=65"]), 2, &["--replicas must be at most 64"]);
    refused(&run("plan", &["--device-memory=cpu:0=1GiB"]), 2, &["add --replicas"]);
    refused(&run("plan", &["--replicas=2", "--device-memory=1GiB"]), 2, &["say of which device"]);
    refused(&run("plan", &["--replicas=2", "--device-memory=cpu:2=1GiB"]), 2, &["there is no cpu:2"]);
    refused(&run("plan", &["--replicas=2", "--device-memory=gpu=1GiB"]), 2, &["name them cpu:0"]);
    refused(&run("plan", &["--replicas=2", "--device-memory=cuda:0=1GiB"]), 2, &["there is no cuda:0"]);
    refused(&run("plan", &["--replicas=2", "--device=cuda"]), 2, &["leave --device out"]);
    let norm = ["plan", "--model=resnet20", "--replicas=2"];
    let few = [&norm[..], &["--batch=16"]].concat();
    refused(&plimsoll(&few), 2, &["too few for 2 devices", "make the batch at least 64"]);
    let split = [&norm[..], &["--batch=64", "--micro-batches=2"]].concat();
    refused(&plimsoll(&split), 2, &["statistics of the whole batch", "leave their number out"]);
}

#[test]
fn the_plan_of_ranks_tells_what_each_of_them_holds() {
    let ranks = |shard: &str| {
        let report = json(&run("plan", &["--json", "--ranks=3", &format!("--shard={shard}")]));
        report["ranks"].as_array().unwrap().clone()
    };
    let sum =
        |ranks: &[serde_json::Value], key: &str| -> f64 { ranks.iter().map(|rank| number(rank, key)).sum() };
    let (whole, optimizer) = (ranks("none"), ranks("optimizer"));
    let (gradients, parameters) = (ranks("gradients"), ranks("parameters"));
    let all = number(&whole[0], "optimizer_bytes");
    assert_eq!((sum(&whole, "optimizer_bytes"), sum(&optimizer, "optimizer_bytes")), (3.0 * all, all));
    assert!(sum(&gradients, "gradient_bytes") < sum(&optimizer, "gradient_bytes") / 2.5);
    assert_eq!(sum(&parameters, "parameter_bytes"), number(&whole[0], "parameter_bytes"));
    let arenas = [&whole, &optimizer, &gradients, &parameters].map(|ranks| sum(ranks, "arena_bytes"));
    assert!(arenas.is_sorted_by(|a, b| a > b), "{arenas:?}");
    let table = text(&run("plan", &["--ranks=3", "--shard=optimizer"]));
    assert!(table.contains("optimizer") && table.contains("dealt out evenly"), "{table}");
    assert!(table.contains("By itself that takes") && table.contains("as measured between"), "{table}");
    let wrong = run("plan", &["--ranks=3", "--shard=everything"]);
    refused(&wrong, 2, &["`everything` is not one of none, optimizer, gradients, parameters"]);
}

/// A launcher that notes how it was called, and starts one process alone. The first time it ends it, once there is a checkpoint, as the
/// system would, or it only fails, as long as `fails` says.
fn launcher(scratch: &Scratch, fails: &str) -> String {
    let script = format!(
        r#"#!/bin/sh
cd {folder}
printf '%s\n' "$*" >> calls
shift 2
program=$1; shift
for word do
  shift
  case $word in --ranks=*|--restart=*) ;; *) set -- "$@" "$word" ;; esac
done
test -e failed || {{ {fails} }}
exec "$program" "$@"
"#,
        folder = scratch.0.display()
    );
    let path = scratch.write("mpirun", script.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", scratch.0.display(), std::env::var("PATH").unwrap_or_default())
}

fn restarted(scratch: &Scratch, fails: &str, more: &[&str]) -> (Output, Vec<String>) {
    let (path, run) = (launcher(scratch, fails), scratch.path("run"));
    let words = [&["train"], &MLP[..], &["--ranks=2", "--restart=2", "--save-every=20", "--out", &run], more];
    let output = command(&words.concat()).env("PATH", path).output().unwrap();
    let calls = fs::read_to_string(scratch.path("calls")).unwrap_or_default();
    (output, calls.lines().map(ToString::to_string).collect())
}

#[test]
fn a_run_whose_process_was_killed_starts_again_from_its_checkpoint_and_has_the_same_bits() {
    let scratch = Scratch::new("restart");
    let kills = r#"
  "$program" "$@" & pid=$!
  for _ in $(seq 3000); do
    ls run/checkpoint-*0.safetensors >/dev/null 2>&1 && break
    sleep 0.01
  done
  kill -9 $pid; wait $pid 2>/dev/null; touch failed; exit 137
"#;
    // What is there before is not resumed, but overwritten.
    let steps = ["--steps=240", "--seed=7", "--overwrite"];
    weights(&scratch.path("run"), "3", &[]);
    let (output, calls) = restarted(&scratch, kills, &steps);
    let (told, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(0), "{told}{errors}");
    assert!(calls.len() == 2 && calls[0].starts_with("-n 2 "), "{calls:?}");
    assert!(calls[0].ends_with("--attempt new") && calls[1].ends_with("--attempt resumed"), "{calls:?}");
    assert!(errors.contains("ended with status 137: starting them again, after step "), "{errors}");
    assert!(errors.contains("(1 of 2)") && told.contains("Resuming after step "), "{told}{errors}");
    let found = fs::read(scratch.path("run/weights.safetensors")).unwrap();
    assert!(weights(&scratch.path("whole"), "240", &["--seed=7"]) == found);
}

#[test]
fn a_run_is_started_again_no_more_often_than_allowed_and_not_where_it_would_end_alike() {
    let scratch = Scratch::new("restarts");
    let (output, calls) = restarted(&scratch, "exit 1;", &[]);
    refused(&output, 1, &["(1 of 2)", "(2 of 2)", "started again 2 times already; continue with --resume"]);
    assert!(calls.len() == 3 && calls.iter().all(|call| call.ends_with("--attempt new")), "{calls:?}");
    for status in [2, 3, 4, 130] {
        let scratch = Scratch::new("restarts");
        let (output, calls) = restarted(&scratch, &format!("exit {status};"), &[]);
        refused(&output, status, &[]);
        assert_eq!(calls.len(), 1);
    }
    refused(&run("train", &["--restart=2", "--out=x"]), 2, &["add --ranks 2 or more"]);
    refused(&run("train", &["--restart=2", "--ranks=2"]), 2, &["add --out DIR"]);
    let own = command(&[&["train"], &MLP[..], &["--restart=2", "--out=x"]].concat())
        .env("OMPI_COMM_WORLD_SIZE", "2")
        .output();
    refused(&own.unwrap(), 2, &["start your launcher again", "--resume DIR"]);
}
