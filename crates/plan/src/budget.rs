//! What a plan may use of the machine: the line, and the disk that holds what does not fit.

use crate::Entry;

/// What the plans may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line: arena and everything outside it together stay under it.
    pub line_bytes: usize,
    /// What lies outside the arena: code, stacks, heap, the data pipeline.
    pub outside: Vec<Entry>,
    /// Whether steps may run again to stay under the line.
    pub rematerialize: bool,
    /// Where states may lie that do not fit.
    pub offload: Option<Disk>,
    /// Plans that spill and take longer than this are not looked for: a better one is known.
    pub time_limit_ns: u64,
}

/// The disk that states may be spilled to, in whole numbers so that plans stay pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Time to read a MiB.
    pub read_ns_per_mib: u64,
    /// Time to write a MiB.
    pub write_ns_per_mib: u64,
    /// Time until a request is done, beside that of its bytes; others go on meanwhile.
    pub latency_ns: u64,
    /// More of that for a request of a MiB or more, and in proportion for less: by itself it does not get all of the speed.
    pub single_request_ns: u64,
    /// Time of the processor that a request takes for every MiB that it has begun: computing does without.
    pub request_cpu_ns: u64,
    /// Memory outside the arena that moving bytes needs.
    pub staging_bytes: usize,
}

impl Disk {
    /// Nanoseconds until a request for so many bytes is done, beside that of the bytes.
    pub(crate) fn latency(&self, bytes: usize) -> u64 {
        let first = bytes.min(1 << 20) as u128;
        self.latency_ns.saturating_add(((first * u128::from(self.single_request_ns)) >> 20) as u64)
    }

    /// Nanoseconds of computing that a request for so many bytes takes.
    pub(crate) fn request_cpu(&self, bytes: usize) -> u64 {
        self.request_cpu_ns.saturating_mul(bytes.div_ceil(1 << 20) as u64)
    }

    /// Nanoseconds to read so many bytes.
    pub(crate) fn read_ns(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.read_ns_per_mib)) >> 20) as u64
    }

    /// Nanoseconds to write so many bytes.
    pub(crate) fn write_ns(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.write_ns_per_mib)) >> 20) as u64
    }
}

impl Budget {
    /// A budget without recomputation and spilling.
    pub fn new(line_bytes: usize, outside: Vec<Entry>) -> Self {
        Self { line_bytes, outside, rematerialize: false, offload: None, time_limit_ns: u64::MAX }
    }

    /// What is left for the arena.
    pub fn arena_bytes(&self) -> usize {
        self.outside.iter().fold(self.line_bytes, |left, entry| left.saturating_sub(entry.bytes))
    }
}
