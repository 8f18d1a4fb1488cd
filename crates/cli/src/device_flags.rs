//! The flags of several devices, and where the steps of a plan run.

use super::Failure;
use super::args::RunOptions;
use super::machine_flags::Device;
use super::setup::cpu_executor;
use clap::Args;
use plimsoll::plan::{Action, PlanSet, in_words};
use plimsoll::train::{LogicalDevices, Placement, Trainer, TrainingPlan};
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
    /// Put layers on logical devices, by rules like 'block[0-5].*=cpu:0', of which the first that matches a layer decides; each
    /// device holds its layers' parameters and optimizer state; never changes results. Repeat it, or separate rules by commas.
    /// 'auto=cpu:0-1', or 'auto', cuts the layers in order, for even shares of memory and little between them
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

    /// The threads of all devices, for a run with so many. Placed layers are computed one after another, so each device has them all.
    pub fn threads(&self, threads: usize) -> Result<usize, Failure> {
        Ok(threads * self.placement()?.map_or(1, |placement| placement.devices()))
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
            let devices = logical("--place puts layers", run, placement.devices(), threads, line_bytes)?;
            return Ok(Some(trainer.place(&devices, placement)));
        }
        let devices = match self.replicas {
            None => return Ok(None),
            Some(0) => return Err(Failure::usage("--replicas must be at least 1")),
            Some(devices @ 1..=LogicalDevices::MOST) => devices,
            Some(_) => return Err(Failure::usage("--replicas must be at most 64")),
        };
        let each = (threads / devices).max(1);
        Ok(Some(trainer.replicas(&logical("--replicas are", run, devices, each, line_bytes)?)))
    }
}

/// So many logical devices with their lines, for a run under one.
fn logical(
    what: &str,
    run: &RunOptions,
    devices: usize,
    threads: usize,
    line_bytes: usize,
) -> Result<LogicalDevices, Failure> {
    if run.machine.device != Device::Cpu {
        return Err(Failure::usage(format!("{what} on logical devices of the cpu: leave --device out")));
    }
    let executor = |_| Ok(Arc::from(cpu_executor(run, threads, line_bytes, None)?));
    let executors = (0..devices).map(executor).collect::<Result<Vec<_>, Failure>>()?;
    let logical = LogicalDevices::new(executors).map_err(Failure::usage)?;
    if let Some(memory) = &run.machine.device_memory {
        let mut set =
            memory.of_each("cpu")?.into_iter().map(|(device, size)| logical.set_memory(device, size));
        set.try_for_each(|set| set.map_err(|e| Failure::usage(format!("--device-memory: {e}"))))?;
    }
    Ok(logical)
}

/// Where every step of the first plan runs, and what passes between devices, as a table.
pub fn placement(plan: &TrainingPlan) -> String {
    let several = plan.load_sheet().devices.len() > 1;
    let mut table = format!("{:<10} {:<26} {:<30} {:>12}", "device", "op", "layer", "received");
    for (device, plans) in plan.devices().enumerate() {
        // A target is named like `cpu avx512, 2 threads` or `cuda:0, NVIDIA H200`.
        let one = plan.load_sheet().target.split([' ', ',']).next().unwrap_or_default();
        let name = if several { format!("cpu:{device}") } else { one.to_string() };
        add_rows(&mut table, device, &name, plans);
    }
    for (device, plans) in plan.devices().enumerate().filter(|_| several) {
        let bytes = plans.plans.first().map_or(0, |plan| plan.received_bytes(device));
        let _ = write!(
            table,
            "\ncpu:{device} receives {} from other devices in a step",
            in_words(bytes as usize)
        );
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
