//! Pruning while training, and a trained model made smaller: channels removed, layers on bytes.

use crate::full_disk::{Disk, free_bytes};
use crate::support;

use std::fs;
use support::{Scratch, json, number, plimsoll};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The message of arguments that are refused as wrong input.
fn refused(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    message
}

#[test]
fn a_pruned_run_is_evaluated_and_goes_on_from_its_sparse_weights() {
    let scratch = Scratch::new("pruned-run");
    let (out, next) = (scratch.path("run"), scratch.path("next"));
    let flags =
        ["--prune=0.8", "--prune-schedule=polynomial:0.2..0.8@0..30/10", "--prune-layers=conv2,dense*"];
    let report = json(&plimsoll(&[&["train", "--json", "--steps=40", "--out", &out][..], &flags].concat()));
    let (kept, all) = (number(&report, "kept_weights"), number(&report, "prunable_weights"));
    assert!(all == 61320.0 && (kept / all - 0.2).abs() < 1e-3, "{kept} of {all}");
    let bytes = fs::metadata(scratch.0.join("run/weights.safetensors")).unwrap().len();
    assert!(bytes < 70_000, "{bytes}");
    let evaluated = json(&plimsoll(&["evaluate", &out, "--json"]));
    assert!((number(&evaluated, "loss") - number(&report, "test_loss")).abs() < 1e-5, "{evaluated}");
    // The masks start anew; a step that changes nothing leaves the weights.
    let still =
        ["train", "--json", "--steps=1", "--optimizer=sgd", "--lr=1e-30", "--weights", &out, "--out", &next];
    assert_eq!(number(&json(&plimsoll(&still)), "test_loss"), number(&report, "test_loss"));
    let resolved = fs::read_to_string(scratch.0.join("run/resolved.toml")).unwrap();
    assert!(resolved.contains("prune-schedule = \"polynomial:0.2..0.8@0..30/10\""), "{resolved}");
}

#[test]
fn wrong_flags_of_pruning_say_what_to_change() {
    let train = |flags: &[&str]| refused(&[&["train", "--steps=3"], flags].concat());
    for (flags, says) in [
        (&["--prune=1"][..], "at least 0 and below 1"),
        (&["--prune=-0.5"], "at least 0 and below 1"),
        (&["--prune-schedule=polynomial:0.5..0.8@2000..0"], "let it end after it begins"),
        (&["--prune-schedule=polynomial:0.5..0.8"], "write `polynomial:"),
        (&["--prune=0.7", "--prune-schedule=constant:0.8@0.."], "leave one of them out"),
        (
            &["--prune=0.8", "--prune-layers=nobody"],
            "no kernel that is trained is named `nobody`; there are conv1/kernel",
        ),
        (&["--prune-layers=dense1"], "add --prune"),
        (&["--widths=nobody=3"], "no convolution of lenet is named `nobody`"),
        (&["--widths=conv1=0"], "like `conv1=8`"),
        (&["--widths=conv1=3,conv1=4"], "`conv1` is there twice, with 3 and 4 channels"),
        (
            &["--model=mobilenet_v2", "--image-size=32", "--classes=10", "--widths=features/2/conv/1/0=8"],
            "it has the channels of the layer that it reads",
        ),
    ] {
        let message = train(flags);
        assert!(message.contains(says), "{flags:?}: {message}");
    }
}

