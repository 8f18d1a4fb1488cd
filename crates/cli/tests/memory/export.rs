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

/// The planned and the measured peak of a run inside a kernel limit.
fn peaks(limit: u64, name: &str, arguments: &[&str]) -> Option<[f64; 2]> {
    let report = json(&Group::new(name, limit as usize)?.plimsoll(arguments));
    let found = ["planned_peak_bytes", "measured_peak_bytes"].map(|field| number(&report, field));
    eprintln!("{name}: planned and measured {found:?}");
    Some(found)
}

#[test]
fn an_imported_model_trains_and_a_large_one_is_quantized_within_their_plans() {
    let scratch = Scratch::new("import-memory");
    let run = large(&scratch);
    let file = scratch.path("large.onnx");
    plimsoll(&["export", &run, "--to=onnx", "--out", &file]);
    let model = format!("onnx:{file}");
    let (tuned, bytes) = (scratch.path("tuned"), scratch.path("bytes"));
    // Enough steps for a validation and a checkpoint; nothing is kept of the plan.
    let train = [
        "train",
        "--json",
        "--model",
        &model,
        "--data=synthetic",
        "--batch=2",
        "--steps=12",
        "--optimizer=sgd",
    ];
    let train =
        [&train[..], &["--threads=2", "--memory=40MiB", "--plan-cache=none", "--out", &tuned]].concat();
    let Some([planned, measured]) = peaks(40 << 20, "import", &train) else { return };
    assert!(measured <= planned, "import: planned {planned}, measured {measured}");
    let quantize = ["quantize", &run, "--examples=4", "--memory=60MiB", "--threads=2", "--out", &bytes];
    let Some(group) = Group::new("quantize", 60 << 20) else { return };
    let output = group.plimsoll(&quantize);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = told.lines().find(|line| line.starts_with("peak memory: planned ")).expect(&told);
    let mib = |words: &str| {
        let number = line.split(words).nth(1).and_then(|rest| rest.split_whitespace().next());
        number.and_then(|number| number.parse::<f64>().ok()).expect(line)
    };
    assert!(mib("measured ") <= mib("planned "), "{line}");
}
