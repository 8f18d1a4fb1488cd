//! Sparse files far larger than memory: inspecting them needs memory independent of their length.

use crate::support;

use serde_json::Value;
use std::fs::File;
use std::io::Write;
use support::{Scratch, json, number, plimsoll};

/// Bytes of a large file.
const LARGE: u64 = 1 << 40;

/// A sparse file that starts with these bytes.
fn sparse(folder: &Scratch, name: &str, start: &[u8], length: u64) -> String {
    let path = folder.path(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(start).unwrap();
    file.set_len(length).unwrap();
    path
}

/// The header of a NumPy array.
fn header(kind: &str, shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape},), }}");
    let text = format!("{text:<117}\n");
    [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

fn look(spec: &str, more: &[&str]) -> Value {
    json(&plimsoll(&[&["data", spec, "--json", "--seconds=0.2", "--batch=16"], more].concat()))
}

/// Both state the same bytes and have the same peak.
fn agree(small: &Value, large: &Value) {
    let of = |report: &Value| (number(report, "planned_bytes"), number(report, "measured_peak_bytes"));
    let ((planned, peak), (large_planned, large_peak)) = (of(small), of(large));
    assert!(number(large, "examples_read") > 0.0, "{large}");
    // File names differ in length, and the touched pages from run to run.
    assert!((planned - large_planned).abs() < 4096.0, "{planned} and {large_planned}");
    assert!((peak - large_peak).abs() <= 4.0 * 1024.0 * 1024.0, "{peak} and {large_peak}");
}

#[test]
fn a_text_of_a_tebibyte_needs_no_more_memory_than_a_short_one() {
    let folder = Scratch::new("large-text");
    let reports = [1 << 20, LARGE].map(|length| {
        let spec = format!("text:{}", sparse(&folder, "text.txt", b"", length));
        look(&spec, &["--context=64"])
    });
    agree(&reports[0], &reports[1]);
    let windows = number(&reports[1], "train_examples") + number(&reports[1], "test_examples");
    assert_eq!(windows, ((LARGE - 1) / 64) as f64);
}

#[test]
fn arrays_of_a_tebibyte_need_no_more_memory_than_short_ones() {
    let folder = Scratch::new("large-npy");
    let reports = [1u64 << 12, LARGE / 1024].map(|rows| {
        let start = header("<f4", &format!("{rows}, 256"));
        let inputs = sparse(&folder, "x.npy", &start, start.len() as u64 + rows * 1024);
        let start = header("<f4", &rows.to_string());
        let labels = sparse(&folder, "y.npy", &start, start.len() as u64 + rows * 4);
        look(&format!("npz:{inputs}"), &["--workers=1", "--label", &labels])
    });
    agree(&reports[0], &reports[1]);
}

#[test]
fn digits_of_a_tebibyte_are_refused_before_they_are_loaded() {
    let folder = Scratch::new("large-idx");
    let images = |count: u32| {
        [0x803u32, count, 1 << 10, 1 << 10].iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>()
    };
    let labels = |count: u32| [0x801u32, count].iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    for part in ["train", "t10k"] {
        sparse(&folder, &format!("{part}-images-idx3-ubyte"), &images(1 << 20), LARGE + 16);
        sparse(&folder, &format!("{part}-labels-idx1-ubyte"), &labels(1 << 20), (1 << 20) + 8);
    }
    let output = plimsoll(&["data", &format!("mnist:{}", folder.0.display())]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("train-images-idx3-ubyte"), "{message}");
}
