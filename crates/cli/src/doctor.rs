//! `plimsoll doctor`: what this machine has, measured, beside what a run reached; advice; and its machine file.

mod advice;
mod limits;

use super::core_rates::{CoreRates, processor, rounded};
use super::runs::Run;
use super::text::{escaped, json_line};
use super::{Failure, put, say};
use clap::Args;
use limits::Limits;
use plimsoll::Size;
use plimsoll::cpu::CpuTarget;
use plimsoll::cpu::isa::Isa;
use plimsoll::memory;
use plimsoll::plan::{Network, in_words};
use plimsoll::runtime::transfer::{Rates, disk_rates};
use plimsoll_machine::measure::{core_flops, free_bytes, loopback, memory_bandwidth, product_rates};
use plimsoll_machine::{Compute, Cores, Linked, Machine, OneWay, Space};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Folder of a run (`train --out`): what it reached stands beside what this machine can do
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Folder on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub spill: PathBuf,
    /// Write this machine's file, for `plan --machine`; without a name, print it instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub machine_file: Option<Option<PathBuf>>,
    /// Overwrite the file of --machine-file
    #[arg(long, requires = "machine_file")]
    pub force: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
}

/// The share of the available memory that the trial of memory may take: one part in so many.
const SHARE: usize = 8;
/// The slowest link that a machine file can have, in bytes per second.
const SLOWEST: f64 = 1e6;

/// What was found.
struct Findings {
    name: String,
    cores: usize,
    isa: Isa,
    total_bytes: Option<usize>,
    available_bytes: Option<usize>,
    limit_bytes: Option<usize>,
    limits: Limits,
    /// Floating-point operations per second of products of f32 and bf16, on all cores.
    products: Option<[f64; 2]>,
    /// Floating-point operations per second at the peak of one thread while one on each core computes.
    core_flops: Option<f64>,
    /// Bytes per second of one thread, and of one on each core.
    bandwidth: [f64; 2],
    folder: PathBuf,
    free_bytes: Option<u64>,
    /// The disk, or why it cannot be measured.
    disk: Result<Rates, String>,
    /// The loopback.
    network: Option<Network>,
}

/// Measures, prints, and writes the machine file.
pub fn run(options: &DoctorOptions) -> Result<(), Failure> {
    let folder = &options.spill;
    if !folder.is_dir() {
        return Err(Failure::usage(format!(
            "--spill {}: there is no such folder",
            escaped(folder.display())
        )));
    }
    let printed = matches!(options.machine_file, Some(None));
    if printed && (options.json || options.force) {
        let flag = if options.json { "--json" } else { "--force" };
        return Err(Failure::usage(format!("{flag} needs a name: --machine-file FILE")));
    }
    let file = options.machine_file.iter().flatten().next();
    if let Some(file) = file.filter(|file| !options.force && file.exists()) {
        return Err(exists(file));
    }
    let run = options.run.as_deref().map(Run::read).transpose()?;
    let found = measure(folder);
    keep_rates(&found);
    if printed {
        say(machine(&found)?.to_toml().trim_end());
        return Ok(());
    }
    let advice = advice::advice(&found, run.as_ref());
    say(&table(&found, run.as_ref()));
    say(&advice.iter().map(|sentence| format!("\n- {sentence}")).collect::<String>());
    if let Some(file) = file {
        write(file, &machine(&found)?.to_toml(), options.force)?;
        say(&format!("\nwrote {}", escaped(file.display())));
    }
    if options.json {
        put(&json_line(&as_json(&found, run.as_ref(), &advice)));
    }
    Ok(())
}

fn measure(folder: &Path) -> Findings {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let available_bytes = memory::available();
    let trial = available_bytes.unwrap_or(usize::MAX) / SHARE;
    Findings {
        name: processor().unwrap_or_else(|| "this machine".into()),
        cores,
        isa: Isa::detect(),
        total_bytes: memory::total(),
        available_bytes,
        limit_bytes: memory::group_limit(),
        limits: Limits::now(),
        products: product_rates(cores, Isa::detect()),
        core_flops: core_flops(cores, Isa::detect()),
        bandwidth: [1, cores].map(|threads| memory_bandwidth(threads, trial)),
        folder: folder.to_path_buf(),
        free_bytes: free_bytes(folder),
        disk: disk_rates(folder, trial).map_err(|e| e.to_string()),
        network: loopback().ok().map(|(bytes_per_second, latency_ns)| Network {
            bytes_per_second: rounded(bytes_per_second).max(SLOWEST),
            latency_ns: rounded(latency_ns as f64) as u64,
            at_once: usize::MAX,
            measured: Vec::new(),
        }),
    }
}

