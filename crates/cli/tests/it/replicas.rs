//! Replicas on logical devices through the real binary: flags, bits, lines, placement, resuming.

use crate::support;

use std::fs;
use std::process::Output;
use support::{Scratch, json, number, plimsoll};

const MLP: [&str; 5] = ["--model=mlp", "--width=64", "--batch=192", "--data=synthetic", "--threads=2"];

fn run(command: &str, more: &[&str]) -> Output {
    plimsoll(&[&[command], &MLP[..], more].concat())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output, status: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "no `{word}` in: {message}"));
}

/// The weights that a run leaves in a folder.
fn weights(folder: &str, steps: &str, more: &[&str]) -> Vec<u8> {
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
    refused(&run("plan", &["--replicas=2", "--device-memory=cuda:0=1GiB"]), 2, &["does not use cuda:0"]);
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
    let (whole, optimizer, gradients) = (ranks("none"), ranks("optimizer"), ranks("gradients"));
    let all = number(&whole[0], "optimizer_bytes");
    assert_eq!((sum(&whole, "optimizer_bytes"), sum(&optimizer, "optimizer_bytes")), (3.0 * all, all));
    assert!(sum(&gradients, "gradient_bytes") < sum(&optimizer, "gradient_bytes") / 2.5);
    let arenas = [&whole, &optimizer, &gradients].map(|ranks| sum(ranks, "arena_bytes"));
    assert!(arenas[0] > arenas[1] && arenas[1] > arenas[2], "{arenas:?}");
    let table = text(&run("plan", &["--ranks=3", "--shard=optimizer"]));
    assert!(table.contains("optimizer") && table.contains("dealt out evenly"), "{table}");
    let wrong = run("plan", &["--ranks=3", "--shard=everything"]);
    refused(&wrong, 2, &["`everything` is not one of none, optimizer, gradients"]);
}
