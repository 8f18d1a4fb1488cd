//! A plan set as plain data. Tables are columns of equal length, so that they are short as JSON.

use plimsoll_plan::Entry;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the data: readers refuse others.
pub const VERSION: u32 = 2;
/// The longest text of a view that is read.
const MAX_BYTES: usize = 256 << 20;

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A parameter.
    Parameter,
    /// A moment of the optimizer.
    Optimizer,
    /// A running statistic, or an average of a parameter.
    Statistic,
    /// An input of the step.
    Batch,
    /// A value of forward that backward reads.
    Saved,
    /// A value that is computed another time.
    Rematerialized,
    /// A state or value that waits in a tier for a part of the step.
    Offloaded,
    /// A gradient, or another value of backward.
    Gradient,
    /// Any other value.
    Working,
    /// Scratch of a kernel.
    Workspace,
}

impl Kind {
    /// All kinds, in the order in which they are stacked.
    pub const ALL: [Self; 10] = [
        Self::Parameter,
        Self::Optimizer,
        Self::Statistic,
        Self::Batch,
        Self::Saved,
        Self::Rematerialized,
        Self::Offloaded,
        Self::Gradient,
        Self::Working,
        Self::Workspace,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Optimizer => "optimizer state",
            Self::Statistic => "statistics and averages",
            Self::Batch => "batch",
            Self::Saved => "saved activations",
            Self::Rematerialized => "rematerialized",
            Self::Offloaded => "offloaded",
            Self::Gradient => "gradients",
            Self::Working => "other values",
            Self::Workspace => "workspace",
        }
    }
}

/// All that a page shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The version of the data.
    pub version: u32,
    /// What is planned, like `resnet50, batches of 32`.
    pub title: String,
    /// The target's name.
    pub target: String,
    /// The names of the kinds, by number.
    pub kinds: Vec<String>,
    /// The memory spaces: that of the arena first, or, of a process with several devices, the whole of it.
    pub spaces: Vec<SpaceView>,
    /// What the spill file holds.
    pub file: Vec<Entry>,
    /// The plans of all batch types.
    pub plans: Vec<PlanView>,
    /// What the line costs, and other notes, a sentence each.
    pub notes: Vec<String>,
    /// Predicted time of a step without a line.
    pub unlimited_ns: u64,
    /// Line against time, the highest line first; empty if nobody asked.
    pub curve: Vec<CurvePoint>,
    /// What other flags would do; empty if nobody asked.
    pub alternatives: Vec<Alternative>,
    /// What was measured in a run.
    pub measured: Option<Measured>,
}

/// A memory space with a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpaceView {
    /// Its name.
    pub name: String,
    /// Its line; none if there is none.
    pub line_bytes: Option<u64>,
    /// The planned peak: the arena and everything outside it.
    pub total_bytes: u64,
    /// The arena.
    pub arena_bytes: u64,
    /// What the arena holds at its peak.
    pub arena: Vec<Entry>,
    /// What lies outside it.
    pub outside: Vec<Entry>,
    /// Bytes of the data pipeline among them.
    pub pipeline_bytes: u64,
}

impl SpaceView {
    /// Every byte outside the arena.
    pub fn outside_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.arena_bytes)
    }
}

/// One plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanView {
    /// The batch type, like `train × 64`.
    pub name: String,
    /// The same in words.
    pub title: String,
    /// The memory space of its arena: an index into [`View::spaces`].
    pub space: u32,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Its part of the arena.
    pub peak_bytes: u64,
    /// Bytes of that which no tensor holds when most are held: what placement loses.
    pub gap_bytes: u64,
    /// The step at which most is held.
    pub peak_step: u32,
    /// Predicted time of a step.
    pub nanoseconds: u64,
    /// Names of layers.
    pub layers: Vec<String>,
    /// What tensors are and steps do, in words.
    pub words: Vec<String>,
    /// The steps.
    pub steps: Steps,
    /// The tensors.
    pub tensors: Tensors,
    /// The transfers.
    pub transfers: Transfers,
    /// The shortest time of each step, measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_ns: Vec<Option<u64>>,
}

/// Steps, as columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// The layer: an index into [`PlanView::layers`].
    pub layer: Vec<u32>,
    /// What it does: an index into [`PlanView::words`].
    pub what: Vec<u32>,
    /// Whether it is a rematerialized run (1) or not (0).
    pub again: Vec<u8>,
    /// Its predicted start.
    pub start_ns: Vec<u64>,
    /// Its predicted end.
    pub end_ns: Vec<u64>,
}

/// Tensors, as columns. One that is overwritten in place by another ends where that begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tensors {
    /// The kind, by number.
    pub kind: Vec<u8>,
    /// The layer: an index into [`PlanView::layers`].
    pub layer: Vec<u32>,
    /// What it is: an index into [`PlanView::words`].
    pub what: Vec<u32>,
    /// Where it starts in the arena.
    pub offset: Vec<u64>,
    /// Its length.
    pub bytes: Vec<u64>,
    /// What it takes in the arena: its length, rounded up to the alignment.
    pub footprint: Vec<u64>,
    /// The first step of its lifetime.
    pub first: Vec<u32>,
    /// The last, inclusive.
    pub last: Vec<u32>,
}

impl Tensors {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }
}

/// Transfers, as columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfers {
    /// The step that starts it.
    pub step: Vec<u32>,
    /// The queue: 0 loads from host memory, 1 stores to it, 2 loads from and stores to the file.
    pub queue: Vec<u8>,
    /// Whether it is a store (1) or a load (0).
    pub store: Vec<u8>,
    /// Its bytes.
    pub bytes: Vec<u64>,
}

