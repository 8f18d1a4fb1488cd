//! Training on image files through the real binary: peak and bits with readers and decoders beside the step.

use crate::support;

use serde_json::Value;
use support::{Group, Scratch, json, number, plimsoll};

/// Writes 120 training and 30 test images of three classes, 40×36 pixels, as PNG files.
fn pictures(scratch: &Scratch) -> String {
    let folder = scratch.0.join("pictures");
    for (part, count) in [("train", 40), ("test", 10)] {
        for class in 0..3usize {
            let place = folder.join(part).join(format!("class{class}"));
            std::fs::create_dir_all(&place).unwrap();
            for i in 0..count {
                let pixel = |p: usize| ((p * (class + 2) + i * 7) % 200) as u8 + (class as u8) * 20;
                let pixels: Vec<u8> = (0..40 * 36 * 3).map(pixel).collect();
                let file = std::fs::File::create(place.join(format!("{i}.png"))).unwrap();
                let mut encoder = png::Encoder::new(file, 40, 36);
                encoder.set_color(png::ColorType::Rgb);
                encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
            }
        }
    }
    format!("images:{}", folder.display())
}

fn train(data: &str, more: &[&str]) -> Value {
    let run =
        ["train", "--model=resnet20", "--classes=3", "--batch=16", "--threads=2", "--json", "--data", data];
    json(&plimsoll(&[&run[..], more].concat()))
}

#[test]
fn a_model_has_the_classes_of_its_pictures() {
    let scratch = Scratch::new("image-classes");
    let data = pictures(&scratch);
    let run = [
        "train",
        "--model=mobilenet_v2",
        "--image-size=32",
        "--batch=8",
        "--steps=1",
        "--json",
        "--data",
        &data,
    ];
    let classes =
        |more: &[&str]| json(&plimsoll(&[&run[..], more].concat()))["model_options"]["classes"].clone();
    assert_eq!((classes(&[]), classes(&["--classes=5"])), (3.into(), 5.into()));
    let few = plimsoll(&[&run[..], &["--classes=2"]].concat());
    let message = String::from_utf8_lossy(&few.stderr).into_owned();
    assert!(
        few.status.code() == Some(2) && message.contains("the data has 3 classes, the model 2"),
        "{message}"
    );
}

