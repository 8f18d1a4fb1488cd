//! Memory of data: planned is little more than measured, and training works inside a kernel limit of what is planned.

use crate::support;

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use support::{Group, Scratch, json, number, plimsoll};

/// A JPEG file of a square.
fn jpeg(side: usize, salt: usize, progressive: bool) -> Vec<u8> {
    let pixels: Vec<u8> = (0..side * side * 3).map(|i| ((i * (salt + 3)) / 7 % 251) as u8).collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 80);
    encoder.set_progressive(progressive);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.encode(&pixels, side as u16, side as u16, ColorType::Rgb).unwrap();
    file
}

/// A folder of squares of 64 pixels in two classes.
fn squares(name: &str) -> Scratch {
    let folder = Scratch::new(name);
    for i in 0..60 {
        folder.write(&format!("{}/{i}.jpg", ["a", "b"][i % 2]), &jpeg(64, i, false));
    }
    folder
}

/// Trains: at least this share of what is planned is used, and all of it suffices.
fn planned_is_measured(name: &str, share: f64, folder: &Scratch, more: &[&str]) {
    let data = format!("images:{}", folder.0.display());
    let run = ["train", "--json", "--steps=12", "--threads=2", "--model=resnet20", "--batch=16"];
    let arguments = [&run[..], &["--data", &data], more].concat();
    let report = json(&plimsoll(&arguments));
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    eprintln!("{name:16}: planned {planned:>10}, measured {measured:>10}, {:.3}", measured / planned);
    assert!(measured <= planned, "{name}: planned {planned}, measured {measured}");
    assert!(measured >= share * planned, "{name}: planned {planned}, measured {measured}");
    let limit = (planned as usize).next_multiple_of(1 << 20);
    let Some(group) = Group::new(name, limit) else { return };
    let line = limit.to_string();
    let inside = json(&group.plimsoll(&[&arguments[..], &["--memory", &line]].concat()));
    assert_eq!(number(&inside, "planned_peak_bytes"), planned, "{name}");
    assert_eq!((number(&inside, "steps"), &inside["loss"]), (12.0, &report["loss"]), "{name}");
}

#[test]
fn a_large_picture_among_small_ones_is_planned_once() {
    let folder = squares("large");
    folder.write("a/large.jpg", &jpeg(2000, 7, true));
    planned_is_measured("large-picture", 0.85, &folder, &["--workers=3"]);
}

#[test]
fn many_workers_are_planned_by_what_small_pictures_take() {
    // How many of them decode at once is the system's choice. They were two thirds when each had memory for any picture.
    planned_is_measured("many-workers", 0.75, &squares("workers"), &["--workers=32"]);
}

/// The tokenizer of the tests of data, changed.
#[cfg(feature = "tokenizers")]
fn tokenizer(folder: &Scratch, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let fixture = format!("{}/../data/tests/fixtures/tokenizer.json", env!("CARGO_MANIFEST_DIR"));
    let mut tokenizer = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    change(&mut tokenizer);
    let path = folder.write("tokenizer.json", tokenizer.to_string().as_bytes());
    path.to_str().unwrap().to_string()
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokenizers_that_expand_are_refused_or_planned() {
    use serde_json::json as value;
    let folder = Scratch::new("tokenizers");
    let text =
        |name: &str, text: String| format!("text:{}", folder.write(name, text.as_bytes()).to_str().unwrap());
    let plain = text("plain.txt", "the quick brown fox jumps over the lazy dog\n".repeat(2000));
    // One sign, which becomes eighteen by compatibility.
    let signs = text("signs.txt", "\u{fdfa}".repeat(20_000));
    let gpt = ["--model=gpt", "--context=64", "--layers=2", "--width=64", "--heads=2", "--classes=4096"];
    let run = |data: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let tokenizer = tokenizer(&folder, change);
        let limit: usize = 96 << 20;
        let line = limit.to_string();
        let more = ["--json", "--steps=3", "--threads=2", "--batch=4", "--data", data];
        let more = [&more[..], &["--tokenizer", &tokenizer, "--memory", &line]].concat();
        let arguments = [&["train"], &gpt[..], &more].concat();
        match Group::new("tokenizers", limit) {
            Some(group) => group.plimsoll(&arguments),
            None => plimsoll(&arguments),
        }
    };
    let added = |file: &mut serde_json::Value| {
        let token = |i: usize| {
            let content = (0..200).map(|k| char::from(b'a' + ((i * 7919 + k * k * (i + 1)) % 26) as u8));
            let content: String = content.collect();
            let flags = value!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": true});
            let mut token = value!({"id": 1000 + i, "content": format!("{i}{content}"), "special": false});
            token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            token
        };
        file["added_tokens"].as_array_mut().unwrap().extend((0..1500).map(token));
    };
    let report = json(&run(&plain, &added));
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    eprintln!("added tokens: planned {planned}, measured {measured}");
    assert!(measured <= planned + 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    let normalizers = [
        (&plain, value!({"type": "Prepend", "prepend": "x".repeat(1 << 20)}), "normalizer `Prepend` puts"),
        (
            &plain,
            value!({"type": "Replace", "pattern": {"String": "o"}, "content": "y".repeat(1 << 20)}),
            "normalizer `Replace` may make",
        ),
        (&signs, value!({"type": "NFKC"}), "normalizer makes"),
    ];
    for (data, normalizer, expected) in normalizers {
        let output = run(data, &|file| file["normalizer"] = normalizer.clone());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{expected}: {message}");
        assert!(message.contains(expected), "{expected}: {message}");
    }
}
