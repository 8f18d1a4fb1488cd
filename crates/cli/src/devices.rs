//! The devices of this machine: `plimsoll devices`, and the one that `--device` names.

use super::machine_flags::{Device, MachineOptions};
use super::setup::plan_cache;
use super::{Failure, hint, say};
use clap::Args;
use plimsoll::Size;
use plimsoll::cpu::isa::Isa;
use plimsoll::cuda::{Cuda, CudaError, Gpu, libraries};
use plimsoll::memory;
use plimsoll::nn::Precision;
use plimsoll::plan::in_words;
use plimsoll::runtime::StepTimes;
use plimsoll::train::DeviceName;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Args)]
pub struct DevicesOptions {
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
}

/// Lists the devices.
pub fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let gpus = Gpu::list();
    if options.json {
        say(&as_json(&gpus).to_string());
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let available = memory::available().map_or("unknown".into(), in_words);
    say(&format!("{:<8} {}, {cores} cores; {available} of memory available", "cpu", Isa::detect().name()));
    match gpus {
        Ok(gpus) if gpus.is_empty() => say("\nThe NVIDIA driver is there, but no GPU."),
        Ok(gpus) => {
            gpus.iter().for_each(|gpu| say(&in_lines(gpu)));
            for (name, version) in libraries() {
                say(&format!("{name:<8} {}", version.unwrap_or_else(|error| error.to_string())));
            }
        }
        Err(error) => say(&format!("\nNo NVIDIA GPU can be used: {error}")),
    }
    Ok(())
}

fn in_lines(gpu: &Gpu) -> String {
    let (major, minor) = gpu.capability;
    let free = gpu.free_bytes.map_or("unknown".into(), in_words);
    let mut lines = format!(
        "{:<8} {}, compute capability {major}.{minor}, {} multiprocessors at {:.2} GHz; {} of memory at {:.1} TB/s, {free} free\n         {}",
        format!("cuda:{}", gpu.index),
        gpu.name,
        gpu.multiprocessors,
        f64::from(gpu.clock_khz) / 1e6,
        in_words(gpu.total_bytes),
        gpu.memory_bytes_per_second / 1e12,
        gpu.uuid,
    );
    for holder in &gpu.holders {
        lines.push_str(&format!("\n         held by {holder}"));
    }
    lines
}

fn as_json(gpus: &Result<Vec<Gpu>, CudaError>) -> Value {
    let gpu = |gpu: &Gpu| {
        let holders = gpu.holders.iter().map(|h| json!({ "process": h.process, "bytes": h.bytes }));
        json!({
            "device": format!("cuda:{}", gpu.index),
            "name": gpu.name,
            "uuid": gpu.uuid,
            "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
            "multiprocessors": gpu.multiprocessors,
            "clock_khz": gpu.clock_khz,
            "memory_bytes_per_second": gpu.memory_bytes_per_second,
            "total_bytes": gpu.total_bytes,
            "free_bytes": gpu.free_bytes,
            "holders": holders.collect::<Vec<_>>(),
        })
    };
    json!({
        "cpu": { "instruction_set": Isa::detect().name(), "available_bytes": memory::available() },
        "gpus": gpus.as_ref().map_or_else(|_| Vec::new(), |gpus| gpus.iter().map(gpu).collect::<Vec<_>>()),
        "libraries": libraries().into_iter().map(|(name, version)| (name, version.ok())).collect::<BTreeMap<_, _>>(),
        "gpu_error": gpus.as_ref().err().map(ToString::to_string),
    })
}

/// A GPU to compute on, with the line of its memory.
pub struct Chosen {
    pub executor: Cuda,
    pub line_bytes: usize,
}

/// The GPU that the flags name, opened; none where they name the processor.
pub fn gpu(
    machine: &MachineOptions,
    precision: Precision,
    checked: bool,
    times: Option<&Arc<StepTimes>>,
) -> Result<Option<Chosen>, Failure> {
    let Some(index) = gpu_index(machine)? else {
        return match &machine.device_memory {
            Some(_) => Err(Failure::usage(
                "--device-memory is for devices: add --device cuda for a GPU, add --replicas or --place for logical devices, or \
                 `plan --machine` for a device that is not here; the line of host memory is --memory",
            )),
            None => Ok(None),
        };
    };
    let memory = machine.device_memory.as_ref();
    let size = memory.map(|given| given.of(DeviceName::Cuda(index))).transpose()?;
    let instead = "leave --device out to train on the cpu";
    open(index, size, precision, checked, times, ("--device", instead)).map(Some)
}

/// A GPU under a line, as a flag names it. Where it cannot be used, the words say what to do instead.
pub fn open(
    index: usize,
    line: Option<Size>,
    precision: Precision,
    checked: bool,
    times: Option<&Arc<StepTimes>>,
    (flag, instead): (&str, &str),
) -> Result<Chosen, Failure> {
    let cache = plan_cache(None)?.map(|folder| folder.join("kernels"));
    let opened = Cuda::open(index, cache);
    let opened = if precision == Precision::TF32 { opened.and_then(Cuda::tf32) } else { opened };
    let executor = opened.map_err(|e| unusable(&e, flag, instead))?;
    let gpu = executor.gpu();
    let free_bytes = gpu.free_bytes.unwrap_or(gpu.total_bytes);
    let line_bytes = line.unwrap_or(DEFAULT_LINE).bytes(free_bytes);
    if line_bytes > gpu.total_bytes {
        let [line, memory] = [line_bytes, gpu.total_bytes].map(in_words);
        let message =
            format!("--device-memory {line} is above the memory of {}, {memory}: lower it", gpu.name);
        return Err(Failure::usage(message));
    }
    let executor = times.into_iter().fold(executor, |executor, times| executor.timed(times.clone()));
    let executor = if checked { executor.checked() } else { executor };
    Ok(Chosen { executor, line_bytes })
}

/// The line of a GPU's memory if none is given: a share of what is free.
const DEFAULT_LINE: Size = Size::Percent(90.0);

/// The number of the GPU that the flags name.
fn gpu_index(machine: &MachineOptions) -> Result<Option<usize>, Failure> {
    match machine.device {
        Device::Cpu => Ok(None),
        Device::Cuda(index) => Ok(Some(index)),
        Device::Auto => match Gpu::with_most_free() {
            Ok(gpu) => {
                hint(&format!("--device auto: cuda:{}, {}", gpu.index, gpu.name));
                Ok(Some(gpu.index))
            }
            Err(error) => {
                hint(&format!("--device auto: cpu ({error})"));
                Ok(None)
            }
        },
    }
}

/// A GPU that cannot be used.
fn unusable(error: &CudaError, flag: &str, instead: &str) -> Failure {
    match error {
        CudaError::Full { .. } => Failure::memory(format!("{error}: free some, or choose another GPU")),
        CudaError::Library { .. }
        | CudaError::Symbol { .. }
        | CudaError::OldDriver { .. }
        | CudaError::NoDevice { .. } => {
            Failure::usage(format!("{flag}: {error}; {instead}; `plimsoll devices` lists what is here"))
        }
        CudaError::NoTf32 { .. } => Failure::usage(format!("--precision tf32: {error}")),
        CudaError::Call { .. } | CudaError::Compile(_) => Failure::run(error),
    }
}
