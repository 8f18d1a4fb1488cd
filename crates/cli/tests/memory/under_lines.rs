//! What a low line makes a run do (recompute, split, offload) changes no bit and stays inside a kernel limit at that line.

use crate::support;

use plimsoll::train::checkpoints;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use support::{Group, Scratch, json, long_tests, number, plimsoll};

/// A line, as shares of the memory of a run without a line.
struct Line {
    /// Share of the arena without the states.
    activations: f64,
    /// Share of the states.
    states: f64,
    threads: usize,
    /// More flags.
    flags: &'static [&'static str],
    /// Fields of the report that must not be zero: what the plan must do.
    does: &'static [&'static str],
}

const RECOMPUTED: &str = "recomputed";
const SPILLED: &str = "spilled";
const MICRO_BATCHES: &str = "micro_batches";

/// A line at which the plan must recompute without splitting the batch.
const fn whole(activations: f64, threads: usize) -> Line {
    let flags = &["--micro-batches=1", "--spill=none"];
    Line { activations, states: 1.0, threads, flags, does: &[RECOMPUTED] }
}

/// A line at which the plan must do this.
const fn lower(activations: f64, states: f64, threads: usize, does: &'static [&'static str]) -> Line {
    Line { activations, states, threads, flags: &[], does }
}

impl Line {
    /// The line in bytes, rounded to pages.
    fn bytes(&self, unlimited: &Value) -> usize {
        let states = number(unlimited, "state_bytes");
        let activations = number(unlimited, "arena_bytes") - states;
        let below = (1.0 - self.activations) * activations + (1.0 - self.states) * states;
        (number(unlimited, "planned_peak_bytes") - below) as usize / 4096 * 4096
    }
}

/// A run that ended.
struct Ended {
    output: Output,
    /// Page faults that waited for a disk.
    major_faults: u64,
    /// Bytes that it wrote to disks, where the system reports them.
    written: Option<u64>,
}

