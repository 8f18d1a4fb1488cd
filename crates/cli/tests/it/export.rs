//! `plimsoll export`, and `--model onnx:FILE`.

use crate::full_disk::{Disk, free_bytes};
use crate::support::{Scratch, json, number, plimsoll};
use serde_json::Value;
use std::fs;

/// A short run of a small model in a folder.
fn trained(scratch: &Scratch) -> String {
    let out = scratch.path("run");
    json(&plimsoll(&["train", "--json", "--steps=3", "--threads=2", "--out", &out]));
    out
}

/// The message of a command that fails with this status.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    message
}

#[test]
fn a_run_leaves_as_onnx_and_goes_on_from_the_file() {
    let scratch = Scratch::new("export");
    let run = trained(&scratch);
    let report = json(&plimsoll(&["export", &run, "--to", "onnx", "--json"]));
    let file = scratch.path("run/lenet.onnx");
    assert_eq!(report["file"], file);
    assert_eq!(number(&report, "bytes"), fs::metadata(&file).unwrap().len() as f64);
    assert!(number(&report, "measured_peak_bytes") <= number(&report, "planned_peak_bytes"), "{report}");
    // The imported model is the trained one: it measures the same, before a step and from its own run.
    let model = format!("onnx:{file}");
    let ours = json(&plimsoll(&["evaluate", &run, "--json", "--threads=2"]));
    let tuned = scratch.path("tuned");
    let train = [
        "train",
        "--json",
        "--model",
        &model,
        "--data=mnist",
        "--steps=1",
        "--lr=1e-12",
        "--threads=2",
        "--out",
        &tuned,
    ];
    json(&plimsoll(&train));
    let theirs = json(&plimsoll(&["evaluate", &tuned, "--json", "--threads=2"]));
    assert!((number(&ours, "loss") - number(&theirs, "loss")).abs() < 1e-4, "{ours} {theirs}");
    // And leaves again.
    json(&plimsoll(&["export", &tuned, "--to", "onnx", "--batch=2", "--json"]));
    json(&plimsoll(&["plan", "--json", "--model", &model, "--step=predict", "--batch=1"]));
}

#[test]
fn weights_leave_under_other_names() {
    let scratch = Scratch::new("export-safetensors");
    let (run, out) = (trained(&scratch), scratch.path("torch.safetensors"));
    json(&plimsoll(&[
        "export",
        &run,
        "--to",
        "safetensors",
        "--weight-names=torch",
        "--out",
        &out,
        "--json",
    ]));
    let torch = scratch.path("torch");
    let train = ["train", "--json", "--steps=3", "--threads=2", "--weight-names=torch", "--out", &torch];
    json(&plimsoll(&train));
    assert!(fs::read(&out).unwrap() == fs::read(scratch.0.join("torch/weights.safetensors")).unwrap());
    // And back from those names.
    let own = scratch.path("own.safetensors");
    json(&plimsoll(&["export", &torch, "--to", "safetensors", "--out", &own, "--json"]));
    assert!(fs::read(&own).unwrap() == fs::read(scratch.0.join("run/weights.safetensors")).unwrap());
}

#[test]
fn mistakes_are_refused_and_nothing_is_written() {
    let scratch = Scratch::new("export-mistakes");
    let run = trained(&scratch);
    let files = || fs::read_dir(&run).unwrap().count();
    let before = files();
    assert!(refused(&["export", &scratch.path("none"), "--to=onnx"], 2).contains("train --out"));
    assert!(refused(&["export", &run, "--to=safetensors", "--batch=2"], 2).contains("--batch"));
    assert!(refused(&["export", &run, "--to=onnx", "--weight-names=torch"], 2).contains("--weight-names"));
    assert!(refused(&["export", &run, "--to=onnx", "--batch=0"], 2).contains("--batch"));
    assert!(refused(&["export", &run, "--to=onnx", "--out", &run], 2).contains("folder"));
    let nowhere = scratch.path("no/model.onnx");
    assert!(refused(&["export", &run, "--to=onnx", "--out", &nowhere], 2).contains("there is no folder"));
    assert!(refused(&["export", &run, "--to=onnx", "--memory=1MiB"], 3).contains("raise it"));
    fs::write(scratch.0.join("bad.onnx"), b"not a model").unwrap();
    let bad = format!("onnx:{}", scratch.path("bad.onnx"));
    assert!(refused(&["plan", "--model", &bad], 2).contains("bad.onnx"));
    assert!(refused(&["plan", "--model", "onnx:none.onnx"], 2).contains("none.onnx"));
    assert!(refused(&["plan", "--model", &bad, "--classes=3"], 2).contains("--classes"));
    assert!(refused(&["plan", "--train-batch-norm"], 2).contains("--train-batch-norm"));
    assert!(refused(&["plan", "--step=predict", "--max-batch"], 2).contains("--max-batch"));
    assert_eq!(files(), before);
}

