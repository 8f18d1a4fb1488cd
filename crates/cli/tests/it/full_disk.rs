//! A disk that fills up while a checkpoint is written.

use crate::support;

use plimsoll::train::{TrainState, checkpoints};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Scratch, json, number, plimsoll};

/// A small tmpfs that is unmounted when dropped.
pub struct Disk<'s> {
    folder: &'s Path,
}

impl<'s> Disk<'s> {
    /// A disk of this size; `None` where this user cannot mount one.
    pub fn new(folder: &'s Path, bytes: usize) -> Option<Self> {
        let size = format!("size={bytes}");
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "plimsoll"]).arg(folder).output();
        made.is_ok_and(|output| output.status.success()).then_some(Self { folder })
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder).status();
    }
}

#[test]
fn a_disk_that_fills_up_leaves_the_previous_checkpoint() {
    let scratch = Scratch::new("full-disk");
    let (small, whole) = (scratch.0.join("small"), scratch.path("whole"));
    fs::create_dir_all(&small).unwrap();
    // A checkpoint of lenet takes 0.7 MiB: the disk holds the best, the last two, and a partial one.
    let Some(_disk) = Disk::new(&small, 4 << 20) else {
        let required = std::env::var_os("PLIMSOLL_REQUIRE_CGROUP").is_some();
        assert!(!required, "a small disk could not be mounted");
        eprintln!("skipped: this user cannot mount a disk");
        return;
    };
    let out = small.join("run");
    let out = out.to_str().unwrap();
    let run = ["train", "--json", "--save-every=1", "--seed=4", "--threads=2", "--schedule=constant"];
    json(&plimsoll(&[&run[..], &["--steps=9", "--out", &whole]].concat()));
    json(&plimsoll(&[&run[..], &["--steps=3", "--out", out]].concat()));
    let newest = || checkpoints(out).unwrap().pop().unwrap();
    let (before, path) = (fs::read(newest()).unwrap(), newest());
    // From here on a new checkpoint does not fit.
    let free = free_bytes(&small);
    fs::write(small.join("other"), vec![1; free - (300 << 10)]).unwrap();
    let output = plimsoll(&["train", "--resume", out, "--steps=9"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("checkpoint-") && message.contains("untouched"), "{message}");
    assert_eq!(newest(), path);
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(TrainState::read(out).unwrap().steps_done, 3);
    let mut files = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    assert!(files.all(|path| path.extension().is_none_or(|end| end != "partial")));
    // With free space it resumes to the same bits.
    fs::remove_file(small.join("other")).unwrap();
    let report = json(&plimsoll(&["train", "--json", "--resume", out, "--steps=9"]));
    assert_eq!(number(&report, "steps"), 9.0);
    let weights = |folder: &str| fs::read(Path::new(folder).join("weights.safetensors")).unwrap();
    assert!(weights(&whole) == weights(out));
}

/// Free bytes of a disk, from `df`.
pub fn free_bytes(folder: &Path) -> usize {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().last().unwrap().trim().parse().unwrap()
}