#[test]
fn the_measured_peak_is_the_planned_one_with_input_workers() {
    let scratch = Scratch::new("image-peak");
    let data = pictures(&scratch);
    for workers in ["1", "3"] {
        let flags = ["--steps=10", "--augment", "--workers", workers];
        let report = train(&data, &flags);
        let (planned, measured) =
            (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
        assert!(
            (measured - planned).abs() <= 4.0 * 1024.0 * 1024.0,
            "planned {planned}, measured {measured}"
        );
        let (heap, cap) = (number(&report, "heap_peak_bytes"), number(&report, "heap_limit_bytes"));
        assert!(heap <= cap, "{heap} bytes on the heap, the cap is {cap}");
        let outside = report["load_sheet"]["outside"].as_array().unwrap();
        for name in ["data set", "batch buffers", "input workers", "decoders", "input stacks"] {
            assert!(outside.iter().any(|entry| entry["name"] == name), "{name} is not in the load sheet");
        }
        let limit = (planned as usize).next_multiple_of(1 << 20);
        let Some(group) = Group::new(&format!("images-{workers}"), limit) else { continue };
        let line = limit.to_string();
        let run = [
            "train",
            "--model=resnet20",
            "--classes=3",
            "--batch=16",
            "--threads=2",
            "--json",
            "--data",
            &data,
        ];
        let inside = json(&group.plimsoll(&[&run[..], &flags[..], &["--memory", &line]].concat()));
        assert_eq!(number(&inside, "steps"), 10.0);
    }
}

#[test]
fn workers_prefetching_and_resuming_change_no_bit() {
    let scratch = Scratch::new("image-bits");
    let data = pictures(&scratch);
    let weights = |name: &str| std::fs::read(scratch.0.join(name).join("weights.safetensors")).unwrap();
    train(&data, &["--steps=11", "--augment", "--workers=1", "--out", &scratch.path("whole")]);
    train(
        &data,
        &["--steps=11", "--augment", "--workers=3", "--prefetch=2", "--out", &scratch.path("three")],
    );
    assert!(weights("whole") == weights("three"), "the number of workers changed the weights");
    let found_out = ["--prefetch=auto", "--workers=2"];
    let report = train(
        &data,
        &[&["--steps=11", "--augment", "--out", &scratch.path("auto")], &found_out[..]].concat(),
    );
    assert!(weights("whole") == weights("auto"), "batches ahead changed the weights");
    // The line allows for three more batches of 16 images and labels, not for 15.
    let ahead = |report: &Value| {
        let entries = report["load_sheet"]["outside"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == "batches ahead");
        entry.map_or(0.0, |entry| number(entry, "bytes"))
    };
    let each = (16 * (32 * 32 * 3 + 1) * 4) as f64;
    assert_eq!(ahead(&report), 15.0 * each);
    let line = number(&report, "planned_peak_bytes") - 11.5 * each;
    let report =
        train(&data, &[&["--steps=11", "--augment", "--memory", &line.to_string()], &found_out[..]].concat());
    assert_eq!(ahead(&report), 3.0 * each);
    // In the middle of the second epoch, of 8 steps each.
    train(&data, &["--steps=10", "--augment", "--schedule=constant", "--out", &scratch.path("ten")]);
    train(&data, &["--steps=11", "--augment", "--schedule=constant", "--out", &scratch.path("eleven")]);
    json(&plimsoll(&["train", "--json", "--resume", &scratch.path("ten"), "--steps=11", "--workers=2"]));
    assert!(weights("ten") == weights("eleven"), "resuming changed the weights");
}

#[test]
fn bad_files_are_named_or_skipped() {
    let scratch = Scratch::new("image-bad");
    let data = pictures(&scratch);
    let bad = scratch.0.join("pictures/train/class1/5.png");
    std::fs::write(&bad, b"\x89PNG but not really").unwrap();
    let run = ["train", "--model=resnet20", "--classes=3", "--batch=16", "--epochs=1", "--data", &data];
    let output = plimsoll(&run);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("class1/5.png"), "{message}");
    let output = plimsoll(&[&run[..], &["--skip-bad=1", "--json"]].concat());
    assert_eq!(number(&json(&output), "skipped"), 1.0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 bad records were skipped"));
    // More classes than the model has, and an empty folder.
    let output = plimsoll(&["train", "--model=resnet20", "--classes=2", "--data", &data]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("give the model 3"));
    let output =
        plimsoll(&["train", "--model=resnet20", "--data", &format!("images:{}", scratch.path("none"))]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn data_is_inspected_without_training() {
    let scratch = Scratch::new("image-look");
    let data = pictures(&scratch);
    let look = ["data", &data, "--image-size=32", "--batch=8", "--seconds=0.2", "--json"];
    let report = json(&plimsoll(&look));
    assert_eq!((number(&report, "train_examples"), number(&report, "test_examples")), (120.0, 30.0));
    assert_eq!(number(&report, "classes"), 3.0);
    assert!(number(&report, "samples_per_second") > 0.0 && number(&report, "planned_bytes") > 0.0);
    assert_eq!(report["samples"].as_array().unwrap().len(), 3);
    let report = json(&plimsoll(&["data", "mnist", "--seconds=0.1", "--json"]));
    assert_eq!(number(&report, "train_examples"), 16_000.0);
}

#[test]
fn held_out_images_are_not_augmented() {
    let scratch = Scratch::new("image-held-out");
    let data = pictures(&scratch);
    let loss = |more: &[&str]| {
        // A learning rate that changes nothing.
        let run = ["train", "--model=lenet", "--image-size=32", "--channels=3", "--classes=3", "--steps=1"];
        let still = ["--batch=16", "--optimizer=sgd", "--lr=1e-30", "--validation-split=0.2", "--json"];
        let report = json(&plimsoll(&[&run[..], &still, &["--data", &data], more].concat()));
        let (planned, measured) =
            (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
        assert!(
            (measured - planned).abs() <= 4.0 * 1024.0 * 1024.0,
            "planned {planned}, measured {measured}"
        );
        number(&report, "validation_loss")
    };
    assert_eq!(loss(&["--augment"]), loss(&[]));
}

#[test]
fn images_for_a_bf16_model_are_bf16() {
    let scratch = Scratch::new("image-bf16");
    let data = pictures(&scratch);
    let out = scratch.path("run");
    let run = |more: &[&str]| train(&data, &[&["--steps=6", "--workers=1"], more].concat());
    let buffers = |report: &Value| {
        let outside = report["load_sheet"]["outside"].as_array().unwrap();
        number(outside.iter().find(|entry| entry["name"] == "batch buffers").unwrap(), "bytes")
    };
    let (wide, narrow) = (run(&[]), run(&["--precision=bf16", "--out", &out]));
    // Two batches for training, and two for evaluation.
    let pictures = (16.0 + 16.0) * 2.0 * 32.0 * 32.0 * 3.0;
    assert_eq!(buffers(&wide) - buffers(&narrow), pictures * 2.0);
    let (planned, measured) = (number(&narrow, "planned_peak_bytes"), number(&narrow, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    let again = json(&plimsoll(&["evaluate", &out, "--json"]));
    assert!((number(&again, "loss") - number(&narrow, "test_loss")).abs() < 1e-6);
}
