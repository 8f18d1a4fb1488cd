//! The number printed is the number measured: through the real binary, by the kernel's account.

mod support;

use serde_json::Value;
use support::{Group, json, number, plimsoll};

/// The four models at two batch sizes each.
const RUNS: [(&str, &str); 8] = [
    ("mlp", "64"),
    ("mlp", "512"),
    ("lenet", "32"),
    ("lenet", "256"),
    ("resnet20", "16"),
    ("resnet20", "128"),
    ("gpt", "2"),
    ("gpt", "8"),
];

fn arguments<'a>(model: &'a str, batch: &'a str) -> [&'a str; 9] {
    ["train", "--json", "--model", model, "--batch", batch, "--steps", "3", "--threads=2"]
}

fn total(report: &Value) -> usize {
    number(report, "planned_peak_bytes") as usize
}

#[test]
fn the_measured_peak_is_the_planned_one() {
    for (model, batch) in RUNS {
        let report = json(&plimsoll(&arguments(model, batch)));
        let (planned, measured) =
            (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
        let allowed = (0.02 * planned).max(4.0 * 1024.0 * 1024.0);
        let off = measured - planned;
        let heap = report["heap_peak_bytes"].as_u64();
        println!(
            "{model:9} batch {batch:>4}: planned {planned:>10}, measured {measured:>10}, off by {off:>8}, heap {heap:?}"
        );
        assert!(
            off.abs() <= allowed,
            "{model} batch {batch}: planned {planned}, measured {measured}, off by {off}"
        );
        let (heap, cap) = (number(&report, "heap_peak_bytes"), number(&report, "heap_limit_bytes"));
        assert!(heap <= cap, "{model} batch {batch}: {heap} bytes on the heap, the cap is {cap}");
        let sheet = &report["load_sheet"];
        let sum =
            |part: &str| -> f64 { sheet[part].as_array().unwrap().iter().map(|e| number(e, "bytes")).sum() };
        assert_eq!(sum("arena"), number(&report, "arena_bytes"));
        assert_eq!(sum("arena") + sum("outside"), planned);
    }
}

#[test]
fn a_run_finishes_inside_a_kernel_limit_at_its_planned_total() {
    for (model, batch) in RUNS {
        let mut plan = arguments(model, batch);
        plan[0] = "plan";
        let planned = total(&json(&plimsoll(&plan)));
        let limit = planned.next_multiple_of(1 << 20);
        let Some(group) = Group::new(&format!("{model}-{batch}"), limit) else {
            let needed = std::env::var_os("PLIMSOLL_REQUIRE_CGROUP").is_some();
            assert!(!needed, "a memory control group could not be made");
            eprintln!("skipped: this user or system cannot make a memory control group");
            return;
        };
        let line = limit.to_string();
        let inside = [&arguments(model, batch)[..], &["--memory", &line]].concat();
        let report = json(&group.plimsoll(&inside));
        assert_eq!(total(&report), planned, "{model} batch {batch}");
        assert_eq!(number(&report, "steps"), 3.0);
    }
}

#[test]
fn a_line_below_the_planned_total_is_refused_before_anything_runs() {
    let planned = total(&json(&plimsoll(&["plan", "--json", "--model", "mlp", "--threads=2"])));
    let fits = planned.to_string();
    json(&plimsoll(&["plan", "--json", "--model", "mlp", "--threads=2", "--memory", &fits]));
    let short = (planned - 1).to_string();
    let output = plimsoll(&["train", "--model", "mlp", "--threads=2", "--memory", &short]);
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(&fits) && message.contains("fullest"), "{message}");
}
