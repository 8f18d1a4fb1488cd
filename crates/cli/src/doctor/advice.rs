//! What the findings mean for a run, and what to change.

use super::Findings;
use crate::runs::Run;
use crate::text::escaped;
use plimsoll::plan::in_words;

/// The share of what is available that a run takes without `--memory`.
const DEFAULT_SHARE: f64 = 0.9;
/// The share of a run's time above which waiting is worth a word, and how much slower than predicted a run is.
const WAITING: f64 = 0.1;
const SLOW: f64 = 1.3;
/// The disk that plans assume, in bytes a second, and how far from it a disk may be.
const ASSUMED_DISK: f64 = 2.5 * (1_u64 << 30) as f64;
const DISK_FACTOR: f64 = 1.5;
/// By how much a measured peak may differ from the planned one, if two percent are less.
const NOISE_BYTES: f64 = (4_u64 << 20) as f64;
/// How much faster products of bf16 are where they are worth a word.
const BF16_GAIN: f64 = 1.5;

/// What to do, a sentence each.
pub fn advice(found: &Findings, run: Option<&Run>) -> Vec<String> {
    let mut advice = machine(found);
    if let Some(run) = run {
        advice.extend(of_run(found, run));
    }
    advice
}

fn machine(found: &Findings) -> Vec<String> {
    let mut advice = Vec::new();
    if let Some(available) = found.available_bytes {
        let line = (available as f64 * DEFAULT_SHARE) as usize;
        advice.push(format!(
            "A run without --memory takes a line of {}, 90 % of what is available now.",
            in_words(line)
        ));
        if let Some((limit, name)) = found.limits.lowest().filter(|(limit, _)| *limit < available) {
            advice.push(format!(
                "`{name}` limits this process to {}, below what is available: raise it, or draw a line below it.",
                in_words(limit)
            ));
        }
    }
    if let Some(limit) = found.limit_bytes {
        advice.push(format!(
            "The control group's limit of {} is what lines are shares of here: the kernel ends what passes it.",
            in_words(limit)
        ));
    }
    if let Some(processors) =
        found.limits.processors.filter(|processors| processors + 0.5 < found.cores as f64)
    {
        let threads = (processors.round() as usize).max(1);
        advice.push(format!(
            "The control group may use {processors:.1} of {} cores at a time: train with --threads {threads}.",
            found.cores
        ));
    }
    match found.limits.swap {
        Some(swap) if swap.possible_bytes() > 0 => {
            let [used, possible] = [swap.used_bytes, swap.possible_bytes()].map(in_words);
            let now = if swap.used_bytes > 0 {
                format!("{used} of it are in use")
            } else {
                "none of it is in use".into()
            };
            advice.push(format!(
                "There are {possible} of swap for this process, and {now}: while pages of a run can be swapped, its line is not \
                 proven, and it may be slow. Switch swap off (`swapoff -a`), or run in a control group with memory.swap.max = 0."
            ));
        }
        _ => {}
    }
    if let Ok(disk) = &found.disk {
        let slower = (disk.read_bytes_per_ns.min(disk.write_bytes_per_ns)) * 1e9;
        if !(ASSUMED_DISK / DISK_FACTOR..ASSUMED_DISK * DISK_FACTOR).contains(&slower) {
            advice.push(format!(
                "Plans that offload assume a disk of 2.5 GiB/s, and this one has {:.2} GB/s: add --spill-speed measure.",
                slower / 1e9
            ));
        }
    }
    if let Some([f32, bf16]) = found.products.filter(|[f32, bf16]| bf16 / f32 >= BF16_GAIN) {
        advice.push(format!(
            "Products of bf16 are {:.1} times as fast as those of f32 here: --precision bf16 is worth a try.",
            bf16 / f32
        ));
    }
    advice
}

