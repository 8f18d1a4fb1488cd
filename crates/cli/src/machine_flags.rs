//! The flags of memory and machine.

use clap::Args;
use plimsoll::Size;

/// The line and the machine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct MachineOptions {
    /// The line: a size like 512MiB or 4GB, or a share like 50% or 0.5 of the available memory
    #[arg(long, value_name = "SIZE", default_value = "90%", allow_negative_numbers = true)]
    pub memory: Size,
    /// Where to compute: cpu. There is no other device yet; `plan --machine h200` plans for a GPU
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device)]
    pub device: Device,
    /// Threads; never changes results [default: the machine's cores]
    #[arg(long, allow_negative_numbers = true)]
    pub threads: Option<usize>,
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// On this machine's processor.
    Cpu,
}

/// Parses `--device`.
fn device(text: &str) -> Result<Device, String> {
    const PLAN: &str = "`plimsoll plan --machine h200` plans for a GPU that is not here";
    match text.to_ascii_lowercase().as_str() {
        "cpu" => Ok(Device::Cpu),
        "cuda" => {
            Err(format!("training on cuda is not there yet: leave --device out to train on the cpu; {PLAN}"))
        }
        "gpu" | "nvidia" => {
            Err(format!("did you mean cuda? It is not there yet: leave --device out; {PLAN}"))
        }
        "mps" | "metal" | "rocm" | "xla" | "tpu" => Err(format!("there is no such device, only cpu; {PLAN}")),
        _ => Err("the only device is cpu".into()),
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