#[test]
fn channels_are_removed_and_the_smaller_model_trains_on() {
    let scratch = Scratch::new("channels");
    let [run, half, tuned] = ["run", "half", "tuned"].map(|name| scratch.path(name));
    let whole = json(&plimsoll(&["train", "--json", "--steps=60", "--out", &run]));
    let pruned = plimsoll(&["prune", &run, "--channels=0.5", "--out", &half]);
    let said = text(&pruned.stdout);
    assert!(pruned.status.success(), "{}", text(&pruned.stderr));
    assert!(said.contains("channels     22 before, 11 left, in 2 layers"), "{said}");
    // 5·5·1·3 and 5·5·3·8, their biases, and rows of the first dense layer for 5·5·8 inputs.
    let left = 75 + 3 + 600 + 8 + 200 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10;
    assert!(said.contains(&format!("parameters   61706 before, {left} left")), "{said}");
    json(&plimsoll(&["evaluate", &half, "--json"]));
    let report = json(&plimsoll(&["train", "--json", "--steps=40", "--weights", &half, "--out", &tuned]));
    assert!(number(&report, "test_accuracy") > 0.5, "{report}");
    assert!(number(&report, "planned_peak_bytes") < number(&whole, "planned_peak_bytes"));
    let evaluated = json(&plimsoll(&["evaluate", &tuned, "--json"]));
    assert!((number(&evaluated, "loss") - number(&report, "test_loss")).abs() < 1e-5, "{evaluated}");
    // Its checkpoints know the widths, too.
    json(&plimsoll(&["train", "--json", "--resume", &tuned, "--steps=42"]));

    assert!(refused(&["prune", &run, "--channels=0.5", "--out", &half]).contains("name another folder"));
    let other = scratch.path("other");
    assert!(refused(&["prune", &run, "--channels=1.5", "--out", &other]).contains("0.5 removes half"));
    assert!(refused(&["prune", &other, "--channels=0.5", "--out", &other]).contains("a run that has ended"));
    let all = refused(&["prune", &run, "--channels=0.95", "--out", &other]);
    assert!(all.contains("leaves none of the 6 channels of `conv1`: remove at most 0.91"), "{all}");
    let dense = scratch.path("dense");
    json(&plimsoll(&["train", "--json", "--model=mlp", "--steps=2", "--out", &dense]));
    assert!(refused(&["prune", &dense, "--channels=0.5", "--out", &other]).contains("nothing to remove"));
    // It has a line, and an account of what it takes.
    let low = plimsoll(&["prune", &run, "--channels=0.5", "--memory=2MiB", "--out", &other]);
    assert_eq!(low.status.code(), Some(3), "{}", text(&low.stderr));
    assert!(text(&low.stderr).contains("the line is"), "{}", text(&low.stderr));
    let sheet = plimsoll(&["prune", &half, "--channels=0.5", "--sheet", "--out", &scratch.path("quarter")]);
    assert!(text(&sheet.stdout).contains("the largest of the whole model"), "{}", text(&sheet.stdout));
    assert!(text(&sheet.stdout).contains("peak memory: planned"), "{}", text(&sheet.stdout));
    assert!(!scratch.0.join("other").exists());
}

