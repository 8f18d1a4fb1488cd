//! Exports and predictions of models that are larger than the line, inside a kernel limit equal to it.

use crate::support::{Group, Scratch, json, number, plimsoll};

/// A transformer of 73 MiB, trained for a step.
fn large(scratch: &Scratch) -> String {
    let run = scratch.path("run");
    let sizes = ["--model=gpt", "--layers=24", "--width=256", "--heads=4", "--context=16", "--classes=256"];
    let train =
        ["train", "--json", "--optimizer=sgd", "--batch=2", "--steps=1", "--threads=2", "--out", &run];
    json(&plimsoll(&[&train[..], &sizes[..]].concat()));
    run
}

#[test]
fn a_model_larger_than_the_line_is_exported_and_predicts_under_it() {
    let scratch = Scratch::new("export-memory");
    let run = large(&scratch);
    let weights = std::fs::metadata(scratch.0.join("run/weights.safetensors")).unwrap().len();
    let line = 32 << 20;
    assert!(weights > 2 * line as u64);
    let export = ["export", &run, "--to=onnx", "--json", "--memory", "32MiB"];
    let predict = ["predict", &run, "--json", "--threads=2", "--batch=2", "--memory=48MiB", "--out"];
    let (whole, offloaded) = (scratch.path("whole.npy"), scratch.path("offloaded.npy"));
    let unlimited = ["predict", &run, "--json", "--threads=2", "--batch=2", "--out", &whole];
    let report = json(&plimsoll(&unlimited));
    assert!(number(&report, "planned_peak_bytes") > weights as f64);
    let Some(group) = Group::new("export", line) else { return };
    let report = json(&group.plimsoll(&export));
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    eprintln!("export: planned {planned}, measured {measured}, of {weights}");
    assert!(measured <= planned && planned <= line as f64, "planned {planned}, measured {measured}");
    assert!(number(&report, "bytes") > weights as f64);
    // Weights that do not fit are loaded layer by layer, and the outputs are the same to the bit.
    let Some(group) = Group::new("predict", 48 << 20) else { return };
    let report = json(&group.plimsoll(&[&predict[..], &[&offloaded]].concat()));
    assert!(number(&report, "measured_peak_bytes") <= (48 << 20) as f64, "{report}");
    assert!(std::fs::read(whole).unwrap() == std::fs::read(offloaded).unwrap());
}
