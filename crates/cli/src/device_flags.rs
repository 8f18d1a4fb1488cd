//! The flags of several devices, and where the steps of a plan run.

use super::Failure;
use super::args::RunOptions;
use super::machine_flags::Device;
use super::setup::cpu_executor;
use clap::Args;
use plimsoll::plan::{Action, PlanSet, in_words};
use plimsoll::train::{LogicalDevices, TrainingPlan};
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
    /// Print op, layer and device of every step of the plan, and the bytes that devices receive from each other
    #[arg(long)]
    pub log_placement: bool,
}

impl DeviceOptions {
    /// Whether the run is on logical devices.
    pub fn are_logical(&self) -> bool {
        self.replicas.is_some()
    }

    /// The logical devices of a run under a line, made with so many threads together, or `None` for a run on one.
    pub fn logical(
        &self,
        run: &RunOptions,
        threads: usize,
        line_bytes: usize,
    ) -> Result<Option<LogicalDevices>, Failure> {
        let devices = match self.replicas {
            None => return Ok(None),
            Some(_) if run.elsewhere.is_some() => return Ok(None),
            Some(0) => return Err(Failure::usage("--replicas must be at least 1")),
            Some(devices @ 1..=64) => devices,
            Some(_) => return Err(Failure::usage("--replicas must be at most 64")),
        };
        if run.machine.device != Device::Cpu {
            return Err(Failure::usage("--replicas are on logical devices of the cpu: leave --device out"));
        }
        let each = (threads / devices).max(1);
        let executor = |_| Ok(Arc::from(cpu_executor(run, each, line_bytes, None)?));
        let executors = (0..devices).map(executor).collect::<Result<Vec<_>, Failure>>()?;
        let logical = LogicalDevices::new(executors).map_err(Failure::usage)?;
        if let Some(memory) = &run.machine.device_memory {
            let mut set =
                memory.of_each("cpu")?.into_iter().map(|(device, size)| logical.set_memory(device, size));
            set.try_for_each(|set| set.map_err(|e| Failure::usage(format!("--device-memory: {e}"))))?;
        }
        Ok(Some(logical))
    }
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
        let bytes = plan.node_received_bytes(node, device);
        let received = if bytes > 0 { in_words(bytes as usize) } else { String::new() };
        let row = format!("{name:<10} {:<26} {:<30} {received:>12}", node.op.name(), node.layer);
        let _ = write!(table, "\n{}", row.trim_end());
    }
}