/// Where a prediction does not fit, what is planned instead is about predictions: layers on bytes among it, and no optimizer.
#[test]
fn a_prediction_above_its_line_is_told_what_it_would_take_on_bytes() {
    let flags =
        ["--model=vgg16", "--width=16", "--image-size=32", "--step=predict", "--batch=2", "--spill=none"];
    let command = [&["plan", "--json", "--memory=40MiB", "--plan-cache=none"][..], &flags].concat();
    let output = plimsoll(&command);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alternatives = object["alternatives"].as_array().unwrap();
    let changes: Vec<&str> = alternatives.iter().map(|a| a["change"].as_str().unwrap()).collect();
    let bytes = &alternatives[changes.iter().position(|&change| change == "on bytes").unwrap()];
    assert_eq!((&bytes["fits"], &bytes["flags"]), (&true.into(), &"plimsoll quantize RUN".into()));
    let [needed, on_bytes] =
        [&object["needed_bytes"], &bytes["planned_peak_bytes"]].map(|n| n.as_u64().unwrap());
    assert!(on_bytes < needed - (20 << 20), "{on_bytes} {needed}");
    assert!(!changes.contains(&"leaner optimizer") && !changes.contains(&"split batch norm"), "{changes:?}");
}

/// What pruning leaves, of weights or of channels, is planned instead, too.
#[test]
fn a_prediction_above_its_line_is_told_what_it_would_take_pruned() {
    let model = ["--model=resnet18", "--image-size=32", "--width=32", "--classes=10", "--batch=2"];
    let flags = ["--step=predict", "--spill=none", "--plan-cache=none", "--json"];
    let plan = |more: &[&str]| plimsoll(&[&["plan"][..], &model, &flags, more].concat());
    let output = plan(&["--memory=20MiB"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alternatives = object["alternatives"].as_array().unwrap();
    let found = |change: &str| {
        let of = alternatives.iter().find(|a| a["change"] == change);
        of.unwrap_or_else(|| panic!("{alternatives:?}"))
    };
    let (weights, channels) = (found("pruned weights"), found("fewer channels"));
    assert_eq!((&weights["fits"], &weights["flags"]), (&true.into(), &"--prune 0.8".into()));
    let said = "plimsoll prune RUN --channels 0.5";
    assert_eq!((&channels["fits"], &channels["flags"]), (&true.into(), &said.into()));
    // The peak is that of a plan with the flag; on bytes it is lower again.
    let peak =
        |more: &[&str]| json(&plan(&[&["--memory=20MiB"], more].concat()))["planned_peak_bytes"].clone();
    assert_eq!(peak(&["--prune=0.8"]), weights["planned_peak_bytes"]);
    let [bytes, both] = [&["--on-bytes"][..], &["--on-bytes", "--prune=0.8"]].map(peak);
    assert!(both.as_u64().unwrap() + 1_000_000 < bytes.as_u64().unwrap(), "{both} {bytes}");
    // Weights that are pruned already are no change.
    let low = plan(&["--prune=0.5", "--memory=16MiB"]);
    let low = String::from_utf8_lossy(&low.stdout);
    assert!(low.contains("fewer channels") && !low.contains("pruned weights"), "{low}");
}

#[test]
fn a_full_disk_leaves_the_file_that_was_there() {
    let scratch = Scratch::new("export-full-disk");
    let run = trained(&scratch);
    let small = scratch.0.join("small");
    fs::create_dir_all(&small).unwrap();
    let Some(_disk) = Disk::new(&small, 1 << 20) else { return };
    let file = small.join("model.onnx");
    fs::write(&file, "the model of before").unwrap();
    fs::write(small.join("other"), vec![1; free_bytes(&small) - (32 << 10)]).unwrap();
    for (to, int8) in [("onnx", false), ("safetensors", false), ("onnx", true), ("tflite", true)] {
        let mut words = vec!["export", &run, "--to", to, "--out", file.to_str().unwrap()];
        words.extend(int8.then_some("--int8"));
        let message = refused(&words, 1);
        assert!(message.contains("model.onnx"), "{message}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "the model of before");
        assert_eq!(fs::read_dir(&small).unwrap().count(), 2, "a partial file is left");
    }
}

#[test]
fn a_model_on_bytes_leaves_from_its_folder_or_by_a_flag() {
    let scratch = Scratch::new("export-int8");
    let (run, bytes) = (trained(&scratch), scratch.path("bytes"));
    assert!(plimsoll(&["quantize", &run, "--out", &bytes, "--examples=100"]).status.success());
    for to in ["tflite", "onnx"] {
        let name = |of: &str| scratch.path(&format!("{of}.{to}"));
        let [whole, folder, flag] = ["whole", "folder", "flag"].map(name);
        json(&plimsoll(&["export", &run, "--to", to, "--out", &whole, "--json"]));
        let report = json(&plimsoll(&["export", &bytes, "--to", to, "--out", &folder, "--json"]));
        assert!(number(&report, "measured_peak_bytes") <= number(&report, "planned_peak_bytes"), "{report}");
        let by_flag = [
            "export",
            &run,
            "--to",
            to,
            "--int8",
            "--calibrate=mnist",
            "--examples=100",
            "--out",
            &flag,
            "--json",
        ];
        let report = json(&plimsoll(&by_flag));
        assert!(number(&report, "measured_peak_bytes") <= number(&report, "planned_peak_bytes"), "{report}");
        assert!(fs::read(&folder).unwrap() == fs::read(&flag).unwrap(), "{to}");
        let size = |file: &str| fs::metadata(file).unwrap().len();
        assert!(100 * size(&folder) <= 28 * size(&whole), "{to}: {} of {}", size(&folder), size(&whole));
    }
    let refused = |words: &[&str]| refused(&[&["export"], words].concat(), 2);
    assert!(refused(&[&bytes, "--to=tflite", "--int8"]).contains("on bytes already"));
    assert!(refused(&[&bytes, "--to=tflite", "--f16"]).contains("on bytes already"));
    assert!(refused(&[&run, "--to=safetensors", "--int8"]).contains("--int8 does not apply"));
    assert!(refused(&[&run, "--to=tflite", "--calibrate=mnist"]).contains("--int8"));
    assert!(refused(&[&run, "--to=tflite", "--int8", "--examples=0"]).contains("at least 1"));
    assert!(refused(&[&run, "--to=tflite", "--int8", "--calibrate=images:none"]).contains("none"));
    // Weights without those of bytes.
    fs::copy(scratch.0.join("run/weights.safetensors"), scratch.0.join("bytes/weights.safetensors")).unwrap();
    assert!(refused(&[&bytes, "--to=tflite"]).contains("kernel/codes"));
}

#[test]
fn calibration_data_that_is_empty_or_not_finite_is_refused() {
    let scratch = Scratch::new("export-calibration");
    let rows = |name: &str, rows: &[&str]| {
        let path = scratch.0.join(name);
        fs::write(&path, format!("a,b,label\n{}\n", rows.join("\n"))).unwrap();
        format!("csv:{}", path.display())
    };
    let good: Vec<String> = (0..40).map(|i| format!("{i},{},{}", i * 7 % 5, i % 2)).collect();
    let good = rows("good.csv", &good.iter().map(String::as_str).collect::<Vec<_>>());
    let run = scratch.path("run");
    let train = [
        "train",
        "--json",
        "--model=mlp",
        "--data",
        &good,
        "--label=label",
        "--width=8",
        "--steps=2",
        "--out",
        &run,
    ];
    json(&plimsoll(&train));
    for (name, bad) in
        [("empty.csv", &[][..]), ("nan.csv", &["1,nan,0", "2,3,1"]), ("inf.csv", &["1,inf,0", "2,3,1"])]
    {
        let data = rows(name, bad);
        let message = refused(&["export", &run, "--to=tflite", "--int8", "--calibrate", &data], 2);
        assert!(message.contains(name) || message.contains("not finite"), "{name}: {message}");
        let out = scratch.path("bytes");
        let message = refused(&["quantize", &run, "--data", &data, "--out", &out], 2);
        assert!(message.contains(name) || message.contains("not finite"), "{name}: {message}");
        assert!(!scratch.0.join("bytes").exists() && !scratch.0.join("run/mlp.tflite").exists());
    }
}

/// A pipe gets the bytes of the file, and is a pipe afterwards.
#[cfg(unix)]
#[test]
fn a_pipe_is_written_to_and_not_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let scratch = Scratch::new("export-pipe");
    let run = trained(&scratch);
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for to in ["onnx", "tflite", "safetensors"] {
        let file = scratch.path("file");
        json(&plimsoll(&["export", &run, "--json", "--to", to, "--out", &file]));
        let from = pipe.clone();
        let reader = std::thread::spawn(move || fs::read(from).unwrap());
        json(&plimsoll(&["export", &run, "--json", "--to", to, "--out", &pipe]));
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo(), "{to}");
        assert!(reader.join().unwrap() == fs::read(&file).unwrap(), "{to}");
    }
}
