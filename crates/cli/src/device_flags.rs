//! The flags of several devices, and where the steps of a plan run.

use super::Failure;
use clap::Args;
use plimsoll::Size;
use plimsoll::plan::{Action, Executor, PlanSet, in_words};
use plimsoll::train::{LogicalDevices, TrainingPlan};
use std::fmt;
use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

/// Which devices a run has.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct DeviceOptions {
    /// Train on this many logical devices at once, cpu:0, cpu:1 and so on. Each takes its part of every batch and of the
    /// threads, and holds the whole model; never changes results [default: 1]
    #[arg(long, value_name = "DEVICES", allow_negative_numbers = true)]
    pub replicas: Option<usize>,
    /// The lines of devices: with --replicas of each one, like cpu:0=1GiB,cpu:1=512MiB [default: equal shares of --memory];
    /// with `plan --machine` of its device's memory [default: the file's]
    #[arg(long, value_name = "SIZES", allow_negative_numbers = true)]
    pub device_memory: Option<DeviceMemory>,
    /// Print op, layer and device of every step of the plan, and the bytes that devices receive from each other
    #[arg(long)]
    pub log_placement: bool,
}

/// Lines of devices.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceMemory {
    /// Of the only one.
    One(Size),
    /// Of logical ones, by number.
    Each(Vec<(usize, Size)>),
}

impl FromStr for DeviceMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains('=') {
            return text.parse().map(Self::One).map_err(|e: plimsoll::plan::SizeError| e.to_string());
        }
        let one = |part: &str| -> Result<(usize, Size), String> {
            let (name, size) = part.split_once('=').unwrap_or((part, ""));
            let number = name.trim().strip_prefix("cpu:").and_then(|number| number.parse().ok());
            let number = number.ok_or(format!("`{name}` is no device: name them cpu:0, cpu:1 and so on"))?;
            Ok((number, size.trim().parse().map_err(|e| format!("`{size}`: {e}"))?))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self::Each)
    }
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(size) => size.fmt(f),
            Self::Each(sizes) => {
                let each: Vec<String> = sizes.iter().map(|(n, size)| format!("cpu:{n}={size}")).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

impl DeviceOptions {
    /// Whether the run is on logical devices.
    pub fn are_logical(&self) -> bool {
        self.replicas.is_some()
    }

    /// The line of the device of `plan --machine`.
    pub fn machine_line(&self) -> Result<Option<Size>, Failure> {
        match &self.device_memory {
            None => Ok(None),
            Some(DeviceMemory::One(size)) => Ok(Some(*size)),
            Some(DeviceMemory::Each(_)) => {
                Err(Failure::usage("--device-memory: with --machine there is one device, so give one size"))
            }
        }
    }

    /// The logical devices, made with so many threads each, or `None` for a run on one.
    pub fn logical(
        &self,
        threads: usize,
        executor: impl Fn(usize) -> Result<Box<dyn Executor>, Failure>,
    ) -> Result<Option<LogicalDevices>, Failure> {
        let devices = match (self.replicas, &self.device_memory) {
            (Some(0), _) => return Err(Failure::usage("--replicas must be at least 1")),
            (Some(devices @ 1..=64), _) => devices,
            (Some(_), _) => return Err(Failure::usage("--replicas must be at most 64")),
            (None, None) => return Ok(None),
            (None, Some(memory)) => {
                let message = format!(
                    "--device-memory {memory} is for several devices: add --replicas, or use --memory"
                );
                return Err(Failure::usage(message));
            }
        };
        let each = (threads / devices).max(1);
        let executors = (0..devices).map(|_| executor(each).map(Arc::from)).collect::<Result<Vec<_>, _>>()?;
        let logical = LogicalDevices::new(executors).map_err(Failure::usage)?;
        match &self.device_memory {
            None => {}
            Some(DeviceMemory::One(size)) => {
                let message = format!("--device-memory {size}: say of which device, like cpu:0={size}");
                return Err(Failure::usage(message));
            }
            Some(DeviceMemory::Each(sizes)) => {
                let mut set = sizes.iter().map(|(device, size)| logical.set_memory(*device, *size));
                set.try_for_each(|set| set.map_err(|e| Failure::usage(format!("--device-memory: {e}"))))?;
            }
        }
        Ok(Some(logical))
    }
}

/// Where every step of the first plan runs, and what passes between devices, as a table.
pub fn placement(plan: &TrainingPlan) -> String {
    let several = plan.load_sheet().devices.len() > 1;
    let mut table = format!("{:<10} {:<26} {:<30} {:>12}", "device", "op", "layer", "received");
    for (device, plans) in plan.devices().enumerate() {
        let name = if several { format!("cpu:{device}") } else { "cpu".to_string() };
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
