//! What a plan may use of the machine: the lines of its memory spaces, and the tiers that hold what does not fit.

use crate::tier::Tiers;
use crate::{Entry, Tier};

/// What plans may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line of the computing space: a limit for arena and everything outside it together.
    pub line_bytes: usize,
    /// What lies outside the arena in the computing space: code, stacks, heap, the data pipeline.
    pub outside: Vec<Entry>,
    /// Whether tasks may run twice to stay under the line.
    pub rematerialize: bool,
    /// Host memory, where the computing space is a device's.
    pub host: HostBudget,
    /// The tiers behind the computing space.
    pub tiers: Tiers,
    /// Whether states and values may be offloaded to the tiers.
    pub offload: bool,
    /// Plans with offload that take longer than this are not searched for, because a better one is known.
    pub time_limit_ns: u64,
}

/// What plans may use of host memory, where kernels compute in the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBudget {
    /// The line of host memory: a limit for what is offloaded there and everything else together.
    pub line_bytes: usize,
    /// Everything else.
    pub outside: Vec<Entry>,
}

impl Budget {
    /// A budget without rematerialization and offload.
    pub fn new(line_bytes: usize, outside: Vec<Entry>) -> Self {
        Self {
            line_bytes,
            outside,
            rematerialize: false,
            host: HostBudget { line_bytes: usize::MAX, outside: Vec::new() },
            tiers: Tiers::default(),
            offload: false,
            time_limit_ns: u64::MAX,
        }
    }

    /// With these tiers to offload to.
    pub fn offload_to(self, tiers: Tiers) -> Self {
        Self { tiers, offload: true, ..self }
    }

    /// What is left for the arena.
    pub fn arena_bytes(&self) -> usize {
        left(self.line_bytes, &self.outside)
    }

    /// What is left in a tier for states and values.
    pub(crate) fn tier_capacity(&self, tier: Tier) -> u64 {
        let Some(spec) = self.tiers[tier].filter(|_| self.offload) else { return 0 };
        let left = left(self.host.line_bytes, &self.host.outside);
        match (tier, self.tiers.host) {
            (Tier::File, None) => spec.capacity_bytes,
            // Transfers between a device and the file need host memory.
            (Tier::File, Some(_)) if left < spec.staging_bytes => 0,
            (Tier::File, Some(_)) => spec.capacity_bytes,
            (Tier::Host, _) => {
                let file = self.tiers.file.map_or(0, |file| file.staging_bytes);
                // Without room for the file's staging there is no file.
                let file = if left < file { 0 } else { file };
                spec.capacity_bytes.min(left.saturating_sub(spec.staging_bytes + file) as u64)
            }
        }
    }

    /// Staging in the computing space for plans that offload.
    pub(crate) fn staging_bytes(&self) -> usize {
        match self.tiers {
            Tiers { host: None, file: Some(file) } => file.staging_bytes,
            _ => 0,
        }
    }
}

fn left(line_bytes: usize, outside: &[Entry]) -> usize {
    outside.iter().fold(line_bytes, |left, entry| left.saturating_sub(entry.bytes))
}
