//! Layers placed on logical devices through the real binary: flags, bits, lines, the placement log, resuming.

use crate::replicas::{refused, run, text, weights};
use crate::support;

use std::fs;
use support::{Scratch, json, number, plimsoll};

const TWO: [&str; 2] = ["--place=*1=cpu:0", "--place=*=cpu:1"];

#[test]
fn placed_layers_leave_the_weights_of_one_device_and_stay_where_they_are() {
    let scratch = Scratch::new("placed");
    let folder = |name: &str| scratch.path(name);
    let one = weights(&folder("one"), "6", &[]);
    let lines = [&TWO[..], &["--device-memory=cpu:0=64MiB,cpu:1=32MiB", "--micro-batches=2"]].concat();
    assert!(weights(&folder("two"), "6", &lines) == one);
    assert!(weights(&folder("three"), "6", &["--place=*2=cpu:1,*3=cpu:2,*=cpu"]) == one);
    let resumed = |name: &str, before: &[&str], after: &[&str]| {
        let folder = folder(name);
        weights(&folder, "3", before);
        let words = [&["train", "--resume", &folder, "--steps=6", "--json", "--sheet"], after].concat();
        let output = plimsoll(&words);
        json(&output);
        (fs::read(format!("{folder}/weights.safetensors")).unwrap(), text(&output))
    };
    let (whole, _) = resumed("resumed", &[], &[]);
    let (kept, told) = resumed("kept", &TWO, &[]);
    assert!(kept == whole && told.contains("Load sheet for cpu:1"), "{told}");
    let (other, told) = resumed("other", &TWO, &["--place=*=cpu:0"]);
    assert!(other == whole && !told.contains("Load sheet for cpu:1"), "{told}");
    let (replicas, _) = resumed("replicas", &TWO, &["--replicas=2"]);
    assert!(replicas == whole);
    assert!(resumed("from one", &[], &TWO).0 == whole);
    // What an automatic placement came to is kept.
    let (auto, told) = resumed("auto", &["--place=auto"], &[]);
    assert!(auto == whole && told.contains("Load sheet for cpu:1"), "{told}");
    let kept = fs::read_to_string(folder("auto") + "/resolved.toml").unwrap();
    assert!(kept.contains("dense1=cpu:0") && !kept.contains("auto="), "{kept}");
}

#[test]
fn every_device_has_a_sheet_and_the_process_stays_under_its_plan() {
    let sheet = text(&run("plan", &[&TWO[..], &["--device-memory=cpu:1=24MiB"]].concat()));
    let found = |words: &str| assert!(sheet.contains(words), "no `{words}` in {sheet}");
    ["Load sheet for cpu:0", "Load sheet for cpu:1", "24.0 MiB", "received"]
        .iter()
        .for_each(|words| found(words));
    let low = run("plan", &[&TWO[..], &["--device-memory=cpu:1=20KiB"]].concat());
    refused(&low, 3, &["the line of cpu:1", "too low"]);
    refused(&run("plan", &[&TWO[..], &["--memory=4MiB"]].concat()), 3, &["the line is", "too low"]);
    let one = json(&run("plan", &["--json"]));
    let two = json(&run("plan", &[&TWO[..], &["--json"]].concat()));
    assert_eq!(number(&two, "state_bytes"), number(&one, "state_bytes"));
    let devices = two["load_sheet"]["devices"].as_array().unwrap();
    let arenas: Vec<f64> = devices.iter().map(|device| number(device, "arena_bytes")).collect();
    assert!(arenas.iter().all(|arena| *arena < number(&one, "arena_bytes")), "{arenas:?}");
    // What the run really takes is what is planned for the arenas and the rest.
    let lines = ["--steps=5", "--json", "--device-memory=cpu:0=24MiB,cpu:1=24MiB"];
    let run = json(&run("train", &[&TWO[..], &lines].concat()));
    let (planned, measured) = (number(&run, "planned_peak_bytes"), number(&run, "measured_peak_bytes"));
    assert!(measured <= planned + f64::from(4 << 20), "{measured} of {planned}");
}

