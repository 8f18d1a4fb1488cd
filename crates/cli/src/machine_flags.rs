//! The flags of memory and machine.

use super::{Failure, ranks};
use clap::Args;
use plimsoll::Size;
use plimsoll::train::DeviceName;
use std::fmt;
use std::str::FromStr;

/// The line and the machine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct MachineOptions {
    /// The line: a size like 512MiB or 4GB, or a share like 50% or 0.5 of the available memory; of several processes one for
    /// each, like 1GiB,512MiB
    #[arg(long, value_name = "SIZE", default_value = "90%", allow_negative_numbers = true)]
    pub memory: Lines,
    /// Where to compute: cpu, cuda (the first NVIDIA GPU), cuda:1, or auto (the GPU with the most free memory, else the cpu);
    /// `plimsoll devices` lists them
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device)]
    pub device: Device,
    /// The lines of devices: of a GPU's memory as a size or a share of what is free [default: 90%], with --replicas or --place of each
    /// device of the cpu [default: equal shares of --memory], with `plan --machine` of its device's memory [default: the file's];
    /// of several by name, like cuda:0=6GiB,cpu:0=1GiB,cpu:1=512MiB
    #[arg(long, value_name = "SIZES", value_parser = device_memory, allow_negative_numbers = true)]
    pub device_memory: Option<DeviceMemory>,
    /// Threads; never changes results [default: the machine's cores]
    #[arg(long, allow_negative_numbers = true)]
    pub threads: Option<usize>,
}

/// The lines of a run's processes: one for all, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines(Vec<Size>);

impl Lines {
    /// How many are given.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The line of a process.
    pub fn of(&self, rank: usize) -> Size {
        self.0[rank.min(self.0.len() - 1)]
    }

    /// The line of this process.
    pub fn own(&self) -> Size {
        self.of(ranks::rank())
    }
}

impl From<Size> for Lines {
    fn from(size: Size) -> Self {
        Self(vec![size])
    }
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A number may have a comma only where it separates lines.
        let lines = text.split(',').map(|line| line.trim().parse::<Size>().map_err(|e| e.to_string()));
        lines.collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&each.join(","))
    }
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// On this machine's processor.
    Cpu,
    /// On an NVIDIA GPU.
    Cuda(usize),
    /// On the GPU with the most free memory, if there is one, else on the processor.
    Auto,
}

/// Parses `--device`.
fn device(text: &str) -> Result<Device, String> {
    let name = text.to_ascii_lowercase();
    if let Some(index) = name.strip_prefix("cuda:") {
        return index.parse().map(Device::Cuda).map_err(|_| "a GPU is cuda:0, cuda:1 and so on".into());
    }
    match name.as_str() {
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        "auto" => Ok(Device::Auto),
        "gpu" | "nvidia" => Err("did you mean cuda?".into()),
        "mps" | "metal" | "rocm" | "xla" | "tpu" => {
            Err(format!("there is no {name}, only cpu, cuda and auto"))
        }
        _ => Err("cpu, cuda, cuda:1 or auto".into()),
    }
}

/// The lines of devices.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceMemory {
    /// Of whichever is used.
    One(Size),
    /// By name.
    Each(Vec<(DeviceName, Size)>),
}

impl DeviceMemory {
    /// The line of a device.
    pub fn of(&self, name: DeviceName) -> Result<Size, Failure> {
        match self {
            Self::One(size) => Ok(*size),
            Self::Each(lines) => {
                let found = lines.iter().find(|(other, _)| *other == name);
                let missing =
                    || Failure::usage(format!("--device-memory has no line for {name}: add {name}=SIZE"));
                found.map(|(_, size)| *size).ok_or_else(missing)
            }
        }
    }

    /// The line of a machine's only device.
    pub fn of_the_only_one(&self) -> Result<Size, Failure> {
        match self {
            Self::One(size) => Ok(*size),
            Self::Each(_) => {
                Err(Failure::usage("--device-memory: with --machine there is one device, so give one size"))
            }
        }
    }

    /// The lines of several devices.
    pub fn of_each(&self) -> Result<&[(DeviceName, Size)], Failure> {
        match self {
            Self::One(size) => {
                let message = format!("--device-memory {size}: say of which device, like cpu:0={size}");
                Err(Failure::usage(message))
            }
            Self::Each(lines) => Ok(lines),
        }
    }
}

/// Parses `--device-memory`.
fn device_memory(text: &str) -> Result<DeviceMemory, String> {
    let size = |text: &str| text.trim().parse::<Size>().map_err(|e| e.to_string());
    if !text.contains('=') {
        return size(text).map(DeviceMemory::One);
    }
    let line = |part: &str| {
        let (name, line) = part.split_once('=').ok_or("lines of several devices are NAME=SIZE,NAME=SIZE")?;
        let name = name.trim();
        let known =
            name.parse().map_err(|_| format!("`{name}` is no device: name them cpu:0, cuda:0 and so on"))?;
        Ok((known, size(line)?))
    };
    text.split(',').map(line).collect::<Result<_, String>>().map(DeviceMemory::Each)
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(size) => size.fmt(f),
            Self::Each(lines) => {
                let each: Vec<String> = lines.iter().map(|(name, size)| format!("{name}={size}")).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

/// The disk's speed as plans assume it.
#[derive(Clone, Copy, Debug)]
pub enum SpillSpeed {
    /// Bytes per second.
    Bytes(usize),
    /// Measured by a short trial.
    Measured,
}

/// Parses `--spill-speed`.
pub fn spill_speed(text: &str) -> Result<SpillSpeed, String> {
    match (text, text.parse()) {
        ("measure", _) => Ok(SpillSpeed::Measured),
        (_, Ok(Size::Bytes(bytes))) if bytes > 0 => Ok(SpillSpeed::Bytes(bytes)),
        _ => Err("bytes in a second, like 3GB, or measure".into()),
    }
}
