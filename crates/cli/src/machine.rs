//! `plimsoll plan --machine`: plans for a machine that is not here.

use super::Failure;
use super::args::{PlanOptions, RunOptions};
use super::text::escaped;
use clap::ArgMatches;
use clap::parser::ValueSource;
use plimsoll::Size;
use plimsoll::nn::Precision;
use plimsoll::plan::{Executor, LoadSheet, Network, in_words};
use plimsoll_machine::{Compute, Machine, PlanOnly, Space};

/// A machine that is not here, and the line of its device.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    machine: Machine,
    device_line: Option<usize>,
}

impl Elsewhere {
    /// The line of the device's memory, if the machine has a device.
    pub fn device_line(&self) -> Option<usize> {
        self.device_line
    }

    /// With this line of the device's memory.
    pub fn under(self, line_bytes: usize) -> Self {
        Self { device_line: Some(line_bytes), ..self }
    }

    /// An executor that plans for the machine.
    pub fn executor(&self, options: &RunOptions) -> Box<dyn Executor> {
        let machine = self.machine.clone();
        let in_tf32 = options.precision.precision == Precision::TF32;
        let executor = PlanOnly::new(&if in_tf32 { machine.in_tf32() } else { machine });
        match options.spill.as_ref().is_some_and(|folder| folder.as_os_str() == "none") {
            true => Box::new(executor.without_file()),
            false => Box::new(executor),
        }
    }

    /// What connects it to others like it.
    pub fn network(&self) -> Option<Network> {
        self.machine.network.clone()
    }

    /// What a plan takes of the file space, as a sentence.
    pub fn file_note(&self, sheet: &LoadSheet) -> Option<String> {
        let space = &self.machine.file.as_ref()?.space;
        let [used, line] = [sheet.offloaded_bytes, space.line_bytes()].map(in_words);
        Some(format!("`{}` holds {used} of offloaded states and values; its line is {line}.", space.name))
    }
}

/// The options of a plan, with the machine that they name: its lines and threads where no flag gives others.
pub fn elsewhere(options: &PlanOptions, matches: Option<&ArgMatches>) -> Result<RunOptions, Failure> {
    let mut run = options.run.clone();
    let Some(path) = &options.machine else { return Ok(run) };
    let machine = Machine::read(path).map_err(Failure::usage)?;
    let given = |flag: &str| matches.and_then(|m| m.value_source(flag)) == Some(ValueSource::CommandLine);
    let host_line = match given("memory") {
        true => line("--memory", run.machine.memory.own(), &machine.host)?,
        false => machine.host.line_bytes(),
    };
    run.machine.memory = Size::Bytes(host_line).into();
    run.your_code = run.your_code.map(|size| Size::Bytes(size.bytes(machine.host.memory_bytes)));
    run.machine.threads = match (&machine.compute, run.machine.threads) {
        (Compute::Cpu(cores), Some(_)) => {
            let message = format!(
                "--threads: {} has threads = {}; change it there",
                escaped(path.display()),
                cores.threads
            );
            return Err(Failure::usage(message));
        }
        (Compute::Cpu(cores), None) => Some(cores.threads),
        (Compute::Roofline(_) | Compute::Cuda(_), threads) => threads.or(Some(1)),
    };
    if given("device") {
        let message =
            "--device is one of this machine's; --machine plans for the device of its file: leave one out";
        return Err(Failure::usage(message));
    }
    let device_memory = run.machine.device_memory.take().map(|given| given.of_the_only_one()).transpose()?;
    let device_line = match (&machine.device, device_memory) {
        (None, Some(_)) => {
            let message = format!(
                "--device-memory: {} has no space of kind device; its line is --memory",
                escaped(path.display())
            );
            return Err(Failure::usage(message));
        }
        (None, None) => None,
        (Some(device), None) => Some(device.space.line_bytes()),
        (Some(device), Some(size)) => Some(line("--device-memory", size, &device.space)?),
    };
    run.elsewhere = Some(Elsewhere { machine, device_line });
    Ok(run)
}

/// The line that a flag draws in a space.
fn line(flag: &str, size: Size, space: &Space) -> Result<usize, Failure> {
    let bytes = size.bytes(space.memory_bytes);
    if bytes > space.memory_bytes {
        let [line, memory] = [bytes, space.memory_bytes].map(in_words);
        let message = format!("{flag} {line} is above the memory of `{}`, {memory}: lower it", space.name);
        return Err(Failure::usage(message));
    }
    Ok(bytes)
}
