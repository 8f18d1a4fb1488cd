//! The planned peak is the measured one: through the real binary, as the kernel reports it.

use crate::support;

use plimsoll::nn::zoo::{ZOO, ZooOptions};
use support::{Group, Scratch, json, long_tests, number, plimsoll};

/// Four models at two batch sizes each; the first four in CI.
const SIZES: [(&str, &str); 8] = [
    ("mlp", "64"),
    ("lenet", "256"),
    ("resnet20", "128"),
    ("gpt", "2"),
    ("mlp", "512"),
    ("lenet", "32"),
    ("resnet20", "16"),
    ("gpt", "8"),
];

fn own(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(ToString::to_string).collect()
}

/// The arguments of every run of a model.
fn common(model: &str) -> Vec<String> {
    own(&["--json", "--steps=3", "--threads=2", "--data=synthetic", "--model", model])
}

/// A command with its arguments.
fn with<'a>(command: &'a str, arguments: &'a [String]) -> Vec<&'a str> {
    std::iter::once(command).chain(arguments.iter().map(String::as_str)).collect()
}

/// Trains with these arguments: the measured peak is the planned one, and training works inside a kernel limit of that size.
fn holds(name: &str, arguments: &[String]) {
    let report = json(&plimsoll(&with("train", arguments)));
    let (planned, measured) = (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
    let allowed = (0.02 * planned).max(4.0 * 1024.0 * 1024.0);
    let off = measured - planned;
    let heap = report["heap_peak_bytes"].as_u64();
    eprintln!("{name:16}: planned {planned:>10}, measured {measured:>10}, off by {off:>8}, heap {heap:?}");
    assert!(off.abs() <= allowed, "{name}: planned {planned}, measured {measured}, off by {off}");
    let (heap, cap) = (number(&report, "heap_peak_bytes"), number(&report, "heap_limit_bytes"));
    assert!(heap <= cap, "{name}: {heap} bytes on the heap, the cap is {cap}");
    let sheet = &report["load_sheet"];
    let sum =
        |part: &str| -> f64 { sheet[part].as_array().unwrap().iter().map(|e| number(e, "bytes")).sum() };
    assert_eq!(sum("arena"), number(&report, "arena_bytes"));
    assert_eq!(sum("arena") + sum("outside"), planned);
    let limit = (planned as usize).next_multiple_of(1 << 20);
    let Some(group) = Group::new(name, limit) else { return };
    let line = limit.to_string();
    let inside = [&with("train", arguments)[..], &["--memory", &line]].concat();
    let report = json(&group.plimsoll(&inside));
    assert_eq!(number(&report, "planned_peak_bytes"), planned, "{name}");
    assert_eq!(number(&report, "steps"), 3.0);
}

/// The digits inside the program are dropped once they are read, but a small run takes less than they did.
#[test]
fn the_first_run_on_a_machine_is_under_its_plan() {
    let scratch = Scratch::new("first-run");
    let cache = scratch.path("cache");
    let run = || json(&plimsoll(&["train", "--json", "--steps=3", "--threads=2", "--plan-cache", &cache]));
    // The first one tries what a thread computes, which is no part of a plan.
    for number_of_run in 1..=2 {
        let report = run();
        let [planned, measured] =
            ["planned_peak_bytes", "measured_peak_bytes"].map(|key| number(&report, key));
        assert!(measured <= planned, "run {number_of_run}: {measured} bytes, planned {planned}");
        let of_trial = |file: std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("cores-");
        let kept = std::fs::read_dir(&cache).unwrap().filter_map(Result::ok).any(of_trial);
        assert!(kept, "there was no trial");
    }
}

#[test]
fn a_run_smaller_than_the_data_inside_the_program_is_not_above_its_plan() {
    let scratch = Scratch::new("holds-reading");
    let out = scratch.path("run");
    let train = ["train", "--model=mlp", "--width=8", "--batch=8", "--steps=20", "--json", "--out", &out];
    for command in [&train[..], &["evaluate", &out, "--json"]] {
        let report = json(&plimsoll(command));
        let [planned, measured] =
            ["planned_peak_bytes", "measured_peak_bytes"].map(|field| number(&report, field));
        assert!(measured <= planned, "{command:?}: planned {planned}, measured {measured}");
        assert!(
            planned - measured <= f64::from(4 << 20),
            "{command:?}: planned {planned}, measured {measured}"
        );
    }
}

#[test]
fn the_measured_peak_is_the_planned_one_at_common_sizes() {
    let sizes = if long_tests("the other batch sizes") { 8 } else { 4 };
    for (model, batch) in &SIZES[..sizes] {
        holds(&format!("{model}-{batch}"), &[common(model), own(&["--batch", batch])].concat());
    }
    for (model, batch, precision) in [("gpt", "8", "bf16"), ("resnet20", "128", "f16")] {
        let arguments = [common(model), own(&["--batch", batch, "--precision", precision])].concat();
        holds(&format!("{model}-{batch}-{precision}"), &arguments);
    }
}

#[test]
fn a_copy_of_the_program_is_not_above_its_plan() {
    // All pages of a copy are in the page cache, so more of them than are used become resident.
    let scratch = Scratch::new("copied-program");
    let (program, out) = (scratch.path("plimsoll"), scratch.path("run"));
    std::fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &program).unwrap();
    let sizes = ["--layers=1", "--width=32", "--heads=2", "--context=16", "--batch=4"];
    let train = [&["train", "--json", "--steps=3", "--model=gpt", "--out", &out], &sizes[..]].concat();
    for arguments in [train, vec!["evaluate", &out, "--json"]] {
        let mut command = std::process::Command::new(&program);
        let report = json(&command.args(&arguments).env("XDG_CACHE_HOME", "/dev/null").output().unwrap());
        let (planned, measured) =
            (number(&report, "planned_peak_bytes"), number(&report, "measured_peak_bytes"));
        eprintln!("{}: planned {planned}, measured {measured}", arguments[0]);
        assert!(measured <= planned, "{arguments:?}: planned {planned}, measured {measured}");
    }
}

