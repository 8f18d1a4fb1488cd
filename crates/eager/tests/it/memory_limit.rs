//! Random programs inside a memory limit that the kernel enforces: the test runs itself in a control group.

use super::random_programs;
use plimsoll_eager::Eager;
use plimsoll_plan::{MiB, Size};
use plimsoll_testing::{Group, Scratch};
use std::process::Command;

const LINE: usize = 24 << 20;
/// What the program takes besides: code, heap and threads.
const PROGRAM: usize = 16 << 20;

#[test]
fn random_programs_are_never_killed() {
    if std::env::var_os("PLIMSOLL_TEST_LIMITED").is_some() {
        let folder = Scratch::new("eager-limit");
        let line = Size::Bytes(LINE);
        let refusing = Eager::builder().threads(2).line(line).build().unwrap();
        assert!(random_programs::run(&refusing, 5, 1500, LINE) > 20);
        drop(refusing);
        let offloading = Eager::builder().threads(2).line(line).spill(&folder.0, MiB(512)).build().unwrap();
        assert_eq!(random_programs::run(&offloading, 6, 1500, LINE), 0);
        assert!(offloading.pool().offloaded > LINE as u64);
        return;
    }
    let Some(group) = Group::new("eager", LINE + PROGRAM) else { return };
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "memory_limit::random_programs_are_never_killed"]).env("PLIMSOLL_TEST_LIMITED", "1");
    let output = group.enter(&own).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{:?}\n{text}", output.status);
}
