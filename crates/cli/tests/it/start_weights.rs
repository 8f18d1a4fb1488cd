//! Runs that start from weights: of a file, of a run's folder, with another head.

use crate::support;

use std::fs;
use support::{Scratch, json, number, plimsoll};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run that changes nothing, so that what it starts from is what it ends with.
fn still(more: &[&str]) -> serde_json::Value {
    let run = ["train", "--json", "--steps=1", "--optimizer=sgd", "--lr=1e-30", "--data=mnist"];
    json(&plimsoll(&[&run[..], more].concat()))
}

#[test]
fn a_run_starts_from_weights_under_every_naming() {
    let scratch = Scratch::new("weights-start");
    for names in ["own", "torch", "keras"] {
        let out = scratch.path(names);
        let trained =
            json(&plimsoll(&["train", "--json", "--steps=40", "--weight-names", names, "--out", &out]));
        let file = scratch.0.join(names).join("weights.safetensors");
        for start in [file.to_str().unwrap(), &out] {
            let next = still(&["--weights", start]);
            assert_eq!(number(&next, "test_loss"), number(&trained, "test_loss"), "{names} {start}");
        }
    }
    // A folder with only checkpoints, and what the run's own file says.
    fs::remove_file(scratch.0.join("own/weights.safetensors")).unwrap();
    fs::remove_file(scratch.0.join("own/report.json")).unwrap();
    let (start, next) = (scratch.path("own"), scratch.path("next"));
    let report = still(&["--weights", &start, "--seed=5", "--out", &next]);
    assert!(number(&report, "test_accuracy") > 0.5, "{report}");
    let resolved = fs::read_to_string(scratch.0.join("next/resolved.toml")).unwrap();
    assert!(resolved.contains("weights = "), "{resolved}");
}

#[test]
fn a_new_head_loads_what_fits_and_names_the_rest() {
    let scratch = Scratch::new("weights-head");
    let out = scratch.path("ten");
    json(&plimsoll(&["train", "--json", "--steps=20", "--out", &out]));
    let run = ["train", "--classes=12", "--steps=1", "--weights", &out];
    let refused = plimsoll(&run);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    // Before anything is planned, and with a folder of checkpoints, too.
    assert!(refused.stdout.is_empty(), "{}", text(&refused.stdout));
    for word in
        ["`dense3/kernel` has the shape [84, 10] there and [84, 12] here", "`dense3/bias`", "--new-head"]
    {
        assert!(message.contains(word), "`{word}` in {message}");
    }
    let output = plimsoll(&[&run[..], &["--new-head"]].concat());
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("loaded       8 tensors"), "{said}");
    assert!(said.contains("left out     dense3/bias, dense3/kernel"), "{said}");
    assert!(said.contains("new          dense3/kernel, dense3/bias"), "{said}");
    // Weights of quite another model, damaged and missing files.
    let other = scratch.path("other");
    json(&plimsoll(&["train", "--json", "--model=mlp", "--width=8", "--steps=1", "--out", &other]));
    let status = |arguments: &[&str]| {
        let output = plimsoll(&[&["train", "--steps=1"], arguments].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, message) = status(&["--weights", &other]);
    assert!(
        code == Some(2) && message.contains("--new-head") && message.contains("`conv1/kernel`"),
        "{message}"
    );
    let file = scratch.0.join("ten/weights.safetensors");
    let whole = fs::read(&file).unwrap();
    let small = scratch.path("small");
    json(&plimsoll(&["train", "--json", "--classes=9", "--data=synthetic", "--steps=1", "--out", &small]));
    fs::remove_file(scratch.0.join("small/weights.safetensors")).unwrap();
    let checkpoints = plimsoll(&["train", "--steps=1", "--weights", &small]);
    let message = text(&checkpoints.stderr);
    assert!(checkpoints.status.code() == Some(2) && checkpoints.stdout.is_empty(), "{message}");
    assert!(message.contains("`dense3/kernel` has the shape [84, 9] there and [84, 10] here"), "{message}");
    // Nothing of another model fits, whatever the head.
    let none = plimsoll(&["train", "--steps=1", "--model=resnet20", "--new-head", "--weights", &out]);
    let message = text(&none.stderr);
    assert!(none.status.code() == Some(2) && none.stdout.is_empty(), "{message}");
    assert!(message.contains("none of its tensors is one of the model's"), "{message}");
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let (code, message) = status(&["--weights", &out]);
    assert!(code == Some(2) && message.contains("weights.safetensors"), "{message}");
    let evaluated = plimsoll(&["evaluate", &out]);
    assert_eq!(evaluated.status.code(), Some(2), "{}", text(&evaluated.stderr));
    // What is not there is said before the run is planned.
    let empty = scratch.path("empty");
    fs::create_dir(&empty).unwrap();
    for (path, reason) in
        [("no-such-file", "no such file or folder"), (&*empty, "neither weights.safetensors nor")]
    {
        let output = plimsoll(&["train", "--steps=1", "--weights", path]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(output.stdout.is_empty() && message.contains(path) && message.contains(reason), "{message}");
    }
    let (code, message) = status(&["--new-head"]);
    assert!(code == Some(2) && message.contains("--weights"), "{message}");
    // A tensor's name cannot write to the terminal.
    let header = br#"{"a\u001b[31m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let evil = scratch.0.join("evil.safetensors");
    fs::write(&evil, [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat()).unwrap();
    let (code, message) = status(&["--weights", evil.to_str().unwrap()]);
    assert!(code == Some(2) && !message.contains('\x1b'), "{message:?}");
}