#[test]
fn a_model_on_bytes_is_a_quarter_and_nearly_as_good() {
    let scratch = Scratch::new("quantized");
    let [run, bytes] = ["run", "bytes"].map(|name| scratch.path(name));
    let report = json(&plimsoll(&["train", "--json", "--steps=200", "--lr=0.002", "--out", &run]));
    let quantized = plimsoll(&["quantize", &run, "--out", &bytes, "--examples=200", "--report-layers"]);
    assert!(quantized.status.success(), "{}", text(&quantized.stderr));
    let said = text(&quantized.stdout);
    assert!(said.contains(&format!("plimsoll evaluate {bytes}")), "{said}");
    let noise = |layer: &str| -> [f64; 2] {
        let line = said.lines().find(|line| line.starts_with(layer)).unwrap_or_else(|| panic!("{said}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!([words[2], words[4]], ["dB"; 2], "{line}");
        [1, 3].map(|i| words[i].parse().unwrap())
    };
    let [first, last] = [noise("conv1"), noise("dense3")];
    // What a layer adds is not all: those before it are on bytes, too.
    assert!(first[0] == first[1] && first[0] > 25.0, "{said}");
    assert!(last[0] < last[1] && last[0] > 15.0, "{said}");
    let size = |folder: &str| fs::metadata(scratch.0.join(folder).join("weights.safetensors")).unwrap().len();
    assert!(100 * size("bytes") < 28 * size("run"), "{} {}", size("bytes"), size("run"));
    let evaluated = json(&plimsoll(&["evaluate", &bytes, "--json"]));
    let accuracy = evaluated["metrics"]["accuracy"].as_f64().unwrap();
    assert!((accuracy - number(&report, "test_accuracy")).abs() < 0.01, "{accuracy} {report}");
    let predicted = plimsoll(&["predict", &bytes]);
    assert!(predicted.status.success() && text(&predicted.stdout).lines().count() == 2501);
    assert!(
        refused(&["quantize", &run, "--out", &scratch.path("other"), "--examples=0"]).contains("at least 1")
    );
    assert!(refused(&["quantize", &run, "--out", &bytes]).contains("name another folder"));
    // Grids of another version may be of other layers.
    let path = scratch.0.join("bytes/report.json");
    let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    kept["model_options"]["int8"].as_array_mut().unwrap().pop();
    fs::write(&path, kept.to_string()).unwrap();
    let onnx = scratch.path("bytes.onnx");
    for command in
        [&["evaluate", &bytes][..], &["predict", &bytes], &["export", &bytes, "--to=onnx", "--out", &onnx]]
    {
        assert!(refused(command).contains("quantize the run on floats again"), "{command:?}");
    }
}

/// On bytes, the weights of a pruned run are stored and held sparse, and what is computed is what whole ones give.
#[test]
fn a_pruned_run_on_bytes_stays_sparse_and_leaves_with_its_zeros() {
    let scratch = Scratch::new("pruned-on-bytes");
    let [run, whole, bytes, whole_bytes] =
        ["run", "whole", "bytes", "whole-bytes"].map(|name| scratch.path(name));
    let train = ["train", "--json", "--steps=10", "--model=resnet18", "--image-size=32", "--width=32"];
    let flags = ["--classes=10", "--batch=16", "--prune-schedule=constant:0.8@0../5", "--out", &run];
    let report = json(&plimsoll(&[&train[..], &flags].concat()));
    let zeros = (number(&report, "prunable_weights") - number(&report, "kept_weights")) as usize;
    assert!(zeros > 2_200_000, "{report}");

    // The same run, its weights whole.
    fs::create_dir(&whole).unwrap();
    for file in ["report.json", "data.json"] {
        fs::copy(scratch.0.join("run").join(file), scratch.0.join("whole").join(file)).unwrap();
    }
    let weights = scratch.path("whole/weights.safetensors");
    let exported = plimsoll(&["export", &run, "--to=safetensors", "--out", &weights]);
    let said = text(&exported.stdout);
    assert!(said.contains("pruned tensors are written whole; their zeros stay zeros"), "{said}");
    for (from, to) in [(&run, &bytes), (&whole, &whole_bytes)] {
        // One layer stays in f32.
        let words = ["quantize", from, "--examples=100", "--keep=layer2/0/conv1", "--out", to];
        let quantized = plimsoll(&words);
        assert!(quantized.status.success(), "{}", text(&quantized.stderr));
    }
    let size = |folder: &str| fs::metadata(scratch.0.join(folder).join("weights.safetensors")).unwrap().len();
    assert!(10 * size("bytes") < 4 * size("whole-bytes"), "{} {}", size("bytes"), size("whole-bytes"));
    let [sparse, dense] =
        [&bytes, &whole_bytes].map(|folder| json(&plimsoll(&["evaluate", folder, "--json"])));
    assert_eq!(number(&sparse, "loss").to_bits(), number(&dense, "loss").to_bits());
    let [less, more] = [&sparse, &dense].map(|found| number(found, "planned_peak_bytes"));
    assert!(less + 1e6 < more, "{less} {more}");

    // Files for other programs hold every weight, and a weight that is zero is made of zero bytes.
    let out = scratch.path("model");
    for (from, flags, width) in [
        (&run, &["--to=safetensors"][..], 4),
        (&run, &["--to=onnx"], 4),
        (&run, &["--to=tflite"], 4),
        (&run, &["--to=tflite", "--f16"], 2),
        (&run, &["--to=tflite", "--dynamic-range"], 1),
        (&run, &["--to=tflite", "--int8", "--examples=100"], 1),
        (&run, &["--to=onnx", "--int8", "--examples=100"], 1),
        (&bytes, &["--to=onnx"], 1),
    ] {
        let exported = plimsoll(&[&["export", from, "--out", &out][..], flags].concat());
        assert!(exported.status.success(), "{flags:?}: {}", text(&exported.stderr));
        let found = fs::read(&out).unwrap().iter().filter(|&&byte| byte == 0).count();
        assert!(found >= zeros * width, "{flags:?}: {found} bytes, {zeros} zeros");
    }
    let file = |from: &str, to: &str| {
        let out = scratch.path("same");
        json(&plimsoll(&["export", from, "--json", "--to", to, "--out", &out]));
        fs::read(&out).unwrap()
    };
    assert!(file(&bytes, "tflite") == file(&whole_bytes, "tflite"));
}

#[test]
fn layers_that_are_kept_stay_in_floats_and_the_report_says_so() {
    let scratch = Scratch::new("quantized-keep");
    let (run, bytes) = (scratch.path("run"), scratch.path("bytes"));
    json(&plimsoll(&["train", "--json", "--steps=60", "--out", &run]));
    let flags = ["--examples=200", "--report-layers", "--keep=conv1,dense3"];
    let quantized = plimsoll(&[&["quantize", &run, "--out", &bytes][..], &flags].concat());
    assert!(quantized.status.success(), "{}", text(&quantized.stderr));
    let said = text(&quantized.stdout);
    for layer in ["conv1", "dense3"] {
        assert!(said.lines().any(|line| line.split_whitespace().eq([layer, "f32", "f32"])), "{said}");
    }
    assert!(said.lines().any(|line| line.starts_with("conv2") && line.contains("dB")), "{said}");
    let answers = said.lines().find(|line| line.starts_with("answers")).unwrap();
    let same: usize = answers.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((195..=200).contains(&same) && answers.contains(" of 200 "), "{answers}");
    // The folder says which, and runs and leaves so.
    let evaluated = |folder: &str| json(&plimsoll(&["evaluate", folder, "--json"]));
    let accuracy = |folder: &str| evaluated(folder)["metrics"]["accuracy"].as_f64().unwrap();
    assert!((accuracy(&run) - accuracy(&bytes)).abs() < 0.01);
    let onnx = scratch.path("bytes.onnx");
    json(&plimsoll(&["export", &bytes, "--to=onnx", "--json", "--out", &onnx]));
    let weights = fs::read(scratch.0.join("bytes/weights.safetensors")).unwrap();
    let named = |name: &str| weights.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(named("\"conv1/kernel\"") && named("\"conv2/kernel/codes\"") && !named("\"conv2/kernel\""));
    let other = scratch.path("other");
    assert!(refused(&["quantize", &run, "--out", &other, "--keep=conv9"]).contains("no layer conv9"));
}

#[test]
fn a_run_that_trains_as_if_on_bytes_is_quantized_by_what_it_learned() {
    let scratch = Scratch::new("quantize-aware");
    let [run, bytes] = ["run", "bytes"].map(|name| scratch.path(name));
    let train = |more: &[&str]| {
        let words = ["train", "--json", "--quantize-aware", "--lr=0.002", "--save-every=100", "--out", &run];
        json(&plimsoll(&[&words[..], more].concat()))
    };
    train(&["--steps=100"]);
    let report = json(&plimsoll(&["train", "--json", "--resume", &run, "--steps=200"]));
    let evaluated = json(&plimsoll(&["evaluate", &run, "--json"]));
    assert!((number(&evaluated, "loss") - number(&report, "test_loss")).abs() < 1e-5, "{evaluated} {report}");
    let quantized = plimsoll(&["quantize", &run, "--out", &bytes]);
    assert!(quantized.status.success(), "{}", text(&quantized.stderr));
    assert!(text(&quantized.stdout).contains("between layers, learned"), "{}", text(&quantized.stdout));
    let on_bytes = json(&plimsoll(&["evaluate", &bytes, "--json"]));
    let accuracy = on_bytes["metrics"]["accuracy"].as_f64().unwrap();
    assert!((accuracy - number(&report, "test_accuracy")).abs() < 0.003, "{accuracy} {report}");
    // It leaves on bytes, and in floats without what was there for training.
    for (to, int8) in [("tflite", true), ("onnx", true), ("tflite", false), ("onnx", false)] {
        let out = scratch.path("model");
        let flags: &[&str] = if int8 { &["--int8"] } else { &[] };
        let words = ["export", &run, "--to", to, "--out", &out, "--json"];
        let report = json(&plimsoll(&[&words[..], flags].concat()));
        assert!(number(&report, "ops") < 40.0, "{report}");
    }
    // Another run may start from it, with or without ranges.
    for flags in [&["--quantize-aware"][..], &[]] {
        let words = ["train", "--json", "--steps=1", "--weights", &run];
        json(&plimsoll(&[&words[..], flags].concat()));
    }
    let low = refused(&["train", "--quantize-aware", "--precision=bf16", "--steps=1"]);
    assert!(low.contains("in f32, not in bf16"), "{low}");
}

/// Their loss computes scores itself: on bytes it reads those that a prediction gives. The data has fewer examples than are asked for.
#[test]
fn models_of_text_are_evaluated_and_leave_on_bytes() {
    let scratch = Scratch::new("quantized-text");
    let sizes = ["--context=8", "--classes=32", "--width=16", "--batch=4", "--data=synthetic"];
    for (model, layers) in
        [("gpt", &["--layers=1", "--heads=2"][..]), ("lstm", &["--layers=1"]), ("seq2seq", &[])]
    {
        let [run, bytes] = ["run", "bytes"].map(|name| scratch.path(&format!("{model}-{name}")));
        let words = ["train", "--json", "--steps=4", "--model", model, "--out", &run];
        json(&plimsoll(&[&words[..], &sizes, layers].concat()));
        let quantize = |examples: &str, out: &str| {
            let quantized = plimsoll(&["quantize", &run, "--out", out, examples, "--report-layers"]);
            assert!(quantized.status.success(), "{model}: {}", text(&quantized.stderr));
            text(&quantized.stdout)
        };
        // An example has several rows of outputs.
        let few = quantize("--examples=6", &scratch.path(&format!("{model}-few")));
        assert!(few.contains(", from 6 examples"), "{few}");
        let said = quantize("--examples=999999999999", &bytes);
        let head = |line: &str| line.split_whitespace().next().is_some_and(|layer| layer.ends_with("head"));
        assert!(said.lines().any(head) && !said.contains("999999999999"), "{said}");
        let [floats, codes] = [&run, &bytes].map(|folder| json(&plimsoll(&["evaluate", folder, "--json"])));
        let [floats, codes] = [number(&floats, "loss"), number(&codes, "loss")];
        assert!((floats - codes).abs() < 0.02 * floats, "{model}: {floats} {codes}");
        if model == "lstm" {
            for to in ["onnx", "tflite"] {
                let [flag, folder] = ["flag", "folder"].map(|name| scratch.path(&format!("{name}.{to}")));
                let by_flag = ["export", &run, "--to", to, "--int8", "--json", "--out", &flag];
                json(&plimsoll(&by_flag));
                json(&plimsoll(&["export", &bytes, "--to", to, "--json", "--out", &folder]));
                assert!(fs::read(&flag).unwrap() == fs::read(&folder).unwrap(), "{to}");
            }
        }
    }
}

/// Training never has its scores as a whole, so they have no range: the head stays in f32.
#[test]
fn a_model_of_text_that_trains_as_if_on_bytes_is_quantized_but_for_its_head() {
    let scratch = Scratch::new("aware-text");
    let [run, bytes, file] = ["run", "bytes", "gpt.onnx"].map(|name| scratch.path(name));
    let sizes = ["--model=gpt", "--layers=1", "--heads=2", "--context=8", "--classes=32", "--width=16"];
    let words = ["train", "--json", "--steps=4", "--batch=4", "--quantize-aware", "--out", &run];
    json(&plimsoll(&[&words[..], &sizes].concat()));
    let quantized = plimsoll(&["quantize", &run, "--out", &bytes, "--report-layers"]);
    let said = text(&quantized.stdout);
    assert!(quantized.status.success(), "{}", text(&quantized.stderr));
    assert!(said.lines().any(|line| line.split_whitespace().eq(["head", "f32", "f32"])), "{said}");
    let [floats, codes] = [&run, &bytes].map(|folder| json(&plimsoll(&["evaluate", folder, "--json"])));
    let [floats, codes] = [number(&floats, "loss"), number(&codes, "loss")];
    assert!((floats - codes).abs() < 0.02 * floats, "{floats} {codes}");
    for run in [&[&run[..], "--int8"][..], &[&bytes]] {
        json(&plimsoll(&[&["export", "--to=onnx", "--json", "--out", &file], run].concat()));
    }
}

/// The channels that an imported model loses are those of the model that it was made from, and what is left goes on like any other.
#[test]
fn channels_of_an_imported_model_are_removed_like_those_of_its_origin() {
    let scratch = Scratch::new("prune-imported");
    let [run, tuned, half, own_half, after, bytes] =
        ["run", "tuned", "half", "own-half", "after", "bytes"].map(|name| scratch.path(name));
    let (file, small) = (scratch.path("lenet.onnx"), scratch.path("small.onnx"));
    json(&plimsoll(&["train", "--json", "--steps=60", "--out", &run]));
    json(&plimsoll(&["export", &run, "--to=onnx", "--json", "--out", &file]));
    let model = format!("onnx:{file}");
    let train = ["train", "--json", "--data=mnist", "--model", &model];
    // A step that changes nothing.
    let still = ["--steps=1", "--optimizer=sgd", "--lr=1e-30", "--out", &tuned];
    json(&plimsoll(&[&train[..], &still].concat()));
    let pruned = plimsoll(&["prune", &tuned, "--channels=0.5", "--out", &half]);
    let said = text(&pruned.stdout);
    assert!(pruned.status.success(), "{}", text(&pruned.stderr));
    assert!(said.contains("channels     22 before, 11 left, in 2 layers"), "{said}");
    assert!(plimsoll(&["prune", &run, "--channels=0.5", "--out", &own_half]).status.success());
    let [imported, own] =
        [&half, &own_half].map(|folder| number(&json(&plimsoll(&["evaluate", folder, "--json"])), "loss"));
    assert!((imported - own).abs() < 1e-5, "{imported} {own}");
    // It trains on, is quantized, and leaves as a file of the smaller model, which comes back.
    let report =
        json(&plimsoll(&[&train[..], &["--steps=40", "--weights", &half, "--out", &after]].concat()));
    assert!(number(&report, "test_accuracy") > 0.5, "{report}");
    let evaluated = json(&plimsoll(&["evaluate", &after, "--json"]));
    assert!((number(&evaluated, "loss") - number(&report, "test_loss")).abs() < 1e-5, "{evaluated}");
    assert!(plimsoll(&["predict", &after]).status.success());
    assert!(plimsoll(&["quantize", &after, "--examples=100", "--out", &bytes]).status.success());
    json(&plimsoll(&["evaluate", &bytes, "--json"]));
    json(&plimsoll(&["export", &after, "--to=onnx", "--json", "--out", &small]));
    // The parameters that are left, and the nodes.
    let size = fs::metadata(&small).unwrap().len();
    assert!((35_820 * 4..35_820 * 4 + 4096).contains(&size), "{size}");
    let back = format!("onnx:{small}");
    let words = ["train", "--json", "--data=mnist", "--model", &back];
    let again = json(&plimsoll(&[&words[..], &["--steps=1", "--optimizer=sgd", "--lr=1e-30"]].concat()));
    assert!((number(&again, "test_loss") - number(&report, "test_loss")).abs() < 1e-4, "{again} {report}");

    let widths = [&train[..], &["--steps=1", "--widths=conv1=3"]].concat();
    assert!(refused(&widths).contains("remove some with `plimsoll prune`"));
    let plan = ["plan", "--data=mnist", "--model", &model, "--widths=conv1=9"];
    assert!(refused(&plan).contains("`conv1` has 6 channels, 9 cannot be left"));
    let message = refused(&["prune", &bytes, "--channels=0.5", "--out", &scratch.path("other")]);
    assert!(message.contains("give the folder of the run before"), "{message}");
}

/// What `prune`, `quantize` and `export` began when a signal came is gone, and a second signal ends them at once.
#[cfg(unix)]
#[test]
fn a_signal_leaves_nothing_unfinished() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Output, Stdio};
    let scratch = Scratch::new("stopped");
    let (run, out, file) = (scratch.path("run"), scratch.0.join("new"), scratch.0.join("model.safetensors"));
    let train = ["train", "--json", "--steps=1", "--model=resnet18", "--image-size=32", "--classes=10"];
    json(&plimsoll(&[&train[..], &["--batch=4", "--out", &run]].concat()));
    let made = out.join("made");
    let send = |child: &Child, signal: &str| {
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    };
    // The command is held while it writes, so that signals come in the middle.
    let stopped = |words: &[&str], partial: &std::path::Path, signals: &[&str]| -> Output {
        for _ in 0..50 {
            let mut child =
                support::command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            while !partial.exists() && child.try_wait().unwrap().is_none() {}
            send(&child, "-STOP");
            let writes = partial.exists();
            signals.iter().filter(|_| writes).for_each(|signal| send(&child, signal));
            send(&child, "-CONT");
            let output = child.wait_with_output().unwrap();
            if writes {
                return output;
            }
            let _ = fs::remove_dir_all(&out);
            let _ = fs::remove_file(&file);
        }
        panic!("{words:?} was never caught while it wrote");
    };
    let (to, to_file) = (made.to_str().unwrap(), file.to_str().unwrap());
    let weights = made.join("weights.safetensors.partial");
    let partial_file = scratch.0.join("model.safetensors.partial");
    let export = ["export", &run, "--to=safetensors", "--out", to_file];
    for (words, partial) in [
        (&["prune", &run, "--channels=0.25", "--out", to][..], &weights),
        (&["quantize", &run, "--examples=20", "--out", to], &weights),
        (&export, &partial_file),
    ] {
        for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
            let output = stopped(words, partial, &[signal]);
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{words:?}: {message}");
            assert!(message.contains("removing what is unfinished"), "{message}");
            assert!(message.contains("stopped: nothing was written to"), "{message}");
            assert!(!out.exists() && !file.exists() && !partial_file.exists(), "{words:?}");
        }
    }
    let twice = stopped(&export, &partial_file, &["-INT", "-TERM"]);
    assert!(twice.status.signal().is_some(), "{:?}", twice.status);
}

