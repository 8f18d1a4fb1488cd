//! The flags of several devices, and where the steps of a plan run.

use super::Failure;
use super::args::RunOptions;
use super::devices::open;
use super::machine_flags::Device;
use super::setup::cpu_executor;
use clap::Args;
use plimsoll::Size;
use plimsoll::plan::{Action, Executor, PlanSet, in_words};
use plimsoll::train::{DeviceName, LogicalDevices, Placement, Trainer, TrainingPlan};
use std::fmt::Write;
use std::sync::Arc;

/// Which devices a run has.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct DeviceOptions {
    /// Train on this many logical devices at once, cpu:0, cpu:1 and so on. Each takes its part of every batch and of the
    /// threads, and holds the whole model; never changes results [default: 1]
    #[arg(long, value_name = "DEVICES", allow_negative_numbers = true)]
    pub replicas: Option<usize>,
    /// Put layers on devices, parts of the cpu or GPUs, by rules like 'block[0-5].*=cuda:0', of which the first that matches a layer
    /// decides; each device holds its layers' parameters and optimizer state; between parts of the cpu it never changes results. Repeat
    /// it, or separate rules by commas. 'auto=cpu:0-1', 'auto=cuda:0,cpu', or 'auto', cuts the layers in order, for even shares of
    /// memory and little between them
    #[arg(long, value_name = "LAYERS=DEVICE", value_delimiter = ',', conflicts_with = "replicas")]
    pub place: Vec<String>,
    /// Print op, layer and device of every step of the plan, and the bytes that devices receive from each other
    #[arg(long)]
    pub log_placement: bool,
}

impl DeviceOptions {
    /// Whether the run is on logical devices.
    pub fn are_logical(&self) -> bool {
        self.replicas.is_some() || !self.place.is_empty()
    }

    /// Where layers are, if they are placed.
    pub fn placement(&self) -> Result<Option<Placement>, Failure> {
        match self.place.is_empty() {
            true => Ok(None),
            false => {
                Placement::new(&self.place).map(Some).map_err(|e| Failure::usage(format!("--place: {e}")))
            }
        }
    }

    /// The threads of all devices, for a run with so many. Each part of the processor that holds layers has them all: without cores for
    /// that, one computes after another.
    pub fn threads(&self, threads: usize) -> Result<usize, Failure> {
        let processors =
            |placement: Placement| placement.devices().iter().filter(|name| !is_gpu(name)).count();
        Ok(threads * self.placement()?.map_or(1, processors))
    }

    /// Whether layers are on a GPU.
    pub fn have_gpu(&self) -> Result<bool, Failure> {
        Ok(self.placement()?.is_some_and(|placement| placement.devices().iter().any(is_gpu)))
    }

    /// The trainer on the logical devices that the flags name, or `None` for a run on one device.
    pub fn trainer(
        &self,
        trainer: Trainer,
        run: &RunOptions,
        threads: usize,
        line_bytes: usize,
    ) -> Result<Option<Trainer>, Failure> {
        if run.elsewhere.is_some() {
            return Ok(None);
        }
        if let Some(placement) = self.placement()? {
            let devices = logical(run, placement.devices(), threads, line_bytes)?;
            return Ok(Some(trainer.place(&devices, placement)));
        }
        let devices = match self.replicas {
            None => return Ok(None),
            Some(0) => return Err(Failure::usage("--replicas must be at least 1")),
            Some(devices @ 1..=LogicalDevices::MOST) => devices,
            Some(_) => return Err(Failure::usage("--replicas must be at most 64")),
        };
        let (each, names) = ((threads / devices).max(1), (0..devices).map(DeviceName::Cpu).collect());
        Ok(Some(trainer.replicas(&logical(run, names, each, line_bytes)?)))
    }
}

fn is_gpu(name: &DeviceName) -> bool {
    matches!(name, DeviceName::Cuda(_))
}

/// The devices of these names with their lines, for a run under one.
fn logical(
    run: &RunOptions,
    names: Vec<DeviceName>,
    threads: usize,
    line_bytes: usize,
) -> Result<LogicalDevices, Failure> {
    if run.machine.device != Device::Cpu {
        return Err(Failure::usage("--replicas and --place name their devices: leave --device out"));
    }
    let lines = run.machine.device_memory.as_ref().map(|memory| memory.of_each()).transpose()?;
    let mut lines = lines.unwrap_or_default().to_vec();
    if let Some((other, _)) = lines.iter().find(|(name, _)| !names.contains(name)) {
        let all: Vec<String> = names.iter().map(ToString::to_string).collect();
        let message = format!("--device-memory: there is no {other}: the devices are {}", all.join(", "));
        return Err(Failure::usage(message));
    }
    let mut executors: Vec<(DeviceName, Arc<dyn Executor>)> = Vec::new();
    for name in names {
        let executor = match name {
            DeviceName::Cpu(_) => cpu_executor(run, threads, line_bytes, None)?,
            DeviceName::Cuda(index) => {
                let line = lines.iter().position(|(other, _)| *other == name).map(|at| lines.remove(at).1);
                let (precision, instead) = (run.precision.precision, ("--place", "place its layers on cpu"));
                let gpu = open(index, line, precision, run.check_memory, None, instead)?;
                lines.push((name, Size::Bytes(gpu.line_bytes)));
                Box::new(gpu.executor)
            }
        };
        executors.push((name, Arc::from(executor)));
    }
    let logical = LogicalDevices::named(executors).map_err(Failure::usage)?;
    for (name, size) in lines {
        let set = logical.set_memory(&name.to_string(), size);
        set.map_err(|e| Failure::usage(format!("--device-memory: {e}")))?;
    }
    Ok(logical)
}

/// Where every step of the first plan runs, and what passes between devices, as a table.
pub fn placement(plan: &TrainingPlan) -> String {
    let rows = &plan.load_sheet().devices;
    let several = rows.len() > 1;
    let mut table = format!("{:<10} {:<26} {:<30} {:>12}", "device", "op", "layer", "received");
    for (device, plans) in plan.devices().enumerate() {
        // A target is named like `cpu avx512, 2 threads` or `cuda:0, NVIDIA H200`.
        let one = plan.load_sheet().target.split([' ', ',']).next().unwrap_or_default();
        let name = rows.get(device).filter(|_| several).map_or(one, |row| row.name.as_str());
        add_rows(&mut table, device, name, plans);
    }
    for row in rows.iter().filter(|_| several) {
        let bytes = in_words(row.received_bytes as usize);
        let _ = write!(table, "\n{} receives {bytes} from other devices in a step", row.name);
    }
    table
}

/// A row for every step of the first plan that computes or exchanges.
fn add_rows(table: &mut String, device: usize, name: &str, plans: &PlanSet) {
    let Some(plan) = plans.plans.first() else { return };
    for step in &plan.steps {
        let (Action::Run { node, .. } | Action::ChunkedUpdate { node, .. }) = step.action else { continue };
        let node = plan.graph.node(node);
        let bytes = plan.node_received_bytes(node, device, step.optimizer_step);
        let received = if bytes > 0 { in_words(bytes as usize) } else { String::new() };
        let row = format!("{name:<10} {:<26} {:<30} {received:>12}", node.op.name(), node.layer);
        let _ = write!(table, "\n{}", row.trim_end());
    }
}
