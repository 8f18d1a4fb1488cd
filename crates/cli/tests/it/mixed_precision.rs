//! Mixed precision through the real binary: flags, files, reports, refusals, resuming.

use crate::support;

use serde_json::Value;
use std::fs;
use std::process::Output;
use support::{Scratch, json, number, plimsoll};

const MLP: [&str; 6] =
    ["--model=mlp", "--width=64", "--batch=32", "--steps=4", "--data=synthetic", "--threads=2"];

fn run(command: &str, more: &[&str]) -> Output {
    plimsoll(&[&[command], &MLP[..], more].concat())
}

fn refused(output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "no `{word}` in: {message}"));
}

#[test]
fn the_load_sheet_shows_what_mixed_precision_saves() {
    let text = |precision: &str| {
        String::from_utf8_lossy(&run("plan", &["--precision", precision]).stdout).to_string()
    };
    assert!(!text("f32").contains("Precision"));
    let bf16 = text("bf16");
    assert!(bf16.contains("Precision bf16") && bf16.contains("Parameters are f32."), "{bf16}");
}

#[test]
fn bf16_halves_activations_and_not_states() {
    let plan = |precision: &str| {
        let resnet = ["plan", "--model=resnet20", "--batch=64", "--threads=2", "--json", "--precision"];
        json(&plimsoll(&[&resnet[..], &[precision]].concat()))
    };
    let (f32, bf16) = (plan("f32"), plan("bf16"));
    assert_eq!(number(&f32, "state_bytes"), number(&bf16, "state_bytes"));
    let activations = |report: &Value| number(report, "arena_bytes") - number(report, "state_bytes");
    assert!(activations(&bf16) <= 0.55 * activations(&f32));
    let naive = |report: &Value| number(report, "naive_activation_bytes");
    assert!(naive(&bf16) <= 0.55 * naive(&f32), "{} of {}", naive(&bf16), naive(&f32));
}

#[test]
fn wrong_precision_flags_say_what_to_change() {
    refused(&run("plan", &["--precision=f8"]), &["f8", "bf16"]);
    refused(&run("plan", &["--loss-scale=8"]), &["--loss-scale needs --precision f16"]);
    refused(&run("plan", &["--keep-f32=head"]), &["--keep-f32 needs --precision bf16 or f16"]);
    refused(&run("plan", &["--precision=f16", "--loss-scale=0"]), &["--loss-scale", "at least 1"]);
    refused(&run("plan", &["--precision=f16", "--loss-scale=1e31"]), &["--loss-scale", "at most 2^100"]);
    let growth = ["--precision=f16", "--loss-scale-growth=20000000"];
    refused(&run("plan", &growth), &["--loss-scale-growth", "at most 16777216"]);
    refused(&run("plan", &["--precision=bf16", "--keep-f32=nowhere"]), &["no layer is named `nowhere`"]);
}

#[test]
fn tf32_is_refused_where_there_is_none() {
    let words = ["precision tf32 is for GPUs", "use f32 or bf16"];
    ["plan", "train"].into_iter().for_each(|command| refused(&run(command, &["--precision=tf32"]), &words));
    refused(&run("plan", &["--precision=tf-32"]), &["did you mean tf32?"]);
    refused(
        &run("plan", &["--precision=tf32", "--keep-f32=head"]),
        &["--keep-f32 needs --precision bf16 or f16"],
    );
}

/// Its values take as much memory as f32's, and its products less time.
#[test]
fn a_machine_file_of_a_gpu_plans_tf32() {
    let scratch = Scratch::new("tf32-machine");
    let plan = |file: &str, precision: &str| {
        let machine = scratch.0.join("gpu.toml");
        fs::write(&machine, file).unwrap();
        let model = ["--model=mlp", "--width=4096", "--batch=4096", "--data=synthetic", "--plan-cache=none"];
        let gpu = ["plan", "--json", "--machine", machine.to_str().unwrap(), "--precision", precision];
        plimsoll(&[&gpu[..], &model].concat())
    };
    let file = include_str!("../../../machine/machines/h200.toml");
    let [f32, tf32, bf16] = ["f32", "tf32", "bf16"].map(|precision| json(&plan(file, precision)));
    let bytes = |report: &Value| number(report, "arena_bytes");
    assert_eq!(bytes(&f32), bytes(&tf32));
    let time = |report: &Value| number(report, "predicted_ms");
    assert!(time(&bf16) < time(&tf32) && time(&tf32) < 0.5 * time(&f32));
    refused(&plan(&file.replace("\"9.0\"", "\"7.5\""), "tf32"), &["precision tf32 is for GPUs"]);
}

#[test]
fn steps_that_overflow_are_skipped_and_reported() {
    let scale = ["--precision=f16", "--loss-scale=1e12", "--json"];
    let mlp: Vec<&str> = MLP.iter().copied().filter(|flag| !flag.starts_with("--steps")).collect();
    let output = plimsoll(&[&["train", "--steps=40"], &mlp[..], &scale].concat());
    let report = json(&output);
    let (scale, skipped) = (number(&report, "loss_scale"), number(&report, "skipped_steps"));
    assert!(skipped > 0.0 && skipped < 40.0 && scale == 2f64.powi(40 - skipped as i32), "{scale}, {skipped}");
    assert!(number(&report, "final_loss").is_finite());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("{skipped} steps were skipped")), "{text}");
}

#[test]
fn a_run_resumes_only_in_its_own_precision() {
    let scratch = Scratch::new("precision");
    let (whole, half) = (scratch.path("whole"), scratch.path("half"));
    // With this scale some steps are skipped, most are not.
    let f16 = ["--precision=f16", "--loss-scale=2097152", "--loss-scale-growth=2", "--keep-f32=dense3,loss"];
    let report = json(&run("train", &[&f16[..], &["--json", "--out", &whole]].concat()));
    let skipped = number(&report, "skipped_steps");
    assert!(skipped > 0.0 && skipped < 4.0, "{skipped} of 4 steps were skipped");
    let resolved = fs::read_to_string(format!("{whole}/resolved.toml")).unwrap();
    assert!(resolved.contains("precision = \"f16\"") && resolved.contains("keep-f32"), "{resolved}");
    // The file alone gives the same run.
    let again = scratch.path("again");
    json(&plimsoll(&["train", &format!("{whole}/resolved.toml"), "--json", "--out", &again]));
    let weights = |folder: &str| fs::read(format!("{folder}/weights.safetensors")).unwrap();
    assert!(weights(&whole) == weights(&again));
    let first: Vec<&str> = MLP.iter().copied().filter(|flag| !flag.starts_with("--steps")).collect();
    json(&plimsoll(
        &[&["train", "--steps=2", "--json", "--schedule=constant", "--out", &half], &first[..], &f16]
            .concat(),
    ));
    refused(&plimsoll(&["train", "--resume", &half, "--precision=bf16"]), &["--precision bf16 contradicts"]);
    let constant = scratch.path("constant");
    json(&run("train", &[&f16[..], &["--json", "--schedule=constant", "--out", &constant]].concat()));
    json(&plimsoll(&["train", "--resume", &half, "--steps=4", "--json"]));
    assert!(weights(&constant) == weights(&half), "resuming changed the weights");
    let evaluation = json(&plimsoll(&["evaluate", &whole, "--json"]));
    assert!(number(&evaluation, "loss").is_finite());
    // A prediction has no loss to keep in f32.
    let table = scratch.path("table.csv");
    let predicted = plimsoll(&["predict", &whole, "--out", &table]);
    assert!(predicted.status.success(), "{}", String::from_utf8_lossy(&predicted.stderr));
}