fn of_run(found: &Findings, run: &Run) -> Vec<String> {
    let name = escaped(run.folder.display());
    let mut advice = Vec::new();
    let events = &run.events;
    let waiting = events.data_seconds / events.seconds;
    if waiting > WAITING {
        advice.push(format!(
            "{name} waited for its data {:.0} % of the time: more --workers, --prefetch auto, or smaller files.",
            100.0 * waiting
        ));
    }
    let step = run.number("step_ms_median").map(|ms| ms / 1e3);
    let disk = run.number("waiting_ms").map(|ms| ms / 1e3).zip(step).map(|(waited, step)| waited / step);
    if let Some(share) = disk.filter(|share| *share > WAITING) {
        advice.push(format!(
            "{name} waited for the disk {:.0} % of the time: a higher line or a faster disk makes it faster.",
            100.0 * share
        ));
    }
    if let Some((step, predicted)) =
        step.zip(events.predicted_seconds).filter(|(s, p)| *p > 0.0 && s / p > SLOW)
    {
        advice.push(format!(
            "A step of {name} took {:.1} times as long as predicted: was the machine busy? `train --profile` shows where the \
             time goes.",
            step / predicted
        ));
    }
    if let Some(threads) = run.number("threads").filter(|threads| (*threads as usize) < found.cores) {
        advice.push(format!("{name} ran on {threads:.0} of {} cores.", found.cores));
    }
    if events.swapped_bytes > 0 {
        let most = in_words(events.swapped_bytes as usize);
        advice.push(format!("{name} had up to {most} in swap: its line was not proven."));
    }
    let above = |(measured, planned): &(f64, f64)| *measured > planned + (planned * 0.02).max(NOISE_BYTES);
    if let Some((measured, planned)) = run.measured_bytes().zip(run.planned_bytes()).filter(above) {
        let [measured, planned] = [measured, planned].map(|bytes| in_words(bytes as usize));
        advice.push(format!(
            "{name} held {measured}, more than the planned {planned}: declare it with --your-code."
        ));
    }
    advice
}

/// Rows of what a run reached beside what the machine can do.
pub fn reached(found: &Findings, run: &Run) -> Vec<(&'static str, String)> {
    let mut rows = vec![("run", escaped(run.folder.display()))];
    rows.extend(run.samples_per_second().map(|rate| ("  samples/s", format!("{rate:.1}"))));
    let predicted = run.events.predicted_seconds.filter(|seconds| *seconds > 0.0);
    rows.extend(run.number("step_ms_median").map(|ms| {
        let beside = predicted.map_or(String::new(), |seconds| format!(", predicted {:.2}", seconds * 1e3));
        ("  ms a step", format!("{ms:.2}{beside}"))
    }));
    let whole = &run.report["profile"]["whole"];
    let rate = |field: &str| Some(whole[field].as_f64()? / whole["ns"].as_f64().filter(|ns| *ns > 0.0)?);
    match (rate("flops"), rate("bytes")) {
        (Some(flops), Some(bytes)) => {
            let ceiling = found.products.map_or(String::new(), |[f32, bf16]| {
                let low = run.report["precision"]
                    .as_str()
                    .is_some_and(|precision| matches!(precision, "bf16" | "f16"));
                let ceiling = if low { bf16 } else { f32 };
                format!(", products reach {:.1}", ceiling / 1e9)
            });
            rows.push(("  GFLOP/s in kernels", format!("{flops:.1}{ceiling}")));
            rows.push((
                "  GB/s in kernels",
                format!("{bytes:.2}, memory reaches {:.2}", found.bandwidth[1] / 1e9),
            ));
        }
        _ => rows.push(("  in kernels", "not known: train with --profile".into())),
    }
    rows.extend(run.measured_bytes().zip(run.planned_bytes()).map(|(measured, planned)| {
        let [measured, planned] = [measured, planned].map(|bytes| in_words(bytes as usize));
        ("  memory", format!("{measured} measured, {planned} planned"))
    }));
    rows
}
