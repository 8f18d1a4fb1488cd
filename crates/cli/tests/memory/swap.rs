//! What a run says of swap, on a system that has some: files of `/proc` are replaced, in a mount namespace of the run's own.

use crate::support;

use std::process::{Command, Output};
use support::{NO_CACHE, Scratch, json, number, plimsoll};

const MIB: usize = 1 << 20;
/// The run of these tests.
const RUN: [&str; 5] = ["train", "--json", "--steps=3", "--threads=2", "--memory=128MiB"];

/// A system's files: what is available, its swap, and how much of the process is there.
struct System {
    scratch: Scratch,
}

impl System {
    /// With this much available memory and swap, of which the process holds a part. `None`, and a word, where `/proc` cannot be replaced.
    fn new(name: &str, available: usize, swap: usize, own: usize) -> Option<Self> {
        let scratch = Scratch::new(name);
        let kib = |bytes: usize| bytes >> 10;
        let (total, swap) = (kib(64 << 30), kib(swap));
        scratch.write(
            "meminfo",
            format!(
                "MemTotal: {total} kB\nMemAvailable: {} kB\nSwapTotal: {swap} kB\nSwapFree: {swap} kB\n",
                kib(available)
            )
            .as_bytes(),
        );
        scratch.write(
            "status",
            format!(
                "VmHWM:\t20480 kB\nVmRSS:\t20480 kB\nRssAnon:\t0 kB\nRssFile:\t10240 kB\nRssShmem:\t0 kB\nVmSwap:\t{} kB\nThreads:\t4\n",
                kib(own)
            )
            .as_bytes(),
        );
        // No group limits it.
        scratch.write("cgroup", b"");
        let system = Self { scratch };
        let probe = system.run(&Command::new("true"));
        match probe {
            Ok(output) if output.status.success() => Some(system),
            other => {
                eprintln!("skipped: files of /proc cannot be replaced here: {other:?}");
                None
            }
        }
    }

    /// Runs a command in it.
    fn run(&self, command: &Command) -> std::io::Result<Output> {
        // The shell becomes the command, so that its number stays.
        let replace = r#"mount --make-rprivate / && for file in status cgroup; do mount --bind "$0/$file" "/proc/$$/$file" || exit 1; done
            mount --bind "$0/meminfo" /proc/meminfo && exec "$@""#;
        let mut inside = Command::new("unshare");
        inside.args(["-m", "sh", "-c", replace]).arg(&self.scratch.0);
        inside.arg(command.get_program()).args(command.get_args()).env(NO_CACHE.0, NO_CACHE.1).output()
    }

    fn plimsoll(&self, arguments: &[&str]) -> Output {
        self.run(&support::command(arguments)).unwrap()
    }
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_run_that_is_likely_to_be_swapped_says_so() {
    let planned = number(&json(&plimsoll(&[&["plan"], &RUN[1..]].concat())), "planned_peak_bytes") as usize;
    let warning = "may move pages of this run to swap (8.0 GiB of it): its line is then not proven";
    for (name, available, swap, expected) in [
        ("swap-tight", planned * 11 / 10, 8 << 30, true),
        ("swap-roomy", planned * 3, 8 << 30, false),
        ("swap-none", planned * 11 / 10, 0, false),
    ] {
        let Some(system) = System::new(name, available, swap, 0) else { return };
        let text = said(&system.plimsoll(&RUN));
        assert_eq!(text.contains(warning), expected, "{name}: {text}");
    }
}

#[test]
fn pages_in_swap_are_counted_in_every_step_and_told_at_the_end() {
    let Some(system) = System::new("swap-own", 1 << 30, 8 << 30, 3 * MIB) else { return };
    let out = system.scratch.path("run");
    let output = system.plimsoll(&[&RUN[..], &["--out", &out]].concat());
    let text = said(&output);
    assert!(text.contains("may move pages of this run to swap"), "{text}");
    assert!(text.contains("up to 3.0 MiB of this run were in swap: its line was not proven"), "{text}");
    assert_eq!(number(&json(&output), "swapped_peak_bytes"), (3 * MIB) as f64);
    let events = std::fs::read_to_string(format!("{out}/events.jsonl")).unwrap();
    let steps = events.lines().filter(|line| line.contains("\"loss\""));
    assert_eq!(
        steps.filter(|line| line.contains(&format!("\"swapped_bytes\":{}", 3 * MIB))).count(),
        3,
        "{events}"
    );
    let advice = said(&system.plimsoll(&["doctor", &out, "--spill", &system.scratch.path(".")]));
    for words in ["There are 8.0 GiB of swap for this process", "had up to 3.0 MiB in swap"] {
        assert!(advice.contains(words), "no `{words}` in: {advice}");
    }
    // The same run where nothing is in swap.
    let report = json(&plimsoll(&RUN));
    assert_eq!(number(&report, "swapped_peak_bytes"), 0.0);
}
