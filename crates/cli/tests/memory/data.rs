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

/// Trains: at least 85 % of what is planned is used, and all of it suffices.
fn planned_is_measured(name: &str, folder: &Scratch, more: &[&str]) {
    let data = format!("images:{}", folder.0.display());
    let run = ["train", "--json", "--steps=12", "--threads=2", "--model=resnet20", "--batch=16"];
    let arguments = [&run[..], &["--data", &data], more].concat();
    let report = json(&plimsoll(&arguments));
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    eprintln!("{name:16}: planned {planned:>10}, measured {measured:>10}, {:.3}", measured / planned);
    assert!(measured <= planned, "{name}: planned {planned}, measured {measured}");
    assert!(measured >= 0.85 * planned, "{name}: planned {planned}, measured {measured}");
    let limit = (planned as usize).next_multiple_of(1 << 20);
    let Some(group) = Group::new(name, limit) else {
        let needed = std::env::var_os("PLIMSOLL_REQUIRE_CGROUP").is_some();
        assert!(!needed, "a memory control group could not be made");
        eprintln!("skipped: this user or system cannot make a memory control group");
        return;
    };
    let line = limit.to_string();
    let inside = json(&group.plimsoll(&[&arguments[..], &["--memory", &line]].concat()));
    assert_eq!(number(&inside, "planned_peak_bytes"), planned, "{name}");
    assert_eq!((number(&inside, "steps"), &inside["loss"]), (12.0, &report["loss"]), "{name}");
}

#[test]
fn a_large_picture_among_small_ones_is_planned_once() {
    let folder = squares("large");
    folder.write("a/large.jpg", &jpeg(2000, 7, true));
    planned_is_measured("large-picture", &folder, &["--workers=3"]);
}

#[test]
fn many_workers_are_planned_by_what_small_pictures_take() {
    planned_is_measured("many-workers", &squares("workers"), &["--workers=32"]);
}