/// Keeps what threads compute and move, for the plans of runs on all cores.
fn keep_rates(found: &Findings) {
    let Some(flops) = found.core_flops else { return };
    let bytes_per_ns = (found.bandwidth[1] / found.cores as f64).max(SLOWEST) / 1e9;
    let typical = CpuTarget::new(found.isa, found.cores);
    CoreRates::new(&CpuTarget { flops_per_ns: flops / 1e9, bytes_per_ns, ..typical }).keep();
}

/// The instruction sets of this machine, the best last.
fn instruction_sets(best: Isa) -> Vec<&'static str> {
    best.included().iter().map(|isa| isa.name()).collect()
}

fn table(found: &Findings, run: Option<&Run>) -> String {
    let memory = |bytes: Option<usize>| bytes.map_or("not known".to_string(), in_words);
    let rate = |bytes_per_second: f64| format!("{:.2} GB/s", bytes_per_second / 1e9);
    let [one, all] = found.bandwidth.map(rate);
    let mut rows = vec![
        ("processor", found.name.clone()),
        (
            "cores",
            match found.limits.processors {
                Some(quota) => format!("{}, of which the control group may use {quota:.1}", found.cores),
                None => found.cores.to_string(),
            },
        ),
        ("instruction sets", instruction_sets(found.isa).join(", ")),
        ("products of bf16", found.isa.products_of_bf16().into()),
        (
            "products",
            match found.products {
                Some([f32, bf16]) => format!("{:.1} GFLOP/s of f32, {:.1} of bf16", f32 / 1e9, bf16 / 1e9),
                None => "cannot be measured".into(),
            },
        ),
        ("memory", memory(found.total_bytes)),
        ("  available", memory(found.available_bytes)),
        ("  control group limit", found.limit_bytes.map_or("none".into(), in_words)),
        (
            "  process limit",
            found
                .limits
                .lowest()
                .map_or("none".into(), |(bytes, name)| format!("{} ({name})", in_words(bytes))),
        ),
        ("  swap", swap(&found.limits)),
        ("  bandwidth", format!("{all} on {} threads, {one} on one", found.cores)),
        ("disk", format!("folder {}", escaped(found.folder.display()))),
        ("  free", memory(found.free_bytes.map(|bytes| bytes as usize))),
    ];
    match &found.disk {
        Ok(disk) => rows.extend([
            ("  read", rate(disk.read_bytes_per_ns * 1e9)),
            ("  write", rate(disk.write_bytes_per_ns * 1e9)),
            ("  latency", format!("{:.0} µs", disk.latency_ns as f64 / 1e3)),
        ]),
        Err(reason) => rows.push(("  speed", format!("cannot be measured: {reason}"))),
    }
    if let Some(run) = run {
        rows.extend(advice::reached(found, run));
    }
    let lines = rows.into_iter().map(|(name, value)| format!("{name:<24}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Swap as one line.
fn swap(limits: &Limits) -> String {
    match limits.swap {
        None => "not known".into(),
        Some(swap) if swap.total_bytes == 0 => "none".into(),
        Some(swap) => {
            let [total, used] = [swap.total_bytes, swap.used_bytes].map(in_words);
            let allowed = match swap.allowed_bytes {
                usize::MAX => String::new(),
                bytes => format!(", {} for this control group", in_words(bytes)),
            };
            let readiness = limits.swappiness.map_or(String::new(), |n| format!(", swappiness {n}"));
            format!("{total}, {used} in use{allowed}{readiness}")
        }
    }
}

fn as_json(found: &Findings, run: Option<&Run>, advice: &[String]) -> Value {
    let disk = match &found.disk {
        Ok(disk) => json!({
            "read_bytes_per_second": disk.read_bytes_per_ns * 1e9,
            "write_bytes_per_second": disk.write_bytes_per_ns * 1e9,
            "latency_ns": disk.latency_ns,
        }),
        Err(reason) => json!({ "error": reason }),
    };
    json!({
        "processor": found.name,
        "cores": found.cores,
        "instruction_sets": instruction_sets(found.isa),
        "products_of_bf16": found.isa.products_of_bf16(),
        "memory_bytes": found.total_bytes,
        "available_bytes": found.available_bytes,
        "limit_bytes": found.limit_bytes,
        "address_space_limit_bytes": found.limits.address_space_bytes,
        "data_limit_bytes": found.limits.data_bytes,
        "processor_quota": found.limits.processors,
        "swap": found.limits.swap.map(|swap| json!({
            "total_bytes": swap.total_bytes, "used_bytes": swap.used_bytes, "possible_bytes": swap.possible_bytes(),
        })),
        "products_f32_flops": found.products.map(|rates| rates[0]),
        "products_bf16_flops": found.products.map(|rates| rates[1]),
        "bandwidth_one_thread": found.bandwidth[0],
        "bandwidth_all_threads": found.bandwidth[1],
        "folder": found.folder,
        "free_bytes": found.free_bytes,
        "disk": disk,
        "run": run.map(|run| json!({
            "folder": run.folder.display().to_string(),
            "samples_per_second": run.samples_per_second(),
            "step_ms_median": run.number("step_ms_median"),
            "predicted_step_ms": run.events.predicted_seconds.map(|seconds| seconds * 1e3),
            "planned_peak_bytes": run.planned_bytes(),
            "measured_peak_bytes": run.measured_bytes(),
            "swapped_bytes": run.events.swapped_bytes,
            "profile": run.report["profile"]["whole"],
        })),
        "advice": advice,
    })
}

/// This machine as a machine file has it.
fn machine(found: &Findings) -> Result<Machine, Failure> {
    let memory = [found.total_bytes, found.limit_bytes].into_iter().flatten().min();
    let memory_bytes = memory.filter(|bytes| *bytes > 0).ok_or_else(|| {
        Failure::run("the system does not tell how much memory it has: write the machine file by hand")
    })?;
    let space =
        |name: &str, memory_bytes| Space { name: name.into(), memory_bytes, line: Size::Percent(90.0) };
    let typical = Cores::new(found.isa, found.cores);
    let per_thread = rounded(found.bandwidth[1] / found.cores as f64);
    let f32_flops = found.core_flops.map_or(typical.f32_flops, rounded);
    let cores = Cores { f32_flops, bytes_per_second: per_thread.max(SLOWEST), ..typical };
    let free = found.free_bytes.filter(|bytes| *bytes > 0);
    let file = found.disk.as_ref().ok().zip(free).map(|(disk, free)| {
        let time = |ns: u64| rounded(ns as f64) as u64;
        let way = |bytes_per_ns: f64| OneWay {
            bytes_per_second: rounded(bytes_per_ns * 1e9).max(SLOWEST),
            latency_ns: time(disk.latency_ns),
            single_request_ns: time(disk.single_request_ns),
            request_cpu_ns: time(disk.request_cpu_ns),
        };
        Linked {
            space: space("disk", free as usize),
            to_host: way(disk.read_bytes_per_ns),
            from_host: way(disk.write_bytes_per_ns),
        }
    });
    Ok(Machine {
        name: found.name.clone(),
        device: None,
        host: space("host", memory_bytes),
        file,
        compute: Compute::Cpu(cores),
        network: found.network.clone(),
    })
}

fn exists(file: &Path) -> Failure {
    let file = escaped(file.display());
    Failure::usage(format!("--machine-file {file}: this file exists; name another, or add --force"))
}

fn write(file: &Path, text: &str, overwrite: bool) -> Result<(), Failure> {
    let mut how = OpenOptions::new();
    match overwrite {
        true => how.create(true).truncate(true),
        false => how.create_new(true),
    };
    let outcome = how.write(true).open(file).and_then(|mut to| to.write_all(text.as_bytes()));
    outcome.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => exists(file),
        _ => Failure::run(format!("cannot write {}: {e}", escaped(file.display()))),
    })
}