/// Weights that are not numbers are wrong input of every command that writes them anew, and nothing is left of what it began.
#[test]
fn weights_that_are_not_finite_are_wrong_input() {
    let scratch = Scratch::new("not-finite");
    let run = scratch.path("run");
    json(&plimsoll(&["train", "--json", "--steps=1", "--out", &run]));
    let path = scratch.0.join("run/weights.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let made = scratch.path("new/made");
    for words in [
        &["prune", &run, "--channels=0.5", "--out", &made][..],
        &["quantize", &run, "--out", &made],
        &["export", &run, "--to=onnx", "--out", &scratch.path("a.onnx")],
        &["export", &run, "--to=tflite", "--int8", "--out", &scratch.path("a.tflite")],
        &["export", &run, "--to=safetensors", "--out", &scratch.path("a.safetensors")],
    ] {
        assert!(refused(words).contains("not finite"), "{words:?}");
        assert!(!scratch.0.join("new").exists(), "{words:?}");
    }
    let message = refused(&["evaluate", &run]);
    assert!(message.contains("is NaN: the model does not answer with numbers"), "{message}");
}

#[test]
fn a_full_disk_leaves_no_folder_of_a_smaller_model() {
    let scratch = Scratch::new("made-full-disk");
    let (run, small) = (scratch.path("run"), scratch.0.join("small"));
    json(&plimsoll(&["train", "--json", "--steps=1", "--out", &run]));
    fs::create_dir_all(&small).unwrap();
    let Some(_disk) = Disk::new(&small, 1 << 20) else { return };
    fs::write(small.join("other"), vec![1; free_bytes(&small) - (32 << 10)]).unwrap();
    fs::create_dir(small.join("own")).unwrap();
    for name in ["made", "own"] {
        let out = small.join(name);
        let out = out.to_str().unwrap();
        for words in [&["prune", &run, "--channels=0.5", "--out", out][..], &["quantize", &run, "--out", out]]
        {
            let output = plimsoll(words);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stderr));
            let left: Vec<_> =
                fs::read_dir(&small).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left.len(), 2, "{words:?}: {left:?}");
        }
    }
    assert_eq!(fs::read_dir(small.join("own")).unwrap().count(), 0);
}
