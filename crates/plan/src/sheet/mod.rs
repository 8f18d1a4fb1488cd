//! The load sheet: the account of every byte under the line.

mod build;
mod entries;
mod lifetimes;
mod text;
mod words;

pub(crate) use build::load_sheet;
pub use entries::{
    BATCH_BUFFERS, BATCHES_AHEAD, HEAP_CAP, INPUT_STACKS, METRICS, MODEL_FILE, NEXT_BATCH, OUTPUTS,
    PAGE_TABLES, PLANNING, STATE_BUFFER, TRACE, process_heap, process_planning,
};
pub(crate) use entries::{
    graphs_heap_bytes, heap_cap, host_mapping, largest_arena, link_staging, page_tables, planning,
    planning_bytes, plans_heap_bytes, spill_staging,
};
pub use lifetimes::Lifetime;
pub use words::{batch_type_in_words, op_in_words};

use crate::{Infeasible, PlanError};
use serde::{Deserialize, Serialize};

/// One entry of a load sheet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What holds the bytes.
    pub name: String,
    /// How many.
    pub bytes: usize,
    /// A note, like `2 × 256 KiB`.
    pub note: String,
}

impl Entry {
    /// An entry.
    pub fn new(name: impl Into<String>, bytes: usize, note: impl Into<String>) -> Self {
        Self { name: name.into(), bytes, note: note.into() }
    }
}

/// A holder of memory at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The layer.
    pub layer: String,
    /// What it holds, like `conv2d f32[128,32,32,16]`.
    pub what: String,
    /// How many bytes.
    pub bytes: usize,
}

/// The peak of the arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The plan.
    pub plan: String,
    /// The step's index.
    pub step: usize,
    /// Steps in that plan.
    pub steps: usize,
    /// The layer of that step.
    pub layer: String,
    /// The op of that step.
    pub op: String,
    /// The largest holders, largest first.
    pub holders: Vec<Holder>,
}

/// One plan's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanRow {
    /// The batch type.
    pub name: String,
    /// Examples per step.
    pub examples: usize,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Its peak in the arena.
    pub peak_bytes: usize,
    /// Its largest sum of live bytes: the lower bound of the peak in its order.
    pub live_bytes: usize,
    /// Predicted microseconds per step, from a rough model of the machine.
    pub predicted_us: u64,
    /// Rematerialized runs: runs of nodes beyond the first of each.
    pub recomputed: usize,
}

/// The account of host memory, where kernels compute in the memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostSheet {
    /// The arena of what is offloaded to host memory.
    pub arena_bytes: usize,
    /// Everything outside it.
    pub outside: Vec<Entry>,
    /// Both together: the planned peak.
    pub total_bytes: usize,
    /// The line.
    pub line_bytes: usize,
    /// Bytes stored to the arena in a step of the first plan.
    pub stored_bytes: u64,
}

impl HostSheet {
    pub(crate) fn add_outside(&mut self, entry: Entry) {
        self.total_bytes = self.total_bytes.saturating_add(entry.bytes);
        self.outside.push(entry);
    }
}

/// One of several devices of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRow {
    /// Its name.
    pub name: String,
    /// Its arena.
    pub arena_bytes: usize,
    /// Its arena with what belongs to it: page tables, staging.
    pub total_bytes: usize,
    /// Its line.
    pub line_bytes: usize,
    /// Bytes that it receives from the others in a step of the first plan.
    pub received_bytes: u64,
}

/// A memory space that has a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Space {
    /// The one that kernels compute in.
    Computing,
    /// Host memory beside the memory of a device.
    Host,
}

/// The account of every byte: what the arena holds at its peak, then everything outside the arena. The
/// entries add up to the total. Where kernels compute in the memory of a device, host memory has an account of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadSheet {
    /// The target's name.
    pub target: String,
    /// What the arena holds at its peak; adds up to `arena_bytes`.
    pub arena: Vec<Entry>,
    /// The arena.
    pub arena_bytes: usize,
    /// Everything outside the arena.
    pub outside: Vec<Entry>,
    /// Arena and outside together: the planned peak.
    pub total_bytes: usize,
    /// The line.
    pub line_bytes: usize,
    /// The account of host memory, where the computing space is a device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostSheet>,
    /// The device that this is the account of, where it is one of several and not that of the process; or the process, where it is one of
    /// several that were planned together, and its line is too low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// All devices of the process, if there are several. The arena above is the first one's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceRow>,
    /// What the spill file holds, which is not under the line: offloaded states, and offloaded values of the first plan.
    #[serde(rename = "spilled")]
    pub offloaded: Vec<Entry>,
    /// Their bytes.
    #[serde(rename = "spilled_bytes")]
    pub offloaded_bytes: usize,
    /// Bytes written to the spill file in a step of the first plan.
    pub stored_bytes: u64,
    /// The peak.
    pub peak: Peak,
    /// Every plan.
    pub plans: Vec<PlanRow>,
    /// Predicted nanoseconds of a step of the first plan if there were no line.
    pub unlimited_ns: u64,
    /// Further notes, a sentence each.
    pub notes: Vec<String>,
}