#[test]
fn the_measured_peak_is_the_planned_one_on_several_devices() {
    for (model, batch, devices) in [("mlp", "64", "2"), ("lenet", "240", "3")] {
        let arguments = own(&["--batch", batch, "--replicas", devices]);
        holds(&format!("{model}-{batch}-on-{devices}"), &[common(model), arguments].concat());
    }
}

#[test]
fn the_measured_peak_is_the_planned_one_of_placed_layers() {
    let placed = [
        ("mlp", "64", "*1=cpu:0,*=cpu:1"),
        ("lenet", "256", "conv*=cpu:0,dense*=cpu:2,*=cpu:1"),
        ("gpt", "8", "auto"),
    ];
    for (model, batch, rules) in placed {
        let arguments = own(&["--batch", batch, "--place", rules]);
        holds(&format!("{model}-{batch}-placed"), &[common(model), arguments].concat());
    }
}

#[test]
fn the_measured_peak_is_the_planned_one_for_the_whole_zoo() {
    for entry in &ZOO {
        let ZooOptions { classes, image, context, layers, width, heads, .. } = entry.small;
        let sizes = [
            ("--classes", classes),
            ("--image-size", image),
            ("--context", context),
            ("--layers", layers),
            ("--width", width),
            ("--heads", heads),
        ];
        let flags =
            sizes.iter().filter_map(|(flag, size)| Some([flag.to_string(), size.as_ref()?.to_string()]));
        holds(entry.name, &[common(entry.name), flags.flatten().collect()].concat());
    }
    // As many labels as pixels.
    let labels = own(&["--width=1", "--image-size=256", "--batch=16"]);
    holds("unet_plain-256", &[common("unet_plain"), labels].concat());
}

#[test]
fn plan_and_train_report_the_same_load_sheet() {
    let arguments = [common("lenet"), own(&["--batch=32", "--memory=1GiB"])].concat();
    let [planned, run] = ["plan", "train"].map(|command| json(&plimsoll(&with(command, &arguments))));
    assert_eq!(planned["planned_peak_bytes"], run["planned_peak_bytes"]);
    assert_eq!(planned["load_sheet"], run["load_sheet"]);
}

#[test]
fn a_line_below_the_floor_is_refused_before_anything_runs() {
    let whole = ["--model", "mlp", "--threads=2", "--micro-batches=1", "--spill=none"];
    let floor = number(&json(&plimsoll(&[&["plan", "--json"], &whole[..]].concat())), "floor_bytes") as usize;
    let fits = floor.to_string();
    json(&plimsoll(&[&["plan", "--json", "--memory", &fits], &whole[..]].concat()));
    let short = (floor - (1 << 20)).to_string();
    let output = plimsoll(&[&["train", "--memory", &short], &whole[..]].concat());
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(&fits) && message.contains("whose peak is in"), "{message}");
}

#[test]
fn a_lower_line_splits_the_batch_and_changes_no_bit() {
    let scratch = Scratch::new("split");
    let train = |name: &str, more: &[&str]| {
        let out = scratch.0.join(name);
        let gpt = ["--model=gpt", "--context=64", "--layers=2", "--width=64", "--heads=2", "--classes=256"];
        let run = [
            "--json",
            "--batch=32",
            "--steps=3",
            "--threads=2",
            "--overwrite",
            "--out",
            out.to_str().unwrap(),
        ];
        let report = json(&plimsoll(&[&["train"], &gpt[..], &run[..], more].concat()));
        (report, std::fs::read(out.join("weights.safetensors")).unwrap())
    };
    let (whole, weights) = train("whole", &[]);
    assert_eq!(number(&whole, "micro_batches"), 1.0);
    let planned = number(&whole, "planned_peak_bytes");
    for share in [0.7, 0.57] {
        let line = ((planned * share) as usize).to_string();
        let (report, split) = train("split", &["--memory", &line]);
        assert!(number(&report, "micro_batches") > 1.0, "{share}");
        assert!(number(&report, "measured_peak_bytes") <= planned * share, "{share}");
        assert!(split == weights, "{share}: the line changed the weights");
    }
    // Batch norm is not split: the plan recomputes instead.
    let resnet = ["--model=resnet20", "--batch=64", "--threads=2", "--memory=50MiB"];
    let report = json(&plimsoll(&[&["plan", "--json"], &resnet[..]].concat()));
    assert!(number(&report, "micro_batches") == 1.0 && number(&report, "recomputed") > 0.0);
}
