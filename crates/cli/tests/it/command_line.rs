//! Commands and flags, right and wrong.

use crate::support;

use std::fs;
use std::process::{Command, Stdio};
use support::{Scratch, json, number, plimsoll};

/// Asserts that the arguments are refused with status 2 and a message that contains `words`.
fn refused(arguments: &[&str], words: &[&str]) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: no `{word}` in: {message}");
    }
    assert!(!message.contains("panicked"), "{arguments:?}: {message}");
}

#[test]
fn wrong_input_is_refused_with_what_to_change() {
    refused(&["train", "--model", "alexnet"], &["alexnet", "lenet", "resnet20"]);
    refused(&["train", "--model", "ResNet-20"], &["did you mean resnet20?"]);
    refused(&["train", "--modle", "lenet"], &["--modle"]);
    refused(&["plan", "--model", "lenet", "--window", "4"], &["lenet has no --window"]);
    refused(&["plan", "--model", "gpt", "--window", "0"], &["--window must be between 1"]);
    refused(&["plan", "--model", "gpt", "--kv-heads", "3"], &["4 heads", "3 heads of keys"]);
    refused(&["trian"], &["trian", "train"]);
    refused(&["train", "--memory", "12parsecs"], &["12parsecs", "512MiB"]);
    refused(&["train", "--memory", "0MiB"], &["0MiB"]);
    refused(&["train", "--memory", "-5"], &["-5", "512MiB"]);
    refused(&["train", "--memory", "200%"], &["200%", "100%"]);
    refused(&["train", "--model", "lenet", "--data", "text:README.md"], &["--model gpt"]);
    refused(&["plan", "--out", "somewhere"], &["--out"]);
    refused(&["train", "--out", "Cargo.toml"], &["Cargo.toml", "folder"]);
    refused(&["train", "--save-every", "0", "--out", "somewhere"], &["--save-every"]);
    refused(&["train", "--save-every", "5"], &["--save-every", "--out"]);
    refused(&["train", "--resume", "no/such/run"], &["no/such/run", "train --out"]);
    refused(&["plan", "--resume", "somewhere"], &["--resume"]);
    refused(&["plan", "--your-code", "much"], &["much", "512MiB"]);
    for speed in ["0", "50%", "fast"] {
        refused(&["plan", "--spill-speed", speed], &["--spill-speed", speed, "3GB, or measure"]);
    }
    refused(&["train", "--micro-batches", "3"], &["64", "3"]);
    refused(&["train", "--batch", "0"], &["--batch"]);
    refused(&["train", "--batch", "-3"], &["-3"]);
    refused(&["train", "--threads", "0"], &["--threads"]);
    refused(&["train", "--steps", "0"], &["--steps"]);
    refused(&["train", "--steps", "3", "--epochs", "2"], &["--steps", "--epochs"]);
    refused(&["train", "--lr", "nan"], &["--lr"]);
    refused(&["train", "--optimizer", "adamm"], &["adamm", "adamw"]);
    refused(&["train", "--optimizer", "sgd", "--momentum", "0.9"], &["--momentum", "nesterov"]);
    refused(&["train", "--optimizer", "lion", "--moments", "8bit"], &["--moments", "adamw", "lion"]);
    refused(&["train", "--weight-decay", "-1"], &["--weight-decay"]);
    refused(&["train", "--decay-group", "bias"], &["--decay-group", "*/bias=0"]);
    refused(&["train", "--decay-group", "nrom*=0"], &["nrom*", "conv1/kernel"]);
    refused(&["train", "--clip-norm", "0"], &["--clip-norm"]);
    refused(&["train", "--clip-norm", "1", "--clip-value", "1"], &["--clip-norm", "--clip-value"]);
    refused(&["train", "--ema", "1"], &["--ema"]);
    refused(&["train", "--freeze", "conv9"], &["conv9", "conv1/kernel"]);
    refused(&["train", "--freeze", "*"], &["every parameter is frozen"]);
    refused(&["train", "--every", "5"], &["--every", "--schedule step"]);
    refused(&["train", "--schedule", "step", "--every", "0"], &["--every"]);
    refused(&["train", "--accumulate", "0"], &["--accumulate"]);
    refused(
        &["train", "--accumulate", "2", "--batch", "5"],
        &["blocks of 32 examples", "--batch 32 --accumulate 2"],
    );
    refused(
        &["train", "--accumulate", "2", "--micro-batches", "1"],
        &["1 micro-batches", "--accumulate 2 --micro-batches 2"],
    );
    refused(
        &["train", "--accumulate", "2", "--model", "resnet20"],
        &["batch_norm", "several batches", "--allow-split-batchnorm"],
    );
    refused(&["train", "--time-limit", "soon"], &["soon", "30m"]);
    refused(&["train", "--class-weights", "1,2"], &["2 class weights for 10 classes"]);
    refused(
        &["train", "--model", "autoencoder", "--class-weights", "1"],
        &["--class-weights", "autoencoder"],
    );
    refused(&["train", "--early-stop", "0"], &["--early-stop"]);
    refused(&["train", "--validate-every", "0"], &["--validate-every"]);
    refused(&["train", "--validation-split", "1.5"], &["--validation-split", "1.5"]);
    refused(&["train", "--keep", "2"], &["--keep", "--out"]);
    refused(&["train", "--metrics", "acuracy"], &["acuracy", "accuracy"]);
    refused(&["train", "--monitor", "f1", "--steps", "1"], &["`f1`", "loss, accuracy"]);
    refused(&["train", "--log", "log.txt", "--steps", "1"], &["log.txt", ".csv"]);
    refused(&["plan", "--log", "log.csv"], &["--log"]);
    refused(&["train", "no-such-file.toml"], &["no-such-file.toml"]);
    refused(&["train", "--data", "cifar"], &["cifar", "mnist"]);
    refused(&["train", "--data", "mnist:no/such/folder"], &["no/such/folder"]);
    refused(&["train", "--model", "gpt", "--data", "text:no-such-file"], &["no-such-file"]);
    refused(
        &["train", "--model", "resnet20", "--data", "mnist"],
        &["resnet20", "add --image-size 28 --channels 1", "28×28"],
    );
    refused(&["train", "--model", "gpt", "--heads", "3"], &["block1/attention", "256", "3 heads"]);
    refused(&["train", "--context", "8"], &["lenet", "--context", "--classes"]);
    refused(&["train", "--model", "vgg16", "--dropout", "1.5"], &["--dropout"]);
    refused(&["train", "--model", "unet", "--image-size", "20"], &["20,20,3", "multiples of 16"]);
    refused(&["train", "--model", "vit_tiny", "--image-size", "30"], &["30,30,3", "patch"]);
    refused(&["train", "--model", "resnet18", "--image-size", "0"], &["--image-size"]);
    refused(&["train", "--model", "seq2seq", "--data", "text:README.md"], &["seq2seq", "gpt"]);
    refused(&["evaluate", "no/such/run"], &["no/such/run", "train --out"]);
    refused(&["graph", "--dot", "--text"], &["--dot", "--text"]);
    refused(&["graph", "--model", "nothing"], &["nothing", "lenet"]);
    refused(&["train", "--without", "magic"], &["magic", "fuse"]);
    refused(&["zoo", "--batch", "0"], &["--batch"]);
}