#[test]
fn the_placement_lists_what_passes_between_devices() {
    let table = text(&run("plan", &[&TWO[..], &["--log-placement"]].concat()));
    let row = |device: &str, op: &str, layer: &str| {
        table.lines().any(|row| row.starts_with(device) && row.contains(op) && row.contains(layer))
    };
    assert!(row("cpu:0", "matmul", "dense1") && row("cpu:1", "matmul", "dense2"), "{table}");
    assert!(
        !row("cpu:1", "matmul", "dense1") && row("cpu:0", "give", "") && row("cpu:1", "take", "KiB"),
        "{table}"
    );
    assert!(table.contains("cpu:0 receives") && table.contains("cpu:1 receives"), "{table}");
}

#[test]
fn a_tied_embedding_and_batch_norm_train_on_several_devices() {
    let scratch = Scratch::new("placed-models");
    let train = |folder: &str, model: &[&str], more: &[&str]| {
        let folder = scratch.path(folder);
        let words = ["train", "--data=synthetic", "--steps=2", "--json", "--threads=2", "--out", &folder];
        json(&plimsoll(&[&words[..], model, more].concat()));
        fs::read(format!("{folder}/weights.safetensors")).unwrap()
    };
    let gpt = [
        "--model=gpt2",
        "--layers=2",
        "--width=32",
        "--heads=2",
        "--context=16",
        "--batch=8",
        "--precision=bf16",
    ];
    let one = train("gpt", &gpt, &[]);
    assert!(train("placed gpt", &gpt, &["--place=block[0-1].*=cpu:0", "--place=*=cpu:1"]) == one);
    let norms = ["--model=resnet20", "--image-size=8", "--batch=32"];
    let one = train("resnet", &norms, &[]);
    assert!(train("placed resnet", &norms, &["--place=stage[23]=cpu:1,head=cpu:1,*=cpu:0"]) == one);
}

#[test]
fn wrong_rules_say_what_to_change() {
    let plan = |more: &[&str]| run("plan", more);
    refused(&plan(&["--place=dense1"]), 2, &["--place", "LAYERS=DEVICE", "cpu:0"]);
    refused(&plan(&["--place=*=cuda"]), 2, &["name one GPU, like cuda:0"]);
    refused(
        &plan(&["--place=*1=cpu,*=cuda:63"]),
        2,
        &["--place:", "place its layers on cpu", "plimsoll devices"],
    );
    refused(&plan(&["--place=auto=cuda:63,cpu"]), 2, &["--place:", "place its layers on cpu"]);
    refused(&plan(&["--place=*=cpu:99"]), 2, &["does not exist", "cpu:0 to cpu:63"]);
    refused(&plan(&["--place=dens1=cpu:0,*=cpu:1"]), 2, &["matches no layer", "nearest is `dense1`"]);
    refused(&plan(&["--place=dense1=cpu:0"]), 2, &["no rule says where", "*=cpu:0"]);
    refused(&plan(&["--place=auto,*=cpu:0"]), 2, &["leave the other rules out"]);
    refused(&plan(&["--place=auto=cpu:0-20"]), 2, &["too few for 21 devices"]);
    refused(&plan(&["--place=dense1=cpu:0,*=cpu:2"]), 2, &["no layer is on cpu:1"]);
    refused(&plan(&[&TWO[..], &["--replicas=2"]].concat()), 2, &["--replicas"]);
    refused(&plan(&[&TWO[..], &["--device=cuda"]].concat()), 2, &["leave --device out"]);
    refused(&plan(&[&TWO[..], &["--device-memory=cpu:2=1GiB"]].concat()), 2, &["there is no cpu:2"]);
    let unused = [&TWO[..], &["--device-memory=cuda:0=1GiB"]].concat();
    refused(&plan(&unused), 2, &["there is no cuda:0", "the devices are cpu:0, cpu:1"]);
    refused(&plan(&[&TWO[..], &["--device-memory=1GiB"]].concat()), 2, &["say of which device"]);
    refused(&run("train", &[&TWO[..], &["--ranks=2"]].concat()), 2, &["leave them or --ranks out"]);
}