/// A point of the curve of line against time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The line.
    pub line_bytes: u64,
    /// The planned peak under it.
    pub planned_bytes: u64,
    /// Predicted time of a step.
    pub nanoseconds: u64,
}

/// A change of flags, and what it would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The change.
    pub change: String,
    /// The flags to give.
    pub flags: String,
    /// The planned peak.
    pub planned_bytes: u64,
    /// Predicted time of a step.
    pub nanoseconds: u64,
    /// Whether it is under the line.
    pub fits: bool,
}

/// What was measured in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Steps of the whole run.
    pub steps: u64,
    /// The planned peak of host memory.
    pub planned_bytes: u64,
    /// Its line.
    pub line_bytes: Option<u64>,
    /// Steps, or groups of neighbouring steps in a long run.
    pub by_step: Vec<MeasuredStep>,
    /// Validations.
    pub validations: Vec<Validation>,
    /// Whether the page is shown while the run goes on.
    #[serde(default)]
    pub live: bool,
}

/// A step, or a group of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// The last step's number.
    pub step: u64,
    /// The mean loss; none if it was not finite.
    pub loss: Option<f64>,
    /// The mean time.
    pub seconds: f64,
    /// The largest resident set.
    pub resident_bytes: Option<u64>,
}

/// A validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Steps done.
    pub step: u64,
    /// The loss of the evaluated part.
    pub loss: Option<f64>,
    /// Its accuracy.
    pub accuracy: Option<f64>,
}

/// Why a text is not a view.
#[derive(Debug)]
pub struct ViewError(String);

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the description of a plan: {}", self.0)
    }
}

impl std::error::Error for ViewError {}

impl View {
    /// Reads a view from JSON, and checks it: columns of equal length, names and steps that exist.
    pub fn read(text: &str) -> Result<Self, ViewError> {
        let wrong = |reason: &str| ViewError(reason.to_string());
        if text.len() > MAX_BYTES {
            return Err(wrong("it is too long"));
        }
        let view: Self = serde_json::from_str(text).map_err(|e| ViewError(e.to_string()))?;
        if view.version != VERSION {
            return Err(ViewError(format!("it has version {}, this program reads {VERSION}", view.version)));
        }
        let is_whole =
            |plan: &PlanView| (plan.space as usize) < view.spaces.len() && plan.is_whole(view.kinds.len());
        match view.plans.iter().all(is_whole) && !view.spaces.is_empty() {
            true => Ok(view),
            false => Err(wrong("its tables do not fit together")),
        }
    }

    /// Adds what a device or process of this name has: its spaces, its plans, and what it keeps in its spill file.
    pub fn add_device(&mut self, name: &str, device: Self) {
        let before = self.spaces.len() as u32;
        let alone = device.spaces.len() == 1;
        self.spaces.extend(device.spaces.into_iter().map(|space| SpaceView {
            name: if alone { name.to_string() } else { format!("{name}, {}", space.name) },
            ..space
        }));
        self.plans.extend(device.plans.into_iter().map(|plan| PlanView {
            name: format!("{name}: {}", plan.name),
            title: format!("{name}: {}", plan.title),
            space: before + plan.space,
            ..plan
        }));
        let file = device.file.into_iter();
        self.file.extend(file.map(|entry| Entry { name: format!("{name}: {}", entry.name), ..entry }));
    }
}

impl PlanView {
    /// Whether all columns are of equal length, and what they name exists.
    fn is_whole(&self, kinds: usize) -> bool {
        let Self { steps, tensors, transfers, .. } = self;
        let (count, all) = (steps.layer.len(), tensors.len());
        let columns = [steps.what.len(), steps.again.len(), steps.start_ns.len(), steps.end_ns.len()];
        let of_tensors = [
            tensors.layer.len(),
            tensors.what.len(),
            tensors.offset.len(),
            tensors.bytes.len(),
            tensors.footprint.len(),
            tensors.first.len(),
            tensors.last.len(),
        ];
        let moved = transfers.step.len();
        let of_transfers = [transfers.queue.len(), transfers.store.len(), transfers.bytes.len()];
        let within = |column: &[u32], limit: usize| column.iter().all(|&i| (i as usize) < limit);
        let ordered = tensors.first.iter().zip(&tensors.last).all(|(first, last)| first <= last);
        columns.iter().all(|length| *length == count)
            && of_tensors.iter().all(|length| *length == all)
            && of_transfers.iter().all(|length| *length == moved)
            && within(&steps.layer, self.layers.len())
            && within(&steps.what, self.words.len())
            && within(&tensors.layer, self.layers.len())
            && within(&tensors.what, self.words.len())
            && within(&tensors.last, count)
            && within(&transfers.step, count)
            && tensors.kind.iter().all(|&kind| usize::from(kind) < kinds)
            && transfers.queue.iter().all(|&queue| queue < 3)
            && (self.peak_step as usize) < count.max(1)
            && ordered
            && [0, count].contains(&self.measured_ns.len())
    }

    /// What the tensors take in the arena at each step.
    pub fn held_bytes(&self) -> Vec<u64> {
        let mut held = vec![0_u64; self.steps.layer.len() + 1];
        for (i, footprint) in self.tensors.footprint.iter().enumerate() {
            let (first, last) = (self.tensors.first[i] as usize, self.tensors.last[i] as usize);
            held[first] = held[first].wrapping_add(*footprint);
            held[last + 1] = held[last + 1].wrapping_sub(*footprint);
        }
        held.pop();
        let mut sum = 0_u64;
        for bytes in &mut held {
            sum = sum.wrapping_add(*bytes);
            *bytes = sum;
        }
        held
    }
}