#[test]
fn plan_json_prints_only_json() {
    for more in [&[][..], &["--curve"]] {
        let output = plimsoll(&[&["plan", "--data=synthetic", "--json"], more].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{more:?}: {text}");
    }
}

#[test]
fn flags_are_read_from_a_toml_file() {
    let scratch = Scratch::new("config");
    let (file, out) = (scratch.path("run.toml"), scratch.path("out"));
    let write = |text: &str| fs::write(&file, text).unwrap();
    write("modle = \"lenet\"");
    refused(&["train", &file], &["run.toml", "`modle`", "did you mean `model`"]);
    write("lr = \"fast\"");
    refused(&["train", &file], &["run.toml", "fast", "--lr"]);
    write("lr = true");
    refused(&["train", &file], &["`lr` takes a value"]);
    write("json = 1");
    refused(&["train", &file], &["`json` is true or false"]);
    write("[optimizer]\nname = \"sgd\"");
    refused(&["train", &file], &["without tables"]);
    write("lr = ");
    refused(&["train", &file], &["run.toml"]);
    let text = "# A run.\nmodel = \"lenet\"\nepochs = 3\nlr = 0.002\nweight_decay = 0.1\nfreeze = [\"conv1\", \"conv2\"]\n\
                json = true\nclip-norm = 1\nseed = 4\nsave-every = 2\n";
    write(text);
    let planned = json(&plimsoll(&["plan", &file]));
    assert!(number(&planned, "planned_peak_bytes") > 0.0);
    // The command line overrides the file, also with a flag that excludes one of the file.
    let more = ["--steps", "5", "--clip-value", "0.5", "--seed", "7", "--out", &out];
    let from_file = json(&plimsoll(&[&["train", &file], &more[..]].concat()));
    let flags = [
        "--lr=0.002",
        "--weight-decay=0.1",
        "--freeze=conv1,conv2",
        "--json",
        "--save-every=2",
        "--overwrite",
    ];
    let typed = json(&plimsoll(&[&["train"], &flags[..], &more].concat()));
    assert_eq!(number(&from_file, "final_loss"), number(&typed, "final_loss"));
    assert_eq!(number(&from_file, "steps"), 5.0);
    // The resolved flags give the same run.
    let resolved = fs::read_to_string(scratch.0.join("out/resolved.toml")).unwrap();
    for line in ["seed = 7", "steps = 5", "batch = 64", "optimizer = \"adamw\"", "clip-value = 0.5"] {
        assert!(resolved.lines().any(|l| l == line), "no `{line}` in:\n{resolved}");
    }
    let again = scratch.path("out/resolved.toml");
    let again = json(&plimsoll(&["train", &again, "--json", "--out", &scratch.path("again")]));
    assert_eq!(number(&again, "final_loss"), number(&typed, "final_loss"));
}

#[test]
fn the_load_sheet_shows_optimizer_state_per_parameter() {
    let gpt = ["plan", "--model=gpt", "--layers=2", "--width=64", "--heads=2", "--context=32", "--batch=8"];
    for (flags, bytes) in [
        (&["--optimizer=adamw"][..], "8.00 bytes per parameter"),
        (&["--optimizer=adam", "--moments=bf16"], "4.00 bytes per parameter"),
        (&["--moments=8bit"], "2.0"),
        (&["--optimizer=lion"], "4.00 bytes per parameter"),
        (&["--optimizer=rmsprop"], "4.00 bytes per parameter"),
        (&["--optimizer=adafactor"], "0.0"),
    ] {
        let output = plimsoll(&[&gpt[..], flags].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find(|line| line.contains("optimizer state")).unwrap_or_default();
        assert!(line.contains(&format!("in every plan; {bytes}")), "{flags:?}: {text}");
    }
    let output = plimsoll(&[&gpt[..], &["--optimizer=sgd", "--ema=0.9"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("optimizer state") && text.contains("averages"), "{text}");
}

#[test]
fn a_trained_model_evaluates_and_predicts() {
    let scratch = Scratch::new("trained");
    let folder = &scratch.0;
    let run = folder.join("run");
    let run = run.to_str().unwrap();
    let report = json(&plimsoll(&["train", "--json", "--steps", "60", "--out", run]));
    let names = "accuracy,top3,f1,auc,confusion,perplexity";
    let found = json(&plimsoll(&["evaluate", run, "--json", "--metrics", names]));
    assert_eq!(number(&found, "loss"), number(&report, "test_loss"));
    assert_eq!(number(&found["metrics"], "accuracy"), number(&report, "test_accuracy"));
    assert!(number(&found["metrics"], "top3") > number(&found["metrics"], "accuracy"));
    let perplexity = number(&found["metrics"], "perplexity");
    assert!((perplexity - number(&found, "loss").exp()).abs() < 1e-4 * perplexity);
    // The batch does not change the result.
    let other = json(&plimsoll(&["evaluate", run, "--json", "--batch", "77", "--threads", "1"]));
    assert_eq!(number(&other["metrics"], "accuracy"), number(&report, "test_accuracy"));

    let (table, array) = (folder.join("scores.csv"), folder.join("scores.npy"));
    for file in [&table, &array] {
        let said = json(&plimsoll(&["predict", run, "--json", "--out", file.to_str().unwrap()]));
        assert_eq!(number(&said, "rows"), 2500.0);
        let (planned, measured) = (number(&said, "planned_peak_bytes"), number(&said, "measured_peak_bytes"));
        assert!(
            (measured - planned).abs() <= 4.0 * 1024.0 * 1024.0,
            "planned {planned}, measured {measured}"
        );
    }
    let text = fs::read_to_string(&table).unwrap();
    assert_eq!(text.lines().count(), 2501);
    assert_eq!(text.lines().next().unwrap().split(',').count(), 13);
    let bytes = fs::read(&array).unwrap();
    assert_eq!(bytes.len(), 128 + 2500 * 10 * 4);
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'shape': (2500, 10)"));
    // The same numbers in both.
    let row: Vec<f32> = text.lines().nth(7).unwrap().split(',').skip(3).map(|n| n.parse().unwrap()).collect();
    let start = 128 + 6 * 40;
    let same: Vec<f32> = (0..10)
        .map(|i| f32::from_le_bytes(bytes[start + 4 * i..start + 4 * i + 4].try_into().unwrap()))
        .collect();
    assert_eq!(row, same);
    // Standard output is the table alone.
    let printed = plimsoll(&["predict", run]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), text);

    refused(&["evaluate", run, "--metrics", "acuracy"], &["acuracy", "accuracy"]);
    refused(&["evaluate", run, "--metrics", "auc,auc"], &["twice"]);
    refused(&["evaluate", run, "--data", "synthetic", "--batch", "0"], &["--batch"]);
    refused(&["evaluate", run, "--metrics", "top0"], &["topK", "1..=10"]);
    let objects = json(&plimsoll(&["predict", run, "--json"]));
    assert_eq!(objects["predictions"].as_array().unwrap().len(), 2500);
    // A refusal leaves the existing file.
    let output = plimsoll(&["predict", run, "--memory", "5MiB", "--out", table.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(fs::read_to_string(&table).unwrap(), text);
    assert!(!folder.join("scores.csv.partial").exists());
    refused(&["predict", run, "--out", "scores.xml"], &["scores.xml", ".csv", ".npy"]);
    let short = plimsoll(&["evaluate", run, "--memory", "5MiB"]);
    assert_eq!(short.status.code(), Some(3));
    // Damaged weights are refused by name.
    let weights = folder.join("run/weights.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let output = plimsoll(&["evaluate", run]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("weights.safetensors"), "{message}");
}

#[test]
fn graphs_print_as_text_and_for_graphviz() {
    let text = String::from_utf8(plimsoll(&["graph", "--model", "resnet20", "--batch", "2"]).stdout).unwrap();
    let graph = plimsoll::graph::parse(&text).unwrap();
    assert_eq!(graph.examples, 2);
    let raw = ["graph", "--without=simplify", "--without=save", "--without=fuse", "--without=decompose"];
    let raw = String::from_utf8(plimsoll(&raw).stdout).unwrap();
    assert!(plimsoll::graph::parse(&raw).unwrap().nodes.len() > 60);
    let dot = String::from_utf8(plimsoll(&["graph", "--dot", "--step", "predict"]).stdout).unwrap();
    assert!(dot.starts_with("digraph") && dot.trim_end().ends_with('}') && dot.contains("conv2d"), "{dot}");
}

#[test]
fn damaged_data_is_refused_by_name() {
    let scratch = Scratch::new("damaged");
    let folder = &scratch.0;
    let names = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ];
    let images = |count: u32| {
        let mut bytes = vec![0, 0, 8, 3];
        [count, 28, 28].iter().for_each(|n| bytes.extend(n.to_be_bytes()));
        bytes.extend(vec![7; (count * 28 * 28) as usize]);
        bytes
    };
    let labels = |values: &[u8]| {
        let mut bytes = vec![0, 0, 8, 1];
        bytes.extend((values.len() as u32).to_be_bytes());
        bytes.extend(values);
        bytes
    };
    let write = |i: usize, bytes: &[u8]| fs::write(folder.join(names[i]), bytes).unwrap();
    let spec = format!("mnist:{}", folder.display());
    let train = ["train", "--data", &spec, "--batch", "2", "--epochs", "1"];
    for (i, bytes) in [images(4), labels(&[0, 1, 2, 9]), images(2), labels(&[3, 4])].iter().enumerate() {
        write(i, bytes);
    }
    assert!(plimsoll(&train).status.success());
    write(0, &images(4)[..100]);
    refused(&train, &[names[0]]);
    write(0, &images(4));
    write(1, &labels(&[0, 1, 2, 10]));
    refused(&train, &[names[1], "10"]);
    write(1, &labels(&[0, 1, 2]));
    refused(&train, &[names[1]]);
}

#[test]
fn the_json_line_has_every_field() {
    let report = json(&plimsoll(&[
        "train", "--json", "--model", "lenet", "--batch", "50", "--steps", "4", "--seed", "3",
    ]));
    for field in [
        "planned_peak_bytes",
        "measured_peak_bytes",
        "arena_bytes",
        "line_bytes",
        "step_ms_median",
        "samples_per_second",
        "time_to_first_step_s",
        "final_loss",
        "test_accuracy",
        "steps",
        "micro_batches",
    ] {
        assert!(number(&report, field) >= 0.0, "{field}");
    }
    assert!(report["load_sheet"]["peak"]["holders"].as_array().is_some_and(|h| !h.is_empty()));
}

#[test]
fn weights_depend_on_the_seed_and_not_on_the_line() {
    let scratch = Scratch::new("seed");
    let folder = &scratch.0;
    let weights = |name: &str, more: &[&str]| {
        let out = folder.join(name);
        let mut arguments = vec!["train", "--steps", "5", "--out", out.to_str().unwrap()];
        arguments.extend(more);
        assert!(plimsoll(&arguments).status.success());
        fs::read(out.join("weights.safetensors")).unwrap()
    };
    let first = weights("first", &["--seed", "1", "--threads", "1"]);
    assert!(first == weights("again", &["--seed", "1", "--threads", "3", "--memory", "1GiB"]));
    assert!(first == weights("split", &["--seed", "1", "--micro-batches", "2"]));
    assert!(first == weights("checked", &["--seed", "1", "--check-memory"]), "dead memory was read");
    assert!(first != weights("other", &["--seed", "2"]));
}

#[test]
fn trained_weights_open_in_the_safetensors_library() {
    let scratch = Scratch::new("weights");
    let folder = &scratch.0;
    let out = folder.to_str().unwrap();
    let output = plimsoll(&["train", "--model", "resnet20", "--steps", "2", "--batch", "8", "--out", out]);
    assert!(output.status.success());
    let bytes = fs::read(folder.join("weights.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kernel = tensors.tensor("stage2/block1/conv1/kernel").unwrap();
    assert_eq!(kernel.shape(), [3, 3, 16, 32]);
    assert_eq!(kernel.dtype(), safetensors::Dtype::F32);
    let spread = kernel.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    assert!(
        spread.clone().all(f32::is_finite)
            && spread.clone().any(|x| x > 0.05)
            && spread.clone().any(|x| x < -0.05)
    );
    // 65 parameters and the running mean and variance of 21 norms; optimizer state is not saved.
    assert_eq!(tensors.len(), 65 + 42);
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!(number(&report, "steps"), 2.0);
}

#[test]
fn a_line_above_the_available_memory_does_not_kill_the_run() {
    let output = plimsoll(&[
        "train",
        "--model",
        "mlp",
        "--data",
        "synthetic",
        "--batch",
        "100000000",
        "--memory",
        "100000GiB",
        "--steps",
        "1",
    ]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("available here"));
}

#[test]
fn data_larger_than_the_line_is_refused_before_it_is_loaded() {
    let output = plimsoll(&["train", "--memory", "1MiB"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("1.0 MiB"), "{message}");
}

#[test]
fn a_refusal_prints_json_too() {
    let output = plimsoll(&["plan", "--json", "--data", "synthetic", "--memory", "1MiB"]);
    assert_eq!(output.status.code(), Some(3));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&answer, "missing_bytes"), number(&answer, "needed_bytes") - 1_048_576.0);
}

#[test]
fn text_trains_a_language_model() {
    let scratch = Scratch::new("text");
    let file = scratch.write("text.txt", "the ship sinks to her line and no further; ".repeat(60).as_bytes());
    let spec = format!("text:{}", file.display());
    let size = ["--context", "32", "--width", "32", "--heads", "2", "--layers", "1"];
    let mut arguments =
        vec!["train", "--json", "--model", "gpt", "--data", &spec, "--batch", "4", "--epochs", "12"];
    arguments.extend(size);
    let report = json(&plimsoll(&arguments));
    assert!(number(&report, "test_loss") < 3.0, "{report}");
    assert!(report["test_accuracy"].is_null());
}

/// A run's model is built again with its shared key heads and its window.
#[test]
fn key_heads_and_a_window_are_part_of_a_model() {
    let scratch = Scratch::new("window");
    let file = scratch.write("text.txt", "the ship sinks to her line and no further; ".repeat(60).as_bytes());
    let (spec, out) = (format!("text:{}", file.display()), scratch.path("run"));
    let model = ["--model=gpt", "--width=32", "--heads=4", "--layers=1", "--context=16", "--kv-heads=1"];
    let run = ["--window=4", "--batch=4", "--steps=9", "--json", "--data", &spec, "--out", &out];
    let report = json(&plimsoll(&[&["train"], &model[..], &run].concat()));
    let weights = fs::read(scratch.0.join("run/weights.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert_eq!(tensors.tensor("block1/attention/key/kernel").unwrap().shape(), [32, 8]);
    let evaluated = json(&plimsoll(&["evaluate", &out, "--json"]));
    assert_eq!(number(&evaluated, "loss"), number(&report, "test_loss"));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["zoo"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}

#[test]
fn workloads_are_planned_under_a_share_of_their_peak() {
    let scratch = Scratch::new("workload");
    let path = scratch.0.join("workload.json");
    // A chain of six calls and its backward pass.
    let call = |inputs: &str, output: usize| {
        format!(r#"{{"op": "f", "ns": 10, "in": [{inputs}], "out": [{output}]}}"#)
    };
    let mut calls: Vec<String> = (1..7).map(|i| call(&(i - 1).to_string(), i)).collect();
    calls.push(call("6", 7));
    calls.extend((0..6).map(|i| call(&format!("{}, {}", 5 - i, 7 + i), 8 + i)));
    let text = format!(
        r#"{{"name": "chain", "tensors": {:?}, "pinned": [0], "keep": [13], "calls": [{}], "baseline_ns": 130,
        "recorded_peak_bytes": 8000}}"#,
        [1000; 14],
        calls.join(", ")
    );
    fs::write(&path, &text).unwrap();
    let file = path.to_str().unwrap();
    let plan = |memory: &str| plimsoll(&["plan", "--workload", file, "--memory", memory, "--json"]);
    let whole = json(&plan("1"));
    assert_eq!((number(&whole, "overhead"), number(&whole, "recomputed")), (0.0, 0.0));
    let [share, percent, bytes] = ["0.75", "75%", "6000B"].map(|memory| json(&plan(memory)));
    for field in [
        "line_bytes",
        "planned_peak_bytes",
        "floor_bytes",
        "overhead",
        "lower_bound_overhead",
        "kept",
        "spilled",
    ] {
        assert_eq!(share[field], percent[field], "{field}");
        assert_eq!(share[field], bytes[field], "{field}");
    }
    assert_eq!((number(&share, "line_bytes"), share["feasible"].as_bool()), (6000.0, Some(true)));
    assert!(number(&share, "planned_peak_bytes") <= 6000.0 && number(&share, "recomputed") > 0.0);
    assert!(number(&share, "overhead") >= number(&share, "lower_bound_overhead"));
    assert!(number(&share, "planning_ms") > 0.0 && number(&share, "kept") > 0.0);
    let low = plan("10%");
    assert_eq!(low.status.code(), Some(3));
    let answer: serde_json::Value = serde_json::from_slice(&low.stdout).unwrap();
    assert_eq!(answer["feasible"].as_bool(), Some(false));
    assert_eq!(answer["alternatives"].as_array().map(Vec::len), Some(0));
    let smallest = number(&answer, "smallest_line_bytes");
    assert!(String::from_utf8_lossy(&low.stderr).contains(&format!("{smallest}")));
    assert_eq!(number(&json(&plan(&format!("{smallest}B"))), "floor_bytes"), smallest);
    refused(&["plan", "--workload", file, "--model", "lenet"], &["--workload", "--model"]);
    refused(&["plan", "--workload", "no/such/file"], &["no/such/file"]);
    refused(&["train", "--workload", file], &["--workload"]);
    fs::write(&path, text.replacen("[5, 7]", "[5, 99]", 1).replacen("[0], \"out\"", "[99], \"out\"", 1))
        .unwrap();
    refused(&["plan", "--workload", file], &[file, "call 0", "99"]);
}

/// A line of so many KiB for a program with all formats. One without Parquet and tokenizers is smaller by 768 KiB.
fn line_of(kib: usize) -> String {
    let formats = cfg!(any(feature = "parquet", feature = "tokenizers"));
    format!("{}KiB", if formats { kib } else { kib - 768 })
}

/// A line that lenet of a synthetic batch is split under, as [`line_of`] takes it.
const BELOW_LENET: usize = 14469;
/// A line below the smallest of a small gpt, in the same way.
const BELOW_GPT: usize = 12 << 10;

/// Plans a small language model.
const GPT: [&str; 15] = [
    "plan",
    "--model",
    "gpt",
    "--batch",
    "32",
    "--context",
    "16",
    "--width",
    "32",
    "--heads",
    "2",
    "--layers",
    "1",
    "--classes",
    "200",
];
const LENET: [&str; 3] = ["plan", "--data", "synthetic"];

#[test]
fn plan_reports_overhead_and_floor() {
    let plan = |model: &[&str], memory: &str| plimsoll(&[model, &["--json", "--memory", memory]].concat());
    let unsplit = [&GPT[..], &["--micro-batches", "1"]].concat();
    for (model, splits) in [(&LENET[..], true), (&unsplit[..], false)] {
        let whole = json(&plan(model, "4GiB"));
        let (peak, floor) = (number(&whole, "planned_peak_bytes"), number(&whole, "floor_bytes"));
        assert_eq!((number(&whole, "overhead"), number(&whole, "recomputed")), (0.0, 0.0));
        assert_eq!((number(&whole, "micro_batches"), number(&whole, "spilled")), (1.0, 0.0));
        assert!(floor < peak && number(&whole, "fragmentation") >= 0.0, "{whole}");
        assert!(number(&whole, "kept") > 10.0 && number(&whole, "state_bytes") > 1e5);
        assert!(number(&whole, "planning_ms") > 0.0 && number(&whole, "naive_activation_bytes") > 1e5);
        // The floor is feasible to the byte.
        let lowest = json(&plan(model, &format!("{floor}B")));
        assert!(number(&lowest, "planned_peak_bytes") <= floor);
        assert_eq!(number(&lowest, "floor_bytes"), floor);
        assert!(number(&lowest, "overhead") > 0.0, "{lowest}");
        assert!(number(&lowest, "overhead") >= number(&lowest, "lower_bound_overhead"));
        assert_eq!(number(&lowest, "lower_bound_overhead") > 0.0, !splits, "{lowest}");
        let changed = if splits { "micro_batches" } else { "recomputed" };
        assert!(number(&lowest, changed) > 1.0, "{lowest}");
        for field in ["naive_activation_bytes", "state_bytes"] {
            assert_eq!(lowest[field], whole[field], "{field}");
        }
    }
    let (lower, text) =
        (plan(&LENET, "12.6MiB"), plimsoll(&[&LENET[..], &["--memory", &line_of(BELOW_LENET)]].concat()));
    assert_eq!(lower.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&text.stdout).contains("% longer than without: 2 micro-batches"));
}

/// The alternatives of an answer, as flags; the message lists them, too.
fn alternatives(arguments: &[&str]) -> Vec<(String, bool, f64)> {
    let output = plimsoll(arguments);
    assert_eq!(output.status.code(), Some(3));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["feasible"].as_bool(), Some(false));
    assert!(answer["planned_peak_bytes"].is_null());
    assert!(number(&answer, "floor_bytes") > number(&answer, "line_bytes"));
    assert!(!answer["load_sheet"]["peak"]["holders"][0]["layer"].as_str().unwrap().is_empty());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(&format!("{}", number(&answer, "floor_bytes"))), "{message}");
    let row = |a: &serde_json::Value| {
        let flags = a["flags"].as_str().unwrap().to_string();
        assert!(message.contains(&flags) && number(a, "predicted_ms") > 0.0, "{message}");
        (flags, a["fits"].as_bool().unwrap(), number(a, "planned_peak_bytes"))
    };
    answer["alternatives"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_line_that_is_too_low_is_answered_with_alternatives() {
    let line = line_of(14028);
    let limits = ["--json", "--memory", &line];
    let found = alternatives(&[&LENET[..], &limits, &["--micro-batches", "1"]].concat());
    let flags: Vec<&str> = found.iter().map(|a| a.0.as_str()).collect();
    let wanted = ["--batch 32", "--micro-batches 2", "--precision bf16", "--image-size 14"];
    assert_eq!(flags[..4], wanted);
    let channels = "plimsoll prune RUN --channels 0.5";
    assert_eq!(flags[4..], [channels, "--moments 8bit", "--optimizer momentum", "--optimizer sgd"]);
    assert!(found.iter().any(|a| a.1) && found.iter().any(|a| !a.1), "{found:?}");
    // Each has the peak of a plan with these flags.
    for (flags, fits, peak) in &found {
        let split = if flags.contains("--micro") { &[][..] } else { &["--micro-batches", "1"] };
        // What is made of a run has fewer channels.
        let flags = if flags == channels { "--widths conv1=3,conv2=8" } else { flags };
        let flags: Vec<&str> = flags.split(' ').collect();
        let planned = plimsoll(&[&LENET[..], &limits, split, &flags].concat());
        assert_eq!(planned.status.success(), *fits, "{flags:?}");
        if *fits {
            assert_eq!(number(&json(&planned), "planned_peak_bytes"), *peak, "{flags:?}");
        }
    }
    let train = plimsoll(&["train", "--data", "synthetic", "--micro-batches", "1", "--memory", &line]);
    assert_eq!(train.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&train.stderr).contains("--optimizer sgd"));
}

#[test]
fn alternatives_depend_on_the_model() {
    let gpt = GPT.map(|word| if word == "16" { "128" } else { word });
    let text = alternatives(
        &[&gpt[..], &["--optimizer", "sgd", "--json", "--memory", &line_of(BELOW_GPT)]].concat(),
    );
    let flags: Vec<&str> = text.iter().map(|a| a.0.as_str()).collect();
    // In 16 bits it would need more than it does.
    assert_eq!(flags[1..], ["--context 64", "--width 16"]);
    assert!(flags[0].starts_with("--batch"));
    let norms = ["plan", "--model", "resnet20", "--image-size", "8", "--batch", "16", "--optimizer", "sgd"];
    let norms = alternatives(&[&norms[..], &["--json", "--memory", &line_of(13820)]].concat());
    let flags: Vec<&str> = norms.iter().map(|a| a.0.as_str()).collect();
    // Tiles of bf16 take scratch memory, more than 16 bits save in a model this small.
    let set = json(&plimsoll(&["devices", "--json"]))["cpu"]["instruction_set"].clone();
    let saved: &[&str] = if set == "amx" { &[] } else { &["--precision bf16"] };
    let smaller = ["--image-size 4", "plimsoll prune RUN --channels 0.5"];
    assert_eq!(flags[1..], [saved, &smaller].concat(), "with {set}");
}

#[test]
fn batch_norm_is_split_only_if_allowed_and_the_sheet_says_so() {
    let model = ["--model", "resnet20", "--image-size", "8", "--batch", "16", "--micro-batches", "4"];
    let plan = |more: &[&str]| plimsoll(&[&["plan"], &model[..], more].concat());
    refused(&[&["plan"], &model[..]].concat(), &["mixes the examples"]);
    let sheet = String::from_utf8(plan(&["--allow-split-batchnorm"]).stdout).unwrap();
    assert!(sheet.contains("statistics of 4 examples at a time: the results differ"), "{sheet}");
    let split = ["train", "--steps", "3", "--allow-split-batchnorm", "--json"];
    let report = json(&plimsoll(&[&split[..], &model[..]].concat()));
    assert_eq!((number(&report, "micro_batches"), number(&report, "steps")), (4.0, 3.0));
}

#[test]
fn training_under_a_line_prints_its_cost() {
    let train =
        plimsoll(&["train", "--data", "synthetic", "--steps", "3", "--memory", &line_of(BELOW_LENET)]);
    let text = String::from_utf8_lossy(&train.stdout);
    assert!(text.contains("% time predicted, ") && text.contains("; measured "), "{text}");
    let whole = plimsoll(&["train", "--data", "synthetic", "--steps", "3", "--memory", "64MiB"]);
    assert!(!String::from_utf8_lossy(&whole.stdout).contains("time predicted"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_plan_refuses_a_spill_folder_that_a_run_refuses() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return eprintln!("skipped: /dev/shm is no tmpfs");
    }
    let flags = ["--model=mlp", "--data=synthetic", "--batch=16", "--memory=90MiB", "--spill=/dev/shm"];
    let [plan, train] = ["plan", "train"].map(|command| plimsoll(&[&[command][..], &flags].concat()));
    for output in [&plan, &train] {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("whose files are memory; give --spill a folder on a disk"), "{text}");
    }
    assert_eq!((plan.status.code(), train.status.code()), (Some(1), Some(1)));
    // A plan that offloads nothing needs no folder.
    let roomy = plimsoll(&["plan", "--model=mlp", "--data=synthetic", "--batch=16", "--spill=/dev/shm"]);
    assert!(roomy.status.success());
}

#[test]
fn waiting_for_the_disk_and_recomputing_are_measured() {
    let scratch = Scratch::new("extra");
    let offloading = ["--model=mlp", "--memory=90MiB", "--spill", &scratch.path("")];
    let again = ["--model=resnet20", "--memory=24.5MiB", "--spill=none"];
    for (flags, (waits, repeats)) in [(&offloading[..], (true, false)), (&again, (false, true))] {
        let run = ["train", "--data=synthetic", "--batch=16", "--steps=3", "--threads=2", "--json"];
        let report = json(&plimsoll(&[&run[..], flags].concat()));
        let [waiting, again, share] =
            ["waiting_ms", "again_ms", "measured_overhead"].map(|f| number(&report, f));
        assert_eq!((waiting > 0.0, again > 0.0), (waits, repeats), "{flags:?}: {waiting} and {again} ms");
        // The median step differs from the mean step, but not by much.
        let of_all = (waiting + again) / number(&report, "step_ms_median");
        assert!(share > of_all / 3.0 && share < 30.0, "{flags:?}: {share}, {of_all} of a step");
    }
}

#[test]
fn a_curve_falls_from_no_line_to_the_floor_and_only_gets_slower() {
    let found = json(&plimsoll(&[&GPT[..], &["--curve", "--json"]].concat()));
    let curve = found["curve"].as_array().unwrap();
    assert!((3..=10).contains(&curve.len()), "{curve:?}");
    assert_eq!(number(&curve[0], "overhead"), 0.0);
    assert_eq!(number(&curve[curve.len() - 1], "line_bytes"), number(&found, "floor_bytes"));
    for pair in curve.windows(2) {
        assert!(number(&pair[0], "line_bytes") > number(&pair[1], "line_bytes"), "{pair:?}");
        assert!(number(&pair[0], "overhead") < number(&pair[1], "overhead"), "{pair:?}");
    }
    assert!(curve.iter().all(|row| number(row, "planned_peak_bytes") <= number(row, "line_bytes")));
    // A row is the plan under its line.
    let row = &curve[curve.len() / 2];
    let line = ["--memory", &format!("{}B", number(row, "line_bytes"))];
    let sheet = plimsoll(&[&GPT[..], &line].concat());
    let peak = format!("planned peak, {} bytes", number(row, "planned_peak_bytes"));
    assert!(String::from_utf8_lossy(&sheet.stdout).contains(&peak), "{peak}");
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let model = ["plan", "--data", "synthetic", "--memory", "15.5MiB"];
    let found = json(&plimsoll(&[&model[..], &["--max-batch", "--json"]].concat()));
    let batch = |how: &str| number(&found["max_batch"][how], "batch") as usize;
    let (whole, split) = (batch("without_micro_batches"), batch("with_micro_batches"));
    assert!(whole < split && split.is_multiple_of(32), "{whole}, {split}");
    let fits = |batch: usize, more: &[&str]| {
        let batch = batch.to_string();
        plimsoll(&[&model[..], &["--batch", &batch], more].concat()).status.success()
    };
    assert!(fits(whole, &["--micro-batches", "1"]) && !fits(whole + 1, &["--micro-batches", "1"]));
    assert!(fits(split, &[]) && !fits(split + 32, &[]));
    let mixed = ["plan", "--model", "resnet20", "--image-size", "8", "--max-batch", "--memory", "1MiB"];
    let mixed = plimsoll(&mixed);
    assert_eq!(mixed.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&mixed.stdout).contains("batch norm mixes examples"));
    let none = plimsoll(&["plan", "--data", "synthetic", "--max-batch", "--memory", "2MiB"]);
    assert_eq!(none.status.code(), Some(3));
    refused(&["plan", "--max-batch", "--batch", "3"], &["--max-batch", "--batch"]);
    refused(&["plan", "--curve", "--workload", "file"], &["--curve", "--workload"]);
    refused(&["train", "--curve"], &["--curve"]);
}

#[test]
fn batch_sizes_are_compared_and_the_best_is_marked() {
    let found = json(&plimsoll(&["plan", "--data", "synthetic", "--batches", "--json", "--batch", "24"]));
    let rows = found["batches"].as_array().unwrap();
    let sizes: Vec<f64> = rows.iter().map(|r| number(r, "batch")).collect();
    assert_eq!(sizes, [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0]);
    let best: Vec<_> = rows.iter().filter(|r| r["best"] == true).collect();
    let rate = |row: &serde_json::Value| number(row, "samples_per_second");
    assert!(best.len() == 1 && rows.iter().all(|r| rate(r) <= rate(best[0])), "{rows:?}");
    let text = String::from_utf8(plimsoll(&["plan", "--data", "synthetic", "--batches"]).stdout).unwrap();
    assert!(text.contains("samples/s") && text.contains("best") && !text.contains("Load sheet"), "{text}");
}

#[test]
fn plan_and_zoo_print_tables() {
    let sheet = String::from_utf8(plimsoll(&["plan", "--model", "gpt", "--batch", "4"]).stdout).unwrap();
    for word in ["parameters", "optimizer state", "workspace", "heap cap", "total", "Peak in"] {
        assert!(sheet.contains(word), "no `{word}` in\n{sheet}");
    }
    let zoo = String::from_utf8(plimsoll(&["zoo"]).stdout).unwrap();
    for word in ["mlp", "61,706", "272,474", "5,322,240", "mnist", "16,000"] {
        assert!(zoo.contains(word), "no `{word}` in\n{zoo}");
    }
}

/// Plans use the given disk speed, or a measured one, also for a folder that does not exist yet.
#[test]
fn predictions_follow_the_disk_speed() {
    let scratch = Scratch::new("spill-speed");
    // Most of the memory of an mlp with Adam is state; half of it exceeds the line.
    let line = ["--model=mlp", "--batch=8", "--data=synthetic", "--memory=90MiB", "--threads=2", "--json"];
    let overhead = |speed: &str| {
        let disk = ["plan", "--spill", &scratch.path(""), "--spill-speed", speed];
        let plan = json(&plimsoll(&[&disk[..], &line].concat()));
        assert!(number(&plan, "spilled") > 0.0);
        number(&plan, "overhead")
    };
    let (tape, disk, memory) = (overhead("1MB"), overhead("measure"), overhead("1TB"));
    assert!(tape > disk && disk > memory, "{tape} {disk} {memory}");
    let run = ["train", "--steps=1", "--spill-speed=measure", "--out", &scratch.path("later/run")];
    json(&plimsoll(&[&run[..], &line].concat()));
}