impl LoadSheet {
    /// Adds an entry of host memory: outside the arena, or to the account of host memory if that is another space.
    pub fn add_outside(&mut self, entry: Entry) {
        if let Some(host) = &mut self.host {
            return host.add_outside(entry);
        }
        self.add_computing(entry);
    }

    /// Adds an entry of the computing space, outside the arena.
    pub fn add_computing(&mut self, entry: Entry) {
        self.total_bytes = self.total_bytes.saturating_add(entry.bytes);
        self.outside.push(entry);
    }

    /// What a device takes of its own memory to reach that of the host, in place of what was reserved for it.
    pub(crate) fn set_host_mapping(&mut self, bytes: usize) {
        if self.host.is_none() {
            return;
        }
        self.outside.retain(|entry| entry.name != PAGE_TABLES);
        self.outside.extend(host_mapping(bytes));
        self.total_bytes = self.outside.iter().fold(self.arena_bytes, |sum, e| sum.saturating_add(e.bytes));
    }

    /// Bytes of an entry outside the arenas; 0 if the sheet has none of this name.
    pub fn outside_bytes(&self, name: &str) -> usize {
        let outside = self.outside.iter().chain(self.host.iter().flat_map(|host| &host.outside));
        outside.filter(|entry| entry.name == name).map(|entry| entry.bytes).sum()
    }

    /// The planned peak of host memory, and its line.
    pub fn host_total_and_line(&self) -> (usize, usize) {
        match &self.host {
            Some(host) => (host.total_bytes, host.line_bytes),
            None => (self.total_bytes, self.line_bytes),
        }
    }

    /// Predicted milliseconds of a step of the first plan.
    pub fn predicted_ms(&self) -> f64 {
        self.plans.first().map_or(0, |p| p.predicted_us) as f64 / 1e3
    }

    /// Predicted time of a step of the first plan over its time without a line, minus one.
    pub fn slowdown(&self) -> f64 {
        let planned = self.plans.first().map_or(0, |p| p.predicted_us) as f64;
        let unlimited = (self.unlimited_ns / 1_000) as f64;
        if unlimited > 0.0 { planned / unlimited - 1.0 } else { 0.0 }
    }

    /// Whether each space is under its line; if not, the error says what is missing and who holds the memory.
    pub fn check_line(&self) -> Result<(), PlanError> {
        let computing = (Space::Computing, self.total_bytes, self.line_bytes);
        let host = self.host.as_ref().map(|host| (Space::Host, host.total_bytes, host.line_bytes));
        let over = [computing].into_iter().chain(host).find(|(_, total, line)| total > line);
        let Some((space, needed_bytes, line_bytes)) = over else { return Ok(()) };
        Err(PlanError::Infeasible(Box::new(Infeasible {
            space,
            line_bytes,
            needed_bytes,
            missing_bytes: needed_bytes - line_bytes,
            sheet: self.clone(),
        })))
    }
}

/// Bytes in binary units.
pub fn in_words(bytes: usize) -> String {
    let units = [("GiB", 1_usize << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// A time in the unit that a person would take: `2.9 ms`, `41 s`, `3.5 min`, `2.1 h`, `4.0 days`.
///
/// ```
/// use plimsoll_plan::time_in_words;
/// let words = [4_100, 2_900_000, 1_640_000_000, 41_000_000_000, 210_000_000_000, 7_560_000_000_000].map(time_in_words);
/// assert_eq!(words, ["4.1 µs", "2.9 ms", "1.6 s", "41 s", "3.5 min", "2.1 h"]);
/// ```
pub fn time_in_words(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    match seconds {
        _ if nanoseconds == 0 => "0 s".into(),
        ..0.001 => format!("{:.1} µs", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}