/// Waits for a run, and reads its `/proc` files while it is a zombie.
fn finish(mut child: Child) -> Ended {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let folder = PathBuf::from(format!("/proc/{}", child.id()));
    // The fields after the name in brackets; the first is its state.
    let fields = loop {
        let Ok(stat) = fs::read_to_string(folder.join("stat")) else { break Vec::new() };
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let fields: Vec<String> = fields.map(String::from).collect();
        if fields.first().is_some_and(|state| state == "Z") {
            break fields;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let io = fs::read_to_string(folder.join("io")).unwrap_or_default();
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
    let major_faults = fields.get(9).and_then(|n| n.parse().ok()).unwrap_or(0);
    let status = child.wait().unwrap();
    Ended { output: Output { status, stdout, stderr }, major_faults, written }
}

/// Trains inside a kernel limit where one can be made.
fn train(name: &str, limit: Option<usize>, arguments: &[String]) -> Ended {
    let mut command = support::command(&["train"]);
    command.args(arguments);
    let group = limit.and_then(|bytes| Group::new(name, bytes));
    let mut command = match &group {
        Some(group) => group.enter(&command),
        None => command,
    };
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    finish(child)
}

/// All files of a run: weights, checkpoint, report.
fn file_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap();
    files.map(|entry| entry.unwrap().metadata().unwrap().len().next_multiple_of(4096)).sum()
}

/// The weights file, and the checkpoint's states without its header.
fn states(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let weights = fs::read(folder.join("weights.safetensors")).unwrap();
    let checkpoint = fs::read(checkpoints(folder).unwrap().pop().unwrap()).unwrap();
    let header = u64::from_le_bytes(checkpoint[..8].try_into().unwrap()) as usize;
    (weights, checkpoint[8 + header..].to_vec())
}

/// The run without a line to which the others are compared.
struct Unlimited {
    name: &'static str,
    arguments: Vec<String>,
    scratch: Scratch,
    report: Value,
    states: (Vec<u8>, Vec<u8>),
}

impl Unlimited {
    fn new(name: &'static str, steps: u64, model: &str) -> Self {
        let scratch = Scratch::new(&format!("under-{name}"));
        let out = scratch.0.join("unlimited");
        let arguments = format!("--model={model} --steps={steps} --json");
        let arguments: Vec<String> = arguments.split(' ').map(String::from).collect();
        let more = ["--threads=2".into(), "--memory=8GiB".into(), format!("--out={}", out.display())];
        let report = json(&train(name, None, &[&arguments[..], &more].concat()).output);
        assert_eq!([RECOMPUTED, SPILLED, MICRO_BATCHES].map(|does| number(&report, does)), [0.0, 0.0, 1.0]);
        Self { name, arguments, scratch, report, states: states(&out) }
    }

    /// Trains under a line, and compares every bit of its weights and states.
    fn compare(&self, bytes: usize, threads: usize, flags: &[&str], does: &[&str]) {
        let name = format!("{}-{bytes}", self.name);
        let out = self.scratch.0.join(&name);
        let mut arguments = self.arguments.clone();
        arguments.extend([format!("--memory={bytes}"), format!("--threads={threads}")]);
        // Every checkpoint stays, so that the bytes of all of them are known.
        arguments.extend(["--overwrite".into(), "--keep=9".into(), format!("--out={}", out.display())]);
        arguments.extend(flags.iter().map(ToString::to_string));
        let ended = train(&name, Some(bytes), &arguments);
        let report = json(&ended.output);
        check_report(&name, &report, ended.major_faults, does);
        if let Some(written) = ended.written {
            check_written(&name, &report, written, file_bytes(&out));
        }
        let (weights, moments) = states(&out);
        assert!(weights == self.states.0, "{name}: the line changed the weights");
        assert!(moments == self.states.1, "{name}: the line changed the checkpoint's states");
    }

    /// The floor, from the answer to a line that is far too low.
    fn floor(&self) -> usize {
        self.refused(1 << 20, "plan")
    }

    /// The floor, from the answer to a line that is too low.
    fn refused(&self, bytes: usize, command: &str) -> usize {
        let memory = format!("--memory={bytes}");
        let arguments = self.arguments.iter().map(String::as_str);
        let arguments: Vec<&str> = [command, &memory, "--threads=2"].into_iter().chain(arguments).collect();
        let Output { status, stdout, stderr } = plimsoll(&arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert_eq!(status.code(), Some(3), "{}: {stdout}\n{stderr}", self.name);
        let answer: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert_eq!(answer["feasible"], false, "{}", self.name);
        assert!(!answer["alternatives"].as_array().unwrap().is_empty(), "{}", self.name);
        let floor = answer["floor_bytes"].as_u64().unwrap();
        assert!(
            stderr.contains(&floor.to_string()) && stderr.contains("whose peak is in"),
            "{}: {stderr}",
            self.name
        );
        floor as usize
    }
}

/// Trains without a line and under each.
fn same_bits(name: &'static str, steps: u64, model: &str, lines: &[Line]) {
    let unlimited = Unlimited::new(name, steps, model);
    if let Some(skipped) = unlimited.report["skipped_steps"].as_u64() {
        assert!(skipped > 0 && skipped < steps / 2, "{name}: {skipped} of {steps} steps were skipped");
    }
    for line in lines {
        unlimited.compare(line.bytes(&unlimited.report), line.threads, line.flags, line.does);
    }
}

/// Trains at the floor, and is refused a tenth below it.
fn trains_at_the_floor(name: &'static str, steps: u64, model: &str, does: &[&str]) {
    let unlimited = Unlimited::new(name, steps, model);
    let floor = unlimited.floor();
    unlimited.compare(floor.next_multiple_of(4096), 2, &[], does);
    assert_eq!(unlimited.refused(floor - floor / 10, "train"), floor, "{name}");
}

/// The plan did what it must, and the measured peak is the planned one.
fn check_report(name: &str, report: &Value, major_faults: u64, does: &[&str]) {
    let [line, planned, measured] =
        ["line_bytes", "planned_peak_bytes", "measured_peak_bytes"].map(|field| number(report, field));
    let [parts, recomputed, spilled] = [MICRO_BATCHES, RECOMPUTED, SPILLED].map(|does| number(report, does));
    eprintln!(
        "{name}: planned {planned}, measured {measured}, {parts} micro-batches, {recomputed} recomputed, \
         {spilled} offloaded, {major_faults} major faults"
    );
    for does in does {
        let least = if *does == MICRO_BATCHES { 1.0 } else { 0.0 };
        assert!(number(report, does) > least, "{name}: the plan has no {does}");
    }
    let allowed = (0.02 * planned).max(4.0 * 1024.0 * 1024.0);
    assert!((measured - planned).abs() <= allowed, "{name}: planned {planned}, measured {measured}");
    assert!(planned <= line, "{name}: planned {planned} over the line");
    assert!(measured <= planned, "{name}: planned {planned}, measured {measured}");
    // A cold page cache causes some at the start; none may occur in every step.
    let most = number(report, "steps").max(20.0) as u64;
    assert!(major_faults < most, "{name}: {major_faults} major faults");
}

/// Every step writes what the plan stores to the spill file; offloaded states are also written before the first step, unless
/// they start as zeros. The run's files come on top.
fn check_written(name: &str, report: &Value, written: u64, files: u64) {
    let [steps, parts, spilled, bytes, in_file] =
        ["steps", MICRO_BATCHES, SPILLED, "stored_bytes", "spilled_bytes"]
            .map(|field| number(report, field) as u64);
    let least = steps * bytes + files;
    // Whole blocks, the block that tests the spill file, and the file system's metadata.
    let most = steps * (bytes + parts * spilled * 4096) + in_file + files + (2 << 20);
    eprintln!("{name}: {written} bytes written, from {least} to {most} expected");
    assert!((least..=most).contains(&written), "{name}: {written} bytes written, not {least} to {most}");
}

#[test]
fn a_gpt_has_the_same_bits_under_lower_lines() {
    let lines = [
        whole(0.8, 1),
        lower(0.5, 1.0, 2, &[MICRO_BATCHES]),
        Line {
            flags: &["--micro-batches=4", "--spill=none"],
            ..lower(0.38, 1.0, 2, &[MICRO_BATCHES, RECOMPUTED])
        },
        lower(0.22, 0.8, 3, &[MICRO_BATCHES, RECOMPUTED, SPILLED]),
        lower(0.15, 0.65, 2, &[MICRO_BATCHES, RECOMPUTED, SPILLED]),
    ];
    let lines = if long_tests("the lowest line") { &lines[..] } else { &lines[..4] };
    let model = "gpt --context=64 --layers=2 --width=128 --heads=2 --classes=256 --batch=16";
    same_bits("gpt", 20, model, lines);
}

#[test]
fn a_resnet_has_the_same_bits_under_lower_lines() {
    // Batch norm is never split.
    let lines = [lower(0.8, 1.0, 1, &[RECOMPUTED]), lower(0.6, 1.0, 3, &[RECOMPUTED])];
    same_bits("resnet", 20, "resnet20 --image-size=16 --batch=16", &lines);
    // Activations are offloaded.
    same_bits("resnet-values", 20, "resnet20 --image-size=16 --batch=64", &[lower(0.4, 1.0, 2, &[SPILLED])]);
}

#[test]
fn a_bert_with_dropout_has_the_same_bits_under_lower_lines() {
    let model =
        "bert_tiny --context=32 --layers=1 --width=128 --heads=2 --classes=4096 --dropout=0.2 --batch=16";
    let parts = Line { flags: &["--micro-batches=8"], ..lower(0.7, 1.0, 1, &[MICRO_BATCHES]) };
    let (offloaded, lowest) = (lower(0.5, 0.85, 2, &[SPILLED]), lower(0.4, 0.8, 2, &[SPILLED]));
    same_bits("bert", 20, model, &[whole(0.9, 3), parts, offloaded, lowest]);
}

#[test]
fn an_lstm_has_the_same_bits_under_lower_lines() {
    let parts = Line { flags: &["--micro-batches=2"], ..lower(0.67, 1.0, 3, &[MICRO_BATCHES]) };
    let lines = [parts, lower(0.4, 0.85, 1, &[SPILLED])];
    same_bits("lstm", 20, "lstm --context=6 --layers=1 --width=200 --batch=64", &lines);
}

#[test]
fn a_perceptron_of_odd_sizes_has_the_same_bits_under_lower_lines() {
    let parts = Line { flags: &["--micro-batches=5"], ..lower(1.0, 1.0, 3, &[MICRO_BATCHES]) };
    let lines = [parts, lower(0.9, 0.8, 1, &[SPILLED]), lower(0.8, 0.7, 3, &[SPILLED])];
    same_bits("mlp", 20, "mlp --width=803 --classes=7 --batch=160 --data=synthetic", &lines);
}

#[test]
fn adafactor_with_global_norm_clipping_has_the_same_bits_under_lower_lines() {
    let lines = [whole(0.93, 1), lower(0.7, 0.75, 3, &[SPILLED])];
    let model = "mlp --width=803 --classes=7 --batch=160 --data=synthetic --optimizer=adafactor";
    same_bits("adafactor", 20, &format!("{model} --clip-global-norm=0.5"), &lines);
}

#[test]
fn adam_with_8_bit_moments_and_averages_has_the_same_bits_under_lower_lines() {
    let lines = [lower(0.5, 1.0, 3, &[MICRO_BATCHES]), lower(0.2, 0.8, 1, &[SPILLED])];
    let model = "gpt --context=64 --layers=2 --width=128 --heads=2 --classes=256 --batch=16 --moments=8bit";
    same_bits("bytes", 20, &format!("{model} --ema=0.9 --clip-norm=0.5"), &lines);
}

#[test]
fn a_gpt_in_bf16_has_the_same_bits_under_lower_lines() {
    let parts = Line { flags: &["--spill=none"], ..lower(0.5, 1.0, 7, &[MICRO_BATCHES]) };
    let lines = [whole(0.85, 1), parts, lower(0.15, 0.7, 2, &[SPILLED])];
    let model = "gpt --context=64 --layers=2 --width=128 --heads=2 --classes=256 --batch=16";
    same_bits("bf16", 20, &format!("{model} --precision=bf16"), &lines);
}

/// The loss scale doubles often until it overflows, so that some steps are skipped.
#[test]
fn a_resnet_and_a_gpt_in_f16_have_the_same_bits_under_lower_lines() {
    let scale = "--precision=f16 --loss-scale=2097152 --loss-scale-growth=3";
    let resnet = format!("resnet20 --image-size=16 --batch=16 {scale}");
    same_bits("f16", 20, &resnet, &[whole(0.85, 3)]);
    if !long_tests("the gpt") {
        return;
    }
    let gpt = format!("gpt --context=64 --layers=2 --width=128 --heads=2 --classes=256 --batch=16 {scale}");
    let lines = [lower(0.5, 1.0, 1, &[MICRO_BATCHES]), lower(0.15, 0.8, 3, &[SPILLED])];
    same_bits("f16-gpt", 20, &gpt, &lines);
}

#[test]
fn a_lenet_trains_on_digits_in_48_mib() {
    Unlimited::new("digits", 20, "lenet").compare(48 << 20, 2, &[], &[]);
}

#[test]
fn floors_are_feasible_and_a_tenth_below_is_refused() {
    trains_at_the_floor(
        "floor-mlp",
        20,
        "mlp --width=803 --classes=7 --batch=160 --data=synthetic",
        &[SPILLED],
    );
    trains_at_the_floor("floor-lenet", 20, "lenet --data=synthetic", &[MICRO_BATCHES]);
    trains_at_the_floor(
        "floor-encoder",
        20,
        "autoencoder --image-size=16 --data=synthetic",
        &[MICRO_BATCHES],
    );
}

#[test]
fn floors_of_text_models_are_feasible_and_a_tenth_below_is_refused() {
    let gpt = "gpt --context=16 --layers=1 --width=64 --heads=1 --classes=64 --batch=4";
    trains_at_the_floor("floor-gpt", 20, gpt, &[]);
    trains_at_the_floor("floor-lstm", 20, "lstm --context=3 --layers=1 --width=64 --batch=8", &[]);
}

#[test]
#[ignore = "takes minutes and 2.4 GB of disk; CONTRIBUTING.md has the command"]
fn a_gpt_of_200_million_parameters_trains_in_1_gib() {
    let gpt = "--model=gpt --layers=16 --width=1024 --heads=16 --context=256 --classes=256 --batch=2";
    let scratch = Scratch::new("under-large");
    let mut arguments: Vec<String> = gpt.split(' ').map(String::from).collect();
    arguments.extend(["--memory=1GiB", "--steps=2", "--json"].map(String::from));
    arguments.push(format!("--spill={}", scratch.0.display()));
    let ended = train("large", Some(1 << 30), &arguments);
    let report = json(&ended.output);
    assert!(number(&report, "state_bytes") > 2.2e9);
    check_report("large", &report, ended.major_faults, &[SPILLED]);
    if let Some(written) = ended.written {
        check_written("large", &report, written, 0);
    }
}
