//! The flags of memory and machine.

use super::Failure;
use clap::Args;
use plimsoll::Size;

/// The line and the machine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct MachineOptions {
    /// The line: a size like 512MiB or 4GB, or a share like 50% or 0.5 of the available memory
    #[arg(long, value_name = "SIZE", default_value = "90%", allow_negative_numbers = true)]
    pub memory: Size,
    /// Where to compute: cpu, cuda (the first NVIDIA GPU), cuda:1, or auto (the GPU with the most free memory, else the cpu);
    /// `plimsoll devices` lists them
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device)]
    pub device: Device,
    /// The line of the GPU's memory: a size, or a share of what is free; for several GPUs cuda:0=6GiB,cuda:1=4GiB
    /// [default: 90%]
    #[arg(long, value_name = "SIZE", value_parser = device_memory, allow_negative_numbers = true)]
    pub device_memory: Option<DeviceMemory>,
    /// Threads; never changes results [default: the machine's cores]
    #[arg(long, allow_negative_numbers = true)]
    pub threads: Option<usize>,
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

/// The lines of devices' memories.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMemory {
    /// Each with its device, or with none for whichever is used.
    lines: Vec<(Option<String>, Size)>,
}

impl DeviceMemory {
    /// One line, for whichever device is used.
    pub fn of_any(size: Size) -> Self {
        Self { lines: vec![(None, size)] }
    }

    /// The line of a device.
    pub fn of(&self, kind: &str, index: usize) -> Result<Size, Failure> {
        let name = format!("{kind}:{index}");
        let found =
            self.lines.iter().find(|(device, _)| device.as_ref().is_none_or(|device| *device == name));
        let missing = || Failure::usage(format!("--device-memory has no line for {name}: add {name}=SIZE"));
        found.map(|(_, size)| *size).ok_or_else(missing)
    }
}

/// Parses `--device-memory`.
fn device_memory(text: &str) -> Result<DeviceMemory, String> {
    let size = |text: &str| text.parse::<Size>().map_err(|e| e.to_string());
    if !text.contains('=') {
        return Ok(DeviceMemory::of_any(size(text)?));
    }
    let line = |part: &str| {
        let (device, line) =
            part.split_once('=').ok_or("lines of several devices are NAME=SIZE,NAME=SIZE")?;
        let name = device.trim().to_ascii_lowercase();
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse::<usize>().ok());
        if number.is_none() {
            return Err(format!("`{name}` is no GPU: they are cuda:0, cuda:1 and so on"));
        }
        Ok((Some(name), size(line.trim())?))
    };
    let lines = text.split(',').map(line).collect::<Result<_, String>>()?;
    Ok(DeviceMemory { lines })
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
