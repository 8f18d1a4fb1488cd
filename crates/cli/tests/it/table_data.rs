//! Tables, arrays, records and tokens through the command line: flags are used, or refused with a reason.

use crate::support;

use std::fmt::Write;
use support::{Scratch, json, number, plimsoll};

fn fixture(kind: &str, name: &str) -> String {
    format!("{kind}:{}/../data/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Rows whose label depends on a number and a word; other columns are noise.
fn table() -> String {
    let mut text = String::from("height,noise,colour,weight,kind\n");
    for i in 0..600u32 {
        let (height, weight) = (f64::from(i * 37 % 200) / 10.0, f64::from(i * 53 % 300));
        let colour = ["red", "green"][(i / 7 % 2) as usize];
        let kind = match (height > 10.0, colour) {
            (true, "red") => "tower",
            (true, _) => "tree",
            _ => "bush",
        };
        let _ = writeln!(text, "{height},{},{colour},{weight},{kind}", i * 7919 % 101);
    }
    text
}

#[test]
fn a_perceptron_trains_and_evaluates_on_a_table() {
    let folder = Scratch::new("table");
    let file = std::path::PathBuf::from(folder.path("plants.csv"));
    std::fs::write(&file, table()).unwrap();
    let (spec, run) = (format!("csv:{}", file.display()), folder.path("run"));
    let arguments = [
        "train",
        "--json",
        "--model",
        "mlp",
        "--width",
        "32",
        "--data",
        &spec,
        "--columns",
        "height,colour,weight",
        "--epochs",
        "20",
        "--batch",
        "32",
        "--out",
        &run,
    ];
    let report = json(&plimsoll(&arguments));
    assert!(number(&report, "test_accuracy") > 0.95, "{report}");
    assert_eq!(report["model_options"]["features"], 4, "two numbers, and a word of two values");
    assert_eq!(report["model_options"]["classes"], 3);
    assert!(number(&report, "heap_peak_bytes") <= number(&report, "heap_limit_bytes"), "{report}");
    let measured = json(&plimsoll(&["evaluate", &run, "--json"]));
    assert!((number(&measured["metrics"], "accuracy") - number(&report, "test_accuracy")).abs() < 1e-9);
    // Rows of another table, which lacks a word, two classes and all small numbers, are taken as those of training.
    let tall = |line: &&str| line.starts_with("height") || line.contains("red") && line.ends_with("tower");
    let towers: Vec<String> = table().lines().filter(tall).map(str::to_string).collect();
    let other = folder.write("towers.csv", (towers.join("\n") + "\n").as_bytes());
    let measured =
        json(&plimsoll(&["evaluate", &run, "--json", "--data", &format!("csv:{}", other.display())]));
    assert!(number(&measured["metrics"], "accuracy") > 0.9, "{measured}");
    let unknown = folder
        .write("blue.csv", format!("height,colour,weight,kind\n{}", "1,blue,2,bush\n".repeat(20)).as_bytes());
    let output = plimsoll(&["evaluate", &run, "--data", &format!("csv:{}", unknown.display())]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("not trained with `blue`"), "{message}");
    let resumed = json(&plimsoll(&["train", "--json", "--resume", &run, "--epochs", "21"]));
    assert_eq!(resumed["model_options"]["features"], 4);
}

#[test]
fn every_format_can_be_inspected_and_trained_on() {
    let folder = Scratch::new("formats");
    for (spec, flags) in [
        (fixture("npz", "points.npz"), &[][..]),
        (fixture("npz", "kinds.npz"), &["--label", "y"]),
        (fixture("csv", "table.csv"), &["--columns", "size,count,colour"]),
        (fixture("parquet", "table.parquet"), &["--columns", "size,count,colour", "--shuffle", "8"]),
        (fixture("parquet", "table.arrow"), &["--columns", "size,count,colour"]),
        (fixture("tfrecord", "numbers-*.tfrecord"), &["--workers", "2"]),
        (fixture("tfrecord", "numbers-*.tfrecord.gz"), &["--shuffle", "8"]),
    ] {
        if spec.starts_with("parquet:") && !cfg!(feature = "parquet") {
            continue;
        }
        let mut arguments = vec!["data", &spec, "--json", "--seconds", "0.05", "--batch", "4"];
        arguments.extend(flags);
        let report = json(&plimsoll(&arguments));
        assert!(number(&report, "examples_read") > 0.0, "{report}");
        assert_eq!(report["samples"].as_array().unwrap().len(), 3, "{report}");
        if spec.contains("kinds.npz") {
            continue; // several inputs
        }
        let run = folder.path("run");
        let size =
            ["--model", "mlp", "--width", "16", "--batch", "4", "--steps", "8", "--overwrite", "--out", &run];
        let mut arguments = vec!["train", "--json", "--data", &spec];
        arguments.extend(size.iter().chain(flags));
        let report = json(&plimsoll(&arguments));
        assert!(number(&report, "final_loss").is_finite(), "{report}");
        assert!(number(&report, "heap_peak_bytes") <= number(&report, "heap_limit_bytes"), "{report}");
    }
    let pictures = fixture("tfrecord", "pictures.tfrecord");
    let arguments = [
        "train",
        "--json",
        "--data",
        &pictures,
        "--model",
        "resnet20",
        "--image-size",
        "16",
        "--augment",
        "--batch",
        "4",
        "--steps",
        "3",
    ];
    assert_eq!(json(&plimsoll(&arguments))["model_options"]["classes"], 3);
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_tokenizer_file_gives_a_language_model_its_vocabulary() {
    let folder = Scratch::new("tokens");
    let run = folder.path("run");
    let (spec, tokenizer) = (fixture("text", "text.txt"), fixture("", "tokenizer.json"));
    let tokenizer = tokenizer.trim_start_matches(':');
    let arguments = [
        "train",
        "--json",
        "--model",
        "gpt",
        "--data",
        &spec,
        "--tokenizer",
        tokenizer,
        "--context",
        "16",
        "--width",
        "32",
        "--heads",
        "2",
        "--layers",
        "1",
        "--batch",
        "8",
        "--epochs",
        "8",
        "--out",
        &run,
    ];
    let report = json(&plimsoll(&arguments));
    assert_eq!(report["model_options"]["classes"], 300);
    assert!(number(&report, "test_loss") < 4.5, "below ln 300 = 5.7: {report}");
    assert!(number(&report, "heap_peak_bytes") <= number(&report, "heap_limit_bytes"), "{report}");
    let measured = json(&plimsoll(&["evaluate", &run, "--json"]));
    assert!((number(&measured, "loss") - number(&report, "test_loss")).abs() < 1e-6);
}

#[test]
fn flags_without_effect_and_unsuitable_labels_are_refused() {
    let (csv, text) = (fixture("csv", "table.csv"), fixture("text", "text.txt"));
    let plain = fixture("tfrecord", "numbers-*.tfrecord");
    let raster = fixture("raster", "tiled.tif");
    for (arguments, words) in [
        (vec!["train", "--augment"], vec!["--augment does nothing with mnist", "images, tar"]),
        (
            vec!["train", "--workers", "2", "--data", "synthetic"],
            vec!["--workers does nothing with synthetic"],
        ),
        (
            vec!["train", "--model", "gpt", "--data", &text, "--label", "y"],
            vec!["--label does nothing with text"],
        ),
        (vec!["data", &csv, "--image-size", "32"], vec!["--image-size does nothing with csv"]),
        (vec!["data", "mnist", "--channels", "3"], vec!["--channels does nothing with mnist"]),
        (vec!["data", &csv, "--context", "32"], vec!["--context does nothing with csv"]),
        (vec!["data", &plain, "--augment"], vec!["augment", "holds numbers, not pictures"]),
        (vec!["data", &plain, "--image-size", "32"], vec!["holds numbers, not pictures", "--image-size"]),
        (
            vec!["data", &raster],
            if cfg!(feature = "tiff") { vec!["the file with the classes", "label"] } else { vec!["feature"] },
        ),
        (vec!["data", &raster, "--augment", "--label", "c.tif"], vec!["--augment does nothing with raster"]),
        (vec!["data", &csv, "--prefetch", "many"], vec!["a number of batches, at most 1024, or auto"]),
        (vec!["data", &csv, "--max-pixels", "9"], vec!["--max-pixels does nothing with csv"]),
        (vec!["data", &csv, "--tokenizer", "t.json"], vec!["--tokenizer does nothing with csv"]),
        (vec!["data", &csv, "--columns", "size", "--shuffle", "9"], vec!["--shuffle does nothing with csv"]),
        (vec!["data", &plain, "--shuffle", "9"], vec!["shuffle", "no buffer is needed"]),
        (vec!["data", &csv, "--label", "price"], vec!["no column `price`", "size, count"]),
        (
            vec!["data", &text, "--tokenizer", "nothing.json"],
            vec![if cfg!(feature = "tokenizers") { "nothing.json" } else { "feature" }],
        ),
        (
            vec!["train", "--model", "mlp", "--data", &csv, "--columns", "count", "--label", "size"],
            vec!["label `size` holds values", "--label"],
        ),
    ] {
        let output = plimsoll(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: no `{word}` in: {message}");
        }
        for word in ["OpenOptions", "max_bytes", "panicked"] {
            assert!(!message.contains(word), "{arguments:?}: {message}");
        }
    }
}

#[cfg(feature = "tiff")]
#[test]
fn windows_of_a_raster_can_be_inspected_and_trained_on() {
    let folder = Scratch::new("raster");
    let (run, spec, classes) =
        (folder.path("run"), fixture("raster", "tiled.tif"), fixture("", "classes.tif"));
    let flags = [&spec, "--label", classes.trim_start_matches(':'), "--json"];
    let looks =
        [&["data"], &flags[..], &["--image-size", "16", "--seconds", "0.05", "--batch", "4"]].concat();
    let report = json(&plimsoll(&looks));
    assert_eq!((number(&report, "train_examples"), number(&report, "classes")), (11.0, 3.0));
    let model = ["--model", "unet", "--image-size", "16", "--width", "4", "--batch", "4", "--steps", "4"];
    let report = json(&plimsoll(&[&["train", "--out", &run, "--data"], &flags[..], &model].concat()));
    assert_eq!(
        (&report["model_options"]["classes"], &report["model_options"]["channels"]),
        (&3.into(), &3.into())
    );
    assert!(number(&report, "final_loss").is_finite(), "{report}");
    assert!(number(&report, "heap_peak_bytes") <= number(&report, "heap_limit_bytes"), "{report}");
    let measured = json(&plimsoll(&["evaluate", &run, "--json"]));
    assert!((number(&measured, "loss") - number(&report, "test_loss")).abs() < 1e-6);
}
